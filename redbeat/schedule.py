"""The schedule as a mapping of names to entries, and what is done to many entries at once."""

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
    """All entries of an app's schedule, by name.

    It holds no entries: each look is one at Redis, each change takes effect at once. Iterating
    yields in due order, what is parked last, and reads pages of 500, a round trip each. Each entry
    that is there all the time is met once, whatever runs or changes meanwhile: one that is moved to
    an earlier place comes last. For that, names are remembered while it goes on, about 100 bytes
    for each, and all keys are looked at in the end, 5000 per round trip.

    Arguments:
        app: the Celery app; None for the current one.
        entry_class: the class of the entries, for schedulers with one of their own.
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
        """Return how many entries there are, readable or not. One round trip."""
        return self._store.members()

    def __contains__(self, name: object) -> bool:
        """Return whether there is an entry of this name. One round trip."""
        try:
            return self._store.load(self._key(name))[0] is not None
        except (DecodeError, KeyError):
            return False

    def __getitem__(self, name: str) -> Entry:
        """Load an entry; KeyError for an unknown one, :exc:`DecodeError` for an unreadable one.

        One round trip.
        """
        try:
            return self.entry_class.from_key(self._key(name), app=self.app)
        except KeyError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Save an entry under its own name; see :meth:`RedBeatSchedulerEntry.save`."""
        if not isinstance(entry, RedBeatSchedulerEntry):
            raise InvalidEntryError("entry", f"must be a RedBeatSchedulerEntry, not {entry!r:.60}")
        if entry.name != name:
            raise InvalidEntryError("name", f"is {entry.name!r}, it must be the key, {name!r}")
        entry.save()

    def __delitem__(self, name: str) -> None:
        """Remove an entry and its history; KeyError for an unknown one. One round trip."""
        if not self._store.delete(self._own_key(name)):
            raise KeyError(name)

    def pop(self, name: str, default: Any = MISSING) -> Any:
        """Remove an entry, and return it as it was then; ``default``, or KeyError, for none.

        Of several callers at once only one gets it. One that cannot be read stays, and is a
        :exc:`DecodeError`. Two round trips.
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
        """Yield the names of all entries, readable or not."""
        return (record.name for record in self.records())

    def values(self) -> ValuesView[Entry]:
        """Return a view of the entries that can be read; one round trip per 500."""
        return Values(self)

    def items(self) -> ItemsView[str, Entry]:
        """Return a view of the names and entries that can be read; one round trip per 500."""
        return Items(self)

    def clear(self) -> None:
        """Remove all entries; a beat writes static ones again. Two round trips per 500."""
        self.delete_all(self)

    # -- looking ---------------------------------------------------------------------------------

    def find(self, pattern: str | None = None, **filters: Any) -> Iterator[Entry]:
        """Yield the entries that :meth:`records` finds and that can be read."""
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
        """Yield entries in due order, readable or not; one round trip per 500 that are looked at.

        Arguments:
            pattern, task: what the name, the name of the task must be like, as in ``fnmatch``.
            enabled, static: whether it is; an unreadable entry is neither enabled nor not.
            due_before: only what is due before this instant; a naive one is UTC.
            states: only entries in these states.
            limit: so many at most.
        """
        wanted = Filter.of(pattern, task, enabled, static, due_before, states)
        return islice(self._records(wanted), limit)

    def _records(self, wanted: Filter) -> Iterator[Record]:
        for records in self._pages(wanted):
            yield from records

    def _pages(self, wanted: Filter) -> Iterator[list[Record]]:
        store, met = self._store, set[str]()
        page = store.page()
        yield self._new_records(page, met, wanted)
        if page.after is None:
            return
        after: Cursor | None = page.after
        while after is not None and not wanted.ends_before(after):
            page = store.page(after)
            yield self._new_records(page, met, wanted)
            after = page.after
        for missed in batches(self._missed(met)):
            yield self._new_records(store.read(missed), met, wanted)

    def _missed(self, met: set[str]) -> Iterator[str]:
        """Yield the keys that were moved from behind to before the place that was read."""
        keys, after = self._store.keys_after()
        yield from (key for key in keys if key not in met)
        while after is not None:
            keys, after = self._store.keys_after(after)
            yield from (key for key in keys if key not in met)

    def _new_records(self, page: Page, met: set[str], wanted: Filter) -> list[Record]:
        """Return what is wanted of a page and was not met yet."""
        rows = [row for row in page.rows if row.key not in met]
        met.update(row.key for row in rows)
        prefix, found = self._store.keys.prefix, []
        for row in rows:
            name = printable(row.key.removeprefix(prefix))
            if not wanted.admits(name, row):
                continue
            record = Record.read(row, name, page.now, self.app, self.entry_class)
            if wanted.takes(record):
                found.append(record)
        return found

    def upcoming(
        self, n: int = 10, after: datetime | None = None, until: datetime | None = None
    ) -> list[tuple[datetime, str]]:
        """Return the next ``n`` nominal instants of all enabled entries, UTC, each with its name.

        After ``after`` (default: now), and not after ``until``. Reads one page of 500 entries, and
        more only where these can be among the first ``n``.
        """
        since = aware(after) if after else datetime.now(timezone.utc)
        last = aware(until) if until else None
        found: list[tuple[datetime, str]] = []
        for at, name in agenda(self._agenda_pages(), since):
            if len(found) >= n or (last is not None and at > last):
                break
            found.append((at, name))
        return found

    def forecast(self, until: datetime, after: datetime | None = None) -> Forecast:
        """Return the nominal instants of all enabled entries after ``after`` and before ``until``.

        ``after`` is now unless it is given. Reads the pages of 500 entries that can be among them,
        and ends earlier when it becomes too much, see
        :class:`~redbeat.management.forecast.Forecast`.
        """
        since = aware(after) if after else datetime.now(timezone.utc)
        return forecast(self._agenda_pages(), since, aware(until))

    def _agenda_pages(self) -> Iterator[tuple[list[Entry], datetime | None]]:
        for records in self._pages(Filter()):
            entries = [found.entry for found in records if found.entry and found.entry.enabled]
            due = [found.due_at for found in records if found.due_at is not None]
            parked = len(due) < len(records)
            yield entries, None if parked or not due else due[-1]
            if parked:
                return

    def status(self) -> Status:
        """Return what the schedule looks like as a whole. Two round trips."""
        return status_of(self.app)

    def quarantine(self) -> dict[str, tuple[str, datetime | None]]:
        """Return why, and since when, each quarantined entry is set aside. One round trip."""
        prefix, notes = self._store.keys.prefix, self._store.quarantined()
        return {
            printable(key.removeprefix(prefix)): quarantine_note(note)
            for key, note in notes.items()
        }

    # -- changing many ---------------------------------------------------------------------------

    def save_all(self, entries: Iterable[Entry]) -> int:
        """Save entries, and return how many.

        All are checked before anything is written; :exc:`InvalidEntryError` names the entry. Runs
        that are stored already are kept, as :meth:`RedBeatSchedulerEntry.save` does. One round trip
        per 500, and another where new objects change what is stored under their names; the next
        500 are made ready while Redis writes the last.
        """
        prepared = {asked.key: (entry, asked) for entry in entries for asked in [checked(entry)]}
        save_batches(self._store, batches(prepared.values()))
        return len(prepared)

    def delete_all(self, names: Iterable[str]) -> int:
        """Remove entries and their histories; return how many there were.

        One round trip per 500.
        """
        keys = (self._own_key(name) for name in names)
        return sum(self._store.delete_all(batch) for batch in batches(keys))

    def _own_key(self, name: str) -> str:
        return self.entry_class(name=name, app=self.app)._own_key()

    def pause_all(self, names: Iterable[str], note: str | None = None) -> int:
        """Pause entries; return how many. See :meth:`RedBeatSchedulerEntry.pause`.

        Unknown and unreadable ones are left out. Two round trips per 500.
        """
        return len(pause_entries(self._store, map(self._own_key, names), note))

    def resume_all(self, names: Iterable[str]) -> int:
        """Resume entries; return how many. See :meth:`pause_all`."""
        keys = map(self._own_key, names)
        return len(resume_entries(self._store, keys, self.app, self.entry_class))

    def apply(
        self,
        definitions: Mapping[str, Mapping[str, Any]],
        prune: bool = False,
        dry_run: bool = False,
    ) -> Applied:
        """Make the dynamic entries those of ``definitions``, written like ``beat_schedule``.

        With ``prune`` those that are not among them are removed; static entries never are. With
        ``dry_run`` nothing is written. Returns what was, or would be, done. All definitions are
        checked before anything is written. Entries that were paused stay so unless their definition
        changed. Three round trips per 500 definitions, with ``prune`` one more per 500 entries.
        """
        return apply(self, definitions, prune, dry_run)


class Values(ValuesView[Entry]):
    """The entries of a schedule, read in pages."""

    _mapping: Schedule

    def __iter__(self) -> Iterator[Entry]:
        return self._mapping.find()


class Items(ItemsView[str, Entry]):
    """The names and entries of a schedule, read in pages."""

    _mapping: Schedule

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return ((str(entry.name), entry) for entry in self._mapping.find())
