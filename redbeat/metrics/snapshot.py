"""A snapshot of a schedule in Redis, for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from redbeat.codec.stored import record_in, seconds_in, whole_in
from redbeat.config import RedBeatConfig
from redbeat.entries import decide, status
from redbeat.metrics.beats import BeatInfo
from redbeat.storage import reading
from redbeat.storage.words import SEEN_WITHIN

from .counters import split
from .counts import Counts, counts_of, total_stats
from .problems import Finding, problems_of, server_of


def led_by_redbeat_2(counts: Counts) -> bool:
    return bool(counts.holder) and BeatInfo.read(counts.holder).host is None


def count_entries(store: reading.Reading, conf: RedBeatConfig, within: float) -> Counts:
    """Return the counts of a schedule, with the beats seen in the last ``within`` seconds.

    The problem that RedBeat 3 stored is left out if no beat of RedBeat 3 publishes.

    While RedBeat 2 leads, disabled entries look due, because it doesn't change their score: those
    among the first 500 due entries are counted as disabled. That takes a second round trip.
    """
    counts = counts_of(store, conf.lock_key, decide.DISABLED, within, conf.max_failures)
    if led_by_redbeat_2(counts):
        return _without_disabled(counts._replace(problem=""), store)
    active = counts.holder or not all(beat.locked for beat in counts.beats)
    return counts if active else counts._replace(problem="")


def measured_counts(
    store: reading.Reading, conf: RedBeatConfig, within: float, clock: Callable[[], float]
) -> tuple[Counts, float]:
    """Return :func:`count_entries`, and this host's clock minus the clock of Redis, in seconds.

    On an open connection, the offset is wrong by at most half the time of a round trip. ``clock``
    returns UNIX seconds.
    """
    sent_at = clock()
    counts = count_entries(store, conf, within)
    return counts, (sent_at + clock()) / 2 - counts.now


def _without_disabled(counts: Counts, store: reading.Reading) -> Counts:
    if not counts.due or counts.holders:  # RedBeat 2 knows no shards
        return counts
    page = store.parts[0].page()
    due = [row for row in page.rows if row.due is not None and 0 <= row.due <= page.now]
    enabled = [row for row in due if record_in(row.definition or "").get("enabled", True)]
    disabled = len(due) - len(enabled)
    first = next((row for row in enabled if row.due), None)  # a page is in due order
    return counts._replace(
        due=max(counts.due - disabled, 0),
        first_due=first and first.due,
        first_key=first.key if first else "",
        disabled=counts.disabled + disabled,
        parked=counts.parked + disabled,
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a schedule at one moment.

    ``clock_offset`` is this host's clock minus the clock of Redis, in seconds. ``lock_left`` is how
    many seconds the lock still lasts, None if it is free or off. ``shared`` is whether it is off,
    so that all beats share the work.
    """

    counts: Counts
    stats: dict[str, str]
    clock_offset: float
    lock_left: float | None
    shared: bool
    overdue: list[status.Overdue] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)

    @property
    def beats(self) -> set[str]:
        """The tokens of the leader and of all beats with a recent heartbeat."""
        leader = {self.counts.holder} if self.counts.holder and self.leads else set()
        return leader.union(beat.token for beat in self.counts.beats)

    @property
    def leads(self) -> bool:
        """Whether any beat leads or, with the lock off, is active.

        A dead leader still holds the lock until it expires, but doesn't lead.
        """
        if not self.shared:
            is_dead = any(one.kind == "leader" for one in self.problems)
            return bool(self.counts.holder) and not is_dead
        return not all(beat.locked for beat in self.counts.beats)

    @property
    def lock_age(self) -> float | None:
        """Seconds since the leader took the lock, None if unknown."""
        return self._age(self.counts.leads_since)

    @property
    def tick_age(self) -> float | None:
        """Seconds since an active beat last sent its counters.

        None if no beat ever did, or if a beat of RedBeat 2 leads.
        """
        if led_by_redbeat_2(self.counts):
            return None
        return self._age(seconds_in(self.stats.get(reading.LAST_TICK, "")))

    def totals(self, max_entries: int) -> dict[str, int]:
        """Return the counters of all beats by field.

        Single entries are left out if the schedule has more than ``max_entries``.
        """
        by_entry = self.counts.members <= max_entries
        return {
            field: number
            for field, text in self.stats.items()
            if (number := whole_in(text)) is not None and (by_entry or split(field) is None)
        }

    def _age(self, since: float | None) -> float | None:
        return None if since is None else max(self.counts.now - since, 0.0)


def take_snapshot(
    store: reading.Reading, conf: RedBeatConfig, clock: Callable[[], float] = time.time
) -> Snapshot:
    """Read a snapshot from Redis; ``clock`` returns UNIX seconds.

    Takes four round trips (three if the lock is off), one more while RedBeat 2 leads, and those of
    :func:`overdue_entries` if entries may be overdue.
    """
    # The first request also connects, which would distort the clock offset.
    stats = total_stats(store.parts)
    counts, offset = measured_counts(store, conf, SEEN_WITHIN, clock)
    left = _lock_left(store, conf.lock_key) if conf.lock_key else None
    overdue = overdue_entries(store, counts)
    problems = problems_of(counts, conf, server_of(store), overdue)
    return Snapshot(counts, stats, offset, left, not conf.lock_key, overdue, problems)


def _lock_left(store: reading.Reading, lock_key: str) -> float | None:
    """Seconds until the first shard's lock expires, None if it's free. One round trip."""
    (milliseconds,) = reading.ask(store.client, ("PTTL", store.keys.layout.lock_key(0, lock_key)))
    return milliseconds / 1000 if milliseconds >= 0 else None


def overdue_entries(store: reading.Reading, counts: Counts) -> list[status.Overdue]:
    """All overdue entries; those longest without a success come first.

    One round trip per 500 entries that may be overdue, none if all entries with ``expect_within``
    had a success in time.
    """
    found: list[status.Overdue] = []
    for keys in reading.batches(counts.expected):
        rows = store.read(keys).rows
        items = (status.overdue_of(row, store.keys.name_of(row.key), counts.now) for row in rows)
        found += [item for item in items if item is not None]
    return sorted(found, key=lambda item: -item.seconds)


def entries_of(counts: Counts) -> dict[str, int]:
    finished = counts.parked - counts.disabled - counts.quarantined
    return {
        status.SCHEDULED: max(counts.members - counts.parked - counts.failing, 0),
        status.FAILING: counts.failing,
        status.PAUSED: counts.disabled,
        status.FINISHED: max(finished, 0),
        status.QUARANTINED: counts.quarantined,
    }
