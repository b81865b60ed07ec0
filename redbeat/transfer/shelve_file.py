"""Reads entries from ``celerybeat-schedule``, the file of Celery's own scheduler.

The file contains pickles, and loading a pickle can run any code. So nothing is made while it's
loaded: each object becomes a :class:`Recorded`, which knows what the pickle would have called.
Afterwards, :func:`made` makes those whose classes are in :data:`KNOWN`.
"""

from __future__ import annotations

import datetime as dt
import dbm
import io
import pickle
import pickletools
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from celery.beat import BeatLazyFunc
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab
from celery.schedules import schedule as interval
from celery.utils.time import LocalTimezone

from redbeat import InvalidEntryError, Schedule
from redbeat.calendar.sun import make_solar
from redbeat.entries.history import encode_meta

from . import incoming

#: The suffixes that database libraries add to the file's name, if any.
SUFFIXES: Final = ("", ".db", ".dat", ".dir", ".bak")

MINUTES: Final = 60


class Recorded:
    """An object of a pickle that wasn't made: the path of its class or function, and arguments.

    Each class and function that the pickle names becomes a new subclass, so a pickle that changes
    attributes of a class changes nothing that lasts.
    """

    path = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **_kwargs: Any) -> Any:
        """For ``getattr``, return the class or function that it would return."""
        if cls.path == "builtins.getattr" and len(args) == 2:
            return class_of(str(getattr(args[0], "path", args[0])), str(args[1]))
        new = super().__new__(cls)
        new.args, new.state = args, None
        return new

    def __call__(self, *_args: Any, **_kwargs: Any) -> Recorded:
        """Stand for what a function such as a ``partial`` would return."""
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Accept any item."""

    def append(self, item: Any) -> None:
        """Accept any item."""

    def extend(self, items: Any) -> None:
        """Accept any items."""


def class_of(module: str, name: str) -> type[Recorded]:
    names = {"__module__": module, "__qualname__": name, "path": f"{module}.{name}"}
    return type("Recorded", (Recorded,), names)


def _zone(key: Any, _from_cache: Any = True) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(str(key))


def _pytz_zone(key: Any, offset: Any = None, *_names: Any) -> dt.tzinfo:
    """Return the zone of a time in pytz, which has that time's UTC offset, in seconds."""
    return _zone(key) if offset is None else dt.timezone(dt.timedelta(seconds=offset))


def _range(*limits: Any) -> range:
    numbers = range(*limits)
    if len(numbers) > MINUTES:
        raise ValueError(f"a range of {len(numbers)} numbers is too long for a crontab")
    return numbers


#: The classes and functions that a pickle may use.
KNOWN: Final[Mapping[str, Callable[..., Any]]] = {
    "celery.schedules.crontab": crontab,
    "celery.schedules.schedule": interval,
    "celery.schedules.solar": make_solar,
    "celery.utils.time.LocalTimezone": LocalTimezone,
    "datetime.date": dt.date,
    "datetime.datetime": dt.datetime,
    "datetime.time": dt.time,
    "datetime.timedelta": dt.timedelta,
    "datetime.timezone": dt.timezone,
    "zoneinfo.ZoneInfo": zoneinfo.ZoneInfo,
    "zoneinfo.ZoneInfo._unpickle": _zone,
    "zoneinfo._zoneinfo.ZoneInfo._unpickle": _zone,
    "pytz._UTC": lambda: dt.timezone.utc,
    "pytz._p": _pytz_zone,
    "pytz.FixedOffset": lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)),
    "builtins.range": _range,
    "builtins.set": set,
    "builtins.frozenset": frozenset,
}

ENTRY: Final = "celery.beat.ScheduleEntry"
LAZY: Final = "celery.beat.BeatLazyFunc"

#: The arguments of a pickled ``ScheduleEntry``, in order.
FIELDS: Final = (
    *("name", "task", "last_run_at", "total_run_count", "schedule", "args", "kwargs", "options"),
)


def made(value: Any, field: str) -> Any:
    """Return a value with all recorded objects made; raise :exc:`InvalidEntryError`."""
    if isinstance(value, type) and issubclass(value, Recorded):
        if value.path in KNOWN:
            raise InvalidEntryError(field, f"must be a value, not the class {value.__qualname__}")
        value = value()
    if isinstance(value, Recorded):
        return _object(value, field)
    if isinstance(value, Mapping):
        return {key: made(item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)([made(item, f"{field}.{i}") for i, item in enumerate(value)])
    return value


def _object(recorded: Recorded, field: str) -> Any:
    path, problem = recorded.path, "is not loaded for safety"
    if path == LAZY:
        # A beat calls only the function that ``beat_schedule`` contains.
        lazy = BeatLazyFunc(None)
        vars(lazy).update(recorded.state)
        return lazy
    if path in KNOWN:
        try:
            return KNOWN[path](*[made(one, field) for one in recorded.args])
        except InvalidEntryError:
            raise
        except (ValueError, ImproperlyConfigured) as error:
            problem = f"cannot be made: {error}"
        except Exception:
            problem = "cannot be made"
    raise InvalidEntryError(field, f"contains {path}, which {problem}; add this entry yourself")


class SafeUnpickler(pickle.Unpickler):
    """An unpickler that makes objects of Python's own types only."""

    def find_class(self, module: str, name: str) -> Any:
        return class_of(module, name)

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"the pickle refers to {pid!r}, which is outside of the file")


def load_safely(pickled: bytes) -> Any:
    """Return the pickled object, with a :class:`Recorded` for each object of a class."""
    try:
        _check_memo(pickled)
        return SafeUnpickler(io.BytesIO(pickled)).load()
    except Exception as error:  # an invalid pickle may raise any error
        raise incoming.UnreadableSourceError(f"the entries cannot be loaded: {error}") from error


def _check_memo(pickled: bytes) -> None:
    """Refuse a memo index that is larger than the pickle's length in bytes.

    Python allocates memory for all indexes up to the largest: more than 32 GiB for 2 ** 32 - 1.
    """
    for opcode, number, _ in pickletools.genops(pickled):
        if opcode.name in {"PUT", "BINPUT", "LONG_BINPUT"} and int(number or 0) > len(pickled):
            raise pickle.UnpicklingError(
                f"the pickle gives an object the number {number}, which is too large"
            )


def read_shelve(schedule: Schedule, path: str) -> Iterator[incoming.Incoming]:
    """Yield the entries of a ``celerybeat-schedule`` file with their run histories.

    All of them are static, because Celery's scheduler has only those of ``beat_schedule``. Raises
    :exc:`UnreadableSourceError`.
    """
    entries = load_safely(_pickled_entries(path))
    if not isinstance(entries, dict):
        raise incoming.UnreadableSourceError(
            "is not a file of Celery's scheduler: the entries are not a dict"
        )
    for name, entry in entries.items():
        where = f"entry {name!r:.80}"
        yield incoming.read_safely(where, _convert, schedule, name, entry)


def _pickled_entries(path: str) -> bytes:
    file = _database(path)
    try:
        with dbm.open(file, "r") as database:
            return database[b"entries"]
    except KeyError as error:
        raise incoming.UnreadableSourceError(
            "is not a file of Celery's scheduler: the key 'entries' is missing"
        ) from error
    except Exception as error:  # a damaged file may raise any error
        problem = f"cannot be opened: {error}. Stop the beat that uses the file, or copy the file"
        raise incoming.UnreadableSourceError(problem) from error


def _database(path: str) -> str:
    """Return the name under which ``dbm`` opens the database that the file belongs to."""
    for suffix in SUFFIXES:
        if dbm.whichdb(path.removesuffix(suffix)):
            return path.removesuffix(suffix)
    if any(Path(path + suffix).exists() for suffix in SUFFIXES):
        raise incoming.UnreadableSourceError("is not a database that this Python can open")
    raise incoming.UnreadableSourceError("does not exist")


def _convert(where: str, schedule: Schedule, name: Any, source: Any) -> incoming.Incoming:
    if not (isinstance(source, Recorded) and source.path == ENTRY):
        kind = source.path if isinstance(source, Recorded) else type(source).__name__
        raise InvalidEntryError("entry", f"is a {kind}, not a ScheduleEntry of Celery")
    if not isinstance(name, str):
        raise InvalidEntryError("name", f"must be a string, not {name!r:.60}")
    if len(source.args) != len(FIELDS):
        raise InvalidEntryError("entry", f"must have {', '.join(FIELDS)}")
    fields = {field: made(value, field) for field, value in zip(FIELDS, source.args, strict=True)}
    if not isinstance(fields["task"], str):
        raise InvalidEntryError("task", "is missing, or is not a string")
    kept = ("task", "schedule", "args", "kwargs", "options")
    arguments = {field: fields[field] for field in kept}
    entry = schedule.entry_class(name, app=schedule.app, **arguments)
    last_run_at = fields["last_run_at"]
    if last_run_at is None:
        return incoming.Incoming(where, entry, static=True)
    if not isinstance(last_run_at, dt.datetime):
        raise InvalidEntryError("last_run_at", f"must be a datetime, not {last_run_at!r:.60}")
    incoming.check_kinds("", fields, {"total_run_count": (int, "an integer", False)})
    instant = incoming.instant_from("last_run_at", last_run_at, schedule.app.timezone)
    meta = encode_meta(instant, fields["total_run_count"] or 0)
    return incoming.Incoming(where, entry, static=True, meta=meta)
