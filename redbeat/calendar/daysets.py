"""Compute the days that a recurrence rule allows, and find the next allowed day."""

from __future__ import annotations

from bisect import bisect_left
from calendar import isleap, monthrange
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime, timedelta
from functools import cached_property, lru_cache, partial

from dateutil import easter as dateutil_easter

from .steps import remembered, spend

# ruff: noqa: DTZ001 - wall-clock times have no time zone


YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY = range(7)

UNIT = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}
SECOND = UNIT[SECONDLY]


def period_index(freq: int, moment: datetime, wkst: int) -> int:
    """Return the index of the period that contains ``moment``.

    ``freq`` is the length of a period, such as ``DAILY``. The periods are numbered from the year 1.
    ``wkst`` is the first day of the week.
    """
    if freq <= MONTHLY:
        return moment.year if freq == YEARLY else moment.year * 12 + moment.month - 1
    days = moment.toordinal()
    if freq <= DAILY:
        return days if freq == DAILY else (days - 1 - wkst) // 7
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    return (days * 86400 + seconds) // int(UNIT[freq].total_seconds())


def period_start(freq: int, index: int, wkst: int) -> datetime:
    """Return the start of the period whose index :func:`period_index` returned."""
    if freq == YEARLY:
        return datetime(index, 1, 1)
    if freq == MONTHLY:
        return datetime(index // 12, index % 12 + 1, 1)
    if freq == WEEKLY:
        return datetime.fromordinal(max(index * 7 + 1 + wkst, 1))
    days, rest = divmod(index * int(UNIT[freq].total_seconds()), 86400)
    return datetime.fromordinal(days) + timedelta(seconds=rest)


def month_length(day: date) -> int:
    """Return the number of days in the month of ``day``."""
    return monthrange(day.year, day.month)[1]


def year_length(year: int) -> int:
    """Return the number of days in a year."""
    return 366 if isleap(year) else 365


DayTest = Callable[[date], bool]

#: The number of years after which a search for an allowed day stops.
YEARS = 100
#: The number of days that a search tests one by one before it computes the days of each year.
NEAR_DAYS = 31
DAY = timedelta(days=1)

easter = lru_cache(maxsize=256)(dateutil_easter.easter)


@dataclass(frozen=True)
class DaySet:
    """The ``by`` arguments that select the days of a recurrence rule.

    An argument that is an empty tuple allows all days.
    """

    freq: int
    wkst: int
    months: tuple[int, ...]
    monthdays: tuple[int, ...]
    yeardays: tuple[int, ...]
    easter: tuple[int, ...]
    weeknos: tuple[int, ...]
    weekdays: tuple[int, ...]
    nth_weekdays: tuple[tuple[int, int], ...]

    def __contains__(self, day: date) -> bool:
        for test in self._tests:  # noqa: SIM110 - all() takes three times as long
            if not test(day):
                return False
        return True

    def first_from(self, day: date) -> date | None:
        """Return the first allowed day from ``day`` to about a century later, or None."""
        for ahead in range(NEAR_DAYS if self._tests else 1):
            near = day + ahead * DAY
            if near in self:
                spend(ahead + 1)
                return near
        spend(NEAR_DAYS)
        for year in range(day.year, min(day.year + YEARS, MAXYEAR) + 1):
            spend()
            first = date(year, 1, 1)
            days = self.in_year(first)
            index = bisect_left(days, (day - first).days if year == day.year else 0)
            if index < len(days):
                return first + days[index] * DAY
        return None

    def in_year(self, first: date) -> tuple[int, ...]:
        """Return the allowed days of the year that begins at ``first``; 1 January is day 0."""
        return remembered(
            self._days_of_kind, self._kind(first.year), partial(self._find_in_year, first)
        )

    def _find_in_year(self, first: date) -> tuple[int, ...]:
        days: Sequence[int] = range(year_length(first.year))
        if self.easter:
            sunday = (easter(first.year) - first).days
            days = [sunday + after for after in self.easter if sunday + after in days]
        spend(len(days) * (1 + len(self.easter) // 64))
        return tuple(day for day in days if first + DAY * day in self)

    def _kind(self, year: int) -> Hashable:
        """Return a cache key for a year; years with equal keys have the same allowed days."""
        if self.easter:
            return year
        # The cache key includes the lengths of the previous and the next year, because a week of an
        # adjacent year may extend into this year.
        lengths = tuple(year_length(near) for near in (year - 1, year, year + 1))
        return date(year, 1, 1).weekday(), lengths

    @cached_property
    def _days_of_kind(self) -> dict[Hashable, tuple[tuple[int, ...], int]]:
        return {}

    @cached_property
    def _tests(self) -> tuple[DayTest, ...]:
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
            weekday == allowed and nth in self._positions(day) for allowed, nth in self.nth_weekdays
        )

    def _positions(self, day: date) -> tuple[int, int]:
        """Return the positions of ``day`` among the days of a month or year with the same weekday.

        The first result is the position from the start of the month or year: 1 is the first day.
        The second result is the position from the end of the month or year: -1 is the last day.
        """
        if self.freq == YEARLY and not self.months:
            number, length = day.timetuple().tm_yday, year_length(day.year)
        else:
            number, length = day.day, month_length(day)
        return (number - 1) // 7 + 1, -((length - number) // 7 + 1)

    def _has_weekno(self, day: date) -> bool:
        # In RFC 5545, a week belongs to the year that contains the fourth day of the week.
        fourth = day + timedelta(days=3 - (day.weekday() - self.wkst) % 7)
        number = (fourth.timetuple().tm_yday - 1) // 7
        back = (year_length(fourth.year) - fourth.timetuple().tm_yday) // 7
        return number + 1 in self.weeknos or -back - 1 in self.weeknos
