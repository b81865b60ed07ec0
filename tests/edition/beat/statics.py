"""The entries of ``beat_schedule``: writes them to Redis as changes of what was read there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError

from redbeat.beat.statics import OCCUPIED_BY, Scores, StaticEntries
from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import object_in, text_of
from redbeat.entries.calendars import calendar_of
from redbeat.entries.decide import counts_from
from redbeat.entries.history import (
    History,
    change_of_timing,
    encode_meta,
    history_after_save,
)
from redbeat.entries.lazy import LazyArgumentError
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import CannotRunHereError, DecodeError, InvalidEntryError
from redbeat.printing import get_logger
from redbeat.storage.reading import BATCH, batches
from tests.edition.state import State, digest_of_meta
from tests.edition.storage.portions import ask_aside, read_rows, static_names, stored_calendars
from tests.edition.storage.rows import Change, Reply, Row, digest_of, new_mark
from tests.edition.storage.store import Store
from tests.edition.words import (
    CALENDAR_USERS,
    DEFINITION,
    DIFFERS,
    DONE,
    EXPECTED,
    FAILING,
    HISTORY,
    INBOX,
    META,
    POLICY,
    QUARANTINE,
    REFUSED,
    RESULTS,
    STANDBY,
    STATE,
    STATICS,
    STATS,
    WAITS,
    WRITTEN,
)

logger = get_logger("celery.beat")

#: How often a change of an entry is decided again that others change at the same time.
MOST_TRIES: Final = 5

#: Carries out changes in one round trip.
Exchange = Callable[[Sequence[Change]], Reply]


class Here(NamedTuple):
    """Where and when static entries are written.

    ``now`` is the time of Redis. With ``only_missing``, stored entries stay as they are. ``known``
    are the names in the set of static entries.
    """

    store: Store
    exchange: Exchange
    now: datetime
    only_missing: bool
    known: set[str]


class Statics(StaticEntries):
    """The entries of ``beat_schedule``, decided about by the functions that decide about saves.

    An unchanged entry is read and not written. A beat reads in portions of 500 entries, and each
    change expects what was read, so beats that write at the same time disturb nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Whether the counts go on from :meth:`offer_to`.
        self._begun = False
        #: What :meth:`offer_to` noted: while Redis has it, nobody else has written static entries.
        self._noted = ""
        self._stored: dict[str, tuple[str, str]] = {}

    def collect(self) -> None:
        """Start a new collection; static entries that are not added to it count as removed."""
        super().collect()
        self._stored, self._noted = {}, ""

    def add(self, name: str, entry: RedBeatSchedulerEntry) -> None:
        """Add an entry; raises :exc:`InvalidEntryError`."""
        super().add(name, entry)
        self._stored.pop(str(entry.name), None)
        self._noted = ""

    def restore(self, entry: RedBeatSchedulerEntry) -> None:
        """Give a loaded entry the schedule and functions that Redis cannot store.

        Raises :exc:`CannotRunHereError` for functions that this beat does not have.
        """
        self.restore_schedule(entry)
        try:
            self.restore_functions(entry)
        except LazyArgumentError as error:
            raise CannotRunHereError(str(error)) from error

    # -- writing -------------------------------------------------------------------------------

    def offer_to(self, store: Store, exchange: Exchange, lock_key: str | None, token: str) -> bool:
        """Add and change entries; while another beat leads, only add those that are missing.

        Returns whether no other beat leads. Takes two round trips, one per 500 entries, and one
        more per 500 of which some are written; none without entries.
        """
        if not self._entries:
            return True
        self.synced = {"added": 0, "changed": 0, "removed": 0}
        commands: list[tuple[str, ...]] = [("TIME",), *([("GET", lock_key)] if lock_key else [])]
        known, (time, *holder) = static_names(store, *commands)
        other_leads = bool(holder and holder[0]) and text_of(holder[0]) != token
        now = from_timestamp(int(time[0]) + int(time[1]) / 1e6)
        if self._write_all(Here(store, exchange, now, other_leads, known)) and not other_leads:
            self._noted = self._note(exchange)
        if self.synced["added"] and other_leads:
            message = "beat: Another beat leads: %d missing static entries added"
            logger.info(message, self.synced["added"])
        self._begun = not other_leads
        return not other_leads

    def sync_with(
        self, store: Store, exchange: Exchange, now: datetime, exclusive: bool = True
    ) -> bool:
        """Add, change and remove entries so that Redis has those of ``beat_schedule``.

        ``now`` is the time of Redis. If ``exclusive`` is false, only what the program has removed
        from the ``beat_schedule`` of this beat is removed. Returns False if this beat does not hold
        the lock any more, or if entries were changed by others again and again.

        Takes two round trips, one per 500 entries, and one more per 500 of which some are written;
        two if nobody has written static entries since :meth:`offer_to`.
        """
        if not self._begun:
            self.synced = {"added": 0, "changed": 0, "removed": 0}
        here = Here(store, exchange, now, False, static_names(store)[0])
        if not self._is_noted(store):
            if not self._write_all(here):
                return False
            self._note(exchange)
        if self.complete and not self._remove(here, self._stale(here.known, exclusive)):
            return False
        self._removed.clear()
        self._begun, self._noted = False, ""
        logger.info(
            "beat: Static entries: %d added, %d changed, %d removed, %d in all",
            *(*self.synced.values(), len(self)),
        )
        return True

    def _note(self, exchange: Exchange) -> str:
        """Note that this beat has written the static entries, and return the note."""
        note = new_mark()
        exchange([Change("", index=[["HSET", STATS, WRITTEN, note]])])
        return note

    def _is_noted(self, store: Store) -> bool:
        """Return whether Redis has what this beat has noted. No round trip if it has not."""
        if not self._noted:
            return False
        stored = ask_aside(store.client, "HGET", store.keys.stats, WRITTEN)
        return stored is not None and text_of(stored) == self._noted

    def prune_with(self, store: Store, exchange: Exchange, others: Callable[[], bool]) -> bool:
        """Remove all entries that are not in ``beat_schedule``; return False if ``others`` may.

        ``others`` says whether other beats are active. One round trip if there is nothing to do.
        """
        here = Here(store, exchange, datetime.min, False, static_names(store)[0])
        stale = self._stale(here.known, exclusive=True) if self.complete else set()
        if stale and others():
            return False
        return self._remove(here, stale)

    def _stale(self, names: set[str], exclusive: bool) -> set[str]:
        return names - self._entries.keys() - self._refused if exclusive else names & self._removed

    def _write_all(self, here: Here) -> bool:
        scores = Scores(here.now)
        self._use_calendars(here.store)
        for batch in batches(list(self._entries)):
            names = self._names_by_key(batch)
            rows = read_rows(here.store, names)
            unnamed = [name for name in batch if name not in here.known]
            for _ in range(MOST_TRIES):
                found = self._changes(here, scores, rows, names)
                reply = self._exchange(here, list(found.values()), unnamed)
                if reply is None:
                    break
                if reply.standing == STANDBY:
                    return False
                rows, unnamed = self._answered(found, reply), []
                if not rows:
                    break
            else:
                return False
        return True

    def _names_by_key(self, names: Iterable[str]) -> dict[str, str]:
        """Return key -> name; refuse the entries whose names are reserved."""
        found = {}
        for name in names:
            try:
                found[self._entries[name].key] = name
            except InvalidEntryError as error:
                self.refuse(name, error)
        return found

    def _exchange(self, here: Here, changes: list[Change], unnamed: Iterable[str]) -> Reply | None:
        """Carry out changes, and put names into the set of static entries."""
        names = [name for name in unnamed if name in self._entries]
        if names:
            changes = [*changes, Change("", index=[["SADD", STATICS, *names]])]
        return here.exchange(changes) if changes else None

    def _changes(
        self, here: Here, scores: Scores, rows: Iterable[Row], names: Mapping[str, str]
    ) -> dict[tuple[str, bool], Change]:
        """Return (name, whether it is new) -> change for what differs; refuse what is invalid."""
        changes = {}
        for row in rows:
            name = names[row.key]
            entry = self._entries[name]
            try:
                if row.problem:
                    raise InvalidEntryError("name", OCCUPIED_BY % row.key)
                change = self._change(here, scores, entry, row)
            except (RedisError, OSError):
                raise
            except Exception as error:  # user code in a schedule or entry class may raise any error
                self.refuse(name, error)
                continue
            if change is not None:
                changes[name, row.definition is None] = change
        return changes

    def _answered(self, changes: dict[tuple[str, bool], Change], reply: Reply) -> list[Row]:
        """Count what was written; return the rows to decide about again."""
        again = []
        for (name, is_new), answer in zip(changes, reply.answers, strict=False):
            if answer.word == DONE:
                self._count(changes[name, is_new], is_new)
            elif answer.word == DIFFERS and answer.row is not None:
                again.append(answer.row)
            elif answer.word == REFUSED:
                self.refuse(name, InvalidEntryError("name", answer.why))
            else:  # it was deleted after it was read
                again.append(Row(changes[name, is_new].key))
        return again

    def _count(self, change: Change, is_new: bool) -> None:
        if is_new:
            self.synced["added"] += 1
        elif DEFINITION in change.set:
            self.synced["changed"] += 1

    def _change(
        self, here: Here, scores: Scores, entry: RedBeatSchedulerEntry, row: Row
    ) -> Change | None:
        definition, policy = texts = self._texts_of(entry, here, row)
        if row.definition is None:
            return added(entry, row, texts, scores.of(entry), here.now)
        if here.only_missing:
            return None
        same = row.definition == definition and (row.policy or "") == policy
        if same or is_paused(row, texts):
            return kept(row, here.now)
        return changed(entry, row, texts, here.now)

    def _texts_of(self, entry: RedBeatSchedulerEntry, here: Here, row: Row) -> tuple[str, str]:
        """Return the definition and policy of an entry, as they are to be stored.

        If the class of the entry overrides ``save``, it saves the entry, and what it stored counts.
        """
        name = str(entry.name)
        if name not in self._stored:
            if type(entry).save is RedBeatSchedulerEntry.save:
                self._stored[name] = entry.texts()
            else:
                if row.definition is None or not here.only_missing:
                    entry.save()
                rows = read_rows(here.store, [row.key])
                self._stored[name] = rows[0].definition or "", rows[0].policy or ""
        return self._stored[name]

    def _use_calendars(self, store: Store) -> None:
        """Give calendars to the entries that use some, to compute their first runs."""
        users = [entry for entry in self._entries.values() if entry.policy_field("exclude")]
        if not users:
            return
        found, unreadable = {}, set()
        for name, text in stored_calendars(store).items():
            try:
                found[name] = calendar_of(name, text)
            except DecodeError:
                unreadable.add(name)
        for entry in users:
            entry.use_calendars(None if unreadable & set(entry.policy.exclude) else found)

    # -- removing ------------------------------------------------------------------------------

    def _remove(self, here: Here, stale: Iterable[str]) -> bool:
        """Remove entries; keys that are not hashes belong to others, and stay.

        Returns False if this beat does not hold the lock any more.
        """
        for names in batches(sorted(stale), BATCH):
            keys = [here.store.keys.entry(name) for name in names]
            rows = read_rows(here.store, keys)
            changes = [removed(name, row) for name, row in zip(names, rows, strict=True)]
            if here.exchange(changes).standing == STANDBY:
                return False
            self.synced["removed"] += len(names)
            for name in names:
                logger.info("beat: Removed entry %s, which is no longer in beat_schedule", name)
        return True


# -- changes ---------------------------------------------------------------------------------------


def added(
    entry: RedBeatSchedulerEntry, row: Row, texts: tuple[str, str], score: float, now: datetime
) -> Change:
    """Return the change that stores a new entry, in place of what an earlier one left over."""
    meta, mark = encode_meta(counts_from(entry.schedule, now)), new_mark()
    state = State(meta=digest_of_meta(meta))
    _expect_success(state, entry, now)
    state.sign(mark)
    fields = {DEFINITION: texts[0], META: meta, STATE: state.text()}
    left = (INBOX, HISTORY, RESULTS, WAITS)
    return Change(
        *(row.key, mark, digest_of(row), "", {**fields, **_policy(texts)}),
        unset=left if texts[1] else (POLICY, *left),
        add=score,
        index=_index(entry, row),
    )


def kept(row: Row, now: datetime) -> Change | None:
    """Return the change of an entry whose texts stay; None if nothing is to be done.

    An entry of an earlier version gets a state. It says that the entry has no identity, so that it
    is the same entry if a beat adds it again after Redis lost its data.
    """
    add = now.timestamp() if row.score == "" else None
    if row.state is not None:
        return None if add is None else Change(row.key, expect=digest_of(row), add=add)
    state, mark = State.read(None, row.meta), new_mark()
    state.sign(mark)
    return Change(row.key, mark, digest_of(row), set={STATE: state.text()}, add=add)


def changed(
    entry: RedBeatSchedulerEntry, row: Row, texts: tuple[str, str], now: datetime
) -> Change:
    """Return the change of an entry that ``beat_schedule`` changed: it keeps what has happened.

    An entry that has reached its ``max_runs`` begins again if its schedule changed. A change of
    time zone or start time is noted, because by the old ones runs may be owed.
    """
    state, mark = State.read(row.state, row.meta), new_mark()
    old = row.definition or "", row.policy or ""
    fields = {DEFINITION: texts[0], **_policy(texts)}
    meta = _begun_again(entry, row, state, (old, texts), now)
    if meta is not None:
        fields[META] = meta
        state.meta, state.at = digest_of_meta(meta), None
    timing = change_of_timing(old, texts, now, entry.foreign_fields)
    if timing is not None:
        state.change = (state.change or timing)._replace(at=now)
    state.pause = state.quarantine = state.failing = None
    if not _is_enabled(old[0]) and entry.enabled:
        state.results = replace_results(state, now)
    _expect_success(state, entry, now)
    state.sign(mark)
    fields[STATE] = state.text()
    held = state.hold is not None and state.hold.until > now.timestamp() and row.score != ""
    return Change(
        *(row.key, mark, digest_of(row), "", fields),
        unset=() if texts[1] else (POLICY,),
        add=None if held else now.timestamp(),
        index=_index(entry, row),
    )


def removed(name: str, row: Row) -> Change:
    """Return the change that removes a static entry."""
    index = [["SREM", STATICS, name], ["HDEL", QUARANTINE, row.key]]
    if row.problem:
        return Change("", index=index)
    index += [["ZREM", side, row.key] for side in (FAILING, EXPECTED)]
    return Change(row.key, delete=True, index=[*index, ["SREM", CALENDAR_USERS, row.key]])


def is_paused(row: Row, texts: tuple[str, str]) -> bool:
    """Return whether an operator paused the entry, and ``beat_schedule`` has not changed since."""
    if row.definition is None or (row.policy or "") != texts[1]:
        return False
    if State.read(row.state, row.meta).pause is None:
        return False
    try:
        stored, own = object_in(row.definition, DEFINITION), object_in(texts[0], DEFINITION)
    except DecodeError:
        return False
    return {**stored, "enabled": None} == {**own, "enabled": None}


def replace_results(state: State, now: datetime) -> Any:
    """Return the results of an entry that was resumed: its failures do not count any more."""
    return state.results._replace(failures=0, since=now.timestamp())


def _begun_again(
    entry: RedBeatSchedulerEntry,
    row: Row,
    state: State,
    texts: tuple[tuple[str, str], tuple[str, str]],
    now: datetime,
) -> str | None:
    """Return the new ``meta`` of an entry that begins again, else None."""
    try:
        history = History.read(row.meta or "")
    except DecodeError:
        return encode_meta(counts_from(entry.schedule, now))
    if state.at is not None:
        history = history._replace(scheduled_at=from_timestamp(state.at))
    then = history_after_save(history, *texts, now, foreign=entry.foreign_fields)
    return None if then is history else encode_meta(then.last_run_at, then.total_run_count)


def _is_enabled(definition: str) -> bool:
    try:
        return bool(object_in(definition, DEFINITION).get("enabled", True))
    except DecodeError:
        return True


def _policy(texts: tuple[str, str]) -> dict[str, str]:
    return {POLICY: texts[1]} if texts[1] else {}


def _expect_success(state: State, entry: RedBeatSchedulerEntry, now: datetime) -> None:
    if entry.policy.expect_within is not None and state.results.since is None:
        state.results = state.results._replace(since=now.timestamp())


def _index(entry: RedBeatSchedulerEntry, row: Row) -> list[list[str]]:
    """Return the writes to side keys that go with the texts of an entry."""
    index = [["HDEL", QUARANTINE, entry.key], ["ZREM", FAILING, entry.key]]
    if entry.policy.expect_within is not None:
        index.append(["ZADD", EXPECTED, "0", entry.key])
    elif '"expect_within"' in (row.policy or ""):
        index.append(["ZREM", EXPECTED, entry.key])
    if entry.policy.exclude:
        index.append(["SADD", CALENDAR_USERS, entry.key])
    return index
