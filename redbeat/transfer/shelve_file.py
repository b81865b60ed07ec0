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
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab, solar
from celery.schedules import schedule as interval

from redbeat.entries.history import encode_meta
from redbeat.errors import InvalidEntryError

from .incoming import (
    Incoming,
    UnreadableSourceError,
    check_kinds,
    instant_from,
    read_safely,
)

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

__all__ = ("read_shelve",)

#: File name suffixes that some database libraries add.
SUFFIXES: Final = (".db", ".dat", ".dir", ".bak")


class Unknown:
    """A placeholder for an object whose class this module does not load."""

    path = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept any arguments."""

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

    A call of a stand-in returns the result of ``original``. A pickle that tries to set an attribute
    of a stand-in raises an error.
    """

    original: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.original(*args, **kwargs)

    def __setattr__(cls, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f"attribute {name!r:.60} of {cls.__name__} cannot be set")

    @classmethod
    def of(cls, original: Any) -> StandIn:
        """Return the stand-in for a class or function."""

        def new(_cls: type, *args: Any, **kwargs: Any) -> Any:
            return original.__new__(original, *args, **kwargs)

        return cls(original.__name__, (), {"original": original, "__new__": new})


def _attribute(owner: Any, name: str) -> Any:
    """Return ``ZoneInfo._unpickle``, which a pickle reads with ``getattr``.

    For any attribute except ``ZoneInfo._unpickle``, return a placeholder class.
    """
    if owner is KNOWN["zoneinfo", "ZoneInfo"] and name == "_unpickle":
        return KNOWN["zoneinfo", "ZoneInfo._unpickle"]
    return _unknown(str(getattr(owner, "path", owner)), str(name))


def _zone(key: Any, _from_cache: Any = True) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(str(key))


#: The classes and functions that a pickle may use, by module and name.
ORIGINALS: Final[Mapping[tuple[str, str], Any]] = {
    ("celery.beat", "BeatLazyFunc"): BeatLazyFunc,
    ("celery.beat", "ScheduleEntry"): ScheduleEntry,
    ("celery.schedules", "crontab"): crontab,
    ("celery.schedules", "schedule"): interval,
    ("celery.schedules", "solar"): solar,
    ("datetime", "date"): dt.date,
    ("datetime", "datetime"): dt.datetime,
    ("datetime", "time"): dt.time,
    ("datetime", "timedelta"): dt.timedelta,
    ("datetime", "timezone"): dt.timezone,
    ("zoneinfo", "ZoneInfo"): zoneinfo.ZoneInfo,
    ("zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("zoneinfo._zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("builtins", "getattr"): _attribute,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}

#: The stand-ins for :data:`ORIGINALS`, by module and name.
KNOWN: Final[Mapping[tuple[str, str], StandIn]] = {
    path: StandIn.of(original) for path, original in ORIGINALS.items()
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
        raise UnreadableSourceError(f"the entries cannot be loaded: {error}") from error


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


def read_shelve(schedule: Schedule, path: str) -> Iterator[Incoming]:
    """Yield the entries of a ``celerybeat-schedule`` file with their run histories.

    All entries are static, because Celery's scheduler has only the entries of ``beat_schedule``.
    Raises :exc:`UnreadableSourceError` if the file cannot be read.
    """
    entries = load_safely(_pickled_entries(path))
    if not isinstance(entries, dict):
        raise UnreadableSourceError(
            "is not a file of Celery's scheduler: the entries are not a dict"
        )
    for name, entry in entries.items():
        where = f"entry {name!r:.80}"
        yield read_safely(where, partial(_convert, schedule, where, name, entry))


def _pickled_entries(path: str) -> bytes:
    file = _database(path)
    try:
        with dbm.open(file, "r") as database:
            return database[b"entries"]
    except KeyError as error:
        raise UnreadableSourceError(
            "is not a file of Celery's scheduler: the key 'entries' is missing"
        ) from error
    except dbm.error as error:
        problem = f"cannot be opened: {error}. Stop the beat that uses the file, or copy the file"
        raise UnreadableSourceError(problem) from error


def _database(path: str) -> str:
    """Return the name under which ``dbm`` opens the database to which the file ``path`` belongs."""
    for suffix in ("", *SUFFIXES):
        name = path.removesuffix(suffix) if suffix else path
        if dbm.whichdb(name):
            return name
    if any(Path(path + suffix).exists() for suffix in ("", *SUFFIXES)):
        raise UnreadableSourceError("is not a database that this Python can open")
    raise UnreadableSourceError("does not exist")


def _convert(schedule: Schedule, where: str, name: Any, source: Any) -> Incoming:
    if not isinstance(source, ScheduleEntry):
        raise InvalidEntryError("entry", f"is a {_type_of(source)}, not a ScheduleEntry of Celery")
    if not isinstance(name, str):
        raise InvalidEntryError("name", f"must be a string, not {name!r:.60}")
    for field in ("task", "schedule", "args", "kwargs", "options", "last_run_at"):
        _refuse_unknown(field, getattr(source, field, None))
    if not isinstance(getattr(source, "task", None), str):
        raise InvalidEntryError("task", "is missing, or is not a string")
    _refuse_unknown("schedule.nowfun", getattr(source.schedule, "nowfun", None))
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
        return Incoming(where, entry, static=True)
    if not isinstance(last_run_at, dt.datetime):
        raise InvalidEntryError("last_run_at", f"must be a datetime, not {last_run_at!r:.60}")
    count = {"total_run_count": source.total_run_count}
    check_kinds("", count, {"total_run_count": (int, "an integer", False)})
    instant = instant_from("last_run_at", last_run_at, schedule.app.timezone)
    meta = encode_meta(instant, source.total_run_count or 0)
    return Incoming(where, entry, static=True, meta=meta)


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
        problem = f"contains {value.path}, which is not loaded for safety; add this entry yourself"
        raise InvalidEntryError(field, problem)
    for key, item in _items(value):
        _refuse_unknown(f"{field}.{key}", item)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return iter(enumerate(value))
    return iter(())
