"""What all readers of import sources share."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import IO, Any, Final, NamedTuple

import click

from redbeat import Calendar, DecodeError, InvalidEntryError, RedBeatSchedulerEntry
from redbeat.calendar import walltime, zones
from redbeat.errors import described, did_you_mean


class UnreadableSourceError(ValueError):
    """Raised if the whole source is unreadable; the message suggests what to do."""


def opened(path: str) -> IO[bytes]:
    """Open a file to read it; ``-`` is standard input. Raises :exc:`UnreadableSourceError`."""
    try:
        return click.open_file(path, "rb")
    except OSError as error:
        raise UnreadableSourceError(f"cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Incoming:
    """An entry or calendar of a source, or the reason why a line is unreadable.

    Attributes:
        where: the position in the source, such as ``line 3``.
        problem: the name of the invalid field and what is wrong.
        static: whether the entry belongs to ``beat_schedule``.
        meta: the JSON of the field ``meta`` (last run and run count), or "" to leave the stored
            history as it is.
        runtime: the JSON of the field ``runtime``; used only with ``meta``.
        history: the lines of the last runs.
        identity: the identity of an exported entry, from which its task ids are computed.
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


def read_safely(where: str, read: Callable[..., Incoming], *args: Any) -> Incoming:
    """Return the result of ``read(where, *args)``, or its error as that of an unreadable line.

    An error in one entry must not end the whole import, and values that a reader doesn't check can
    make Celery's classes raise errors of any type.
    """
    try:
        return read(where, *args)
    except Exception as error:
        return Incoming(where, problem=problem_of("cannot be read", error))


def problem_of(what: str, error: Exception) -> str:
    if isinstance(error, (InvalidEntryError, DecodeError)):
        return str(error)
    return f"entry: {what}: {described(error)}; correct or remove this entry"


class Problem(NamedTuple):
    where: str
    text: str


# -- checks of the values in a file ----------------------------------------------------------------

#: The accepted types of a field, a description of them, and whether the field is required.
Kind = tuple[Any, str, bool]

JSON_NAMES: Final[dict[type, str]] = {dict: "object", list: "array"}


def check_known(parent: str, fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise :exc:`InvalidEntryError` for a field that isn't in ``known``.

    ``parent`` is the path of the object with the fields, with a dot at the end, or "".
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

    A ``text`` that is neither a string nor bytes counts as already decoded.
    """
    try:
        value = json.loads(text) if isinstance(text, (str, bytes)) else text
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(field, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, kind):
        raise InvalidEntryError(field, f"must be a JSON {JSON_NAMES[kind]}, not {value!r:.60}")
    return value


def zone_from(field: str, name: Any) -> tzinfo:
    try:
        return zones.zone_named(name)
    except (ValueError, TypeError) as error:
        raise InvalidEntryError(field, str(error)) from error


def instant_from(field: str, value: Any, zone: tzinfo) -> datetime:
    """Return a time in UTC; without a UTC offset, it's a wall-clock time in ``zone``.

    ``value`` is a datetime, a date, which means its midnight, or ISO 8601 text. Raises
    :exc:`InvalidEntryError` for other values, and outside of the years 1 to 9999.
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
