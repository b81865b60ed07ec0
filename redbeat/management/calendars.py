"""Stores and deletes calendars, and computes the next runs of the entries that name them."""

from __future__ import annotations

from collections.abc import Iterator

from celery import Celery

from redbeat.entries.save import rescore
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError, InvalidEntryError
from redbeat.printing import get_logger
from redbeat.schedules.calendars import Calendar
from redbeat.storage.reading import BATCH, START, batches
from redbeat.storage.store import Store

__all__ = ("delete_calendar", "save_calendar")

logger = get_logger("celery.beat")

EntryType = type[RedBeatSchedulerEntry]


def save_calendar(calendar: Calendar, app: Celery, store: Store, entry_class: EntryType) -> int:
    """Store a calendar and compute the next run of each entry that names it.

    Returns the number of these entries. If the call is interrupted, repeat it. One round trip, and
    five per 500 entries with calendars.
    """
    store.save_calendar(calendar.name, calendar.to_json())
    count = 0
    for batch in _batches_of_users(calendar.name, app, store, entry_class):
        _rescore(batch, app, store, entry_class)
        count += len(batch)
    return count


def delete_calendar(name: str, app: Celery, store: Store, entry_class: EntryType) -> bool:
    """Delete a calendar that no entry names; return whether it existed.

    Raises :exc:`InvalidEntryError` if an entry names the calendar. One round trip, and two per 500
    entries with calendars.
    """
    users = _users_of(name, app, store, entry_class)
    if users:
        others = f" and {len(users) - 1} more" if users[1:] else ""
        problem = f"is the calendar of {users[0]!r}{others}; change exclude there first"
        raise InvalidEntryError(name, problem)
    return store.delete_calendar(name)


def _users_of(name: str, app: Celery, store: Store, entry_class: EntryType) -> list[str]:
    """Return the names of the entries that name a calendar. Two round trips per 500 entries."""
    return [
        str(entry.name)
        for batch in _batches_of_users(name, app, store, entry_class)
        for entry in batch
    ]


def _batches_of_users(
    name: str, app: Celery, store: Store, entry_class: EntryType
) -> Iterator[list[RedBeatSchedulerEntry]]:
    """Yield the entries that name a calendar; forget the keys of entries without calendars."""
    cursor = START
    while True:
        cursor, keys = store.calendar_users(cursor)
        for some in batches(keys, BATCH):
            entries, others = _users_among(some, app, store, entry_class)
            if others:
                store.forget_calendar_users(others)
            users = [entry for entry in entries if name in entry.policy.exclude]
            if users:
                yield users
        if cursor == START:
            return


def _users_among(
    keys: list[str], app: Celery, store: Store, entry_class: EntryType
) -> tuple[list[RedBeatSchedulerEntry], list[str]]:
    """Return the entries with calendars, and the keys that have no such entry."""
    entries, others = [], []
    for row in store.read(keys).rows:
        if row.definition is None or '"exclude"' not in f"{row.policy}{row.definition}":
            others.append(row.key)
            continue
        try:
            entry = entry_class.from_texts(app, row.definition, row.meta, row.policy, row.runtime)
        except Exception as error:  # a beat quarantines the entry and logs the reason
            logger.debug("beat: Cannot load %s: %r", row.key, error)
            continue
        entries.append(entry)
    return entries, others


def _rescore(
    entries: list[RedBeatSchedulerEntry], app: Celery, store: Store, entry_class: EntryType
) -> None:
    """Compute and store the scores of entries; a quarantined entry leaves the quarantine."""
    try:
        rescore(store, entries)
    except ConflictError:  # another program changed an entry, so load it again
        again, _ = _users_among([entry.key for entry in entries], app, store, entry_class)
        for entry in again:
            _rescore([entry], app, store, entry_class)
