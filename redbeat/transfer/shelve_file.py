"""Reads entries from ``celerybeat-schedule``, the file of Celery's own scheduler.

The file contains pickles, and a pickle can run any code while Python loads the pickle. This module
loads only the classes in :data:`KNOWN`. An object of a class outside of :data:`KNOWN` becomes an
:class:`Unknown`, and no code of the class runs. A :class:`StandIn` replaces each class that a
pickle uses, because a pickle could set attributes of the class itself.
"""

from __future__ import annotations

import datetime as dt
import dbm
import io
import pickle
import pickletools
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab
from celery.schedules import schedule as interval
from celery.utils.time import LocalTimezone

from redbeat.calendar.sun import make_solar
from redbeat.entries.history import encode_meta
from redbeat.errors import InvalidEntryError

from . import incoming

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

#: No suffix, and the file name suffixes that some database libraries add.
SUFFIXES: Final = ("", ".db", ".dat", ".dir", ".bak")

#: The largest number of values of a field of a crontab.
MINUTES: Final = 60


class Unknown:
    """A placeholder for an object whose class this module does not load, or cannot construct."""

    path = ""
    problem = "is not loaded for safety; add this entry yourself"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept any arguments."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> Unknown:
        """Return this placeholder for what a function such as a ``partial`` would return."""
        return self

    def __setstate__(self, state: Any) -> None:
        """Accept any state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Accept any item."""

    def append(self, item: Any) -> None:
        """Accept any item."""

    def extend(self, items: Any) -> None:
        """Accept any items."""


class StandIn(type):
    """Replaces a class or function that a pickle may use, while the pickle is loaded.

    A call of a stand-in returns the result of ``original``, or an :class:`Unknown` if ``original``
    raises an error, so that one bad entry does not make the others unreadable. A pickle that tries
    to set an attribute of a stand-in raises an error.
    """

    original: Any
    known_as: tuple[str, str]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.made(cls.original, args, kwargs)

    def made(cls, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return ``make(*args, **kwargs)``; if it fails, an unknown argument or a placeholder."""
        try:
            return make(*args, **kwargs)
        except Exception as error:
            unknown = _unknown(*cls.known_as)()
            reason = f": {error}" if isinstance(error, (ValueError, ImproperlyConfigured)) else ""
            unknown.problem = f"cannot be made{reason}; add this entry yourself"
            return next((item for item in args if isinstance(item, Unknown)), unknown)

    def __setattr__(cls, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f"attribute {name!r:.60} of {cls.__name__} cannot be set")

    @classmethod
    def of(cls, path: tuple[str, str], original: Any) -> StandIn:
        """Return the stand-in for the class or function with this module and name."""

        def new(stand_in: StandIn, *args: Any, **kwargs: Any) -> Any:
            return stand_in.made(partial(original.__new__, original), args, kwargs)

        return cls(path[1], (), {"original": original, "known_as": path, "__new__": new})


def _attribute(owner: Any, name: str) -> Any:
    """Return ``ZoneInfo._unpickle``, which a pickle reads with ``getattr``.

    For any attribute except ``ZoneInfo._unpickle``, return a placeholder class.
    """
    if owner is KNOWN["zoneinfo", "ZoneInfo"] and name == "_unpickle":
        return KNOWN["zoneinfo", "ZoneInfo._unpickle"]
    return _unknown(str(getattr(owner, "path", owner)), str(name))


def _zone(key: Any, _from_cache: Any = True) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(str(key))


def _pytz_zone(key: Any, offset: Any = None, *_names: Any) -> dt.tzinfo:
    """Return the zone of a time in pytz, which has the UTC offset of this time, in seconds."""
    return _zone(key) if offset is None else dt.timezone(dt.timedelta(seconds=offset))


def _range(*limits: Any) -> range:
    numbers = range(*limits)
    if len(numbers) > MINUTES:
        raise ValueError(f"a range of {len(numbers)} numbers is too long for a crontab")
    return numbers


#: The classes and functions that a pickle may use, by module and name.
ORIGINALS: Final[Mapping[tuple[str, str], Any]] = {
    ("celery.beat", "BeatLazyFunc"): BeatLazyFunc,
    ("celery.beat", "ScheduleEntry"): ScheduleEntry,
    ("celery.schedules", "crontab"): crontab,
    ("celery.schedules", "schedule"): interval,
    ("celery.schedules", "solar"): make_solar,
    ("celery.utils.time", "LocalTimezone"): LocalTimezone,
    ("datetime", "date"): dt.date,
    ("datetime", "datetime"): dt.datetime,
    ("datetime", "time"): dt.time,
    ("datetime", "timedelta"): dt.timedelta,
    ("datetime", "timezone"): dt.timezone,
    ("zoneinfo", "ZoneInfo"): zoneinfo.ZoneInfo,
    ("zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("zoneinfo._zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("builtins", "getattr"): _attribute,
    ("pytz", "_UTC"): lambda: dt.timezone.utc,
    ("pytz", "_p"): _pytz_zone,
    ("pytz", "FixedOffset"): lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)),
    ("builtins", "range"): _range,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}

#: The stand-ins for :data:`ORIGINALS`, by module and name.
KNOWN: Final[Mapping[tuple[str, str], StandIn]] = {
    path: StandIn.of(path, original) for path, original in ORIGINALS.items()
}


def _unknown(module: str, name: str) -> type[Unknown]:
    """Return a placeholder class for the class ``name`` of the module ``module``."""
    names = {"__module__": module, "__qualname__": name, "path": f"{module}.{name}"}
    return type("Unknown", (Unknown,), names)


class SafeUnpickler(pickle.Unpickler):
    """An unpickler that loads only the classes in :data:`KNOWN`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a known class, or a placeholder for an unknown class."""
        return KNOWN.get((module, name)) or _unknown(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Raise an error for a reference to an object outside of the file."""
        raise pickle.UnpicklingError(f"the pickle refers to {pid!r}, which is outside of the file")


def load_safely(pickled: bytes) -> Any:
    """Return the pickled object, with an :class:`Unknown` for each object of an unknown class.

    Raises :exc:`UnreadableSourceError` if the pickle is invalid.
    """
    try:
        _check_memo(pickled)
        return SafeUnpickler(io.BytesIO(pickled)).load()
    except Exception as error:  # an invalid pickle may raise any error
        raise incoming.UnreadableSourceError(f"the entries cannot be loaded: {error}") from error


def _check_memo(pickled: bytes) -> None:
    """Raise an error if a memo index in the pickle is larger than the pickle's length in bytes.

    Python allocates memory for all memo indexes up to the largest index. For the index 2 ** 32 - 1,
    Python allocates more than 32 GiB.
    """
    for opcode, number, _ in pickletools.genops(pickled):
        if opcode.name in {"PUT", "BINPUT", "LONG_BINPUT"} and int(number or 0) > len(pickled):
            raise pickle.UnpicklingError(
                f"the pickle gives an object the number {number}, which is too large"
            )


def read_shelve(schedule: Schedule, path: str) -> Iterator[incoming.Incoming]:
    """Yield the entries of a ``celerybeat-schedule`` file with their run histories.

    All entries are static, because Celery's scheduler has only the entries of ``beat_schedule``.
    Raises :exc:`UnreadableSourceError` if the file cannot be read.
    """
    entries = load_safely(_pickled_entries(path))
    if not isinstance(entries, dict):
        raise incoming.UnreadableSourceError(
            "is not a file of Celery's scheduler: the entries are not a dict"
        )
    for name, entry in entries.items():
        where = f"entry {name!r:.80}"
        yield incoming.read_safely(where, partial(_convert, schedule, where, name, entry))


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
    """Return the name under which ``dbm`` opens the database to which the file ``path`` belongs."""
    for suffix in SUFFIXES:
        if dbm.whichdb(path.removesuffix(suffix)):
            return path.removesuffix(suffix)
    if any(Path(path + suffix).exists() for suffix in SUFFIXES):
        raise incoming.UnreadableSourceError("is not a database that this Python can open")
    raise incoming.UnreadableSourceError("does not exist")


def _convert(schedule: Schedule, where: str, name: Any, source: Any) -> incoming.Incoming:
    if not isinstance(source, ScheduleEntry):
        raise InvalidEntryError("entry", f"is a {_type_of(source)}, not a ScheduleEntry of Celery")
    if not isinstance(name, str):
        raise InvalidEntryError("name", f"must be a string, not {name!r:.60}")
    for field in ("task", "schedule", "args", "kwargs", "options", "last_run_at"):
        _refuse_unknown(field, getattr(source, field, None))
    if not isinstance(getattr(source, "task", None), str):
        raise InvalidEntryError("task", "is missing, or is not a string")
    _refuse_unknown("schedule.nowfun", getattr(source.schedule, "nowfun", None))
    if isinstance(source.schedule, crontab):
        source.schedule.__setstate__({"app": schedule.app})  # the file has a placeholder
    entry = schedule.entry_class(
        name,
        source.task,
        source.schedule,
        source.args,
        source.kwargs,
        options=source.options,
        app=schedule.app,
    )
    last_run_at = source.last_run_at
    if last_run_at is None:
        return incoming.Incoming(where, entry, static=True)
    if not isinstance(last_run_at, dt.datetime):
        raise InvalidEntryError("last_run_at", f"must be a datetime, not {last_run_at!r:.60}")
    incoming.check_kinds("", vars(source), {"total_run_count": (int, "an integer", False)})
    instant = incoming.instant_from("last_run_at", last_run_at, schedule.app.timezone)
    meta = encode_meta(instant, source.total_run_count or 0)
    return incoming.Incoming(where, entry, static=True, meta=meta)


def _type_of(value: Any) -> str:
    return str(value.path) if isinstance(value, Unknown) else type(value).__name__


def _refuse_unknown(field: str, value: Any) -> None:
    """Raise :exc:`InvalidEntryError` if a value contains an :class:`Unknown`.

    The function of a ``BeatLazyFunc`` in the file may be unknown, because a beat calls only the
    function that ``beat_schedule`` contains.
    """
    if isinstance(value, StandIn):
        raise InvalidEntryError(field, f"must be a value, not the class {value.__name__}")
    if isinstance(value, type) and issubclass(value, Unknown):
        value = value()
    if isinstance(value, Unknown):
        raise InvalidEntryError(field, f"contains {value.path}, which {value.problem}")
    for key, item in _items(value):
        _refuse_unknown(f"{field}.{key}", item)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return iter(enumerate(value))
    return iter(())
