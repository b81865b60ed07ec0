"""RFC 5545 recurrence in wall time: the next occurrence by arithmetic, in bounded work.

Periods (years, weeks, seconds, ...) are numbered, so that the period of any moment is found
without walking from the start, however old that is. ``dateutil`` walks, and a rule that never
matches keeps it busy until the year 9999; the results are the same where it gives any.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import islice
from math import gcd

from .counting import is_computed, nth_from
from .daysets import (
    DAILY,
    HOURLY,
    MINUTELY,
    MONTHLY,
    SECOND,
    SECONDLY,
    UNIT,
    WEEKLY,
    YEARLY,
    DaySet,
    month_days,
    period_index,
    period_start,
)

__all__ = (
    "Recurrence",
    "Slots",
)


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


# ruff: noqa: DTZ001 - wall times have no zone


# How many years, months and weeks are looked at before a rule counts as finished.
LOOK_AHEAD = (100, 1200, 5300)
YEARS = 100
MOST_DAYS = {YEARLY: 366, MONTHLY: 31, WEEKLY: 7}
ALL_MONTHS = tuple(range(1, 13))

Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Recurrence:
    """One rule, normalised: every set sorted and without repeats, empty = not restricted.

    ``start`` is naive and in whole seconds. ``hours``, ``minutes`` and ``seconds`` are complete
    for the units below ``freq`` and restrict the others. ``plain`` says that no ``by`` part was
    given. Equal values have equal occurrences.
    """

    freq: int
    interval: int
    start: datetime
    wkst: int
    count: int | None
    plain: bool = field(compare=False)
    setpos: tuple[int, ...]
    months: tuple[int, ...]
    monthdays: tuple[int, ...]
    yeardays: tuple[int, ...]
    easter: tuple[int, ...]
    weeknos: tuple[int, ...]
    weekdays: tuple[int, ...]
    nth_weekdays: tuple[tuple[int, int], ...]
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @cached_property
    def follows_real_time(self) -> bool:
        """Whether the rule counts hours or less, and names no hour of the day."""
        return self.freq >= HOURLY and not self.hours

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first occurrence after ``wall``, ``None`` if there is none in about a century."""
        if self._beyond_all:
            return None
        low = max(wall.replace(microsecond=0) + SECOND, self.start)
        try:
            found = self._search(low)
        except (ValueError, OverflowError):
            return None  # past the year 9999
        beyond = found is None or (self.count is not None and found > self.last)
        return None if beyond else found

    @cached_property
    def _beyond_all(self) -> bool:
        """Whether every position is beyond what the longest period holds."""
        size = MOST_DAYS.get(self.freq, 1)
        for part in self._times(self.start):
            size *= len(part)
        return bool(self.setpos) and min(map(abs, self.setpos)) > size

    @cached_property
    def last(self) -> datetime:
        """The occurrence that uses up ``count``."""
        return _last_counted(self)

    def _search(self, low: datetime) -> datetime | None:
        # All periods of a day or less have the same times: when neither the one that has begun nor
        # a whole one has an occurrence, none has.
        shorter = self.freq >= DAILY
        periods = islice(self._periods(low), 2) if shorter else self._long_periods(low)
        found = (self._first_in(period, low) for period in periods)
        return next((at for at in found if at is not None), None)

    def _long_periods(self, low: datetime) -> Iterator[datetime]:
        """The weeks, months or years with an allowed day from ``low`` on, of about a century."""
        index = self._aligned(period_index(self.freq, low, self.wkst))
        for tried in range(LOOK_AHEAD[self.freq]):
            period = period_start(self.freq, index, self.wkst)
            day = self.days.first_from(max(period, low).date())
            if day is None or (tried >= YEARS and period.year > low.year + YEARS):
                return
            holding = self._index_of(day)
            if holding <= index:
                yield period
            index = self._aligned(max(index + 1, holding))

    def _periods(self, low: datetime) -> Iterator[datetime]:
        """The days, hours, minutes or seconds that nothing excludes, from that of ``low`` on."""
        unit, first = UNIT[self.freq], low.date()
        day = self._day_from(first)
        while day is not None and day.year <= low.year + YEARS:
            midnight = datetime(day.year, day.month, day.day)
            since = 0 if day > first else (low - midnight) // unit
            for slot in self._slots.of_day(day.toordinal(), since):
                yield midnight + slot * unit
            day = self._day_from(day + UNIT[DAILY])

    def _day_from(self, day: date) -> date | None:
        """The first allowed day from ``day`` on that holds a period of the rule."""
        last, found = day.year + YEARS, self.days.first_from(day)
        while found is not None and found.year <= last:
            without = self._slots.days_without(found.toordinal())
            if without == 0:
                return found
            if without is None:
                return None
            found = self.days.first_from(found + without * UNIT[DAILY])
        return None

    @cached_property
    def _slots(self) -> Slots:
        clock = self.hours, self.minutes, self.seconds
        return Slots(self.freq, self.interval, self._base, *clock)

    def _aligned(self, index: int) -> int:
        return index + (self._base - index) % self.interval

    @cached_property
    def _base(self) -> int:
        return period_index(self.freq, self.start, self.wkst)

    @cached_property
    def days(self) -> DaySet:
        """The days that the rule allows."""
        return DaySet(
            self.freq,
            self.wkst,
            self.months,
            self.monthdays,
            self.yeardays,
            self.easter,
            self.weeknos,
            self.weekdays,
            self.nth_weekdays,
        )

    def _first_in(self, period: datetime, low: datetime) -> datetime | None:
        times = self._times(period)
        if self.setpos:
            return min((at for at in self._picked(period, times) if at >= low), default=None)
        for day in self._days_from(period, low):
            found = _first_time(times, low if day == low.date() else None)
            if found is not None:
                return datetime(day.year, day.month, day.day, *found)
        return None

    def _days_from(self, period: datetime, low: datetime) -> Iterator[date]:
        """The allowed days of a period, from that of ``low`` on."""
        if self.freq >= DAILY:
            yield period.date()
            return
        index = self._index_of(period)
        day = self.days.first_from(max(period, low).date())
        while day is not None and self._index_of(day) == index:
            yield day
            day = self.days.first_from(day + UNIT[DAILY])

    def _index_of(self, day: date) -> int:
        return period_index(self.freq, datetime(day.year, day.month, day.day), self.wkst)

    def _picked(self, period: datetime, times: Times) -> Iterator[datetime]:
        days = [day for day in self._days(period) if day in self.days]
        hours, minutes, seconds = times
        for position in self.setpos:
            rest = position - 1 if position > 0 else position
            rest, second = divmod(rest, len(seconds))
            rest, minute = divmod(rest, len(minutes))
            rest, hour = divmod(rest, len(hours))
            if -len(days) <= rest < len(days):
                day = days[rest]
                clock = hours[hour], minutes[minute], seconds[second]
                yield datetime(day.year, day.month, day.day, *clock)

    def _times(self, period: datetime) -> Times:
        return (
            (period.hour,) if self.freq >= HOURLY else self.hours,
            (period.minute,) if self.freq >= MINUTELY else self.minutes,
            (period.second,) if self.freq >= SECONDLY else self.seconds,
        )

    def _days(self, period: datetime) -> Iterator[date]:
        if self.freq == YEARLY:
            for month in self.months or ALL_MONTHS:
                yield from month_days(period.year, month)
        elif self.freq == MONTHLY:
            if not self.months or period.month in self.months:
                yield from month_days(period.year, period.month)
        elif self.freq == WEEKLY:
            week = (period.date() + timedelta(days=day) for day in range(7))
            yield from (day for day in week if day >= self.start.date())
        else:
            yield period.date()


def _first_time(times: Times, low: datetime | None) -> tuple[int, int, int] | None:
    """The first time of day, at or after that of ``low`` if given."""
    hours, minutes, seconds = times
    if low is None:
        return hours[0], minutes[0], seconds[0]
    for hour in hours[bisect_left(hours, low.hour) :]:
        if hour > low.hour:
            return hour, minutes[0], seconds[0]
        for minute in minutes[bisect_left(minutes, low.minute) :]:
            if minute > low.minute:
                return hour, minute, seconds[0]
            later = bisect_left(seconds, low.second)
            if later < len(seconds):
                return hour, minute, seconds[later]
    return None


@lru_cache(maxsize=512)
def _last_counted(rule: Recurrence) -> datetime:
    count = rule.count or 0
    if is_computed(rule):
        return nth_from(rule, rule.start, count)
    endless, last = replace(rule, count=None), rule.start - SECOND
    for _ in range(count):
        following = endless.next_wall(last)
        if following is None:
            break
        last = following
    return last
