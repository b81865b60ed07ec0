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
    users, count = _Users(app, store, entry_class), 0
    for batch in users.of(calendar.name):
        users.rescore(batch)
        count += len(batch)
    return count


def delete_calendar(name: str, app: Celery, store: Store, entry_class: EntryType) -> bool:
    """Delete a calendar that no entry names; return whether it existed.

    Raises :exc:`InvalidEntryError` if an entry names the calendar. One round trip, and two per 500
    entries with calendars.
    """
    users = [entry for batch in _Users(app, store, entry_class).of(name) for entry in batch]
    if users:
        others = f" and {len(users) - 1} more" if users[1:] else ""
        problem = f"is the calendar of {users[0].name!r}{others}; change exclude there first"
        raise InvalidEntryError(name, problem)
    return store.delete_calendar(name)


class _Users:
    """The entries that name calendars."""

    def __init__(self, app: Celery, store: Store, entry_class: EntryType) -> None:
        self._app, self._store, self._entry_class = app, store, entry_class

    def of(self, name: str) -> Iterator[list[RedBeatSchedulerEntry]]:
        """Yield the entries that name a calendar; forget the keys of entries without calendars.

        Two round trips per 500 entries.
        """
        cursor = START
        while True:
            cursor, keys = self._store.calendar_users(cursor)
            for some in batches(keys, BATCH):
                entries, others = self._among(some)
                if others:
                    self._store.forget_calendar_users(others)
                users = [entry for entry in entries if name in entry.policy.exclude]
                if users:
                    yield users
            if cursor == START:
                return

    def _among(self, keys: list[str]) -> tuple[list[RedBeatSchedulerEntry], list[str]]:
        """Return the entries with calendars, and the keys that have no such entry."""
        entries, others = [], []
        for row in self._store.read(keys).rows:
            if row.definition is None or '"exclude"' not in f"{row.policy}{row.definition}":
                others.append(row.key)
                continue
            texts = row.definition, row.meta, row.policy, row.runtime
            try:
                entries.append(self._entry_class.from_texts(self._app, *texts))
            except Exception as error:  # a beat quarantines the entry and logs the reason
                logger.debug("beat: Cannot load %s: %r", row.key, error)
        return entries, others

    def rescore(self, entries: list[RedBeatSchedulerEntry]) -> None:
        """Compute and store the scores of entries; a quarantined entry leaves the quarantine."""
        try:
            rescore(self._store, entries)
        except ConflictError:  # another program changed an entry, so load it again
            for entry in self._among([entry.key for entry in entries])[0]:
                self.rescore([entry])
