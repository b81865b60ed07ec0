"""Sees that Redis has the entries of ``beat_schedule``, and that the schedule is there at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from celery.schedules import crontab
from celery.schedules import schedule as interval
from redis.exceptions import LockNotOwnedError

from redbeat.beat.load import Rules
from redbeat.beat.statics import Statics
from redbeat.beat.turn import Turn
from redbeat.calendar.zones import from_timestamp, zone_key
from redbeat.codec.stored import text_of
from redbeat.config import RedBeatConfig
from redbeat.entries import changes, decide
from redbeat.entries.decide import PARKED
from redbeat.entries.state import State
from redbeat.printing import get_logger, plural
from redbeat.signals import emit, schedule_lost, statics_synced
from redbeat.storage import commands, reading, words
from redbeat.storage.beats import FORGET_AFTER
from redbeat.storage.rows import Change, Reply, Row
from redbeat.storage.store import Store

logger = get_logger("celery.beat")

#: Seconds between two attempts to write static entries that vanished.
AGAIN: Final = 1.0


@dataclass
class Sync:
    """Writes the static entries before a beat sends anything, and again when they vanish.

    Attributes:
        scheduler: the sender of signals.
        statics: the entries of ``beat_schedule``.
        store: the schedule in Redis.
        turn: the exchange of the beat with Redis.
        conf: the settings.
        rules: the rules of entries.
        clock: returns monotonic seconds.
        members: how many entries the schedule had at the last turn.
        again_at: when static entries that vanished may be written again.
        prune_at: when to remove, without a lock, what no beat has in its ``beat_schedule``.
    """

    scheduler: Any
    statics: Statics
    store: Store
    turn: Turn
    conf: RedBeatConfig
    rules: Rules
    clock: Callable[[], float]
    members: int = 0
    again_at: float = 0.0
    prune_at: float = math.inf

    def __post_init__(self) -> None:
        self.rules.restore, self.rules.statics = self.statics.restore, self.statics.names

    def run(self, reply: Reply) -> bool:
        """Write the static entries if it is necessary; return whether they were written.

        Raises ``LockNotOwnedError`` if all entries and the lock vanished and
        ``redbeat_on_lock_lost`` is ``exit``.
        """
        if not self._vanished(reply) and not self.statics.unwritten:
            # Without a lock one is enough, because a beat with a newer ``beat_schedule`` may have
            # removed the others.
            statics = len(self.statics.names)
            wanted = min(statics, 1) if self.turn.is_shared else statics
            if not 0 <= reply.statics < wanted or self.clock() < self.again_at:
                return False
            logger.warning(
                "beat: Static entries vanished from Redis, so the beat writes them again"
            )
        self.again_at = self.clock() + AGAIN
        self.write(from_timestamp(reply.now))
        return not self.statics.unwritten

    def write(self, now: datetime, *, alone: bool = False) -> None:
        """Write the static entries now; ``now`` is the time of Redis.

        Also remove those that others may have, if this beat leads or if it is ``alone``.
        """
        exclusive = alone or not self.turn.is_shared
        self.rules.forget()
        zone = self.store.noted(commands.TIME_ZONE)
        counts = self.statics.sync(self.store, self.turn.exchange, now, exclusive)
        self.statics.unwritten = counts is None or not self._follow_zone(zone, now)
        if counts is not None and not self.statics.unwritten:
            self.prune_at = math.inf if exclusive else self.clock() + FORGET_AFTER
            emit(statics_synced, self.scheduler, **counts)

    def prune(self) -> None:
        """Remove, without a lock, entries of an older ``beat_schedule`` while no other beat runs.

        Other beats may have other static entries. Not in the first minute, in which others may
        start.
        """
        if self.clock() < self.prune_at:
            return
        self.prune_at = self.clock() + FORGET_AFTER
        if not self._others_run():
            self.write(from_timestamp(self.turn.time()), alone=True)

    def _others_run(self) -> bool:
        """Return whether other beats run, also if this one may not know. One round trip."""
        since = self.turn.time() - FORGET_AFTER
        key = self.store.keys.beats
        found = commands.ask_aside(self.store.client, "ZRANGEBYSCORE", key, since, "+inf")
        beats = {text_of(beat) for beat in found or ()}
        return {beat for beat in beats if not beat.endswith(" lock")} != {self.turn.token}

    def _vanished(self, reply: Reply) -> bool:
        """Return whether all entries vanished since the last turn; if so, log an error."""
        before, self.members = self.members, reply.members
        if reply.members or before <= 0:
            return False
        lock_is_new = reply.standing == words.NEW_LEADER
        if before == 1 and not lock_is_new:  # a program may have deleted the only entry
            return False
        logger.error("beat: The schedule in Redis is empty: all %d entries are gone", before)
        emit(schedule_lost, self.scheduler, count=before)
        if lock_is_new and self.conf.on_lock_lost == "exit":
            raise LockNotOwnedError(
                "the lock vanished from Redis, and all entries with it; this beat ends, because "
                "redbeat_on_lock_lost is 'exit'"
            )
        return True

    # -- the time zone of the app --------------------------------------------------------------

    def _follow_zone(self, before: str, now: datetime) -> bool:
        """Note the app's earlier time zone in the entries that use it, and make them due.

        No round trip if it has not changed, else two per 500 entries and one per 2000. Returns
        False if this beat does not hold the lock any more.
        """
        zone = zone_key(self.rules.zone) or str(self.rules.zone)
        if before == zone:
            return True
        if before:
            logger.warning("beat: The time zone changed from %s to %s", before, zone)
            timing, count = decide.Change(before, None, now), 0
            parts = self.store.scan()
            members = {key for part in parts for key, score in part if score != PARKED}
            for keys in commands.batches(sorted(members)):
                rows = reading.read_rows(self.store, keys)
                found = [self._in_new_zone(row, timing) for row in rows]
                written = [change for change in found if change is not None]
                if self.turn.exchange(written).standing == words.STANDBY:
                    return False
                count += len(written)
            entries = plural(count, "entry", "entries")
            logger.warning("beat: Computes the next runs of %s in %s", entries, zone)
        self.turn.exchange([Change("", index=[["HSET", words.STATS, commands.TIME_ZONE, zone]])])
        return True

    def _in_new_zone(self, row: Row, timing: decide.Change) -> Change | None:
        """Return the change of an entry whose next run depends on the app's time zone, else None.

        What cannot be loaded is logged when it is due.
        """
        try:
            rule = self.rules.rule_of(row)
        except Exception as error:
            logger.debug("beat: Cannot load %s: %r", row.key, error)
            return None
        schedule = rule.schedule
        relative = isinstance(schedule, interval) and schedule.relative
        if rule.policy.zone is not None or not (isinstance(schedule, crontab) or relative):
            return None
        state, at = State.read(row.state, row.meta), timing.at.timestamp()
        first = state.change or timing._replace(start_time=rule.policy.start_time)
        state.change = first._replace(at=timing.at)
        changes.keep_due(row, state)
        waits = float(row.score or PARKED) < 0 or (state.hold is not None and state.hold.until > at)
        return changes.change_of(row, state, score=None if waits else at)
