"""Plans and makes the changes that turn the stored entries into the given definitions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redbeat.calendar.zones import UTC
from redbeat.codec.stored import instant_in
from redbeat.entries import changes, edits, saving, state
from redbeat.entries.history import Texts
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.presentation import describe, rule_text
from redbeat.printing import encodable
from redbeat.schedules.calendars import Calendar
from redbeat.storage import reading, rows
from redbeat.storage.store import Store

if TYPE_CHECKING:
    from redbeat.management.schedule import Schedule


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
    managed_by: str | None,
    adopt: bool,
) -> Applied:
    """See :meth:`Schedule.apply`."""
    entries = {
        str(name): build_entry(schedule, name, definition)
        for name, definition in definitions.items()
    }
    for entry in entries.values():
        if managed_by is not None:
            entry.managed_by = managed_by
        with saving.naming(entry.name):
            entry.checked_texts()
    result, to_save, to_remove = Applied(), [], []
    prune = prune or managed_by is not None
    for item in plan_entries(schedule, managed_by, entries, adopt, prune):
        if item.problem:
            raise InvalidEntryError(f"{item.name}: name", item.problem)
        getattr(result, item.action).append(encodable(item.name))
        if item.action in TO_WRITE:
            to_save.append(item.entry)
        elif item.action == "removed":
            to_remove.append(item.name)
    if not dry_run:
        schedule.save_all(to_save)
        schedule.delete_all(to_remove)
    return result


def build_entry(schedule: Schedule, name: str, definition: Any) -> RedBeatSchedulerEntry:
    """Raise :exc:`InvalidEntryError`, which names the entry, for an invalid definition."""
    if isinstance(definition, RedBeatSchedulerEntry):
        definition.name = str(name)
        return definition
    try:
        with saving.naming(name):
            return schedule.entry_class(**{**definition, "name": name, "app": schedule.app})
    except TypeError as error:
        raise InvalidEntryError(str(name), f"is not a valid entry definition: {error}") from error


def save_unchanged(entry: RedBeatSchedulerEntry) -> None:
    """Save an entry; raise :exc:`ConflictError` if Redis has a newer version.

    If an overriding ``save()`` doesn't accept ``if_unchanged``, RedBeat's own is called.
    """
    parameters = inspect.signature(entry.save).parameters
    if "if_unchanged" in parameters or "kwargs" in parameters:
        entry.save(if_unchanged=True)
    else:
        RedBeatSchedulerEntry.save(entry, if_unchanged=True)


# -- the plan --------------------------------------------------------------------------------------

#: The actions that write an entry.
TO_WRITE: Final = ("created", "changed")


class PlannedChange(NamedTuple):
    """A planned change of an entry.

    Attributes:
        name: the entry's name.
        action: ``created``, ``changed``, ``unchanged`` or ``removed``.
        entry: the entry to save or remove, None if the one to remove cannot be read. A save with
            ``if_unchanged`` fails if the stored entry has changed since the plan.
        problem: why the change isn't allowed, "" if it is.
        row: what is stored under this name; None for an entry to remove.
    """

    name: str
    action: str
    entry: Any
    problem: str = ""
    row: rows.Row | None = None

    @property
    def change(self) -> Change:
        if self.row is None:
            return Change(self.name, self.action)
        score = self.row.due if self.action == "unchanged" else _score_of(self.entry)
        return change_of(self.action, self.row, self.entry, score)

    def write(self, store: Store) -> bool:
        """Save or remove the entry, in one round trip.

        Returns False, and writes nothing, if the entry has changed since the plan.
        """
        if self.action == "removed":
            return delete_unchanged(store, self.entry.writable_key(), self.entry.seen_texts)
        try:
            save_unchanged(self.entry)
        except ConflictError:
            return False
        return True


def delete_unchanged(store: Store, key: str, texts: Texts) -> bool:
    """Delete an entry whose definition and policy are ``texts``; return False if they aren't.

    An entry that does not exist counts as deleted. Two round trips, and one more for each run that
    a beat records during the call.
    """

    def removed(row: rows.Row, _now: float) -> rows.Change | None:
        if row.definition is None and not row.problem:
            return None
        if row.problem or changes.texts_in(row) != texts:
            raise ConflictError(key)
        return edits.deletion(key, row)

    try:
        changes.change_all(store, [key], removed, new=True)
    except ConflictError:
        return False
    return True


def plan_entries(
    schedule: Schedule,
    managed_by: str | None,
    entries: Mapping[str, RedBeatSchedulerEntry],
    adopt: bool = False,
    prune: bool = True,
) -> Iterator[PlannedChange]:
    """Yield the changes that make the stored entries of the owner ``managed_by`` match ``entries``.

    The owner's entries that are not in ``entries`` are removed. Entries of other owners, or without
    one, never are. If one of them is in ``entries``, ``adopt`` lets the owner take it over;
    otherwise its change has a problem. A paused entry stays paused.

    If ``managed_by`` is None, owners don't matter: every dynamic entry that is not in ``entries``
    is removed, and a changed entry that was paused is resumed.

    If ``prune`` is false, nothing is removed. This function writes nothing. Takes one round trip
    per 500 ``entries``, and with ``prune`` one more per 500 stored entries.
    """
    for batch in reading.batches(entries.items()):
        page = schedule._store.read([entry.writable_key() for _, entry in batch])
        for (name, entry), row in zip(batch, page.rows, strict=True):
            yield _planned(managed_by, name, entry, row, adopt)
    for record in schedule.records(static=False) if prune else ():
        stored = record.entry
        owner = None if stored is None else stored.policy_field("managed_by")
        name = schedule._store.keys.name_of(record.key)
        if (managed_by is None or owner == managed_by) and name not in entries:
            yield PlannedChange(name, "removed", stored)


def _planned(
    managed_by: str | None, name: str, entry: RedBeatSchedulerEntry, row: rows.Row, adopt: bool
) -> PlannedChange:
    problem = obstacle(row)
    if row.definition is None:
        return PlannedChange(name, "created", entry, problem, row)
    kept = copy(entry)
    if state.State.of(row).pause is not None:
        kept.enabled = False
    unchanged = row.due is not None and not problem and _same_texts(row, kept)
    if managed_by is not None:
        entry = kept
        texts = changes.texts_in(row)
        entry.saved_state = entry.saved_state._replace(texts=texts)
        with suppress(DecodeError):  # ignore an unreadable history: a beat reports the problem
            saving.recall(entry, row)
        if not (problem or unchanged or adopt):
            problem = _claim_of_others(managed_by, entry, row)
    return PlannedChange(name, "unchanged" if unchanged else "changed", entry, problem, row)


def obstacle(row: rows.Row, static: bool = False) -> str:
    """Return why a stored entry must not be overwritten by a ``static`` or dynamic one, or ""."""
    if row.definition is None and "hash" in row.unreadable:
        return f"{row.unreadable}; delete that key"
    if row.static and not static:
        return "is an entry of beat_schedule; change the entry there, or use another name"
    return ""


def _claim_of_others(managed_by: str, entry: RedBeatSchedulerEntry, row: rows.Row) -> str:
    old = stored_entry(row, entry)
    owner = None if old is None else old.policy_field("managed_by")
    if owner == managed_by:
        return ""
    by = f"managed by {owner!r}" if owner else "not managed by anybody"
    return f"is already stored and {by}; adopt it (--adopt, in Python adopt=True) to take it over"


def stored_entry(row: rows.Row, entry: RedBeatSchedulerEntry) -> RedBeatSchedulerEntry | None:
    """Return the entry that ``entry`` replaces, None if there is none or it cannot be read."""
    if row.definition is None:
        return None
    try:
        return entry.from_definition(entry.app, *changes.texts_in(row))
    except DecodeError:
        return None


def _same_texts(row: rows.Row, entry: RedBeatSchedulerEntry) -> bool:
    texts = entry.texts()
    with suppress(ValueError):
        stored = [json.loads(text or "null") for text in (row.definition, row.policy)]
        return stored == [json.loads(text or "null") for text in texts]
    return False


def _score_of(entry: RedBeatSchedulerEntry) -> float | None:
    preview = copy(entry)
    with suppress(DecodeError):
        saving.restart_if_finished(preview, preview.texts(), datetime.now(UTC))
    with saving.naming(entry.name):
        return preview.score_to_store()


# -- the change of one entry or calendar -----------------------------------------------------------


#: Values of a field that count as no value.
EMPTY: Final[tuple[Any, ...]] = (None, [], {})


class Difference(NamedTuple):
    """The old and the new JSON value of a field; None stands for no value."""

    old: Any
    new: Any


class Change(NamedTuple):
    """What happens to an entry or a calendar, also in an import or a migration.

    Attributes:
        name: the name of the entry or calendar.
        action: ``created``, ``changed``, ``unchanged``, ``removed`` or ``kept`` (the stored entry
            differs and stays); in a migration ``copied``, ``same``, ``different``, ``unreadable``
            or ``deleted``.
        fields: the fields that differ; for a new entry all, with None as the old value.
        next_run: when the entry is due next, in UTC; None if never.
        is_calendar: whether this is a calendar.
    """

    name: str
    action: str
    fields: Mapping[str, Difference] = {}
    next_run: datetime | None = None
    is_calendar: bool = False


def change_of(
    action: str, row: rows.Row, entry: RedBeatSchedulerEntry, score: float | None
) -> Change:
    fields = {} if action == "unchanged" else differences(stored_entry(row, entry), entry)
    return Change(str(entry.name), action, fields, next_run_of(score))


def differences(
    old: RedBeatSchedulerEntry | None, new: RedBeatSchedulerEntry
) -> dict[str, Difference]:
    """Return the fields in which two entries differ; ``old`` is None for a new entry."""
    found = _compared({} if old is None else _values(old), _values(new))
    if "schedule" in found:
        text = None if old is None else rule_text.schedule_text(old.schedule)
        texts = Difference(text, rule_text.schedule_text(new.schedule))
        # Equal schedules may be stored differently, such as [1, 2] and "1,2".
        if texts.old != texts.new:
            found["schedule"] = texts
    return found


def calendar_change(action: str, old: Calendar | None, new: Calendar) -> Change:
    """Return what changes in a calendar; ``old`` is None if no readable one is stored."""
    before: dict[str, Any] = {} if old is None else old.fields()
    return Change(new.name, action, _compared(before, new.fields()), is_calendar=True)


def _compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Difference]:
    found = {}
    for name in dict.fromkeys((*after, *before)):
        old, new = (None if each.get(name) in EMPTY else each[name] for each in (before, after))
        if old != new:
            found[name] = Difference(old, new)
    return found


def _values(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    fields = {**describe.stored(entry), **describe.policy(entry)}
    del fields["name"]
    return fields


def next_run_of(score: float | None) -> datetime | None:
    """Return when an entry with this score is due next: at once without one, None if never."""
    if score is None:
        return datetime.now(UTC)
    return None if score < 0 else instant_in(score)
