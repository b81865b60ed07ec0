"""What a beat does besides runs: it keeps static entries written, and the schedule whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from itertools import chain
from typing import Any, Final

from celery.schedules import crontab
from celery.schedules import schedule as interval
from celery.utils.time import timezone as celery_zones
from redis.exceptions import LockNotOwnedError, ResponseError

from redbeat.beat.load import Rules
from redbeat.beat.outcome import HELD, seen_texts
from redbeat.beat.statics import Exchange, Statics
from redbeat.beat.turn import Turn
from redbeat.calendar.zones import from_timestamp, zone_key, zone_named
from redbeat.codec.stored import record_in, seconds_in, text_of
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.connection.retrying import is_retriable
from redbeat.entries import decide, verdicts
from redbeat.entries.changes import change_of, editing, keep_due
from redbeat.entries.decide import CLOCK_STEP, DISABLED, PARKED
from redbeat.entries.state import State
from redbeat.errors import ConfigurationError, described
from redbeat.metrics.counters import split
from redbeat.printing import get_logger, plural
from redbeat.signals import emit, schedule_lost, statics_synced
from redbeat.storage import checks, reading, words
from redbeat.storage.keys import WRONG_TYPE
from redbeat.storage.reading import read_rows
from redbeat.storage.rows import Change, Reply, Row, digest_of
from redbeat.storage.store import Store

logger = get_logger("celery.beat")

#: Seconds between two pages of disabled or quarantined entries.
INTERVAL: Final = 5.0

#: Seconds between two portions while the beat is never idle.
BUSY_INTERVAL: Final = 0.1

#: Seconds between two portions of side keys.
TIDY_INTERVAL: Final = 200.0

#: How many fields or members of a side key to read at a time.
PORTION: Final = 500

#: How many entries to read at a time, and how many keys of a scan. Each takes Python some
#: milliseconds. What is put back is due before all later runs, so only a few are put back at once.
PAGE: Final = 200
SCANNED: Final = 100

#: Seconds between two attempts to write static entries that vanished.
AGAIN: Final = 1.0

#: Reads a portion of the keys or members at each step, and yields the changes to make.
Portions = Iterator[list[Change]]


@dataclass(slots=True)
class Walk:
    """A walk in portions, the next one at a local time, with a ``pause`` after each.

    It starts over after an error, and if another beat leads.
    """

    begin: Callable[[], Portions]
    at: float
    pause: float = 0.0
    portions: Portions | None = None


class Upkeep:
    """Checks the server, finds entries that no beat looks at, and repairs what others did.

    Every five seconds it reads a page of the disabled entries, which a program may have enabled
    without touching their scores, and of the quarantined ones, whose text may have changed. After a
    loss of the sorted set it scans all keys, and after Redis's clock went back all members. Bit by
    bit it removes from side keys what belonged to deleted entries. It reads with pipelines, decides
    here, and its changes expect what it read.

    ``exchange`` carries out changes in one round trip; ``clock`` returns monotonic seconds.
    """

    def __init__(
        self, store: Store, exchange: Exchange, clock: Callable[[], float], conf: RedBeatConfig
    ) -> None:
        self._store, self._exchange, self._clock, self._conf = store, exchange, clock, conf
        self._checked = False
        self._reply: Reply
        self._side_error = ""
        self._done_at = clock()
        self._quarantined = 0
        self._mark = ""
        #: The walks that never end, and others while they last, the most urgent first.
        pauses = {self._enable: INTERVAL, self._review: INTERVAL, self._tidy: TIDY_INTERVAL}
        self._walks = [Walk(begin, clock() + pause, pause) for begin, pause in pauses.items()]

    def check(self) -> None:
        """Check the server once in the life of this beat. A few round trips.

        Raises :exc:`ConfigurationError` if the entries lie in shards that the settings don't name,
        and :exc:`RedBeatKeyExpiryError` if ``redbeat_key_expiry_check`` says so.
        """
        if self._checked:
            return
        # With shards, this check comes before the beats are made.
        problem = self._conf.shards == 1 and checks.LayoutNote.read(self._store).problem(1)
        if problem:
            raise ConfigurationError(problem)
        checks.check_eviction(self._store, self._conf.key_expiry_check)
        checks.warn_about_untagged(self._store, self._conf)
        self._checked = True

    def run(self, reply: Reply, *, busy: bool = False) -> bool:
        """Do a portion of the work; return whether the beat must look again at once.

        Mostly no round trip. ``busy`` is a beat that is never idle.
        """
        now = self._clock()
        if busy and now - self._done_at < BUSY_INTERVAL:
            return False
        self._reply = reply
        for walk in [walk for walk in self._walks if walk.at <= now]:
            self._done_at = now
            try:
                if self._step(walk, now):
                    return True
            except ResponseError as error:
                if is_retriable(error):
                    raise
                self._walks.remove(walk)
                logger.warning("beat: Cannot scan for lost entries: %s", error)
        return any(walk.at <= now for walk in self._walks)

    def clock_went_back(self, seconds: float) -> None:
        """Look at all entries after Redis's clock was set back, and again after a while.

        Until then, beats may still record what they held by the old clock.
        """
        logger.warning("beat: The clock of Redis went back by %.1f s", seconds)
        now = self._clock()
        self._walks += [Walk(self._from_future, at) for at in (now, now + HELD)]

    def note(self, reply: Reply) -> None:
        """Begin a scan for a loss that isn't known yet; most replies say nothing about one.

        A side key that can't be used is logged once, and stops nothing.
        """
        _, _, why = reply.side_error.partition(": ")
        if why and why != self._side_error:
            self._side_error = why
            self._log_side_error(why)
        if reply.quarantined >= 0:
            self._quarantined = reply.quarantined
        if reply.lost and reply.lost != self._mark:
            self._walks = [walk for walk in self._walks if walk.begin != self._scan]
            self._walks.insert(0, Walk(self._scan, self._clock()))
        if reply.lost or reply.statics >= 0:
            self._mark = reply.lost

    def _log_side_error(self, why: str) -> None:
        if WRONG_TYPE in why:
            error = checks.explained(ResponseError(why), self._store)
            logger.error("beat: A key next to the schedule cannot be used: %s", described(error))
        else:
            self._store.warn_of_denied(why)

    def _step(self, walk: Walk, now: float) -> bool:
        portions, walk.portions = walk.portions or walk.begin(), None
        changes = next(portions, None)
        if changes is None:
            self._walks.remove(walk)
        elif not changes or self._exchange(changes).standing != words.STANDBY:
            walk.portions, walk.at = portions, now + walk.pause
        return bool(changes)

    # -- disabled and quarantined entries ------------------------------------------------------

    def _enable(self) -> Portions:
        """Make due what a program enabled, page by page. One or two round trips each."""
        offset = 0
        while True:
            page = (self._store.keys.schedule, DISABLED, DISABLED, "LIMIT", offset, PAGE)
            (found,) = reading.ask(self._store.client, ("ZRANGEBYSCORE", *page))
            rows = read_rows(self._store, map(text_of, found))
            # If an entry can't be read, the beat says what is wrong with it.
            enabled = [row.key for row in rows if reading.definition_of(row).get("enabled", True)]
            offset = offset + PAGE - len(enabled) if len(rows) == PAGE else 0
            for key in enabled:
                logger.info("beat: Entry %s was enabled by another program", key)
            yield [Change(key, score=self._reply.now) for key in enabled]

    def _review(self) -> Portions:
        """Release entries that changed in quarantine. Two round trips, none if it is empty."""
        while True:
            if not self._quarantined:
                yield []
                continue
            for found in self._store.portions(words.QUARANTINE, "HSCAN", PAGE):
                notes = {text_of(key): text_of(note) for key, note in reading.pairs_of(found)}
                rows = read_rows(self._store, notes)
                yield [
                    _released(row, self._reply.now)
                    for row, note in zip(rows, notes.values(), strict=True)
                    if _was_changed(row, record_in(note), self._reply.version or "")
                ]

    # -- a lost schedule -----------------------------------------------------------------------

    def _scan(self) -> Portions:
        """Put back what is missing in the sorted set. Two or three round trips each."""
        # A schedule without a note may never have been seen whole. Then what is outside stays
        # there, as does whatever no change of ours ever gave a score.
        mark, outside = self._mark, 0
        was_whole = seconds_in(mark) is not None
        for rows in reading.rows_outside(self._store, SCANNED):
            entries = [row for row in rows if reading.is_entry(self._store, row)]
            back = [
                row for row in entries if was_whole and State.read(row.state, row.meta).marks.last
            ]
            outside += len(entries) - len(back)
            for row in back:
                logger.warning(
                    "beat: Entry %s was missing in the sorted set and is due now", row.key
                )
            yield [_put_back(row, self._reply.now) for row in back]
        if outside:
            logger.warning(
                "beat: %s stored, but not scheduled: see celery redbeat doctor; "
                "celery redbeat resume NAME schedules an entry",
                plural(outside, "entry is", "entries are"),
            )
        yield [Change("", index=[["FORGET", words.STATS, words.LOST, mark]])]

    # -- the clock went back -------------------------------------------------------------------

    def _from_future(self) -> Portions:
        """Make due the members whose history lies in the future. One or two round trips each."""
        for page in reading.batches(chain.from_iterable(self._store.scan()), PAGE):
            now = self._reply.now
            keys = [key for key, score in page if score > now + CLOCK_STEP]
            looked = (_back_to_now(row, now) for row in read_rows(self._store, keys))
            changes = [change for change in looked if change is not None]
            if changes:
                entries = plural(len(changes), "entry", "entries")
                logger.warning("beat: Made %s due: the last run lies in the future", entries)
            yield changes

    # -- side keys -----------------------------------------------------------------------------

    def _tidy(self) -> Portions:
        """Remove from side keys what belonged to deleted entries. Two or three round trips each."""
        while True:
            for fields in self._side_keys("HSCAN", words.STATS):
                yield _removal("HDEL", words.STATS, self._useless(fields))
            for name in (words.FAILING, words.FAILED, words.EXPECTED):
                for keys in self._side_keys("ZSCAN", name):
                    gone = [row.key for row in read_rows(self._store, keys) if row.score == ""]
                    yield _removal("ZREM", name, gone)

    def _useless(self, fields: list[str]) -> list[str]:
        """The counts of deleted entries, or of all entries if there are too many."""
        names = {field: found[1] for field in fields if (found := split(field)) is not None}
        keys = {field: self._store.keys.entry(name) for field, name in names.items()}
        counts_each = self._reply.members <= self._conf.metrics_entries
        rows = read_rows(self._store, set(keys.values())) if counts_each else ()
        kept = {row.key for row in rows if row.score != ""}
        return [field for field, key in keys.items() if key not in kept]

    def _side_keys(self, command: str, name: str) -> Iterator[list[str]]:
        """Fields or members of a side key. One round trip per portion."""
        for found in self._store.portions(name, command, PORTION):
            yield [text_of(field) for field, _ in reading.pairs_of(found)]


def _removal(command: str, name: str, over: list[str]) -> list[Change]:
    return [Change("", index=[[command, name, *over]])] if over else []


def _was_changed(row: Row, note: dict[str, Any], version: str) -> bool:
    same_calendars = note.get("version", version) == version
    return note.get("digest") != seen_texts(row) or not same_calendars


def _released(row: Row, now: float) -> Change:
    logger.info("beat: Entry %s was changed and leaves the quarantine", row.key)
    if row.definition is None or row.problem:
        return Change(row.key, score=now, index=[["HDEL", words.QUARANTINE, row.key]])
    change = editing(row, State.of(row))
    change.score = now
    return change


def _put_back(row: Row, now: float) -> Change:
    """Put an entry back: due now, or where its state says that it was."""
    state = State.read(row.state, row.meta)
    score = now if state.due is None else state.due
    if state.hold is not None:
        score = max(state.hold.until, now)
    return Change(row.key, expect=digest_of(row), add=PARKED if state.quarantine else score)


def _back_to_now(row: Row, now: float) -> Change | None:
    """The change of an entry whose last run, hold or trigger is in the future, else None."""
    if row.definition is None or row.problem:
        return None
    state = State.read(row.state, row.meta)
    if state.hold is not None and state.hold.until > now + HELD + CLOCK_STEP:
        state.hold = state.hold._replace(until=now + HELD)
        return change_of(row, state, score=now + HELD)
    if not state.waiting and (state.at or 0.0) <= now + CLOCK_STEP:
        return None
    return change_of(row, state, score=now) if keep_due(row, state) else Change(row.key, score=now)


# -- static entries --------------------------------------------------------------------------------


@dataclass
class Sync:
    """Writes the static entries before a beat sends anything, and again when they vanish.

    Attributes:
        members: how many entries the schedule had at the last turn.
        again_at: when static entries that vanished may be written again.
        prune_at: when to remove, without a lock, what no beat has in its ``beat_schedule``.
    """

    scheduler: Any
    statics: Statics
    store: Store
    turn: Turn
    rules: Rules
    members: int = 0
    again_at: float = 0.0
    prune_at: float = math.inf

    def __post_init__(self) -> None:
        self.rules.restore, self.rules.statics = self.statics.restore, self.statics.names

    def run(self, reply: Reply) -> bool:
        """Write the static entries if needed; return whether they were written.

        Raises ``LockNotOwnedError`` if all entries and the lock vanished and
        ``redbeat_on_lock_lost`` is ``exit``.
        """
        if not self._vanished(reply) and not self.statics.unwritten:
            # Without a lock one is enough: a beat with a newer ``beat_schedule`` may have removed
            # the others.
            statics = len(self.statics.names)
            wanted = min(statics, 1) if self.turn.is_shared else statics
            if not 0 <= reply.statics < wanted or self.scheduler.clock() < self.again_at:
                return False
            logger.warning(
                "beat: Static entries vanished from Redis, so the beat writes them again"
            )
        self.again_at = self.scheduler.clock() + AGAIN
        self.write(from_timestamp(reply.now))
        return not self.statics.unwritten

    def write(self, now: datetime, *, alone: bool = False) -> None:
        """Write the static entries now; ``now`` is Redis's time.

        If this beat leads or is ``alone``, also remove those that only others may have.
        """
        exclusive = alone or not self.turn.is_shared
        self.rules.forget()
        zone = self.store.noted(reading.TIME_ZONE)
        counts = self.statics.sync(self.store, self.turn.exchange, now, exclusive)
        self.statics.unwritten = counts is None or not self._follow_zone(zone, now)
        if counts is not None and not self.statics.unwritten:
            self.prune_at = math.inf if exclusive else self.scheduler.clock() + words.FORGET_AFTER
            emit(statics_synced, self.scheduler, **counts)

    def prune(self) -> None:
        """Remove, without a lock, entries of an older ``beat_schedule`` while no other beat runs.

        Other beats may have other static entries. In the first minute others may still start, so
        nothing is removed then. Two round trips a minute, until it has done so.
        """
        if self.scheduler.clock() < self.prune_at:
            return
        self.prune_at = self.scheduler.clock() + words.FORGET_AFTER
        # A beat that may not list the beats doesn't find itself among them either.
        beats = {beat.token for beat in self.store.beats(words.FORGET_AFTER) if not beat.locked}
        if beats == {self.turn.token}:
            self.write(from_timestamp(self.turn.time()), alone=True)

    def _vanished(self, reply: Reply) -> bool:
        """Whether all entries vanished since the last turn; if so, log an error."""
        before, self.members = self.members, reply.members
        if reply.members or before <= 0:
            return False
        lock_is_new = reply.standing == words.NEW_LEADER
        if before == 1 and not lock_is_new:  # a program may have deleted the only entry
            return False
        logger.error("beat: The schedule in Redis is empty: all %d entries are gone", before)
        emit(schedule_lost, self.scheduler, count=before)
        if lock_is_new and ensure_conf(self.scheduler.app).on_lock_lost == "exit":
            raise LockNotOwnedError(
                "the lock vanished from Redis, and all entries with it; this beat ends, because "
                "redbeat_on_lock_lost is 'exit'"
            )
        return True

    # -- the time zone of the app --------------------------------------------------------------

    def _follow_zone(self, before: str, now: datetime) -> bool:
        """Let entries in the app's time zone count from now on, and make them due.

        No round trip if it hasn't changed, else two per 500 entries and one per 2000. False if this
        beat no longer holds the lock.
        """
        zone = zone_key(self.rules.zone) or str(self.rules.zone)
        if before == zone:
            return True
        if before:
            logger.warning("beat: The time zone changed from %s to %s", before, zone)
            count = 0
            for page in reading.batches(chain.from_iterable(self.store.scan())):
                rows = read_rows(self.store, [key for key, score in page if score != PARKED])
                found = [self._in_new_zone(row, before, now) for row in rows]
                written = [change for change in found if change is not None]
                if self.turn.exchange(written).standing == words.STANDBY:
                    return False
                count += len(written)
            entries = plural(count, "entry", "entries")
            logger.warning("beat: Computes the next runs of %s in %s", entries, zone)
        self.turn.exchange([Change("", index=[["HSET", words.STATS, reading.TIME_ZONE, zone]])])
        return True

    def _in_new_zone(self, row: Row, before: str, now: datetime) -> Change | None:
        """The change of an entry whose next run depends on the app's time zone, else None.

        It counts its runs from now on, unless one is overdue in the zone ``before``: that one is
        caught up. What can't be loaded is logged when it's due.
        """
        at = now.timestamp()
        try:
            run = self.rules.run_of(row, at)
        except Exception as error:
            logger.debug("beat: Cannot load %s: %s", row.key, described(error))
            return None
        schedule, state = run.rule.schedule, run.state
        relative = isinstance(schedule, interval) and schedule.relative
        if run.rule.policy.zone is not None or not (isinstance(schedule, crontab) or relative):
            return None
        anchor = verdicts.anchor_of(run.history, state)
        earlier = replace(run.rule.plan, zone=_zone_called(before))
        runs = run.history.total_run_count
        if anchor is not None and not decide.is_overdue(earlier, anchor, now, runs):
            state.at = at
        keep_due(row, state)
        waits = float(row.score or PARKED) < 0 or (state.hold is not None and state.hold.until > at)
        return change_of(row, state, score=None if waits else at)


def _zone_called(name: str) -> tzinfo:
    try:
        return zone_named(name)
    except ValueError:  # before Celery 5.7, the local time zone of a host has no name
        local: tzinfo = celery_zones.local
        return local
