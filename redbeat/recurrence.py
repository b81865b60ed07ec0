"""RFC 5545 recurrence in wall time: the next occurrence by arithmetic, in bounded work.

Periods (years, weeks, seconds, ...) are numbered, so that the period of any moment is found
without walking from the start, however old that is. ``dateutil`` walks, and a rule that never
matches keeps it busy until the year 9999; the results are the same where it gives any.
"""

from __future__ import annotations

# ruff: noqa: DTZ001, DTZ901 - wall times have no zone
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache

from dateutil.easter import easter

from .periods import (
    DAILY,
    HOURLY,
    MINUTELY,
    MONTHLY,
    SECOND,
    SECONDLY,
    UNIT,
    WEEKLY,
    YEARLY,
    month_days,
    month_length,
    period_index,
    period_start,
    year_length,
)

__all__ = ("Recurrence",)

# How many periods are looked at before a rule counts as finished: about a century.
LOOK_AHEAD = (100, 1200, 5300, 36600, 40000, 60000, 100000)
ALL_MONTHS = tuple(range(1, 13))

Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
DayTest = Callable[[date], bool]


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
        low = max(wall.replace(microsecond=0) + SECOND, self.start)
        try:
            found = self._search(low)
        except (ValueError, OverflowError):
            return None  # past the year 9999
        beyond = found is None or (self.count is not None and found > self.last)
        return None if beyond else found

    @cached_property
    def last(self) -> datetime:
        """The occurrence that uses up ``count``."""
        return _last_counted(self)

    def _search(self, low: datetime) -> datetime | None:
        index = self._aligned(period_index(self.freq, low, self.wkst))
        for _ in range(LOOK_AHEAD[self.freq]):
            period = period_start(self.freq, index, self.wkst)
            onward = self._nothing_before(period)
            if onward is None:
                found = self._first_in(period, low)
                if found is not None:
                    return found
                index = self._aligned(index + 1)
            else:
                index = self._aligned(max(index + 1, period_index(self.freq, onward, self.wkst)))
        return None

    def _aligned(self, index: int) -> int:
        return index + (self._base - index) % self.interval

    @cached_property
    def _base(self) -> int:
        return period_index(self.freq, self.start, self.wkst)

    def _nothing_before(self, period: datetime) -> datetime | None:
        """Where to go on if this hour, minute or second is excluded, or all of its day."""
        if self.freq < HOURLY:
            return None
        if not self._has_day(period.date()):
            return period.replace(hour=0, minute=0, second=0) + UNIT[DAILY]
        if self.hours and period.hour not in self.hours:
            return period.replace(minute=0, second=0) + UNIT[HOURLY]
        if self.freq > HOURLY and self.minutes and period.minute not in self.minutes:
            return period.replace(second=0) + UNIT[MINUTELY]
        if self.freq > MINUTELY and self.seconds and period.second not in self.seconds:
            return period + SECOND
        return None

    def _first_in(self, period: datetime, low: datetime) -> datetime | None:
        times = self._times(period)
        if self.setpos:
            return min((at for at in self._picked(period, times) if at >= low), default=None)
        for day in self._days(period):
            if day >= low.date() and self._has_day(day):
                found = _first_time(times, low if day == low.date() else None)
                if found is not None:
                    return datetime(day.year, day.month, day.day, *found)
        return None

    def _picked(self, period: datetime, times: Times) -> Iterator[datetime]:
        days = [day for day in self._days(period) if self._has_day(day)]
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

    def _has_day(self, day: date) -> bool:
        return all(test(day) for test in self._day_tests)

    @cached_property
    def _day_tests(self) -> tuple[DayTest, ...]:
        tests: tuple[tuple[object, DayTest], ...] = (
            (self.months, lambda day: day.month in self.months),
            (self.monthdays, self._has_monthday),
            (self.weekdays or self.nth_weekdays, self._has_weekday),
            (self.yeardays, self._has_yearday),
            (self.weeknos, self._has_weekno),
            (self.easter, lambda day: (day - easter(day.year)).days in self.easter),
        )
        return tuple(test for restricted, test in tests if restricted)

    def _has_monthday(self, day: date) -> bool:
        length = month_length(day)
        return day.day in self.monthdays or day.day - length - 1 in self.monthdays

    def _has_yearday(self, day: date) -> bool:
        number = day.timetuple().tm_yday
        return number in self.yeardays or number - year_length(day.year) - 1 in self.yeardays

    def _has_weekday(self, day: date) -> bool:
        weekday = day.weekday()
        if weekday in self.weekdays:
            return True
        return any(
            weekday == wanted and nth in self._places(day) for wanted, nth in self.nth_weekdays
        )

    def _places(self, day: date) -> tuple[int, int]:
        """Which of its weekday the day is, from the front and from the back."""
        if self.freq == YEARLY and not self.months:
            number, length = day.timetuple().tm_yday, year_length(day.year)
        else:
            number, length = day.day, month_length(day)
        return (number - 1) // 7 + 1, -((length - number) // 7 + 1)

    def _has_weekno(self, day: date) -> bool:
        # A week belongs to the year that holds its fourth day.
        fourth = day + timedelta(days=3 - (day.weekday() - self.wkst) % 7)
        number = (fourth.timetuple().tm_yday - 1) // 7
        back = (year_length(fourth.year) - fourth.timetuple().tm_yday) // 7
        return number + 1 in self.weeknos or -back - 1 in self.weeknos


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
    if rule.plain and rule.freq in UNIT:
        try:
            return rule.start + (count - 1) * rule.interval * UNIT[rule.freq]
        except OverflowError:
            return datetime.max
    endless, last = replace(rule, count=None), rule.start - SECOND
    for _ in range(count):
        following = endless.next_wall(last)
        if following is None:
            break
        last = following
    return last
