"""The errors that RedBeat raises."""

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
    """The base class of all errors of this package."""


class ConfigurationError(RedBeatError, ImproperlyConfigured):
    """A setting has an invalid value. Raised when the configuration is read.

    The message contains the setting, its value (unless it may be secret) and the valid values.
    """


class RedBeatKeyExpiryError(RedBeatError):
    """Redis may evict keys of the schedule, and ``redbeat_key_expiry_check`` is ``raise``."""


class InvalidEntryError(RedBeatError, ValueError, TypeError):
    """An entry has an invalid value. Raised by ``save()``, which writes nothing in this case.

    ``field`` is the path of the invalid value, such as ``kwargs.when`` or ``schedule.every``.
    ``problem`` describes what is wrong with the value.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class DecodeError(RedBeatError, ValueError):
    """A stored entry has an invalid value. Raised when the entry is loaded.

    ``field`` is the path of the invalid value, such as ``definition.schedule`` or ``meta``.
    ``problem`` describes what is wrong with the value.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class CannotRunHereError(RedBeatError):
    """This process cannot run an entry, but a process with other code or settings may be able to.

    A beat first gives other beats the chance to run the entry. If no beat can run it, the entry is
    quarantined.
    """


class UnknownTypeError(DecodeError, CannotRunHereError):
    """This process has no class that can load a stored entry. Raised when the entry is loaded.

    There are three possible causes: the schedule type is not registered, the registered ``load()``
    failed, or the entry class does not accept the stored arguments.
    """


class NotAllowedError(InvalidEntryError, CannotRunHereError):
    """An entry names a task that is not in the ``redbeat_task_allowlist`` of this process."""


def described(error: BaseException) -> str:
    """Return the class name and the message of ``error``, for logs.

    In redis-py 8, ``repr(error)`` does not contain the message.
    """
    return f"{type(error).__name__}: {error}"


class ConflictError(RedBeatError):
    """The stored entry was changed or deleted after your program loaded it.

    Raised by ``save(if_unchanged=True)``, which writes nothing in this case. Load the entry again,
    then repeat your change.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} was changed by somebody else after it was loaded; load the entry again"
        )
        self.name = name
