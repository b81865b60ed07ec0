"""The entries of ``beat_schedule``, written to Redis as changes of what was read there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule
from redis.exceptions import RedisError

from redbeat.beat.lock import BeatLock
from redbeat.calendar.zones import from_timestamp
from redbeat.codec.types import TAG
from redbeat.config import ensure_conf
from redbeat.decoder import stored_type_of
from redbeat.entries import decide, definition, edits, saving
from redbeat.entries.calendars import give_calendars
from redbeat.entries.changes import apply, change_of, texts_in, with_enabled
from redbeat.entries.history import Texts
from redbeat.entries.state import State
from redbeat.entry import RedBeatSchedulerEntry, check_allowed, check_key
from redbeat.errors import CannotRunHereError, DecodeError, InvalidEntryError
from redbeat.printing import get_logger
from redbeat.schedules.next_run import asks_itself, unstored_parts
from redbeat.storage import reading, words
from redbeat.storage.keys import check_destinations
from redbeat.storage.reading import read_rows
from redbeat.storage.rows import Change, Reply, Row, digest_of, new_mark
from redbeat.storage.store import Store

logger = get_logger("celery.beat")

#: How often to decide again about an entry that others change at the same time.
MOST_TRIES: Final = 5

#: The field of the stats for the note of the beat that last wrote static entries.
WRITTEN: Final = "statics"

#: The fields of most items of ``beat_schedule``.
USUAL: Final = frozenset({"task", "schedule", "args", "kwargs", "options"})

OCCUPIED_BY = "the key %r is not an entry; rename the entry or the key"

#: Carries out changes in one round trip.
Exchange = Callable[[Sequence[Change]], Reply]

#: (name, whether it's new) -> change.
Changes = dict[tuple[str, bool], Change]


class Here(NamedTuple):
    """Where and when static entries are written.

    ``now`` is Redis's time. With ``only_missing``, stored entries stay as they are. ``known`` are
    the names in the set of static entries. ``note`` goes to Redis with all that is written, so that
    another beat sees it wasn't the last to write.
    """

    store: Store
    exchange: Exchange
    now: datetime
    only_missing: bool
    known: set[str]
    note: str


class Item(NamedTuple):
    """An item of ``beat_schedule`` whose entry is made only to be written."""

    key: str
    texts: Texts
    rule: BaseSchedule
    app: Celery
    fields: Mapping[str, Any]


class Statics:
    """This process's entries of ``beat_schedule``, with the objects that Redis can't store.

    An invalid entry is logged and doesn't affect others. An older version of it stays in Redis.

    An unchanged entry is read and not written. Entries are read 500 at a time, and each change
    expects what was read, so beats that write at the same time do no harm. What is probably new
    isn't read: its change expects nothing.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RedBeatSchedulerEntry | Item] = {}
        #: A live view of the names.
        self.names = self._entries.keys()
        self._refused: set[str] = set()
        self._removed: set[str] = set()
        self._texts: dict[str, Texts] = {}
        #: Whether :meth:`collect` was called. Until then, no entry is removed.
        self._complete = False
        #: Entries added, changed and removed that weren't logged yet.
        self._counts = _no_counts()
        #: This beat's note in Redis, once :meth:`offer` has written all entries.
        self._note = ""
        #: Whether :meth:`sync` must come before this beat looks at any entry.
        self.unwritten = True

    def __len__(self) -> int:
        return len(self._entries)

    # -- collecting ----------------------------------------------------------------------------

    def collect(self) -> None:
        """Start over; static entries that aren't added again count as removed."""
        self._removed |= self.names
        self._entries.clear()
        self._refused, self._texts = set(), {}
        self._counts, self._note = _no_counts(), ""
        self._complete = self.unwritten = True

    def add(self, name: str, entry: RedBeatSchedulerEntry) -> None:
        """Add an entry.

        Raises :exc:`InvalidEntryError` for a reserved name, or if ``on_finish`` is ``delete``: each
        start of a beat would create the deleted entry again.
        """
        if entry.effective_policy.on_finish == "delete":
            problem = "'delete' is for entries that are stored at run time; use 'keep' or 'disable'"
            raise InvalidEntryError("on_finish", problem)
        entry.writable_key()
        definition.warn_if_too_short(name, entry.schedule)
        entry.is_static = True
        self._add(str(name), entry)

    def add_item(self, app: Celery, name: str, fields: Mapping[str, object]) -> bool:
        """Add an entry by its fields if they are usual and valid; otherwise return False."""
        try:
            item = item_of(app, name, fields)
        except Exception:  # making the entry raises it again
            return False
        if item is not None:
            self._add(name, item)
        return item is not None

    def _add(self, name: str, entry: RedBeatSchedulerEntry | Item) -> None:
        self._entries[name] = entry
        self._texts.pop(name, None)
        self._refused.discard(name)
        self._removed.discard(name)
        self._note = ""

    def refuse(self, name: str, error: Exception) -> None:
        logger.error("beat: Static entry %s is not scheduled: %s", name, error)
        name = str(name)
        self._entries.pop(name, None)
        self._refused.add(name)
        self._removed.discard(name)

    # -- restoring -----------------------------------------------------------------------------

    def restore(self, entry: RedBeatSchedulerEntry) -> None:
        """Give a loaded entry the schedule and functions that Redis can't store.

        Raises :exc:`CannotRunHereError` for functions that this beat doesn't have.
        """
        static_entry = self._entries.get(str(entry.name))
        if isinstance(static_entry, Item):
            static_entry = None  # all of it is stored
        if static_entry is not None and not _runs_as_stored(static_entry.schedule):
            stored = type(static_entry).from_definition(static_entry.app, *static_entry.texts())
            # A schedule that was edited in Redis stays.
            if entry.schedule == stored.schedule:
                entry.schedule = static_entry.schedule
        try:
            entry.args = definition.resolved(
                entry.args, static_entry and static_entry.args, ("args",)
            )
            kwargs = static_entry and static_entry.kwargs
            entry.kwargs = definition.resolved(entry.kwargs, kwargs, ("kwargs",))
        except definition.LazyArgumentError as error:
            raise CannotRunHereError(str(error)) from error

    # -- writing -------------------------------------------------------------------------------

    def offer(self, store: Store, lock: BeatLock | None) -> None:
        """Add and change entries; while another beat leads, only add those that are missing.

        Four round trips, one per 500 entries of which some aren't new, and one more per 500 of
        which some are written; none without entries.
        """
        if not self._entries:
            return
        holder = store.lock_holder(lock.key) if lock else ""
        other_leads = lock is not None and holder not in ("", lock.token)
        now, known = from_timestamp(store.time()), store.static_names()
        here = Here(store, partial(apply, store), now, other_leads, known, new_mark())
        if self._write(here) and not other_leads:
            here.exchange([_noting(here)])
            self._note = here.note
        if self._counts["added"] and other_leads:
            added, self._counts = self._counts["added"], _no_counts()
            logger.info("beat: Another beat leads: %d missing static entries added", added)

    def sync(
        self, store: Store, exchange: Exchange, now: datetime, exclusive: bool
    ) -> dict[str, int] | None:
        """Add, change and remove entries so that Redis has those of ``beat_schedule``.

        ``now`` is Redis's time. Unless ``exclusive``, only what the program has removed from this
        beat's ``beat_schedule`` is removed.

        Returns how many entries were added, changed and removed since the last log line about them.
        None if this beat no longer holds the lock, or if others kept changing entries.

        Two round trips, one per 500 entries, one more per 500 of which some are written, and one
        more per 500 of which some use calendars. Three if no beat has written static entries since
        :meth:`offer`.
        """
        here = Here(store, exchange, now, False, store.static_names(), new_mark())
        is_written = bool(self._note) and store.noted(WRITTEN) == self._note
        self._note = ""
        if not (is_written or self._write(here)):
            return None
        if not self._remove(here, self._stale(here.known, exclusive)):
            return None
        self._removed.clear()
        counts, self._counts = self._counts, _no_counts()
        logger.info(
            "beat: Static entries: %d added, %d changed, %d removed, %d in all",
            *(*counts.values(), len(self)),
        )
        return counts

    def _stale(self, names: set[str], exclusive: bool) -> set[str]:
        if not self._complete:
            return set()
        return names - self.names - self._refused if exclusive else names & self._removed

    def _remove(self, here: Here, stale: Iterable[str]) -> bool:
        """False if this beat no longer holds the lock."""
        for names in reading.batches(sorted(stale)):
            keys = [here.store.keys.entry(name) for name in names]
            # Keys that aren't hashes belong to others, and stay.
            rows = [row for row in read_rows(here.store, keys) if not row.problem]
            index = [["SREM", words.STATICS, *names], ["HDEL", words.QUARANTINE, *keys]]
            changes = [edits.deletion(row.key) for row in rows]
            if here.exchange([*changes, Change("", index=index)]).standing == words.STANDBY:
                return False
            self._counts["removed"] += len(names)
            for name in names:
                logger.info("beat: Removed entry %s, which is no longer in beat_schedule", name)
        return True

    def _write(self, here: Here) -> bool:
        """Whether all entries were written."""
        for batch in reading.batches(list(self._entries), length_of=self._length_of):
            names = {self._entries[name].key: name for name in batch}
            unnamed = [name for name in batch if name not in here.known]
            items = [item for item in map(self._entries.get, unnamed) if isinstance(item, Item)]
            rows = [Row(item.key) for item in items]
            rows += read_rows(here.store, sorted(names.keys() - {row.key for row in rows}))
            for _ in range(MOST_TRIES):
                changes = self._changes(here, rows, names)
                new = [name for name in unnamed if name in self._entries and name not in here.known]
                if not changes and not new:
                    break
                index = _noting(here)
                if new:
                    index.index.append(["SADD", words.STATICS, *new])
                reply = here.exchange([*changes.values(), index])
                if reply.standing == words.STANDBY:
                    return False
                here.known.update(new)
                rows = self._answered(here, changes, reply)
                if not rows:
                    break
            else:
                return False
            if refused := here.known.intersection(unnamed) - self.names:
                here.exchange([Change("", index=[["SREM", words.STATICS, *refused]])])
        return True

    def _length_of(self, name: str) -> int:
        entry = self._entries[name]
        return len(entry.texts[0]) if isinstance(entry, Item) else 0

    def _changes(self, here: Here, rows: Iterable[Row], names: Mapping[str, str]) -> Changes:
        """The changes of what differs; refuse what is invalid."""
        entries: list[Any] = [self._entries[names[row.key]] for row in rows]
        give_calendars(here.store, (one for one in entries if not isinstance(one, Item)))
        changes, firsts = Changes(), dict[str, Change]()
        for row, entry in zip(rows, entries, strict=True):
            # New items with the same schedule differ only in their keys and definitions.
            is_new = row.definition is None and row == Row(row.key)
            alike = repr(entry.rule.__reduce__()) if is_new and isinstance(entry, Item) else row.key
            if alike in firsts:
                firsts[alike].twins[row.key] = entry.texts[0]
                continue
            try:
                if row.problem:
                    raise InvalidEntryError("name", OCCUPIED_BY % row.key)
                change = self._change(here, entry, row)
            except (RedisError, OSError):
                raise
            except Exception as error:  # user code in a schedule or entry class
                self.refuse(names[row.key], error)
                continue
            if change is not None:
                changes[names[row.key], row.definition is None] = change
                firsts[alike] = change
        return changes

    def _change(self, here: Here, entry: RedBeatSchedulerEntry | Item, row: Row) -> Change | None:
        texts = entry.texts if isinstance(entry, Item) else self._texts_of(entry, here, row)
        if row.definition is not None:
            if here.only_missing:
                return None
            if texts_in(row) == texts or _is_paused(row, texts):
                return _kept(row, here.now)
        if isinstance(entry, Item):
            # Celery's default of last_run_at takes long to compute.
            fields = {**entry.fields, "name": here.store.keys.name_of(row.key)}
            entry = RedBeatSchedulerEntry(app=entry.app, last_run_at=here.now, **fields)
            entry.is_static = True
        return saving.static_change(entry, row, texts, here.now)

    def _texts_of(self, entry: RedBeatSchedulerEntry, here: Here, row: Row) -> Texts:
        """Definition and policy of an entry, as they are to be stored.

        An entry class that overrides ``save`` saves the entry itself, and what it stored counts.
        """
        name = str(entry.name)
        if name not in self._texts:
            if type(entry).save is RedBeatSchedulerEntry.save:
                self._texts[name] = entry.texts()
            else:
                if row.definition is None or not here.only_missing:
                    entry.save()
                (stored,) = read_rows(here.store, [row.key])
                self._texts[name] = texts_in(stored)
        return self._texts[name]

    def _answered(self, here: Here, changes: Changes, reply: Reply) -> list[Row]:
        """What is stored where a change was not done."""
        unread: list[str] = []
        for ((name, is_new), change), answer in zip(changes.items(), reply.answers, strict=False):
            if answer.word == words.DONE:
                self._counts["added"] += is_new + len(change.twins) - len(answer.left)
                self._counts["changed"] += not is_new and words.DEFINITION in change.set
                unread += answer.left
            elif answer.word == words.REFUSED and not isinstance(self._entries[name], Item):
                self.refuse(name, InvalidEntryError("name", answer.why))
            else:  # edited or deleted since it was read; or there, though it wasn't known
                unread += [change.key, *change.twins]
        return read_rows(here.store, unread)


def item_of(app: Celery, name: str, fields: Mapping[str, Any]) -> Item | None:
    """None if only the entry class can say what is stored. Most errors of fields are raised."""
    if type(fields) is not dict or type(name) is not str or not USUAL.issuperset(fields):
        return None
    rule: Any = maybe_schedule(fields["schedule"], app=app)
    if type(rule) not in (schedule, crontab) or asks_itself(rule):
        return None
    kwargs, options = fields.get("kwargs") or {}, fields.get("options") or {}
    values = (name, fields["task"], fields.get("args"), kwargs, options, rule, True)
    stored = dict(zip(definition.FIELDS, values, strict=True))
    text = definition.encode_definition(stored, static=True)
    if text.count(TAG) > 1:  # only an entry keeps the functions of lazy arguments
        return None
    conf, key = ensure_conf(app), RedBeatSchedulerEntry.generate_key(app, name)
    check_key(conf, name, key)
    check_allowed(conf, fields["task"], options)
    check_destinations(app, options)
    definition.warn_if_too_short(name, rule)
    return Item(key, (text, ""), rule, app, fields)


def _noting(here: Here) -> Change:
    return Change("", index=[["HSET", words.STATS, WRITTEN, here.note]])


def _no_counts() -> dict[str, int]:
    return {"added": 0, "changed": 0, "removed": 0}


def _runs_as_stored(schedule: BaseSchedule) -> bool:
    """Whether the stored form of a schedule runs like the schedule itself.

    A clock that only says when the schedule begins has no effect on later runs.
    """
    if not asks_itself(schedule):
        return True
    lost = unstored_parts(schedule, stored_type_of(type(schedule))[0])
    only_clock = decide.has_clock(schedule) and {"nowfun", "now"}.issuperset(lost)
    return only_clock and decide.is_own_time(schedule.now())


def _is_paused(row: Row, texts: Texts) -> bool:
    """Whether an operator paused the entry, and ``beat_schedule`` hasn't changed since."""
    stored, policy = texts_in(row)
    if policy != texts[1] or State.read(row.state, row.meta).pause is None:
        return False
    try:
        return with_enabled(stored, True) == with_enabled(texts[0], True)
    except DecodeError:
        return False


def _kept(row: Row, now: datetime) -> Change | None:
    """The change of an entry whose text stays; None if there is nothing to do.

    An entry of an earlier version gets a state that says it has no identity, so that it's the same
    entry if a beat adds it again after Redis lost its data.
    """
    add = now.timestamp() if row.score == "" else None
    if row.state is None:
        return change_of(row, State.read(None, row.meta), add=add)
    return None if add is None else Change(row.key, expect=digest_of(row), add=add)
