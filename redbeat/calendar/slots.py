"""The periods of a day that a recurrence by days, hours or less has, without trying them all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import gcd

from .periods import DAILY, HOURLY, MINUTELY, SECONDLY, UNIT

__all__ = ("Slots",)


@dataclass(frozen=True)
class Slots:
    """Each ``interval``-th period of ``freq``, counted from number ``base``, at allowed times.

    The slots of a day are its periods, from 0 on. Empty ``hours``, ``minutes`` and ``seconds``
    restrict nothing. Days are ordinals.
    """

    freq: int
    interval: int
    base: int
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @cached_property
    def per_day(self) -> int:
        """How many periods a day has."""
        return UNIT[DAILY] // UNIT[self.freq]

    def of_day(self, day: int, since: int) -> Iterable[int]:
        """The slots of a day that are the rule's, from number ``since`` on."""
        ahead = self._ahead(day)
        since = max(since, ahead)
        ours = range(since + (ahead - since) % self.interval, self.per_day, self.interval)
        if len(self._allowed) == self.per_day:
            return ours
        if len(self._allowed) > len(ours):
            return (slot for slot in ours if slot in self._allowed_set)
        allowed = islice(self._allowed, bisect_left(self._allowed, since), None)
        return (slot for slot in allowed if (slot - ahead) % self.interval == 0)

    def days_without(self, day: int) -> int | None:
        """How many days from ``day`` on have no slot of the rule; ``None`` if all of them."""
        if len(self._allowed) == self.per_day:
            return self._ahead(day) // self.per_day
        cycle, ours = self._days
        if not ours:
            return None
        place = bisect_left(ours, day % cycle)
        following = ours[place] if place < len(ours) else ours[0] + cycle
        return following - day % cycle

    def _ahead(self, day: int) -> int:
        """How many periods after the beginning of a day the rule has its first."""
        return (self.base - day * self.per_day) % self.interval

    @cached_property
    def _days(self) -> tuple[int, tuple[int, ...]]:
        """After how many days everything repeats, and which of these have a slot of the rule.

        These are the days with ``day * per_day + slot = base``, modulo the interval.
        """
        common = gcd(self.per_day, self.interval)
        cycle, base = self.interval // common, self.base
        inverse = pow(self.per_day // common, -1, cycle)
        slots = [slot for slot in self._allowed if (base - slot) % common == 0]
        return cycle, tuple(sorted({(base - slot) // common * inverse % cycle for slot in slots}))

    @cached_property
    def _allowed(self) -> Sequence[int]:
        """The slots that hours, minutes and seconds allow, in order."""
        if self.freq == DAILY or not (
            self.hours
            or (self.freq > HOURLY and self.minutes)
            or (self.freq > MINUTELY and self.seconds)
        ):
            return range(self.per_day)
        slots: Iterable[int] = self.hours or range(24)
        for finer, part in ((MINUTELY, self.minutes), (SECONDLY, self.seconds)):
            if self.freq >= finer:
                slots = [slot * 60 + number for slot in slots for number in part or range(60)]
        return tuple(slots)

    @cached_property
    def _allowed_set(self) -> frozenset[int]:
        return frozenset(self._allowed)
