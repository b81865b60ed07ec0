"""What Redis knows of a schedule at one moment, for metrics."""

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
    """A schedule at one moment.

    Attributes:
        counts: how many entries there are of each kind, and which beats.
        stats: what all beats have counted, by field.
        clock_offset: seconds by which the clock of this host is ahead of that of Redis, give or
            take half of a round trip.
        lock_left: seconds that the lock has left, None when nobody holds it, or it is off.
        shared: whether the lock is off.
    """

    counts: Counts
    stats: dict[str, str]
    clock_offset: float
    lock_left: float | None
    shared: bool

    @property
    def beats(self) -> set[str]:
        """The tokens of the beats that are known: who leads, and who said that it is there."""
        holder = {self.counts.holder} if self.counts.holder else set()
        return holder.union(beat.token for beat in self.counts.beats)

    @property
    def leads(self) -> bool:
        """Whether a beat leads, or shares the work where the lock is off."""
        if not self.shared:
            return bool(self.counts.holder)
        return not all(beat.locked for beat in self.counts.beats)

    @property
    def lock_age(self) -> float | None:
        """Seconds since the beat that leads took the lock, None when that is not known."""
        since, _, token = self.stats.get(LEADER, "").partition(" ")
        return self._age(since) if token and token == self.counts.holder else None

    @property
    def tick_age(self) -> float | None:
        """Seconds since a beat that is at work told what it counted, None when none ever did."""
        return self._age(self.stats.get(LAST_TICK, ""))

    def totals(self, most: int) -> dict[str, int]:
        """Return what was counted; by entry only if there are no more than ``most``."""
        by_entry = self.counts.members <= most
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
    """Ask Redis; ``clock`` gives UNIX seconds. Three round trips, two with the lock off."""
    stats = store.stats()  # first, so that the connection is there when the clocks are compared
    asked = clock()
    counts = store.counts(conf.lock_key, DISABLED, SEEN_WITHIN)
    answered = clock()
    left = store.lock_left(conf.lock_key) if conf.lock_key else None
    return Snapshot(counts, stats, (asked + answered) / 2 - counts.now, left, not conf.lock_key)
