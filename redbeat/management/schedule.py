"""The schedule as a mapping from names to entries, with operations on many entries."""

from __future__ import annotations

import asyncio
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, TypedDict

from redbeat.beat.message import why_not_rendered
from redbeat.codec.stored import bytes_of
from redbeat.config import App, ensure_conf, real_app
from redbeat.entries import changes, edits, saving
from redbeat.entries import status as statuses
from redbeat.entries.calendars import give_calendars, load_calendars
from redbeat.entries.history import Occurrence
from redbeat.entries.policy import in_utc, spelled_out
from redbeat.entries.status import EntryState, EntryStatus, LastResult, Record
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.management import calendars
from redbeat.management import forecast as forecasts
from redbeat.management.apply import Applied, apply, build_entry
from redbeat.management.find import Filter, Search
from redbeat.management.forecast import Forecast, Load, Pair, Periods, Simulation, agenda
from redbeat.management.status import Status, status_of
from redbeat.metrics.problems import MAX_LATE
from redbeat.printing import encodable
from redbeat.schedules.calendars import Calendar
from redbeat.settings import MISSING
from redbeat.storage.rows import Row
from redbeat.storage.store import Store, store_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ("Applied", "EntryFilters", "EntryStatus", "Record", "Schedule", "Simulation", "Status")

Entry = RedBeatSchedulerEntry


class EntryFilters(TypedDict, total=False):
    """The keyword arguments of :meth:`Schedule.find`, as :meth:`Schedule.records` explains them."""

    task: str | None
    enabled: bool | None
    static: bool | None
    due_before: datetime | None
    states: Iterable[EntryState] | None
    last_result: LastResult | None
    limit: int | None


class Schedule(MutableMapping[str, RedBeatSchedulerEntry]):
    """A mapping from names to all entries of an app's schedule.

    It caches nothing: each access reads Redis, and each change takes effect at once.

    Iterating yields entries in due order, those that are never due last, and reads 500 entries per
    round trip. Each entry comes exactly once, even if runs or changes move it in the due order;
    entries that you add or delete during the iteration may be left out. The iteration remembers a
    hash of each key, about 70 bytes. At its end, it scans all keys, 2000 per round trip, for
    entries that it has not met.

    Arguments:
        app: the Celery app; None for the current app.
        entry_class: the class of the entries, if your scheduler has its own.
    """

    def __init__(
        self,
        app: App | None = None,
        entry_class: type[RedBeatSchedulerEntry] = RedBeatSchedulerEntry,
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
            bytes_of(key)
        except UnicodeEncodeError as error:
            raise KeyError(name) from error
        return key

    def _entry_of(self, row: Row) -> Any:
        return _checked(saving.entry_of(row, self.app, self.entry_class), row.key)

    # -- methods of a mapping --------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of entries, including unreadable ones. One round trip."""
        return self._store.members()

    def __contains__(self, name: object) -> bool:
        """One round trip."""
        try:
            key = self._key(name)
        except KeyError:
            return False
        row = changes.read(self._store, key)
        return row is not None and row.definition is not None

    def __getitem__(self, name: str) -> Entry:
        """Load an entry. One round trip.

        Raises KeyError for an unknown name and :exc:`DecodeError` for an unreadable entry.
        """
        key = self._key(name)
        try:
            return _checked(self.entry_class.from_key(key, app=self.app), key)
        except KeyError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Save an entry, whose name must be ``name``; see :meth:`RedBeatSchedulerEntry.save`."""
        if not isinstance(entry, RedBeatSchedulerEntry):
            raise InvalidEntryError("entry", f"must be a RedBeatSchedulerEntry, not {entry!r:.60}")
        if entry.name != name:
            raise InvalidEntryError("name", f"is {entry.name!r}, but must be the key {name!r}")
        entry.save()

    def __delitem__(self, name: str) -> None:
        """Remove an entry and its history; raises KeyError for an unknown name. One round trip."""
        if not edits.delete(self._store, [self._own_key(name)]):
            raise KeyError(name)

    def pop(self, name: str, default: Any = MISSING) -> Any:
        """Remove an entry and return it. Two round trips.

        For an unknown name, returns ``default``, or raises KeyError without one. If several callers
        pop the same entry, only one of them gets it. If Redis's reply is lost, the entry may be
        deleted although KeyError is raised. What another program saves between the two round trips
        is removed, too. An unreadable entry stays, and :exc:`DecodeError` is raised.
        """
        try:
            return super().pop(name)
        except KeyError:
            if default is MISSING:
                raise
            return default

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all entries, including unreadable ones."""
        return (record.name for record in self.records())

    def values(self) -> ValuesView[Entry]:
        """A view of the readable entries. One round trip per 500 entries."""
        return Values(self)

    def items(self) -> ItemsView[str, Entry]:
        """A view of (name, readable entry) pairs. One round trip per 500 entries."""
        return Items(self)

    def clear(self) -> None:
        """Remove all entries; a beat adds the static entries again. Two round trips per 500."""
        # The names come from the keys, because those in records are escaped.
        self.delete_all(self._store.keys.name_of(record.key) for record in self.records())

    # -- reading ---------------------------------------------------------------------------------

    @spelled_out(EntryFilters)
    def find(
        self, pattern: str | None = None, **filters: Unpack[EntryFilters]
    ) -> Iterator[RedBeatSchedulerEntry]:
        """Yield the matching readable entries; the arguments are those of :meth:`records`."""
        records = self.records(pattern, **filters)
        return (record.entry for record in records if record.entry is not None)

    @spelled_out(EntryFilters)
    def records(
        self, pattern: str | None = None, **filters: Unpack[EntryFilters]
    ) -> Iterator[Record]:
        """Yield a record for each matching entry, in due order, including unreadable ones.

        Takes one round trip per 500 entries. With a ``pattern``, Redis first compares the names,
        2000 per round trip; if at most 20,000 match, only these entries are read. If ``states``
        selects only entries that are never due, they are read first.

        Arguments:
            pattern, task: ``fnmatch`` patterns for the name and the task of the entry.
            enabled: True for enabled entries only, False for disabled ones only; either leaves out
                unreadable entries.
            static: True for static entries only, False for dynamic ones only.
            due_before: only entries due before this instant; a naive datetime counts as UTC.
            states: only entries in these states.
            last_result: only entries whose last run ended so, see :class:`EntryStatus`.
            limit: the maximum number of records.
        """
        conditions: dict[str, Any] = {**filters}
        limit = conditions.pop("limit", None)
        pages = Search(self, Filter.of(pattern, **conditions)).pages()
        return islice(chain.from_iterable(pages), limit)

    def upcoming(
        self,
        n: int = 10,
        after: datetime | None = None,
        until: datetime | None = None,
        *,
        pattern: str | None = None,
        each: int | None = None,
    ) -> list[tuple[datetime, str]]:
        """Return the next ``n`` runs of all enabled entries, as (due time in UTC, name).

        They are due later than ``after`` (default: now), and not later than ``until``. Only entries
        whose names match ``pattern`` count, and only ``each`` runs of each entry. Takes one round
        trip per 500 entries, until none of the next ``n`` runs can come later.
        """
        since = in_utc("after", after) if after else datetime.now(timezone.utc)
        runs = agenda(self._agenda_pages(pattern), since, each)
        if until:
            last = in_utc("until", until)
            runs = takewhile(lambda run: run[0] <= last, runs)
        return list(islice(runs, max(n, 0)))

    def forecast(self, until: datetime, after: datetime | None = None) -> Forecast:
        """Return the due times of all enabled entries after ``after`` and before ``until``.

        ``after`` is the current time by default. Takes one round trip per 500 entries, until no run
        before ``until`` can come later. With too many entries or runs, the forecast ends before
        ``until``; see :class:`~redbeat.Forecast`.
        """
        since = in_utc("after", after) if after else datetime.now(timezone.utc)
        return forecasts.forecast(self._agenda_pages(), since, in_utc("until", until))

    def simulate(
        self,
        since: datetime,
        until: datetime,
        names: Iterable[str] | None = None,
        changes: Mapping[str, Mapping[str, Any] | Entry] | None = None,
    ) -> Simulation:
        """Return the runs with nominal instants from ``since`` to before ``until``.

        A simulation uses the functions of a beat, and assumes that the beat is always on time. The
        simulated period may be in the past. A naive datetime counts as UTC.

        Arguments:
            names: the names of the entries; by default those in ``changes``, or of all enabled
                entries if ``changes`` is missing.
            changes: a dict from entry names to changed rules: either a dict of attributes, such as
                ``{"schedule": crontab(minute=0)}``, or a whole :class:`RedBeatSchedulerEntry`. An
                entry that is not stored is simulated as if it was created at ``since``. With
                ``changes``, the result contains the runs with and without them.

        Takes one round trip per 500 entries, or one for each of ``names``, and one more for each
        entry with calendars. Raises KeyError for an unknown name and
        :exc:`InvalidEntryError` for rules that cannot be saved, or for a ``since`` too close to the
        year 1. See :class:`~redbeat.Simulation` for the result and its limit.
        """
        if names is None and changes:
            names = changes
        pairs = self._pairs(names, changes or {})
        begin, end = in_utc("since", since), in_utc("until", until)
        return forecasts.simulate(pairs, begin, end, datetime.now(timezone.utc))

    def _pairs(self, names: Iterable[str] | None, changes: Mapping[str, Any]) -> Iterator[Pair]:
        if names is None:
            yield from ((entry, None) for entry in self.find(enabled=True))
            return
        for name in dict.fromkeys(map(str, names)):
            try:
                stored = self.get(name)
            except DecodeError as error:
                raise DecodeError(name, str(error)) from error
            changed = self._changed(name, stored, changes.get(name))
            if stored is None and changed is None:
                raise KeyError(name)
            yield stored, changed

    def _changed(self, name: str, stored: Entry | None, change: Any) -> Entry | None:
        if change is None or isinstance(change, RedBeatSchedulerEntry):
            return change
        rules = (
            {}
            if stored is None
            else {**stored.definition(), **stored.effective_policy.non_defaults()}
        )
        return build_entry(self, name, {**rules, **change})

    def load(self, periods: Periods, pattern: str | None = None, totals: bool = False) -> Load:
        """Return the number of runs in each period, for entries whose names match ``pattern``.

        Takes one round trip per 500 entries in due order, up to the first that are due after all
        periods; see :class:`~redbeat.management.forecast.Load`.
        """
        *_, whole = forecasts.load_in_steps(forecasts.Loading(self, periods, pattern, totals))
        return whole

    def _agenda_pages(self, pattern: str | None = None) -> forecasts.Pages:
        for records in Search(self, Filter()).pages():
            due = [item.due_at for item in records if item.due_at is not None]
            parked = len(due) < len(records)
            entries = self._running(records)
            if pattern is not None:
                entries = [one for one in entries if fnmatchcase(str(one.name), pattern)]
            yield entries, None if parked or not due else due[-1]
            if parked:
                return

    def _running(self, records: Iterable[Record]) -> list[Entry]:
        readable = (item.entry for item in records if item.state != statuses.QUARANTINED)
        entries = [entry for entry in readable if entry and entry.enabled]
        known = give_calendars(self._store, entries).keys()
        # Beats quarantine the entries whose calendars cannot be read.
        return [one for one in entries if known >= set(one.policy_field("exclude"))]

    def status(self, max_late: float = MAX_LATE) -> Status:
        """Return the status of the whole schedule, with its problems. Two round trips.

        An entry that is more than ``max_late`` seconds late is a problem.
        """
        return status_of(self.app, max_late=max_late)

    def why_not_rendered(self, entry: Entry) -> str:
        """Return why Celery makes the messages of an entry, "" if beats render them.

        Connects to the broker. Things that only a beat's process knows are not seen: its scheduler
        class, and functions that it alone connects to signals.
        """
        return why_not_rendered(self.app, entry)

    def quarantine(self) -> dict[str, tuple[str, datetime | None]]:
        """Return the reason and the start of each quarantine, by entry name. One round trip."""
        name_of, note_of = self._store.keys.name_of, statuses.quarantine_note
        notes = self._store.quarantined()
        return {encodable(name_of(key)): note_of(note) for key, note in notes.items()}

    # -- changing many entries -------------------------------------------------------------------

    def save_all(self, entries: Iterable[Entry]) -> int:
        """Save entries, and return how many were saved.

        Everything is checked before anything is written; the message of an
        :exc:`InvalidEntryError` names the entry. Stored run histories are not overwritten, as in
        :meth:`RedBeatSchedulerEntry.save`. Takes one round trip per 500 entries, or two if new
        objects replace stored entries.
        """
        return saving.save_all(self._store, entries)

    def delete_all(self, names: Iterable[str]) -> int:
        """Remove entries and their histories; return how many were removed.

        Unknown names are skipped. Takes one round trip per 500 entries.
        """
        return edits.delete(self._store, map(self._own_key, names))

    def _own_key(self, name: str) -> str:
        return self._named(name).writable_key()

    def _named(self, name: str) -> Entry:
        return self.entry_class(name=name, app=self.app)

    @property
    def calendars(self) -> dict[str, Calendar]:
        """All stored calendars by name. One round trip.

        Raises :exc:`DecodeError` for a calendar that cannot be read.
        """
        return load_calendars(self._store)

    def save_calendar(self, calendar: Calendar) -> int:
        """Store a calendar, and return how many entries use it.

        The change takes effect on them at once. Takes one round trip, and five more per 500 entries
        with calendars.
        """
        return calendars.save_calendar(self, calendar)

    def delete_calendar(self, name: str) -> bool:
        """Delete the calendar, unless an entry still uses it; return whether it existed.

        Raises :exc:`InvalidEntryError` if an entry uses it. Takes one round trip, and two more per
        500 entries with calendars.
        """
        return calendars.delete_calendar(self, name)

    def pause_all(self, names: Iterable[str], note: str | None = None) -> int:
        """Pause entries as :meth:`RedBeatSchedulerEntry.pause` does; return how many were paused.

        Unknown and unreadable entries are skipped. Takes two round trips per 500 entries.
        """
        return len(edits.pause(self._store, map(self._own_key, names), note, None))

    def resume_all(self, names: Iterable[str]) -> int:
        """Resume entries; return how many were resumed.

        Unknown and unreadable entries are skipped. Takes two round trips per 500 entries.
        """
        keys = map(self._own_key, names)
        return len(edits.resume(self._store, keys, self.app, self.entry_class))

    def apply(
        self,
        definitions: Mapping[str, Mapping[str, Any]],
        prune: bool = False,
        dry_run: bool = False,
        managed_by: str | None = None,
        adopt: bool = False,
    ) -> Applied:
        """Create and update dynamic entries from ``definitions``; return the changes.

        ``definitions`` has the format of ``beat_schedule``. Everything is checked before anything
        is written. With ``prune``, dynamic entries that are not in ``definitions`` are removed;
        static entries never are. With ``dry_run``, nothing is written. Paused entries stay paused
        unless their definition changed. Takes three round trips per 500 definitions and, with
        ``prune``, one more per 500 entries.

        ``managed_by`` names the owner of the definitions, as in a file of ``celery redbeat apply``.
        Then this owner's other entries are removed, nobody else's, and paused entries stay paused.
        An entry that exists without this owner raises :exc:`InvalidEntryError`, unless ``adopt``
        is true.
        """
        return apply(self, definitions, prune, dry_run, managed_by, adopt)

    # -- for asynchronous code -------------------------------------------------------------------

    # In a thread, because redis-py's asyncio client would need a second implementation of the
    # store. Loading an entry takes 0.47 ms in a thread, and 0.28 ms without.

    async def asave(self, entry: Entry, if_unchanged: bool = False) -> Entry:
        """Store an entry in a thread, see :meth:`RedBeatSchedulerEntry.save`."""
        # Entry classes for RedBeat 2 may have a save() without arguments.
        options = {"if_unchanged": True} if if_unchanged else {}
        return await asyncio.to_thread(entry.save, **options)

    async def aget(self, name: str) -> Entry:
        """Load an entry in a thread, as ``schedule[name]`` does."""
        return await asyncio.to_thread(self.__getitem__, name)

    async def adelete(self, name: str) -> None:
        """Remove an entry and its history in a thread; raises KeyError for an unknown name."""
        await asyncio.to_thread(self.__delitem__, name)

    @spelled_out(EntryFilters)
    async def alist(
        self, pattern: str | None = None, **filters: Unpack[EntryFilters]
    ) -> list[Record]:
        """Return a list of :meth:`records`, read in a thread."""
        return await asyncio.to_thread(lambda: list(self.records(pattern, **filters)))

    async def apause(self, name: str, note: str | None = None, by: str | None = None) -> None:
        """Pause an entry in a thread, see :meth:`RedBeatSchedulerEntry.pause`."""
        await asyncio.to_thread(self._named(name).pause, note, by)

    async def aresume(self, name: str) -> None:
        """Resume an entry in a thread, see :meth:`RedBeatSchedulerEntry.resume`."""
        await asyncio.to_thread(self._named(name).resume)

    async def atrigger(self, name: str) -> str:
        """Request one run in a thread, see :meth:`RedBeatSchedulerEntry.trigger`."""
        return await asyncio.to_thread(self._named(name).trigger)

    async def aupcoming(
        self, n: int = 10, after: datetime | None = None, until: datetime | None = None
    ) -> list[tuple[datetime, str]]:
        """Return the next runs of all enabled entries, computed in a thread by :meth:`upcoming`."""
        return await asyncio.to_thread(self.upcoming, n, after, until)

    async def ahistory(self, name: str) -> list[Occurrence]:
        """Return the last runs of an entry, read in a thread."""
        return await asyncio.to_thread(lambda: self[name].history)

    async def astatus(self) -> Status:
        """Return the status of the whole schedule, read in a thread."""
        return await asyncio.to_thread(self.status)


def _checked(entry: Entry, key: str) -> Entry:
    """Beats run no entry whose definition has another name than its key."""
    if entry.key != key:
        problem = f"{entry.name!r:.60} does not match the key of the entry"
        raise DecodeError("definition.name", problem)
    return entry


class Values(ValuesView[Entry]):
    """Read in pages; unreadable entries are left out."""

    _mapping: Schedule

    def __iter__(self) -> Iterator[Entry]:
        return self._mapping.find()


class Items(ItemsView[str, Entry]):
    """Read in pages; unreadable entries are left out."""

    _mapping: Schedule

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return ((str(entry.name), entry) for entry in self._mapping.find())
