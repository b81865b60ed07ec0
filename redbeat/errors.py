"""Every error that RedBeat raises, each with the moment when it is raised."""

from __future__ import annotations

from celery.exceptions import ImproperlyConfigured

__all__ = (
    "CannotRunHereError",
    "ConfigurationError",
    "ConflictError",
    "DecodeError",
    "InvalidEntryError",
    "NotAllowedError",
    "RedBeatError",
    "RedBeatKeyExpiryError",
    "UnknownTypeError",
    "described",
)


class RedBeatError(Exception):
    """The base of all errors of this package."""


class ConfigurationError(RedBeatError, ImproperlyConfigured):
    """A ``redbeat_*`` setting is impossible; raised when the configuration is read.

    The message names the setting, its value (never a password) and the valid values.
    """


class RedBeatKeyExpiryError(RedBeatError):
    """Redis may evict keys of the schedule and ``redbeat_key_expiry_check`` is ``raise``."""


class InvalidEntryError(RedBeatError, ValueError, TypeError):
    """An entry cannot be stored as it was asked for; raised by ``save()``, nothing is written.

    ``field`` is the path of what is wrong, such as ``kwargs.when`` or ``schedule.every``.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class DecodeError(RedBeatError, ValueError):
    """What is stored for an entry cannot be understood; raised when the entry is loaded.

    ``field`` is the path of what is wrong, such as ``definition.schedule`` or ``meta``.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class CannotRunHereError(RedBeatError):
    """This process cannot run an entry, but a process with other code or settings may.

    A beat puts such an entry back for others; one that is wrong for everybody is quarantined.
    """


class UnknownTypeError(DecodeError, CannotRunHereError):
    """A stored entry needs a class that this process does not have; raised when it is loaded.

    That is a schedule type that is not registered, or whose ``load()`` failed, or an entry with
    arguments that the entry class refuses.
    """


class NotAllowedError(InvalidEntryError, CannotRunHereError):
    """The task of an entry matches no pattern of ``redbeat_task_allowlist`` of this process."""


def described(error: BaseException) -> str:
    """Return class and message of an error; the ``repr`` of redis-py 8 leaves the message out."""
    return f"{type(error).__name__}: {error}"


class ConflictError(RedBeatError):
    """Somebody else changed or deleted the entry since it was loaded.

    Raised by ``save(if_unchanged=True)``; nothing is written. Load it again.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} was changed by somebody else since; load it again")
        self.name = name
