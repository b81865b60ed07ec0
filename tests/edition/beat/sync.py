"""Sees that Redis has the entries of ``beat_schedule``, and that the schedule is there at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from celery.schedules import crontab
from celery.schedules import schedule as interval
from redis.exceptions import LockNotOwnedError

from redbeat.beat.lock import FORGET_AFTER
from redbeat.calendar.zones import from_timestamp, zone_key
from redbeat.codec.stored import text_of
from redbeat.config import RedBeatConfig
from redbeat.entries.decide import PARKED
from redbeat.entries.history import Change as Timing
from redbeat.errors import ConfigurationError
from redbeat.presentation.english import plural
from redbeat.printing import get_logger
from redbeat.signals import emit, schedule_lost, statics_synced
from redbeat.storage.checks import LayoutNote
from redbeat.storage.reading import LAYOUT, TIME_ZONE
from tests.edition.beat.load import Rules, keep_due
from tests.edition.beat.statics import Statics
from tests.edition.beat.turn import Turn
from tests.edition.beat.upkeep import START, members
from tests.edition.state import State
from tests.edition.storage.portions import ask_aside, read_rows
from tests.edition.storage.rows import Change, Reply, Row, digest_of, new_mark
from tests.edition.storage.store import Store
from tests.edition.words import NEW_LEADER, STANDBY, STATE, STATS

logger = get_logger("celery.beat")

#: Seconds between two attempts to write static entries that vanished.
AGAIN: Final = 1.0


class Sync:
    """Writes the static entries before a beat sends anything, and again when they vanish.

    Arguments:
        scheduler: the sender of signals.
        statics: the entries of ``beat_schedule``.
        store: the schedule in Redis.
        turn: the exchange of the beat with Redis.
        conf: the settings.
        rules: the rules of entries.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        scheduler: Any,
        statics: Statics,
        store: Store,
        turn: Turn,
        conf: RedBeatConfig,
        rules: Rules,
        clock: Callable[[], float],
    ) -> None:
        self.statics = statics
        self._scheduler = scheduler
        self._store = store
        self._turn = turn
        self._exits = conf.on_lock_lost == "exit"
        self._has_shards = conf.shards > 1
        self._rules = rules
        rules.restore, rules.statics = statics.restore, statics
        self._clock = clock
        self._members = 0
        self._again_at = 0.0
        #: When to remove, without a lock, what no beat has in its ``beat_schedule``.
        self._prune_at = math.inf

    def run(self, reply: Reply) -> bool:
        """Write the static entries if it is necessary; return whether they were written.

        Raises ``LockNotOwnedError`` if all entries and the lock vanished and
        ``redbeat_on_lock_lost`` is ``exit``.
        """
        if not self._vanished(reply) and not self.statics.unwritten:
            if self._is_present(reply) or self._clock() < self._again_at:
                return False
            logger.warning(
                "beat: Static entries vanished from Redis, so the beat writes them again"
            )
        self._again_at = self._clock() + AGAIN
        self.write(from_timestamp(reply.now))
        return not self.statics.unwritten

    def write(self, now: Any) -> None:
        """Write the static entries now; ``now`` is the time of Redis, in UTC.

        Raises :exc:`ConfigurationError` if the entries in Redis lie in shards.
        """
        exclusive = not self._turn.is_shared
        self._rules.forget()
        zone = self._noted_zone()
        self.statics.unwritten = not (
            self.statics.sync_with(self._store, self._turn.exchange, now, exclusive)
            and self._follow_zone(zone, now)
        )
        if not self.statics.unwritten:
            self._prune_at = math.inf if exclusive else self._clock() + FORGET_AFTER
            emit(statics_synced, self._scheduler, **self.statics.synced)

    def prune(self) -> None:
        """Remove, without a lock, entries of an older ``beat_schedule`` while no other beat runs.

        Other beats may have other static entries. Not in the first minute, in which others may
        start.
        """
        if self._clock() < self._prune_at:
            return
        done = self.statics.prune_with(self._store, self._turn.exchange, self._others_run)
        self._prune_at = math.inf if done else self._clock() + FORGET_AFTER

    def _others_run(self) -> bool:
        since = self._turn.time() - FORGET_AFTER
        key = self._store.keys.beats
        found = ask_aside(self._store.client, "ZRANGEBYSCORE", key, since, "+inf")
        if found is None:
            return True
        beats = {text_of(beat) for beat in found}
        return bool({beat for beat in beats if not beat.endswith(" lock")} - {self._turn.token})

    def _is_present(self, reply: Reply) -> bool:
        """Return whether Redis has as many static entries as ``beat_schedule``.

        Without a lock one is enough, because a beat with a newer ``beat_schedule`` may have removed
        the others.
        """
        count = len(self.statics)
        wanted = min(count, 1) if self._turn.is_shared else count
        return reply.statics < 0 or reply.statics >= wanted

    def _vanished(self, reply: Reply) -> bool:
        """Return whether all entries vanished since the last turn; if so, log an error."""
        before, self._members = self._members, reply.members
        if reply.members or before <= 0:
            return False
        lock_is_new = reply.standing == NEW_LEADER
        if before == 1 and not lock_is_new:  # a program may have deleted the only entry
            return False
        logger.error("beat: The schedule in Redis is empty: all %d entries are gone", before)
        emit(schedule_lost, self._scheduler, count=before)
        if lock_is_new and self._exits:
            raise LockNotOwnedError(
                "the lock vanished from Redis, and all entries with it; this beat ends, because "
                "redbeat_on_lock_lost is 'exit'"
            )
        return True

    # -- the time zone of the app --------------------------------------------------------------

    def _noted_zone(self) -> str:
        """Return the app's time zone when a beat last led, "" if unknown. One round trip."""
        noted = ask_aside(self._store.client, "HMGET", self._store.keys.stats, TIME_ZONE, LAYOUT)
        zone, layout = ("" if text is None else text_of(text) for text in noted or (None, None))
        # The check of a schedule with shards is made before its beats are.
        problem = layout and not self._has_shards and LayoutNote.of(layout).problem(1)
        if problem:
            raise ConfigurationError(problem)
        return zone

    def _follow_zone(self, before: str, now: Any) -> bool:
        """Note the app's earlier time zone in the entries that use it, and make them due.

        No round trip if it has not changed, else three for each two hundred entries. Returns False
        if this beat does not hold the lock any more.
        """
        zone = zone_key(self._rules.zone) or str(self._rules.zone)
        if before == zone:
            return True
        if before and not self._note_zone(before, zone, now):
            return False
        self._turn.exchange([Change("", index=[["HSET", STATS, TIME_ZONE, zone]])])
        return True

    def _note_zone(self, before: str, zone: str, now: Any) -> bool:
        logger.warning("beat: The time zone changed from %s to %s", before, zone)
        cursor, count, schedule = START, 0, self._store.keys.schedule
        while True:
            keys, cursor = members(
                self._store.client, schedule, cursor, lambda score: score != PARKED
            )
            rows = read_rows(self._store, keys)
            found = [self._in_new_zone(row, Timing(before, None, now)) for row in rows]
            changes = [change for change in found if change is not None]
            count += len(changes)
            if self._turn.exchange(changes).standing == STANDBY:
                return False
            if cursor == START:
                break
        entries = plural(count, "entry", "entries")
        logger.warning("beat: Computes the next runs of %s in %s", entries, zone)
        return True

    def _in_new_zone(self, row: Row, timing: Timing) -> Change | None:
        """Return the change of an entry whose next run depends on the app's time zone, else None.

        What cannot be loaded is logged when it is due.
        """
        try:
            rule = self._rules.rule_of(row)
        except Exception as error:
            logger.debug("beat: Cannot load %s: %r", row.key, error)
            return None
        schedule = rule.schedule
        relative = isinstance(schedule, interval) and schedule.relative
        if rule.policy.zone is not None or not (isinstance(schedule, crontab) or relative):
            return None
        state, mark, at = State.read(row.state, row.meta), new_mark(), timing.at.timestamp()
        first = state.change or timing._replace(start_time=rule.policy.start_time)
        state.change = first._replace(at=timing.at)
        keep_due(row, state)
        state.sign(mark)
        waits = float(row.score) < 0 or (state.hold is not None and state.hold.until > at)
        fields, score = {STATE: state.text()}, None if waits else at
        return Change(row.key, mark, digest_of(row), set=fields, score=score)
