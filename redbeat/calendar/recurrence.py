"""RFC 5545 recurrence rules in wall-clock time, with a fast search for the next occurrence.

The search computes the index of a period (year, week, second, ...) from a datetime. The search
does not iterate over all periods from the start of the rule. ``dateutil`` iterates from the start
of the rule, which takes 50 times as long. For a rule that never matches, ``dateutil`` iterates
until the year 9999, which takes seconds. This module and ``dateutil`` return the same occurrences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from itertools import islice
from math import gcd

from redbeat.errors import TooManyStepsError

from . import daysets
from .daysets import DaySet
from .steps import spend

#: A step is as long as this number of tests of a slot; a day without a slot takes as many steps.
FAST = 8

#: The hours, minutes and seconds of the occurrences in a period.
Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _matching(slots: Iterable[int], matches: Callable[[int], bool]) -> Iterator[int]:
    tests = 0
    for slot in slots:
        tests += 1
        if matches(slot):
            spend(tests // FAST)
            tests = 0
            yield slot
    spend(tests // FAST)


@dataclass(frozen=True)
class Slots:
    """The periods of a rule within a day.

    ``freq`` is the length of a period: a day, an hour, a minute or a second. The rule selects every
    ``interval``-th period, counted from the period with index ``base``. A period must also match
    ``hours``, ``minutes`` and ``seconds``, in which an empty tuple allows all values. A slot is the
    index of a period within the day. Days are numbers from ``date.toordinal()``.
    """

    freq: int
    interval: int
    base: int
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @cached_property
    def per_day(self) -> int:
        """The number of periods in a day."""
        return daysets.DAY // daysets.UNIT[self.freq]

    def of_day(self, day: int, since: int) -> Iterable[int]:
        """Return the slots of the rule on ``day``, beginning with the slot ``since``."""
        first = self.first_of(day)
        since = max(since, first)
        by_interval = range(since + (first - since) % self.interval, self.per_day, self.interval)
        if len(self._allowed) == self.per_day:
            return by_interval
        # Iterate over the shorter sequence of slots, and test whether the longer sequence contains
        # each slot.
        if len(self._allowed) > len(by_interval):
            return _matching(by_interval, self._allowed_set.__contains__)
        allowed = islice(self._allowed, bisect_left(self._allowed, since), None)
        return _matching(allowed, lambda slot: (slot - first) % self.interval == 0)

    def first_of(self, day: int) -> int:
        """Return the first slot at or after the start of ``day`` that ``interval`` selects.

        If the returned slot is ``per_day`` or more, the slot is on a later day.
        """
        return (self.base - day * self.per_day) % self.interval

    @cached_property
    def may_occur(self) -> bool:
        """Whether ``interval`` ever selects an allowed slot, on any day."""
        common = gcd(self.per_day, self.interval)
        return any((slot - self.base) % common == 0 for slot in self._allowed)

    @cached_property
    def _allowed(self) -> Sequence[int]:
        """The slots that ``hours``, ``minutes`` and ``seconds`` allow, in ascending order."""
        parts = (self.hours, self.minutes, self.seconds)[: self.freq - daysets.DAILY]
        if not any(parts):
            return range(self.per_day)
        slots = [0]
        for part, size in zip(parts, (24, 60, 60), strict=False):
            slots = [slot * size + number for slot in slots for number in part or range(size)]
        return tuple(slots)

    @cached_property
    def _allowed_set(self) -> frozenset[int]:
        return frozenset(self._allowed)


# ruff: noqa: DTZ001 - wall-clock times have no time zone


# The numbers of years, months and weeks after which a search for the next occurrence stops. If the
# search finds no occurrence, the rule counts as finished.
LOOK_AHEAD = (100, 1200, 5300)
YEARS = 100
#: The steps of a search for a period.
PERIOD = 10


@dataclass(frozen=True)
class Recurrence:
    """A normalised recurrence rule. Equal ``Recurrence`` objects have the same occurrences.

    ``start`` is a naive datetime in whole seconds. All tuples of a rule are sorted and have no
    duplicates. An attribute that is an empty tuple allows all values. The tuples for units smaller
    than ``freq`` are never empty: for example, a daily rule always has ``hours``. ``plain`` is true
    if the rule has no ``by`` argument, such as ``byhour``. ``days`` are the days that it allows.
    """

    freq: int
    interval: int
    start: datetime
    wkst: int
    plain: bool = field(compare=False)
    setpos: tuple[int, ...]
    days: DaySet
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @cached_property
    def follows_real_time(self) -> bool:
        """Whether the rule repeats hourly or more often and does not restrict the hour."""
        return self.freq >= daysets.HOURLY and not self.hours

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first occurrence within a century after ``wall``, or None."""
        low = max(wall.replace(microsecond=0) + daysets.SECOND, self.start)
        try:
            return self._search(low)
        except TooManyStepsError:
            raise
        except (ValueError, OverflowError):
            return None  # the occurrence would be after the year 9999

    def _search(self, low: datetime) -> datetime | None:
        # All periods of a day or less have the same occurrences, relative to the start of the
        # period. If the first two periods have no occurrence after ``low``, no later period has an
        # occurrence.
        is_short = self.freq >= daysets.DAILY
        periods = islice(self._periods(low), 2) if is_short else self._long_periods(low)
        occurrences = (self._first_in(period, low) for period in periods)
        return next((at for at in occurrences if at is not None), None)

    def _long_periods(self, low: datetime) -> Iterator[datetime]:
        """Yield the starts of the weeks, months or years that contain an allowed day.

        The first period contains ``low``, and the last period is about a century later.
        """
        index = self._aligned(daysets.period_index(self.freq, low, self.wkst))
        for tried in range(LOOK_AHEAD[self.freq]):
            spend(PERIOD)
            period = daysets.period_start(self.freq, index, self.wkst)
            day = self.days.first_from(max(period, low).date())
            if day is None or (tried >= YEARS and period.year > low.year + YEARS):
                return
            index_of_day = self._index_of(day)
            if index_of_day <= index:
                yield period
            index = self._aligned(max(index + 1, index_of_day))

    def _periods(self, low: datetime) -> Iterator[datetime]:
        """Yield the starts of the allowed days, hours, minutes or seconds.

        The first period contains ``low``, and the last period is about a century later.
        """
        unit, slots, first = daysets.UNIT[self.freq], self._slots, low.date()
        day = self.days.first_from(first)
        while slots.may_occur and day is not None and day.year <= low.year + YEARS:
            midnight, number = datetime(day.year, day.month, day.day), day.toordinal()
            since = 0 if day > first else (low - midnight) // unit
            for slot in slots.of_day(number, since):
                yield midnight + slot * unit
            spend(FAST)
            ahead = max(slots.first_of(number) // slots.per_day, 1)
            day = self.days.first_from(day + ahead * daysets.DAY)

    @cached_property
    def _slots(self) -> Slots:
        clock = self.hours, self.minutes, self.seconds
        return Slots(self.freq, self.interval, self._base, *clock)

    def _aligned(self, index: int) -> int:
        """Return the index of the first period of the rule at or after the period ``index``."""
        return index + (self._base - index) % self.interval

    @cached_property
    def _base(self) -> int:
        return daysets.period_index(self.freq, self.start, self.wkst)

    def _first_in(self, period: datetime, low: datetime) -> datetime | None:
        times = self._times(period)
        if self.setpos:
            return min((at for at in self._at_positions(period, times) if at >= low), default=None)
        for day in self._days_from(period, low):
            time = _first_time(times, low if day == low.date() else None)
            if time is not None:
                return datetime(day.year, day.month, day.day, *time)
        return None

    def _days_from(self, period: datetime, low: datetime) -> Iterator[date]:
        """Yield the allowed days of a period, without the days before ``low``."""
        if self.freq >= daysets.DAILY:
            yield period.date()
            return
        index = self._index_of(period)
        day = self.days.first_from(max(period, low).date())
        while day is not None and self._index_of(day) == index:
            yield day
            day = self.days.first_from(day + daysets.DAY)

    def _index_of(self, day: date) -> int:
        return daysets.period_index(self.freq, datetime(day.year, day.month, day.day), self.wkst)

    def _at_positions(self, period: datetime, times: Times) -> Iterator[datetime]:
        """Yield the occurrences that BYSETPOS selects in a period."""
        days = self._days_in(period)
        spend(len(days) + len(self.setpos))
        hours, minutes, seconds = times
        for position in self.setpos:
            index = position - 1 if position > 0 else position
            index, second = divmod(index, len(seconds))
            index, minute = divmod(index, len(minutes))
            index, hour = divmod(index, len(hours))
            if -len(days) <= index < len(days):
                day = days[index]
                clock = hours[hour], minutes[minute], seconds[second]
                yield datetime(day.year, day.month, day.day, *clock)

    def _times(self, period: datetime) -> Times:
        return (
            (period.hour,) if self.freq >= daysets.HOURLY else self.hours,
            (period.minute,) if self.freq >= daysets.MINUTELY else self.minutes,
            (period.second,) if self.freq >= daysets.SECONDLY else self.seconds,
        )

    def _days_in(self, period: datetime) -> list[date]:
        """Return the allowed days of a period; the first week of a rule begins at its start."""
        first = max(period, self.start).date() if self.freq == daysets.WEEKLY else period.date()
        if self.freq == daysets.YEARLY:
            return [first + number * daysets.DAY for number in self.days.in_year(first)]
        end = first + daysets.DAY
        if self.freq < daysets.DAILY:
            following = self._index_of(period) + 1
            end = daysets.period_start(self.freq, following, self.wkst).date()
        every_day = map(date.fromordinal, range(first.toordinal(), end.toordinal()))
        return [day for day in every_day if day in self.days]


def _first_time(times: Times, low: datetime | None) -> tuple[int, int, int] | None:
    """Return the first (hour, minute, second) of ``times`` at or after the time of ``low``.

    If ``low`` is None, returns the first (hour, minute, second) of all ``times``.
    """
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
