"""Making the stored entries those of a set of definitions."""

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
    """What was done, or would be: names of entries."""

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
    """Do what :meth:`Schedule.apply` says."""
    entries = {str(name): make(schedule, name, given) for name, given in definitions.items()}
    for entry in entries.values():
        checked(entry)
    done = Applied()
    to_save = list(compare(schedule, entries, done))
    if prune:
        names = (record.name for record in schedule.records(static=False))
        done.removed.extend(name for name in names if name not in entries)
    if not dry_run:
        schedule.save_all(to_save)
        schedule.delete_all(done.removed)
    return done


def make(schedule: Schedule, name: str, given: Any) -> RedBeatSchedulerEntry:
    """Return the entry of a definition; raises :exc:`InvalidEntryError` that names it."""
    if isinstance(given, RedBeatSchedulerEntry):
        given.name = str(name)
        return given
    try:
        return schedule.entry_class(**{**given, "name": name, "app": schedule.app})
    except InvalidEntryError as error:
        raise InvalidEntryError(f"{name}: {error.field}", error.problem) from error
    except TypeError as error:
        raise InvalidEntryError(str(name), f"is no definition of an entry: {error}") from error


def checked(entry: RedBeatSchedulerEntry) -> Writing:
    """Return what to write; raises :exc:`InvalidEntryError` that names the entry."""
    try:
        entry._check_history()
        return entry._writing()
    except InvalidEntryError as error:
        raise InvalidEntryError(f"{entry.name}: {error.field}", error.problem) from error


def compare(
    schedule: Schedule, entries: Mapping[str, RedBeatSchedulerEntry], done: Applied
) -> Iterable[RedBeatSchedulerEntry]:
    """Yield the entries to save, and note what becomes of each. One round trip per 500."""
    for batch in batches(entries.items()):
        rows = schedule._store.read([entry._own_key() for _, entry in batch])
        for (name, entry), row in zip(batch, rows.rows, strict=True):
            if row.static:
                problem = "is an entry of beat_schedule; change it there, or use another name"
                raise InvalidEntryError(f"{name}: name", problem)
            if row.definition is None:
                done.created.append(name)
            elif same(row, entry):
                done.unchanged.append(name)
                continue
            else:
                done.changed.append(name)
            yield entry


def same(row: Row, entry: RedBeatSchedulerEntry) -> bool:
    """Return whether an entry is what is stored, or what was stored before it was paused."""
    stored = (row.definition or "", row.policy)
    if row.score is None:
        return False
    try:
        if Pause.read(row.policy) is not None:
            stored = resumed(*stored)
        return tuple(map(loaded, stored)) == tuple(map(loaded, entry.texts()))
    except (ValueError, AttributeError):
        return False


def loaded(text: str) -> Any:
    """Return the plain JSON of a text, None for an empty one."""
    return json.loads(text) if text else None
