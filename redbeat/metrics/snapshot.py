"""A snapshot of a schedule in Redis, for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from redbeat.beat.lock import SEEN_WITHIN
from redbeat.config import RedBeatConfig
from redbeat.entries.decide import DISABLED
from redbeat.storage.reading import LAST_TICK, Reading
from redbeat.storage.wire import Counts

from .counters import LEADER, split

__all__ = ("Snapshot", "take_snapshot")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a schedule at one moment.

    Attributes:
        counts: the numbers of entries by state, and the running beats.
        stats: the counters of all beats, by field.
        clock_offset: the clock of this host minus the clock of Redis, in seconds. The error is at
            most half the time of a round trip.
        lock_left: seconds until the lock expires, None if no beat holds it or the lock is disabled.
        shared: whether the lock is disabled, so that all beats share the work.
    """

    counts: Counts
    stats: dict[str, str]
    clock_offset: float
    lock_left: float | None
    shared: bool

    @property
    def beats(self) -> set[str]:
        """The tokens of the leader and of all beats with a recent heartbeat."""
        holder = {self.counts.holder} if self.counts.holder else set()
        return holder.union(beat.token for beat in self.counts.beats)

    @property
    def leads(self) -> bool:
        """Whether any beat leads; if the lock is disabled, whether any beat is active."""
        if not self.shared:
            return bool(self.counts.holder)
        return not all(beat.locked for beat in self.counts.beats)

    @property
    def lock_age(self) -> float | None:
        """Seconds since the leader acquired the lock, None if unknown."""
        since, _, token = self.stats.get(LEADER, "").partition(" ")
        return self._age(since) if token and token == self.counts.holder else None

    @property
    def tick_age(self) -> float | None:
        """Seconds since an active beat last sent its counters, None if no beat ever sent any."""
        return self._age(self.stats.get(LAST_TICK, ""))

    def totals(self, max_entries: int) -> dict[str, int]:
        """Return the counters by field.

        Counts of single entries are omitted if there are more than ``max_entries`` entries.
        """
        by_entry = self.counts.members <= max_entries
        return {
            field: int(number)
            for field, number in self.stats.items()
            if number.isdecimal() and (by_entry or split(field) is None)
        }

    def _age(self, instant: str) -> float | None:
        try:
            return max(self.counts.now - float(instant), 0.0)
        except ValueError:
            return None


def take_snapshot(
    store: Reading, conf: RedBeatConfig, clock: Callable[[], float] = time.time
) -> Snapshot:
    """Read a snapshot from Redis. Three round trips, two if the lock is disabled.

    ``clock`` returns UNIX seconds.
    """
    stats = store.stats()  # opens the connection, so that this does not distort the clock offset
    sent_at = clock()
    counts = store.counts(conf.lock_key, DISABLED, SEEN_WITHIN)
    received_at = clock()
    left = store.lock_left(conf.lock_key) if conf.lock_key else None
    offset = (sent_at + received_at) / 2 - counts.now
    return Snapshot(counts, stats, offset, left, not conf.lock_key)
