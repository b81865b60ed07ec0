"""Reads entries from TOML and JSON files that people keep under version control.

A file names its owner and has a table of entries. An entry has the fields of an entry in JSON,
but with a rule of the command line, such as ``cron``, in place of ``schedule``::

    managed_by = "billing"

    [entries.invoices]
    task = "proj.invoices"
    cron = "0 9 * * mon-fri"
    timezone = "Europe/Paris"
    max_runs = 100

A JSON file has the same structure. Use JSON for files that programs write, and TOML for the rest:
it has comments, and a line per field, so that a review shows which fields change.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple

from celery import Celery

from redbeat import DecodeError, InvalidEntryError, RedBeatSchedulerEntry, Schedule
from redbeat.decoder import decode
from redbeat.entries import policy
from redbeat.presentation import describe
from redbeat.presentation.rule_text import KINDS, has_own_zone, parse_rule, rule_of, seconds_from

from . import incoming
from .incoming import UnreadableSourceError


class TaskField(NamedTuple):
    type: type
    example: str
    description: str


#: The fields of the task call, as options of commands, and as fields of the form and the API.
TASK: Final = {
    "task": TaskField(str, "proj.tasks.report", "The task to run."),
    "queue": TaskField(str, "reports", "Queue to publish to; default: as the app routes the task."),
    "args": TaskField(list, "[1, 2]", "Positional arguments of the task, as a JSON array."),
    "kwargs": TaskField(dict, '{"user": 7}', "Keyword arguments of the task, as a JSON object."),
    "options": TaskField(
        dict, '{"priority": 5, "expires": 60}', "Options of apply_async, as a JSON object."
    ),
}

#: Those that a definition has as JSON; the queue is one of the options.
CALL: Final = ("args", "kwargs", "options")

POLICY: Final = tuple(name for name in policy.FIELDS if name != "managed_by")

FIELDS: Final = ("task", *KINDS, *CALL, "queue", "enabled", *POLICY)


#: A key with so many parts that a TOML reader takes seconds.
LONG_KEY: Final = re.compile(r"(?:\.[\w \t-]*){1001}")


class EntryFile(NamedTuple):
    managed_by: str
    items: list[incoming.Incoming]


def read_entry_file(schedule: Schedule, path: str) -> EntryFile:
    """Read a file: TOML if its name ends with ``.toml``, else JSON.

    The path ``-`` is JSON from standard input. Raises :exc:`UnreadableSourceError` if the file
    can't be read or names no owner.
    """
    content = _parsed(path)
    unknown = [name for name in content if name not in ("managed_by", "entries")]
    if unknown:
        raise UnreadableSourceError(f"{unknown[0]}: is unknown; use managed_by and entries")
    owner = content.get("managed_by")
    if not isinstance(owner, str) or not owner:
        raise UnreadableSourceError(
            'managed_by: is missing; name the owner of this file, such as managed_by = "billing". '
            "The file owns all entries with the same managed_by"
        )
    tables = content.get("entries", {})
    if not isinstance(tables, dict):
        raise UnreadableSourceError("entries: must be a table with a table for each entry")
    items = [
        incoming.read_safely(name, _read, schedule, table, owner) for name, table in tables.items()
    ]
    return EntryFile(owner, items)


def _read(name: str, schedule: Schedule, table: Any, owner: str) -> incoming.Incoming:
    return incoming.Incoming(name, new_entry(schedule, name, table, managed_by=owner))


def _parsed(path: str) -> dict[str, Any]:
    is_toml = path.lower().endswith(".toml")
    with incoming.opened(path) as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
        if is_toml and LONG_KEY.search(text):
            raise ValueError("a key has more than 1000 dots; shorten the key")
        content = _toml().loads(text) if is_toml else json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if is_toml else "JSON"
        raise UnreadableSourceError(f"cannot be read as {kind}: {error}") from error
    if not isinstance(content, dict):
        raise UnreadableSourceError("must be a JSON object with managed_by and entries")
    return content


def _toml() -> ModuleType:
    for name in ("tomllib", "tomli"):  # Python 3.11 and later include tomllib
        with suppress(ImportError):
            return import_module(name)
    raise UnreadableSourceError(
        "TOML needs Python 3.11 or a package: pip install 'celery-redbeat[toml]'"
    )


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice!r} is given twice")
    return found


# -- an entry --------------------------------------------------------------------------------------


def new_entry(schedule: Schedule, name: str, table: Any, **arguments: Any) -> RedBeatSchedulerEntry:
    """Return a new entry with the fields of a table; the entry class also gets ``arguments``.

    Checks what ``save()`` checks, and raises :exc:`InvalidEntryError`.
    """
    _check_fields(table)
    if "task" not in table:
        raise InvalidEntryError("task", "is missing; add the name of the task")
    if not any(kind in table for kind in KINDS):
        problem = f"is missing; give one of {', '.join(KINDS)}"
        raise InvalidEntryError("schedule", problem)
    values = attributes_of(schedule.app, name, table, table.get("timezone"))
    if has_own_zone(values["schedule"]):
        values.pop("timezone", None)
    entry = schedule.entry_class(name=name, app=schedule.app, **values, **arguments)
    entry.checked_texts()
    return entry


def change_entry(entry: RedBeatSchedulerEntry, table: Any, known: Collection[str] = FIELDS) -> None:
    """Set the fields of a table on an entry; None resets a field to its default.

    A field is only set if its value in the table differs from the current one, because the table
    may lack details of it. Checks what ``save()`` checks. Raises :exc:`InvalidEntryError` with the
    name of a field that is invalid or not in ``known``; by then, some fields may have been set.
    """
    _check_fields(table, known)
    old = current_fields(entry)
    changed = {
        name: value for name, value in table.items() if name not in old or old[name] != value
    }
    timezone = table.get("timezone", entry.timezone)
    values = attributes_of(entry.app, str(entry.name), changed, timezone)
    entry.schedule = values.pop("schedule", entry.schedule)
    if "queue" in changed and "options" not in changed:
        values["options"] = _with_queue(entry.options, changed["queue"])
    if "timezone" in table and has_own_zone(entry.schedule):
        values["timezone"] = None
    if values.get("task", "") is None:
        raise InvalidEntryError("task", "is missing; add the name of the task")
    for name, value in values.items():
        setattr(entry, name, value)
    entry.checked_texts()


def current_fields(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return an entry's fields that have a value, as a table may contain them.

    There's no rule in it if none can describe the entry's schedule.
    """
    definition, rules = describe.stored(entry), describe.policy(entry)
    fields: dict[str, Any] = {"task": entry.task, **dict(filter(None, [rule_of(entry.schedule)]))}
    fields |= {name: definition[name] for name in CALL if definition[name]}
    fields["enabled"] = entry.enabled
    return fields | {name: value for name, value in rules.items() if name in POLICY}


def attributes_of(
    app: Celery, name: str, table: Mapping[str, Any], timezone: str | None
) -> dict[str, Any]:
    """Return the attributes that a table sets on an entry; None stands for the default.

    Times without a UTC offset are wall-clock times in ``timezone``, or in the app's time zone if it
    is None. ``name`` determines the numbers for ``H`` in a crontab.
    """
    zone = app.timezone if timezone is None else incoming.zone_from("timezone", timezone)
    values: dict[str, Any] = {}
    if any(kind in table for kind in KINDS):
        values["schedule"] = _schedule(app, name, table, zone)
    values |= {field: table[field] for field in ("task", "enabled") if field in table}
    if not isinstance(values.get("enabled", True), bool):
        raise InvalidEntryError("enabled", f"must be true or false, not {values['enabled']!r:.60}")
    values |= {field: _call_value(field, table[field]) for field in CALL if field in table}
    if "queue" in table:
        values["options"] = _with_queue(values.get("options", {}), table["queue"])
    for field in policy.FIELDS:
        if field in table:
            values[field] = _policy_value(field, table[field], zone)
    return values


def _check_fields(table: Any, known: Collection[str] = FIELDS) -> None:
    if not isinstance(table, dict):
        raise InvalidEntryError("entry", f"must be a table, not {table!r:.60}")
    incoming.check_known("", table, known)


def _schedule(app: Celery, name: str, table: Mapping[str, Any], zone: Any) -> Any:
    kinds = [kind for kind in KINDS if kind in table]
    if len(kinds) != 1:
        problem = f"give only one of {', '.join(KINDS)}, not {' and '.join(kinds)}"
        raise InvalidEntryError("schedule", problem)
    kind, value = kinds[0], table[kinds[0]]
    if kind == "rrule" and isinstance(value, list):
        value = "\n".join(map(str, value))
    if isinstance(value, date):
        value = value.isoformat()
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidEntryError(kind, f"must be a text, not {value!r:.60}")
    return parse_rule(kind, str(value), zone, app, name)


def _call_value(field: str, value: Any) -> Any:
    if value is None:
        return TASK[field].type()
    if isinstance(value, TASK[field].type):
        try:
            # An object with the key __type__ becomes a Python value.
            value = decode(json.dumps(value), field)
        except TypeError:  # a TOML time is not JSON
            return value
        except DecodeError as error:
            raise InvalidEntryError(field, error.problem) from error
    if not isinstance(value, TASK[field].type):
        kind = "a list" if TASK[field].type is list else "a table"
        raise InvalidEntryError(field, f"must be {kind}, not {value!r:.60}")
    return value


def _with_queue(options: Mapping[str, Any], queue: Any) -> dict[str, Any]:
    others = {name: value for name, value in options.items() if name != "queue"}
    return others if queue is None else {**others, "queue": queue}


def _policy_value(field: str, value: Any, zone: Any) -> Any:
    kind = policy.FIELDS[field].metadata["type"].name
    if value is None:
        return getattr(policy.DEFAULT, field)
    if kind == "seconds" and isinstance(value, str):
        try:
            return seconds_from(value)
        except ValueError as error:
            raise InvalidEntryError(field, str(error)) from error
    if kind == "instant":
        return incoming.instant_from(field, value, zone)
    return value
