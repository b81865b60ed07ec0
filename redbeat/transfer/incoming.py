"""The code that all readers of import sources share, such as the class :class:`Incoming`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any, Final, NamedTuple

from redbeat.calendar import walltime, zones
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError, described, did_you_mean
from redbeat.schedules.calendars import Calendar


class UnreadableSourceError(ValueError):
    """Raised if the whole source is unreadable; the message suggests what to do."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An entry or calendar from an import source, or the reason why a line is unreadable.

    Attributes:
        where: the position in the source, such as ``line 3``.
        entry: the entry, or None for a calendar or an unreadable line.
        problem: the name of the invalid field and what is wrong, or "" if there is no problem.
        static: whether the entry belongs to ``beat_schedule``.
        meta: the JSON of the field ``meta`` (last run and run count), or "" if the import does not
            change the history in Redis.
        runtime: the JSON of the field ``runtime``; used only if ``meta`` is not "".
        history: the lines of the last runs.
        identity: the identity of an exported entry, from which its task ids are computed.
        calendar: the calendar, or None for an entry or an unreadable line.
    """

    where: str
    entry: RedBeatSchedulerEntry | None = None
    problem: str = ""
    static: bool = False
    meta: str = ""
    runtime: str = ""
    history: Sequence[str] = ()
    identity: str = ""
    calendar: Calendar | None = None


def read_safely(where: str, read: Callable[[], Incoming]) -> Incoming:
    """Return the result of ``read()``, or an unreadable entry with the error of ``read()``.

    A reader names the invalid field if the reader checks its value. Invalid values that no reader
    checks can make Celery's classes raise errors of any type. An error in one entry must not end
    the whole import.
    """
    try:
        return read()
    except Exception as error:
        return Incoming(where, problem=problem_of("cannot be read", error))


def problem_of(what: str, error: Exception) -> str:
    """Return the text of an error that names a field, or of an unexpected error."""
    if isinstance(error, (InvalidEntryError, DecodeError)):
        return str(error)
    return f"entry: {what}: {described(error)}; correct or remove this entry"


class Problem(NamedTuple):
    """A problem with an entry, and the position of the entry in the source."""

    where: str
    text: str


# -- checks of the values in a file ----------------------------------------------------------------

#: The kind of a field: the accepted types of the value, a description of the types, and whether the
#: field is required.
Kind = tuple[Any, str, bool]

#: Maps a Python type to the name of the type in JSON.
JSON_NAMES: Final[dict[type, str]] = {dict: "object", list: "array"}


def check_known(parent: str, fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise :exc:`InvalidEntryError` for a field that is not in ``known``.

    ``parent`` is "" or the path of the object that contains the fields, with a dot at the end.
    """
    for field in fields:
        if field not in known:
            name = f"{field:.60}" if field.isidentifier() else f"{field!r:.60}"
            problem = f"is an unknown field; {did_you_mean(field, known)}"
            raise InvalidEntryError(f"{parent}{name}", problem)


def check_kinds(parent: str, fields: Any, kinds: Mapping[str, Kind]) -> None:
    """Raise :exc:`InvalidEntryError` for a field that is missing or has the wrong type."""
    if not isinstance(fields, Mapping):
        name = parent.rstrip(".") or "fields"
        raise InvalidEntryError(name, f"must be an object, not {fields!r:.60}")
    for name, (types, expected, required) in kinds.items():
        value = fields.get(name)
        if value is None and not required:
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            raise InvalidEntryError(f"{parent}{name}", f"must be {expected}, not {value!r:.60}")


def json_from(field: str, text: Any, kind: type) -> Any:
    """Return the dict or list in a JSON text; raise :exc:`InvalidEntryError` for other values.

    A ``text`` that is neither a string nor bytes counts as an already decoded value.
    """
    try:
        value = json.loads(text) if isinstance(text, (str, bytes)) else text
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(field, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, kind):
        raise InvalidEntryError(field, f"must be a JSON {JSON_NAMES[kind]}, not {value!r:.60}")
    return value


def zone_from(field: str, name: Any) -> tzinfo:
    """Return the time zone ``name``; raise :exc:`InvalidEntryError` for an unknown name."""
    try:
        return zones.zone_named(name)
    except (ValueError, TypeError) as error:
        raise InvalidEntryError(field, str(error)) from error


def instant_from(field: str, value: Any, zone: tzinfo) -> datetime:
    """Return a time in UTC; a time without a UTC offset is a wall-clock time in ``zone``.

    The value is a datetime, a date, which means its midnight, or a text in ISO 8601. Raises
    :exc:`InvalidEntryError` for other values, and for a time outside of the years 1 to 9999.
    """
    try:
        moment = zones.time_from(value)
    except ValueError as error:
        problem = f"must be a datetime or ISO 8601, not {value!r:.60}"
        raise InvalidEntryError(field, problem) from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    try:
        return walltime.instant_of(aware)
    except (ValueError, OverflowError) as error:
        problem = f"{aware.isoformat()} is not between the years 1 and 9999 in UTC; correct it"
        raise InvalidEntryError(field, problem) from error
