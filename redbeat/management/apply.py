"""Implements ``Schedule.apply``, which makes the stored entries match a set of definitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redbeat.entries.pauses import Pause, resumed
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.storage.reading import batches
from redbeat.storage.records import Writing
from redbeat.storage.wire import Row

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

__all__ = (
    "Applied",
    "apply",
    "checked",
)


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of :meth:`redbeat.Schedule.apply`: a list of entry names for each outcome."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def apply(
    schedule: Schedule,
    definitions: Mapping[str, Mapping[str, Any]],
    prune: bool,
    dry_run: bool,
) -> Applied:
    """Make the stored entries match the definitions; see :meth:`Schedule.apply` for details."""
    entries = {
        str(name): build_entry(schedule, name, definition)
        for name, definition in definitions.items()
    }
    for entry in entries.values():
        checked(entry)
    result = Applied()
    to_save = list(compare(schedule, entries, result))
    if prune:
        names = (record.name for record in schedule.records(static=False))
        result.removed.extend(name for name in names if name not in entries)
    if not dry_run:
        schedule.save_all(to_save)
        schedule.delete_all(result.removed)
    return result


def build_entry(schedule: Schedule, name: str, definition: Any) -> RedBeatSchedulerEntry:
    """Return an entry built from a definition.

    Raises :exc:`InvalidEntryError` for an invalid definition; the message contains the entry name.
    """
    if isinstance(definition, RedBeatSchedulerEntry):
        definition.name = str(name)
        return definition
    try:
        return schedule.entry_class(**{**definition, "name": name, "app": schedule.app})
    except InvalidEntryError as error:
        raise InvalidEntryError(f"{name}: {error.field}", error.problem) from error
    except TypeError as error:
        raise InvalidEntryError(str(name), f"is not a valid entry definition: {error}") from error


def checked(entry: RedBeatSchedulerEntry) -> Writing:
    """Return the data to store for an entry.

    Raises :exc:`InvalidEntryError` for an invalid entry; the message contains the entry name.
    """
    try:
        entry._check_history()
        return entry._writing()
    except InvalidEntryError as error:
        raise InvalidEntryError(f"{entry.name}: {error.field}", error.problem) from error


def compare(
    schedule: Schedule, entries: Mapping[str, RedBeatSchedulerEntry], result: Applied
) -> Iterable[RedBeatSchedulerEntry]:
    """Yield new and changed entries, and add each name to ``result``.

    Takes one round trip per 500 entries.
    """
    for batch in batches(entries.items()):
        rows = schedule._store.read([entry._own_key() for _, entry in batch])
        for (name, entry), row in zip(batch, rows.rows, strict=True):
            if row.static:
                problem = "is an entry of beat_schedule; change it there, or use another name"
                raise InvalidEntryError(f"{name}: name", problem)
            if row.definition is None:
                result.created.append(name)
            elif is_stored(row, entry):
                result.unchanged.append(name)
                continue
            else:
                result.changed.append(name)
            yield entry


def is_stored(row: Row, entry: RedBeatSchedulerEntry) -> bool:
    """Return whether an entry equals the stored entry; ignore a pause of the stored entry."""
    stored = (row.definition or "", row.policy)
    if row.score is None:
        return False
    try:
        if Pause.read(row.policy) is not None:
            stored = resumed(*stored)
        return tuple(map(json_or_none, stored)) == tuple(map(json_or_none, entry.texts()))
    except (ValueError, AttributeError):
        return False


def json_or_none(text: str) -> Any:
    """Return the value of a JSON string, or None for an empty string."""
    return json.loads(text) if text else None
