"""Entries from the file of Celery's own scheduler, ``celerybeat-schedule``.

The file holds pickles, which can run any code when they are loaded. Only the classes that a
schedule consists of are loaded here; anything else becomes an :class:`Unknown` and runs nothing.
"""

from __future__ import annotations

import datetime as dt
import dbm
import io
import pickle
import zoneinfo
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab, schedule, solar

from redbeat.calendar.zones import as_utc
from redbeat.entries.history import encode_meta
from redbeat.errors import InvalidEntryError

from .importing import EntryType, Incoming, UnreadableSourceError, fail

__all__ = ("Unknown", "load_safely", "read_shelve")

#: What some kinds of databases append to the name of the file.
SUFFIXES: Final = (".db", ".dat", ".dir", ".bak")


class Unknown:
    """Stands for an object of a class that is not loaded."""

    path = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take any arguments."""

    def __setstate__(self, state: Any) -> None:
        """Take any state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take any item."""

    def append(self, item: Any) -> None:
        """Take any item."""

    def extend(self, items: Any) -> None:
        """Take any items."""


def _attribute(owner: Any, name: str) -> Any:
    """Stand in for ``getattr``, by which old pickles name the maker of a ``ZoneInfo``."""
    if owner is zoneinfo.ZoneInfo and name == "_unpickle":
        return _zone
    return _unknown(str(getattr(owner, "path", owner)), str(name))


def _zone(key: Any, _from_cache: Any = True) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(str(key))


#: All that is loaded, by module and name.
KNOWN: Final[Mapping[tuple[str, str], Any]] = {
    ("celery.beat", "BeatLazyFunc"): BeatLazyFunc,
    ("celery.beat", "ScheduleEntry"): ScheduleEntry,
    ("celery.schedules", "crontab"): crontab,
    ("celery.schedules", "schedule"): schedule,
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


def _unknown(module: str, name: str) -> type[Unknown]:
    """Return a class that goes by the name of another one."""
    names = {"__module__": module, "__qualname__": name, "path": f"{module}.{name}"}
    return type("Unknown", (Unknown,), names)


class SafeUnpickler(pickle.Unpickler):
    """Loads what is :data:`KNOWN` and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that is known, or one that stands for it."""
        return KNOWN.get((module, name)) or _unknown(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Refuse what is kept outside of the file."""
        raise pickle.UnpicklingError(f"it refers to {pid!r}, outside of the file")


def load_safely(pickled: bytes) -> Any:
    """Return what was pickled, with an :class:`Unknown` for what must not be loaded.

    Raises :exc:`UnreadableSourceError`.
    """
    try:
        return SafeUnpickler(io.BytesIO(pickled)).load()
    except Exception as error:  # pickle documents that it may be any
        raise UnreadableSourceError(f"its entries cannot be loaded: {error}") from error


def read_shelve(app: Any, make: EntryType, path: str) -> Iterator[Incoming]:
    """Yield the entries of the file with their run histories.

    They are static ones: Celery's scheduler keeps no others. Raises :exc:`UnreadableSourceError`.
    """
    entries = load_safely(_pickled_entries(path))
    if not isinstance(entries, dict):
        raise UnreadableSourceError("its entries are no dict: it is not a file of Celery's")
    for name, found in entries.items():
        where = f"entry {name!r}"
        try:
            yield _convert(app, make, where, str(name), found)
        except (InvalidEntryError, AttributeError, TypeError) as error:
            yield fail(where, error)


def _pickled_entries(path: str) -> bytes:
    file = _database(path)
    try:
        with dbm.open(file, "r") as database:
            return database[b"entries"]
    except KeyError as error:
        raise UnreadableSourceError("it has no 'entries': it is not a file of Celery's") from error
    except dbm.error as error:
        problem = f"cannot be opened: {error}. Stop the beat that uses it, or copy the file"
        raise UnreadableSourceError(problem) from error


def _database(path: str) -> str:
    """Return the name by which a database is opened: some kinds have several files."""
    for suffix in ("", *SUFFIXES):
        name = path.removesuffix(suffix) if suffix else path
        if dbm.whichdb(name):
            return name
    if any(Path(path + suffix).exists() for suffix in ("", *SUFFIXES)):
        raise UnreadableSourceError("is no database that this Python can open")
    raise UnreadableSourceError("does not exist")


def _convert(app: Any, make: EntryType, where: str, name: str, found: Any) -> Incoming:
    if not isinstance(found, ScheduleEntry):
        raise InvalidEntryError("entry", f"is a {_type_of(found)}, not one of Celery's entries")
    for field in ("task", "schedule", "args", "kwargs", "options", "last_run_at"):
        _refuse_unknown(field, getattr(found, field))
    _refuse_unknown("schedule.nowfun", getattr(found.schedule, "nowfun", None))
    entry = make(
        name,
        found.task,
        found.schedule,
        found.args,
        found.kwargs,
        options=found.options,
        app=app,
    )
    last_run_at = found.last_run_at
    if not isinstance(last_run_at, dt.datetime):
        return Incoming(where, entry, static=True)
    if last_run_at.tzinfo is None:
        last_run_at = last_run_at.replace(tzinfo=app.timezone)
    meta = encode_meta(as_utc(last_run_at), found.total_run_count or 0)
    return Incoming(where, entry, static=True, meta=meta)


def _type_of(value: Any) -> str:
    return value.path if isinstance(value, Unknown) else type(value).__name__


def _refuse_unknown(field: str, value: Any) -> None:
    """Raise :exc:`InvalidEntryError` for a value that holds what was not loaded.

    The function of a ``BeatLazyFunc`` is not needed: the one of ``beat_schedule`` is called.
    """
    if isinstance(value, type) and issubclass(value, Unknown):
        value = value()
    if isinstance(value, Unknown):
        problem = f"holds a {value.path}, which is not loaded: add this entry yourself"
        raise InvalidEntryError(field, problem)
    for key, item in _items(value):
        _refuse_unknown(f"{field}.{key}", item)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return iter(enumerate(value))
    return iter(())
