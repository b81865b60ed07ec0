"""Exports and imports a schedule as JSON lines: an object per calendar, then one per entry.

A calendar has the fields ``calendar`` (its name), ``days``, ``rules`` and ``zone``. Versions of
RedBeat without calendars refuse such a line, because they don't know the field ``calendar``.

An entry has the fields ``name``, ``definition`` and ``policy``. Only entries of ``beat_schedule``
have ``static``, which is true. An export with run history adds ``meta`` and ``runtime`` as in
Redis, ``history`` with the last runs and their task ids, and ``identity``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, NamedTuple

from redbeat import Calendar, DecodeError, InvalidEntryError, RedBeatSchedulerEntry, Schedule
from redbeat.codec.stored import moment_in, object_in, string_in, texts_in
from redbeat.decoder import MAX_TEXT
from redbeat.entries import changes, state
from redbeat.entries.calendars import calendar_of
from redbeat.entries.history import History, is_line, with_ids
from redbeat.entries.policy import FIELDS as POLICY_FIELDS
from redbeat.management.find import pages_of
from redbeat.printing import encodable
from redbeat.settings import MAX_HISTORY
from redbeat.storage.keys import Keys
from redbeat.storage.rows import Row
from redbeat.storage.store import store_of

from .incoming import Incoming, Kind, check_kinds, check_known, json_from, read_safely

CALENDAR: Final = ("calendar", "days", "rules", "zone")

FIELDS: Final = (
    *("name", "definition", "policy", "meta", "runtime", "history", "identity", "static"),
)

POLICY: Final = (*POLICY_FIELDS, "dtstart_zone", "until_zone", "pause")

#: In bytes.
MAX_LINE: Final = 8 * MAX_TEXT


#: In characters. RedBeat's own identities are much shorter.
MAX_IDENTITY: Final = 200

KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("definition", "policy", "meta", "runtime"), (dict, "an object", False)),
    **dict.fromkeys(("days", "rules"), (list, "a list", False)),
    **dict.fromkeys(("calendar", "zone", "identity"), (str, "a string", False)),
    "static": (bool, "true or false", False),
}


def pause_fields(pause: state.Pause) -> dict[str, Any]:
    fields: dict[str, Any] = {"note": pause.note or None, "since": pause.begin}
    return {**fields, "by": pause.by} if pause.by else fields


def _pause_in(fields: Any) -> state.Pause | None:
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise DecodeError("policy.pause", f"must be an object, not {fields!r:.60}")
    note, by = (string_in(fields.get(name), state.LONGEST_NOTE) for name in ("note", "by"))
    since = moment_in(fields.get("since"))
    return state.Pause(since.timestamp() if since else 0.0, note, by)


def read_lines(schedule: Schedule, file: IO[bytes]) -> Iterator[Incoming]:
    """Yield a calendar or an entry for each line; ignore empty lines."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        where = f"line {number}"
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE)  # the rest is ignored
            yield Incoming(where, problem=f"line: is longer than {MAX_LINE} bytes")
        elif line.strip():
            yield read_safely(where, _read, schedule, line)


def _read(where: str, schedule: Schedule, text: bytes) -> Incoming:
    line: dict[str, Any] = json_from("line", text, dict)
    check_known("", line, CALENDAR if "calendar" in line else FIELDS)
    check_kinds("", line, KINDS)
    if "calendar" in line:
        fields: dict[str, Any] = {"days": [], "rules": [], "zone": None, **line}
        return Incoming(where, calendar=Calendar.from_fields(line["calendar"], fields))
    rules = line.get("policy") or {}
    check_known("policy.", rules, POLICY)
    pause = _pause_in(rules.pop("pause", None))
    history = _history_in(line.get("history"))
    identity = line.get("identity") or ""
    if not (identity.isascii() and identity.isprintable() and len(identity) <= MAX_IDENTITY):
        problem = f"must be at most {MAX_IDENTITY} printable ASCII characters, not {identity!r:.60}"
        raise InvalidEntryError("identity", problem)
    name = _name_in(line)
    definition, policy, meta, runtime = (
        json.dumps(line[field]) if line.get(field) else ""
        for field in ("definition", "policy", "meta", "runtime")
    )
    entry = schedule.entry_class.from_definition(schedule.app, definition, policy)
    entry.saved_state = entry.saved_state._replace(pause=pause)
    if entry.name != name:
        raise InvalidEntryError("name", f"must be a string, not {name!r:.60}")
    if meta:
        History.read(meta)  # an invalid history raises DecodeError
    is_static = bool(line.get("static"))
    return Incoming(where, entry, "", is_static, meta, runtime, history, identity)


def _history_in(lines: Any) -> Sequence[str]:
    if lines is None:
        return ()
    if not isinstance(lines, list) or len(lines) > MAX_HISTORY:
        raise InvalidEntryError("history", f"must be a list of at most {MAX_HISTORY} lines")
    for text in lines:
        if not (isinstance(text, str) and is_line(text)):
            problem = f"{text!r:.80} is not a run; write '<UNIX seconds> +<seconds> sent <task id>'"
            raise InvalidEntryError("history", problem)
    return lines


def _name_in(line: dict[str, Any]) -> Any:
    """Return an entry's name, and set it in its definition.

    A name that is a number becomes a string.
    """
    definition = line.get("definition")
    if not definition:
        raise InvalidEntryError("definition", "is missing; add the field")
    name = line.get("name", definition.get("name"))
    inner_name = definition.setdefault("name", name)
    if str(inner_name) != str(name):
        problem = f"is {name!r:.60}, but the definition has {inner_name!r:.60}; remove one name"
        raise InvalidEntryError("name", problem)
    definition["name"] = str(name) if isinstance(name, int) else name
    return definition["name"]


class Exported(NamedTuple):
    """A line of an export, or the problem of a calendar or entry that can't be read.

    ``label`` names the calendar or entry in messages. ``line`` is "" if there's a problem.
    """

    label: str
    line: str = ""
    problem: str = ""
    is_calendar: bool = False


def export_lines(schedule: Schedule, history: bool = False) -> Iterator[Exported]:
    """Yield one line per calendar, then one line per entry, in due order.

    An entry whose line :func:`read_lines` couldn't read becomes a problem. One that is added or
    deleted during the export may be missing. At most 500 entries are in memory at a time. Takes one
    round trip for the calendars, and one per 500 entries.
    """
    store = store_of(schedule.app)
    for name, text in sorted(store.calendars().items()):
        yield _exported_calendar(name, text)
    for page in pages_of(store, history=history):
        for row in page.rows:
            yield _exported(schedule, store.keys, row, history)


def _exported_calendar(name: str, text: str) -> Exported:
    label = f"calendar {encodable(name)}"
    try:
        fields = calendar_of(name, text).fields()
    except DecodeError as error:
        return Exported(label, "", str(error), is_calendar=True)
    return Exported(label, json.dumps({"calendar": name, **fields}), is_calendar=True)


def _exported(schedule: Schedule, keys: Keys, row: Row, history: bool) -> Exported:
    key = encodable(row.key)
    if row.unreadable or row.definition is None:
        return Exported(key, "", row.unreadable)
    try:
        entry = schedule.entry_class.from_definition(schedule.app, *changes.texts_in(row))
        if keys.entry(str(entry.name)) != row.key:
            problem = f"is {entry.name!r:.60}, which does not match the key of the entry"
            raise DecodeError("definition.name", problem)
        return Exported(key, json.dumps(_line_of(entry, row, history)))
    except DecodeError as error:
        return Exported(key, "", str(error))


def _line_of(entry: RedBeatSchedulerEntry, row: Row, history: bool) -> dict[str, Any]:
    kept, texts = state.State.of(row), {"definition": row.definition, "policy": row.policy}
    if history:
        History.read(row.meta or "")  # an invalid history raises DecodeError
        texts |= {"meta": row.meta, "runtime": state.runtime_of(kept)}
    line: dict[str, Any] = {"name": str(entry.name)}
    line |= {field: object_in(text, field) for field, text in texts.items() if text}
    if kept.pause is not None:
        line.setdefault("policy", {})["pause"] = pause_fields(kept.pause)
    if history:
        entry.saved_state = entry.saved_state._replace(identity=kept.identity)
        line["history"] = with_ids(texts_in(row.history), entry.own_task_id)
        line["identity"] = kept.identity
    line["static"] = row.static
    return {field: value for field, value in line.items() if value}
