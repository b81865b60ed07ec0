"""The schedule as a mapping from names to entries, with operations on many entries."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from redbeat.entries.decide import aware
from redbeat.entries.pauses import pause_entries, resume_entries
from redbeat.entries.status import EntryStatus, Record, quarantine_note
from redbeat.management.apply import Applied, apply, checked
from redbeat.management.find import Filter
from redbeat.management.forecast import agenda
from redbeat.management.status import Status, status_of
from redbeat.storage.store import store_of
from redbeat.storage.wire import Cursor, Page

from .config import ensure_conf, real_app
from .entry import RedBeatSchedulerEntry, save_batches
from .errors import DecodeError, InvalidEntryError
from .management.forecast import Forecast, forecast
from .settings import MISSING
from .storage.quarantine import printable
from .storage.records import key_of
from .storage.store import Store, batches

__all__ = ("Applied", "EntryStatus", "Record", "Schedule", "Status")

Entry = RedBeatSchedulerEntry


class Schedule(MutableMapping[str, RedBeatSchedulerEntry]):
    """A mapping from names to all entries of an app's schedule.

    The mapping caches nothing: each access reads Redis, and each change takes effect at once.

    An iteration yields entries in due order; entries that are never due come last. It reads pages
    of 500 entries, one round trip per page. It yields each entry exactly once, even if runs or
    changes move the entry in the due order. (An entry that you add or delete during the iteration
    may be yielded or not.) To ensure this, the iteration keeps all keys in memory, about 100 bytes
    per key. At the end it reads all keys again, 5000 per round trip, and yields the entries that it
    has not yielded yet.

    Arguments:
        app: the Celery app; None for the current app.
        entry_class: the class of the entries, if your scheduler has its own entry class.
    """

    def __init__(
        self, app: Any = None, entry_class: type[RedBeatSchedulerEntry] = RedBeatSchedulerEntry
    ) -> None:
        self.app = real_app(app)
        self.entry_class = entry_class

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {ensure_conf(self.app)!r}>"

    @property
    def _store(self) -> Store:
        return store_of(self.app)

    def _key(self, name: object) -> str:
        key = self._store.keys.entry(str(name))
        try:
            key_of(key)
        except UnicodeEncodeError as error:
            raise KeyError(name) from error
        return key

    # -- as a mapping ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of entries, including unreadable entries. One round trip."""
        return self._store.members()

    def __contains__(self, name: object) -> bool:
        """Return whether an entry with this name exists. One round trip."""
        try:
            return self._store.load(self._key(name))[0] is not None
        except (DecodeError, KeyError):
            return False

    def __getitem__(self, name: str) -> Entry:
        """Load an entry. One round trip.

        Raises KeyError for an unknown name and :exc:`DecodeError` for an unreadable entry.
        """
        try:
            return self.entry_class.from_key(self._key(name), app=self.app)
        except KeyError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Save an entry, whose name must be ``name``; see :meth:`RedBeatSchedulerEntry.save`."""
        if not isinstance(entry, RedBeatSchedulerEntry):
            raise InvalidEntryError("entry", f"must be a RedBeatSchedulerEntry, not {entry!r:.60}")
        if entry.name != name:
            raise InvalidEntryError("name", f"is {entry.name!r}, but the key is {name!r}")
        entry.save()

    def __delitem__(self, name: str) -> None:
        """Remove an entry and its history; raises KeyError for an unknown name. One round trip."""
        if not self._store.delete(self._own_key(name)):
            raise KeyError(name)

    def pop(self, name: str, default: Any = MISSING) -> Any:
        """Remove an entry and return it.

        For an unknown name, returns ``default``, or raises KeyError without a ``default``. If
        several callers pop the same entry, only one caller gets it. An unreadable entry raises
        :exc:`DecodeError` and is not removed. Two round trips.
        """
        try:
            definition, *rest = self._store.pop(self[name]._own_key())
            if definition is None:
                raise KeyError(name)
        except KeyError:
            if default is MISSING:
                raise
            return default
        return self.entry_class.from_texts(self.app, definition, *rest)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all entries, including unreadable entries."""
        return (record.name for record in self.records())

    def values(self) -> ValuesView[Entry]:
        """Return a view of the readable entries. One round trip per 500 entries."""
        return Values(self)

    def items(self) -> ItemsView[str, Entry]:
        """Return a view of (name, readable entry) pairs. One round trip per 500 entries."""
        return Items(self)

    def clear(self) -> None:
        """Remove all entries; a beat adds static entries again. Two round trips per 500 entries."""
        self.delete_all(self)

    # -- reading ---------------------------------------------------------------------------------

    def find(self, pattern: str | None = None, **filters: Any) -> Iterator[Entry]:
        """Yield the readable entries that match; takes the arguments of :meth:`records`."""
        records = self.records(pattern, **filters)
        return (record.entry for record in records if record.entry is not None)

    def records(
        self,
        pattern: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        static: bool | None = None,
        due_before: datetime | None = None,
        states: Iterable[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Record]:
        """Yield a record for each matching entry in due order. One round trip per 500 entries read.

        Unreadable entries are included.

        Arguments:
            pattern, task: ``fnmatch`` patterns for the name and the task of the entry.
            enabled: True for enabled entries only, False for disabled entries only. Either value
                excludes unreadable entries.
            static: True for static entries only, False for dynamic entries only.
            due_before: only entries due before this instant; a naive datetime is taken as UTC.
            states: only entries in these states.
            limit: the maximum number of records.
        """
        filters = Filter.of(pattern, task, enabled, static, due_before, states)
        return islice(self._records(filters), limit)

    def _records(self, filters: Filter) -> Iterator[Record]:
        for records in self._pages(filters):
            yield from records

    def _pages(self, filters: Filter) -> Iterator[list[Record]]:
        store, seen = self._store, set[str]()
        page = store.page()
        yield self._new_records(page, seen, filters)
        if page.after is None:
            return
        after: Cursor | None = page.after
        while after is not None and not filters.ends_before(after):
            page = store.page(after)
            yield self._new_records(page, seen, filters)
            after = page.after
        for missed in batches(self._missed(seen)):
            yield self._new_records(store.read(missed), seen, filters)

    def _missed(self, seen: set[str]) -> Iterator[str]:
        """Yield the keys that the iteration has not seen, because they moved to an earlier page."""
        keys, after = self._store.keys_after()
        yield from (key for key in keys if key not in seen)
        while after is not None:
            keys, after = self._store.keys_after(after)
            yield from (key for key in keys if key not in seen)

    def _new_records(self, page: Page, seen: set[str], filters: Filter) -> list[Record]:
        """Return the matching records of a page, without entries that were seen before."""
        rows = [row for row in page.rows if row.key not in seen]
        seen.update(row.key for row in rows)
        prefix, records = self._store.keys.prefix, []
        for row in rows:
            name = printable(row.key.removeprefix(prefix))
            if not filters.admits(name, row):
                continue
            record = Record.read(row, name, page.now, self.app, self.entry_class)
            if filters.takes(record):
                records.append(record)
        return records

    def upcoming(
        self, n: int = 10, after: datetime | None = None, until: datetime | None = None
    ) -> list[tuple[datetime, str]]:
        """Return the next ``n`` runs of all enabled entries, as (nominal instant in UTC, name).

        The instants are later than ``after`` (default: now), and not later than ``until``. Reads a
        page of 500 entries in one round trip. Reads more pages only if their entries may have one
        of the next ``n`` runs.
        """
        since = aware(after) if after else datetime.now(timezone.utc)
        last = aware(until) if until else None
        runs: list[tuple[datetime, str]] = []
        for at, name in agenda(self._agenda_pages(), since):
            if len(runs) >= n or (last is not None and at > last):
                break
            runs.append((at, name))
        return runs

    def forecast(self, until: datetime, after: datetime | None = None) -> Forecast:
        """Return the nominal instants of all enabled entries after ``after`` and before ``until``.

        ``after`` is now by default. Reads pages of 500 entries, one round trip each, until no later
        page can have a run before ``until``. If there are too many entries or runs, the forecast
        ends before ``until``; see :class:`~redbeat.management.forecast.Forecast`.
        """
        since = aware(after) if after else datetime.now(timezone.utc)
        return forecast(self._agenda_pages(), since, aware(until))

    def _agenda_pages(self) -> Iterator[tuple[list[Entry], datetime | None]]:
        for records in self._pages(Filter()):
            entries = [item.entry for item in records if item.entry and item.entry.enabled]
            due = [item.due_at for item in records if item.due_at is not None]
            parked = len(due) < len(records)
            yield entries, None if parked or not due else due[-1]
            if parked:
                return

    def status(self) -> Status:
        """Return the status of the whole schedule. Two round trips."""
        return status_of(self.app)

    def quarantine(self) -> dict[str, tuple[str, datetime | None]]:
        """Return the quarantined entries: name -> (reason, start time). One round trip."""
        prefix, notes = self._store.keys.prefix, self._store.quarantined()
        return {
            printable(key.removeprefix(prefix)): quarantine_note(note)
            for key, note in notes.items()
        }

    # -- changing many entries -------------------------------------------------------------------

    def save_all(self, entries: Iterable[Entry]) -> int:
        """Save entries, and return the number of saved entries.

        All entries are checked before any entry is written; the message of an
        :exc:`InvalidEntryError` contains the name of the invalid entry. Stored run histories are
        kept, as in :meth:`RedBeatSchedulerEntry.save`. One round trip per 500 entries, and one more
        per 500 if new objects replace stored entries. Redis writes one batch while the next batch
        is encoded.
        """
        writings = {item.key: (entry, item) for entry in entries for item in [checked(entry)]}
        save_batches(self._store, batches(writings.values()))
        return len(writings)

    def delete_all(self, names: Iterable[str]) -> int:
        """Remove entries and their histories; return the number of removed entries.

        Unknown names are skipped. One round trip per 500 entries.
        """
        keys = (self._own_key(name) for name in names)
        return sum(self._store.delete_all(batch) for batch in batches(keys))

    def _own_key(self, name: str) -> str:
        return self.entry_class(name=name, app=self.app)._own_key()

    def pause_all(self, names: Iterable[str], note: str | None = None) -> int:
        """Pause entries; return the number of paused entries.

        Each entry is paused as in :meth:`RedBeatSchedulerEntry.pause`. Unknown and unreadable
        entries are skipped. Two round trips per 500 entries.
        """
        return len(pause_entries(self._store, map(self._own_key, names), note))

    def resume_all(self, names: Iterable[str]) -> int:
        """Resume entries; return the number of resumed entries.

        Unknown and unreadable entries are skipped. Two round trips per 500 entries.
        """
        keys = map(self._own_key, names)
        return len(resume_entries(self._store, keys, self.app, self.entry_class))

    def apply(
        self,
        definitions: Mapping[str, Mapping[str, Any]],
        prune: bool = False,
        dry_run: bool = False,
    ) -> Applied:
        """Create and update dynamic entries from ``definitions``; return the changes.

        ``definitions`` has the same format as ``beat_schedule``. All definitions are checked before
        anything is written. With ``prune``, dynamic entries that are not in ``definitions`` are
        removed; static entries are never removed. With ``dry_run``, nothing is written, and the
        changes that would be made are returned. Paused entries stay paused unless their definition
        changed. Three round trips per 500 definitions; with ``prune``, one more per 500 entries.
        """
        return apply(self, definitions, prune, dry_run)


class Values(ValuesView[Entry]):
    """The readable entries of a schedule, read in pages."""

    _mapping: Schedule

    def __iter__(self) -> Iterator[Entry]:
        return self._mapping.find()


class Items(ItemsView[str, Entry]):
    """The names and readable entries of a schedule, read in pages."""

    _mapping: Schedule

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return ((str(entry.name), entry) for entry in self._mapping.find())
