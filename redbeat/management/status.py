"""The status of a whole schedule: active beats, entry counts and lateness."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from celery import Celery

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import instant_in
from redbeat.config import ensure_conf
from redbeat.connection.urls import safe_url
from redbeat.entries.status import Overdue
from redbeat.metrics.beats import BeatInfo
from redbeat.metrics.counts import Counts
from redbeat.metrics.problems import ERROR, MAX_LATE, Finding, leader_seen, problems_of, server_of
from redbeat.metrics.snapshot import entries_of, measured_counts, overdue_entries
from redbeat.storage.keys import layout_of
from redbeat.storage.store import store_of
from redbeat.storage.words import FORGET_AFTER, SEEN_WITHIN


class Shard(NamedTuple):
    """One shard of a schedule.

    Attributes:
        prefix: the prefix of its keys.
        entries: the number of its entries.
        beat: the token of the beat that holds its lock, "" if the lock is free.
    """

    prefix: str
    entries: int
    beat: str


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a schedule at one moment.

    Attributes:
        now: the time of Redis, in UTC.
        leader: the beat that holds the lock; None if no beat does, or if the lock is off.
        beats: the beats that publish runs: the leader, which holds the lock of the first shard,
            those that hold the lock of another shard, and those that run without a lock.
        standbys: the beats that wait for the lock. Standbys of RedBeat 2 are missing, because they
            store nothing in Redis. A killed standby is listed for another ten seconds.
        entries: the number of entries by state; an entry counts as ``scheduled`` while a beat
            publishes its run.
        statics: the number of entries from ``beat_schedule``.
        due_now: the number of entries that are due and that no beat holds, or whose run could not
            be sent.
        most_late: the lateness of the latest due entry in seconds, None if none is due. It counts
            from when the run was due, even after failed attempts to send it, but without the
            entry's jitter.
        clock_offset: by how many seconds this host's clock is ahead of the clock of Redis, give or
            take half the time of a round trip.
        beat_clock_offset: the same for a beat's host, as the beat has found; 0 for less than a
            second.
        server: the ``version`` and ``mode`` of Redis; empty if Redis refuses ``INFO``.
        quarantined: the number of quarantined entries.
        key_prefix: the prefix of all keys.
        redis_url: the URL of Redis, without a password.
        lock_key: the key of the lock, None if the lock is off.
        problem: why beats publish nothing, such as a broker that is down, with its address, a
            leader that no longer reaches Redis, or a lock key that is not a lock; "" if they do.
        problems: all problems, the causes before what follows from them.
        overdue: the entries without a successful run within their ``expect_within``.
        shards: the shards of the schedule; empty if there is only one.
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
    beat_clock_offset: float
    server: dict[str, str]
    quarantined: int
    key_prefix: str
    redis_url: str
    lock_key: str | None
    problem: str = ""
    problems: list[Finding] = field(default_factory=list)
    overdue: list[Overdue] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether runs are sent and succeed, as far as is known. There may be warnings."""
        return not any(one.severity == ERROR for one in self.problems)


def status_of(
    app: Celery, clock: Callable[[], float] = time.time, max_late: float = MAX_LATE
) -> Status:
    """Return the status of an app's schedule; ``clock`` returns UNIX seconds.

    ``max_late`` is by how many seconds a due entry may be late without a problem. Takes two round
    trips (three if the leader is a beat of RedBeat 2), and those of
    :func:`~redbeat.metrics.snapshot.overdue_entries`.
    """
    conf, store = ensure_conf(app), store_of(app)
    server = server_of(store)  # open the connection before the clock offset is measured
    counts, clock_offset = measured_counts(store, conf, FORGET_AFTER, clock)
    leader, lockless, standbys = beats_of(counts)
    overdue = overdue_entries(store, counts)
    problems = problems_of(counts, conf, server, overdue, max_late)
    return Status(
        now=from_timestamp(counts.now),
        leader=leader,
        beats=[leader, *lockless] if leader else lockless,
        standbys=standbys,
        entries=entries_of(counts),
        statics=counts.statics,
        due_now=counts.due,
        most_late=None if counts.first_due is None else max(counts.now - counts.first_due, 0.0),
        clock_offset=clock_offset,
        beat_clock_offset=counts.host_ahead,
        server={name: server[name] for name in ("version", "mode") if name in server},
        quarantined=counts.quarantined,
        key_prefix=conf.key_prefix,
        redis_url=safe_url(conf.redis_url),
        lock_key=conf.lock_key,
        problem=next((one.problem for one in problems if one.stops), ""),
        problems=problems,
        overdue=overdue,
        shards=[*map(Shard, layout_of(conf).prefixes, counts.sizes, counts.holders)],
    )


def beats_of(counts: Counts) -> tuple[BeatInfo | None, list[BeatInfo], list[BeatInfo]]:
    """Return the leader, the other beats that publish runs, and the standbys."""
    leader = BeatInfo.read(counts.holder) if counts.holder else None
    if leader and leader.host is not None:
        leader = leader._replace(last_seen=instant_in(leader_seen(counts)))
    lockless: list[BeatInfo] = []
    standbys: list[BeatInfo] = []
    for beat in counts.beats:
        # Another program may have written ``beat.seen``, so it may be invalid.
        info = BeatInfo.read(beat.token)._replace(last_seen=instant_in(beat.seen))
        if beat.token == counts.holder:
            continue
        if beat.locked and beat.token in counts.holders:
            lockless.append(info)
        elif beat.seen >= counts.now - SEEN_WITHIN:  # else it was killed
            (standbys if beat.locked else lockless).append(info)
    if leader and counts.leads_since is not None:
        leader = leader._replace(leads_since=instant_in(counts.leads_since))
    return leader, lockless, standbys
