"""The errors that RedBeat raises."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from celery.beat import SchedulingError
from celery.exceptions import ImproperlyConfigured
from click import ClickException

from .printing import encodable, shortened


class RedBeatError(Exception):
    """The base class of RedBeat's errors."""


#: As in ``sysexits.h``.
EX_CONFIG = 78


class ConfigurationError(RedBeatError, ImproperlyConfigured, ClickException):
    """A setting has an invalid value, so RedBeat cannot read its configuration.

    The message contains the setting, its value (unless that may be secret) and valid values.
    ``celery beat`` prints it as one line, without a traceback, because this class is also an error
    of click, the library of Celery's command line.
    """

    exit_code = EX_CONFIG


class RedBeatKeyExpiryError(RedBeatError):
    """Redis may evict keys of the schedule, and ``redbeat_key_expiry_check`` is ``"raise"``."""


#: Characters of ``field`` and of ``problem`` in an error message.
LONGEST_MESSAGE = 500


class FieldError(RedBeatError):
    """The base class of :exc:`InvalidEntryError` and :exc:`DecodeError`."""

    #: A digest of the calendars that a beat read before the error, and their names.
    calendars = ""

    def __init__(self, field: str, problem: str) -> None:
        self.field = shortened(field, LONGEST_MESSAGE)
        self.problem = shortened(problem, LONGEST_MESSAGE)
        super().__init__(f"{self.field}: {self.problem}")


class InvalidEntryError(FieldError, ValueError, TypeError):
    """An entry has an invalid value. ``save()`` raises this error and writes nothing.

    ``field`` is the path of the value, such as ``kwargs.when`` or ``schedule.every``, and
    ``problem`` says what is wrong with it.
    """


class TooManyStepsError(InvalidEntryError):
    """A next run, or the days of a calendar, take too long to compute.

    Steps are counted instead of time, so it doesn't matter how fast or busy a host is. A beat
    quarantines the entry.
    """

    def __init__(self, field: str, what: str, fix: str, limit: int) -> None:
        super().__init__(field, f"computing {what} takes more than {limit:,} steps; {fix}")


class DecodeError(FieldError, ValueError):
    """A stored entry has an invalid value, so the entry cannot be loaded.

    ``field`` is the path of the value, such as ``definition.schedule`` or ``meta``, and ``problem``
    says what is wrong with it.
    """


class NoQueueError(RedBeatError):
    """No queue is bound to the exchange and routing key of a message: nobody would get it."""


class CannotRunHereError(RedBeatError):
    """This process cannot run an entry, but another one, with other code or settings, may.

    If a beat raises this error for an entry, other beats try to run it. If none can, the entry
    stays due and is late.
    """


class UnknownTypeError(DecodeError, CannotRunHereError):
    """This process has no class that can load a stored entry.

    Perhaps its schedule type is not registered, the ``load()`` of the type raised an error, or the
    entry class does not accept the stored arguments.
    """


class NotAllowedError(InvalidEntryError, CannotRunHereError):
    """An entry names a task that the ``redbeat_task_allowlist`` of this process does not allow."""


def described(error: BaseException) -> str:
    """The class and message of an error: redis-py 8 leaves the message out of the ``repr``."""
    return f"{type(error).__name__}: {error}"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Suggest the most similar known name, or list them all."""
    names = sorted(known)
    nearest = get_close_matches(str(name)[:100], names, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"use one of {', '.join(names)}"


#: Characters of a stored or reported error.
LONGEST_REASON = 300


def reason_of(error: BaseException) -> str:
    """One line of at most 300 characters, in which UTF-8 can encode everything."""
    return shortened(" ".join(encodable(described(error)).split()), LONGEST_REASON)


class ConflictError(RedBeatError):
    """Somebody else changed or deleted the stored entry; nothing is written.

    ``save(if_unchanged=True)`` raises this error if that happened after your program loaded the
    entry; other changes raise it if it happened during each of 20 attempts. To save your change,
    load the entry again and repeat it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} was changed by somebody else after it was loaded; load the entry again"
        )
        self.name = name


def cause_of(error: BaseException) -> BaseException:
    """Unwrap the error that Celery put into a ``SchedulingError``."""
    while isinstance(error, SchedulingError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error
