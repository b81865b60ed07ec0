"""Makes the stored entries match a set of definitions, or the entries of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat.calendar.zones import UTC
from redbeat.entries.pauses import Pause, resumed
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.storage.reading import batches
from redbeat.storage.records import Writing
from redbeat.storage.store import Store
from redbeat.storage.wire import Row

from .changes import Change, differences, next_run_of

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

__all__ = (
    "Applied",
    "PlannedChange",
    "apply",
    "checked",
    "plan_entries",
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


# -- the entries of a file -------------------------------------------------------------------------


class PlannedChange(NamedTuple):
    """What applying a file does to an entry.

    Attributes:
        change: the change, to show it. The action is ``created``, ``changed``, ``unchanged`` or
            ``removed``.
        entry: the entry to save or to remove. A save with ``if_unchanged`` is refused if the stored
            entry is not the one that the plan has read.
        problem: why the change must not be made; "" if it may be made.
    """

    change: Change
    entry: RedBeatSchedulerEntry
    problem: str = ""

    def remove(self, store: Store) -> bool:
        """Remove the entry; return False if it has changed since the plan. One round trip."""
        return store.delete_unchanged(self.entry._own_key(), *self.entry.seen_texts)


def plan_entries(
    schedule: Schedule,
    managed_by: str,
    entries: Mapping[str, RedBeatSchedulerEntry],
    adopt: bool = False,
) -> Iterator[PlannedChange]:
    """Yield what must change so that the stored entries of ``managed_by`` are ``entries``.

    The owner of a stored entry is its field ``managed_by``. Entries of this owner that are not in
    ``entries`` are removed; entries without an owner and those of other owners are never removed.
    If an entry in ``entries`` has another owner, or none, the change has a problem, except with
    ``adopt``, which takes the entry over. A paused entry stays paused.

    Nothing is written. One round trip per 500 ``entries``, and one per 500 stored entries.
    """
    for batch in batches(entries.items()):
        rows = schedule._store.read([entry._own_key() for _, entry in batch]).rows
        for (name, entry), row in zip(batch, rows, strict=True):
            yield _planned(schedule, managed_by, name, entry, row, adopt)
    for record in schedule.records(static=False):
        stored = record.entry
        if stored is None or stored.policy_field("managed_by") != managed_by:
            continue
        if str(stored.name) not in entries:
            yield PlannedChange(Change(str(stored.name), "removed"), stored)


def _planned(
    schedule: Schedule,
    managed_by: str,
    name: str,
    entry: RedBeatSchedulerEntry,
    row: Row,
    adopt: bool,
) -> PlannedChange:
    if row.definition is None:
        problem = f"{row.problem}; delete that key" if "hash" in row.problem else ""
        change = Change(name, "created", differences(None, entry), next_run_of(_score_of(entry)))
        return PlannedChange(change, entry, problem)
    old = _stored_entry(schedule, row)
    pause = Pause.read(row.policy) if old is not None else None
    if pause is not None:
        entry.enabled, entry._pause = False, pause
    entry.seen_texts = (row.definition, row.policy)
    with suppress(DecodeError):  # a beat reports an unreadable history
        entry.recall(row.meta, row.runtime)
    if old is not None and _same_texts(row, entry):
        return PlannedChange(Change(name, "unchanged", {}, next_run_of(row.score)), entry)
    owner = None if old is None else old.policy_field("managed_by")
    problem = ""
    if row.static:
        problem = "is an entry of beat_schedule; change it there, or use another name"
    elif owner != managed_by and not adopt:
        by = f"managed by {owner!r}" if owner else "not managed by a file"
        problem = f"is stored already and {by}; --adopt takes it over"
    change = Change(name, "changed", differences(old, entry), next_run_of(_score_of(entry)))
    return PlannedChange(change, entry, problem)


def _stored_entry(schedule: Schedule, row: Row) -> RedBeatSchedulerEntry | None:
    try:
        return schedule.entry_class.from_definition(schedule.app, row.definition or "", row.policy)
    except DecodeError:
        return None


def _same_texts(row: Row, entry: RedBeatSchedulerEntry) -> bool:
    stored = (row.definition or "", row.policy)
    return tuple(map(json_or_none, stored)) == tuple(map(json_or_none, entry.texts()))


def _score_of(entry: RedBeatSchedulerEntry) -> float | None:
    """Return the score that a save would store; the entry stays as it is."""
    preview = copy(entry)
    with suppress(DecodeError):
        preview._arm(preview.seen_texts, preview.texts(), datetime.now(UTC))
    return preview._stored_score()
