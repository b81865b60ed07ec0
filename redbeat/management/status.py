"""A schedule as a whole: who works on it, how much there is to do, how late it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redbeat.beat.lock import FORGET_AFTER, SEEN_WITHIN, BeatInfo
from redbeat.calendar.zones import from_timestamp
from redbeat.config import ensure_conf
from redbeat.connection.urls import safe_url
from redbeat.entries.decide import DISABLED
from redbeat.entries.status import entries_of
from redbeat.storage.quarantine import printable
from redbeat.storage.store import store_of
from redbeat.storage.wire import Counts, Presence

__all__ = (
    "Status",
    "status_of",
)


@dataclass(frozen=True, slots=True)
class Status:
    """What a schedule looks like at one moment.

    Attributes:
        now: the time of Redis, UTC.
        leader: who holds the beat lock, None for nobody or when it is off.
        beats: those that dispatch: the leader, and all that share the work without a lock.
        standbys: those that wait for the lock, but for beats of RedBeat 2, which nobody sees. One
            that was killed is listed for a minute, with when it was last seen.
        entries: how many there are, by state; an entry that a beat is sending counts as scheduled.
        statics: how many of them come from ``beat_schedule``.
        due_now: how many are due and not yet claimed.
        most_late: seconds since the first of them was due, None when nothing is.
        clock_offset: seconds by which the clock of this host is ahead of that of Redis, give or
            take half of a round trip.
        server: ``version`` and ``mode`` of Redis, empty where that may not be asked.
        quarantined: how many entries are set aside.
        key_prefix: what all keys begin with.
        redis_url: where it is, without a password.
        lock_key: the key of the beat lock, None when it is off.
        problem: why a beat sends nothing, "" where none says so.
    """

    now: datetime
    leader: BeatInfo | None
    beats: list[BeatInfo]
    standbys: list[BeatInfo]
    entries: dict[str, int]
    statics: int
    due_now: int
    most_late: float | None
    clock_offset: float
    server: dict[str, str]
    quarantined: int
    key_prefix: str
    redis_url: str
    lock_key: str | None
    problem: str = ""


def status_of(app: Any, clock: Callable[[], float] = time.time) -> Status:
    """Return the status of an app's schedule; ``clock`` gives UNIX seconds. Two round trips."""
    conf, store = ensure_conf(app), store_of(app)
    server = store.server()  # first, so that the connection is there when the clocks are compared
    asked = clock()
    counts = store.counts(conf.lock_key, DISABLED, FORGET_AFTER)
    answered = clock()
    leader, sharing, standbys = beats_of(counts)
    return Status(
        now=from_timestamp(counts.now),
        leader=leader,
        beats=[leader, *sharing] if leader else sharing,
        standbys=standbys,
        entries=entries_of(counts),
        statics=counts.statics,
        due_now=counts.due,
        most_late=None if counts.first_due is None else max(counts.now - counts.first_due, 0.0),
        clock_offset=(asked + answered) / 2 - counts.now,
        server=server,
        quarantined=counts.quarantined,
        key_prefix=conf.key_prefix,
        redis_url=safe_url(conf.redis_url),
        lock_key=conf.lock_key,
        problem=printable(counts.problem),
    )


def beats_of(counts: Counts) -> tuple[BeatInfo | None, list[BeatInfo], list[BeatInfo]]:
    """Return the leader, those that share the work without a lock, and those that stand by."""
    leader = BeatInfo.read(counts.holder) if counts.holder else None
    sharing, standbys = [], []
    for beat in counts.beats:
        if beat.token == counts.holder:
            leader = _seen(beat)
        elif beat.locked:
            standbys.append(_seen(beat))
        elif beat.seen >= counts.now - SEEN_WITHIN:
            sharing.append(_seen(beat))
    return leader, sharing, standbys


def _seen(beat: Presence) -> BeatInfo:
    return BeatInfo.read(beat.token)._replace(last_seen=from_timestamp(beat.seen))
