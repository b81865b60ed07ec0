"""The errors that RedBeat raises. Each docstring says when."""

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
    """A setting has an invalid value. Raised when the configuration is read.

    The message names the setting, its value (never a password) and the valid values.
    """


class RedBeatKeyExpiryError(RedBeatError):
    """Redis may evict keys of the schedule, and ``redbeat_key_expiry_check`` is ``raise``."""


class InvalidEntryError(RedBeatError, ValueError, TypeError):
    """An entry has an invalid value. Raised by ``save()``, which then writes nothing.

    ``field`` is the path of the invalid value, such as ``kwargs.when`` or ``schedule.every``.
    ``problem`` says what is wrong with the value.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class DecodeError(RedBeatError, ValueError):
    """A stored entry has an invalid value. Raised when the entry is loaded.

    ``field`` is the path of the invalid value, such as ``definition.schedule`` or ``meta``.
    ``problem`` says what is wrong with the value.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class CannotRunHereError(RedBeatError):
    """This process cannot run an entry, but a process with other code or settings may.

    A beat leaves the entry to other beats. An entry that no beat can run is quarantined instead.
    """


class UnknownTypeError(DecodeError, CannotRunHereError):
    """A stored entry does not fit the classes of this process. Raised when the entry is loaded.

    There are three causes: the schedule type is not registered, the registered ``load()`` failed,
    or the entry class does not accept the stored arguments.
    """


class NotAllowedError(InvalidEntryError, CannotRunHereError):
    """An entry names a task that the ``redbeat_task_allowlist`` of this process does not allow."""


def described(error: BaseException) -> str:
    """Return the class and the message of ``error``, for logs.

    ``repr(error)`` is no alternative: redis-py 8 leaves the message out of it.
    """
    return f"{type(error).__name__}: {error}"


class ConflictError(RedBeatError):
    """The stored entry was changed or deleted after your program loaded it.

    Raised by ``save(if_unchanged=True)``, which then writes nothing. Load the entry again.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} was changed by somebody else after it was loaded; load the entry again"
        )
        self.name = name
