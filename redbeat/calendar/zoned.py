"""A recurrence on the clock of a zone, from an instant on: what it skips, repeats and counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import cached_property

from .counting import is_computed, nth_from, number_between
from .daysets import UNIT
from .recurrence import Recurrence
from .walltime import END, TICK, at_offset, next_instant, offset_spans
from .zones import EPOCH, NAIVE_EPOCH, fixed_offset

__all__ = ("ZonedRule",)

DAY = timedelta(days=1)


@dataclass(frozen=True)
class ZonedRule:
    """The occurrences of ``rule`` on the clock of ``zone``.

    ``start`` is the instant of the rule's own start, in UTC and whole seconds. No occurrence is
    before it, and a ``count`` is one of runs where the rule follows real time; where it names hours
    each of these counts, as each runs once.
    """

    rule: Recurrence
    zone: tzinfo
    start: datetime

    def next_run(self, after: datetime) -> datetime | None:
        """The first occurrence after the aware ``after``, in UTC; ``None`` if none is left."""
        found = next_instant(self._searched, after, self.zone, self.start)
        return None if found is None or found > self._last else found

    @cached_property
    def _repeats(self) -> bool:
        """Whether changes of the clock repeat times of the rule, or leave them out."""
        return self.rule.follows_real_time and fixed_offset(self.zone) is None

    @cached_property
    def _searched(self) -> Recurrence:
        """The rule to search; of one that may repeat, from before the hour that its start is in."""
        if not self._repeats:
            return self.rule
        try:
            step = self.rule.interval * UNIT[self.rule.freq]
            early = self.rule.start - DAY // step * step
        except OverflowError:
            early = self.rule.start
        return replace(self.rule, start=early, count=None)

    @cached_property
    def _last(self) -> datetime:
        """The last run that ``count`` allows, where the rule does not know that itself."""
        if not self._repeats or (count := self.rule.count) is None:
            return END
        return self._computed(count) if is_computed(self.rule) else self._walked(count)

    def _computed(self, left: int) -> datetime:
        for begin, end, offset in offset_spans(self.zone, self.start):
            first = NAIVE_EPOCH + (begin - EPOCH + offset)
            if end < END:
                here = number_between(self.rule, first, NAIVE_EPOCH + (end - EPOCH + offset))
                if left > here:
                    left -= here
                    continue
            try:
                return at_offset(nth_from(self.rule, first, left), offset)
            except OverflowError:
                break
        return END

    def _walked(self, count: int) -> datetime:
        last = self.start - TICK
        for _ in range(count):
            following = next_instant(self._searched, last, self.zone, self.start)
            if following is None:
                break
            last = following
        return last
