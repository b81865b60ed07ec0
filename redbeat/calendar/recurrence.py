"""RFC 5545 recurrence rules in wall-clock time, with a fast search for the next occurrence.

The search computes the index of a period (year, week, second, ...) from a datetime. The search
does not iterate over all periods from the start of the rule. ``dateutil`` iterates from the start
of the rule, which takes 50 times as long. For a rule that never matches, ``dateutil`` iterates
until the year 9999, which takes seconds. This module and ``dateutil`` return the same occurrences.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import isleap, monthrange
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import islice
from math import gcd

from dateutil.easter import easter as easter_of
from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY

from redbeat.errors import TooManyStepsError

from .steps import spend

# ruff: noqa: DTZ001 - wall-clock times have no time zone

UNIT = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}
DAY = UNIT[DAILY]
SECOND = UNIT[SECONDLY]

#: How many hours, minutes and seconds there are in the next longer unit.
SIZES = (24, 60, 60)
#: A step is as long as this number of tests of a slot.
FAST = 8
# The numbers of years, months and weeks after which a search for the next occurrence stops. If the
# search finds no occurrence, the rule counts as finished.
LOOK_AHEAD = (100, 1200, 5300)
#: The number of years after which a search for an allowed day stops.
YEARS = 100
#: The steps of a search for a period.
PERIOD = 10

DayTest = Callable[[date], bool]

easter = lru_cache(maxsize=256)(easter_of)


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
    """Return the start of the year, month or week whose index :func:`period_index` returned."""
    if freq == YEARLY:
        return datetime(index, 1, 1)
    if freq == MONTHLY:
        return datetime(index // 12, index % 12 + 1, 1)
    return datetime.fromordinal(max(index * 7 + 1 + wkst, 1))


def month_length(day: date) -> int:
    """Return the number of days in the month of ``day``."""
    return monthrange(day.year, day.month)[1]


def year_length(year: int) -> int:
    """Return the number of days in a year."""
    return 366 if isleap(year) else 365


@dataclass(frozen=True)
class DaySet:
    """The ``by`` arguments that select the days of a recurrence rule.

    An argument that is an empty tuple allows all days.
    """

    freq: int
    wkst: int = 0
    months: tuple[int, ...] = ()
    monthdays: tuple[int, ...] = ()
    yeardays: tuple[int, ...] = ()
    easter: tuple[int, ...] = ()
    weeknos: tuple[int, ...] = ()
    weekdays: tuple[int, ...] = ()
    nth_weekdays: tuple[tuple[int, int], ...] = ()

    def __contains__(self, day: date) -> bool:
        for test in self._tests:  # noqa: SIM110 - all() takes three times as long
            if not test(day):
                return False
        return True

    def first_from(self, day: date) -> date | None:
        """Return the first allowed day from ``day`` to about a century later, or None."""
        if not self._tests:
            return day
        for year in range(day.year, min(day.year + YEARS, MAXYEAR) + 1):
            spend()
            days = self.in_year(year)
            index = bisect_left(days, day.toordinal())
            if index < len(days):
                return date.fromordinal(days[index])
        return None

    def in_year(self, year: int) -> Sequence[int]:
        """Return the ordinals of the allowed days of a year."""
        days = self._years.get(year)
        if days is None:
            days = self._years[year] = self._find_in_year(year)
        return days

    def _find_in_year(self, year: int) -> Sequence[int]:
        begin = date(year, 1, 1).toordinal()
        days: Sequence[int] = range(begin, begin + year_length(year))
        if self.easter:
            sunday = easter(year).toordinal()
            days = [sunday + after for after in self.easter if sunday + after in days]
        spend(len(days) * (1 + len(self.easter) // 64))
        return tuple(day for day in days if date.fromordinal(day) in self)

    @cached_property
    def _years(self) -> dict[int, Sequence[int]]:
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


#: Equal sets share the days of the years. To compute those of a year takes half a millisecond.
shared_days = lru_cache(maxsize=1024)(DaySet)


def _combined(parts: Iterable[Sequence[int]], sizes: Iterable[int]) -> tuple[int, ...]:
    """Return all combinations of hours, minutes and seconds, in the shortest of the units."""
    numbers = [0]
    for part, size in zip(parts, sizes, strict=True):
        numbers = [number * size + value for number in numbers for value in part or range(size)]
    return tuple(numbers)


@dataclass(frozen=True)
class Slots:
    """The periods of a rule within a day.

    ``freq`` is the length of a period: a day, an hour, a minute or a second. The rule selects every
    ``interval``-th period, counted from the period with index ``base``. A period must also match
    the hours, minutes and seconds of ``clock``, in which an empty tuple allows all values. A slot
    is the index of a period within the day. Days are numbers from ``date.toordinal()``.
    """

    freq: int
    interval: int
    base: int
    clock: tuple[tuple[int, ...], ...]

    @cached_property
    def per_day(self) -> int:
        """The number of periods in a day."""
        return DAY // UNIT[self.freq]

    def of_day(self, day: int, since: int) -> Iterable[int]:
        """Return the slots of the rule on ``day``, beginning with the slot ``since``."""
        first = self._first_of(day)
        since = max(since, first)
        is_free = len(self.allowed) == self.per_day
        if not is_free:
            index = bisect_left(self.allowed, since)
            since = self.allowed[index] if index < len(self.allowed) else self.per_day
        end = self.allowed[-1] + 1
        slots = range(since + (first - since) % self.interval, end, self.interval)
        return slots if is_free else self._allowed_of(slots)

    def _allowed_of(self, slots: Iterable[int]) -> Iterator[int]:
        for tests, slot in enumerate(slots, 1):
            if tests % FAST == 0:
                spend()
            if slot in self._allowed_set:
                yield slot

    def days_without(self, day: int) -> int | None:
        """Return the number of days from ``day`` to the first day with a slot.

        Returns 0 if ``day`` itself has a slot, and None if no day has a slot.
        """
        if len(self.allowed) == self.per_day:
            return self._first_of(day) // self.per_day
        cycle, days_with_slot = self._cycle
        if not days_with_slot:
            return None
        index = bisect_left(days_with_slot, day % cycle)
        following = (
            days_with_slot[index] if index < len(days_with_slot) else days_with_slot[0] + cycle
        )
        return following - day % cycle

    def _first_of(self, day: int) -> int:
        """Return the first slot at or after the start of ``day`` that ``interval`` selects.

        If the returned slot is ``per_day`` or more, the slot is on a later day.
        """
        return (self.base - day * self.per_day) % self.interval

    @cached_property
    def _cycle(self) -> tuple[int, tuple[int, ...]]:
        """The number of days after which the slots repeat, and the days of the cycle with a slot.

        A day has a slot if the day solves ``day * per_day + slot = base``, modulo ``interval``.
        """
        common = gcd(self.per_day, self.interval)
        cycle, base = self.interval // common, self.base
        inverse = pow(self.per_day // common, -1, cycle)
        slots = [slot for slot in self.allowed if (base - slot) % common == 0]
        return cycle, tuple(sorted({(base - slot) // common * inverse % cycle for slot in slots}))

    @cached_property
    def allowed(self) -> Sequence[int]:
        """The slots that ``clock`` allows, in ascending order."""
        units = self.freq - DAILY
        parts = self.clock[:units]
        return _combined(parts, SIZES[:units]) if any(parts) else range(self.per_day)

    @cached_property
    def _allowed_set(self) -> frozenset[int]:
        return frozenset(self.allowed)


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
        return self.freq >= HOURLY and not self.hours

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first occurrence within a century after ``wall``, or None."""
        low = max(wall.replace(microsecond=0) + SECOND, self.start)
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
        is_short = self.freq >= DAILY
        periods = islice(self._periods(low), 2) if is_short else self._long_periods(low)
        occurrences = (self._first_in(period, low) for period in periods)
        return next((at for at in occurrences if at is not None), None)

    def _long_periods(self, low: datetime) -> Iterator[datetime]:
        """Yield the starts of the weeks, months or years that contain an allowed day.

        The first period contains ``low``, and the last period is about a century later.
        """
        index = self._aligned(period_index(self.freq, low, self.wkst))
        for tried in range(LOOK_AHEAD[self.freq]):
            spend(PERIOD)
            period = period_start(self.freq, index, self.wkst)
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
        unit, slots, first = UNIT[self.freq], self._slots, low.date()
        day = self.days.first_from(first)
        while day is not None and day.year <= low.year + YEARS:
            number = day.toordinal()
            ahead = slots.days_without(number)
            if ahead is None:
                return
            if ahead == 0:
                midnight = datetime(day.year, day.month, day.day)
                since = 0 if day > first else (low - midnight) // unit
                for slot in slots.of_day(number, since):
                    yield midnight + slot * unit
            day = self.days.first_from(day + max(ahead, 1) * DAY)

    @cached_property
    def _slots(self) -> Slots:
        clock = self.hours, self.minutes, self.seconds
        return Slots(self.freq, self.interval, self._base, clock)

    def _aligned(self, index: int) -> int:
        """Return the index of the first period of the rule at or after the period ``index``."""
        return index + (self._base - index) % self.interval

    @cached_property
    def _base(self) -> int:
        return period_index(self.freq, self.start, self.wkst)

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        """The occurrences of an allowed day, or of a shorter period, in seconds from its start."""
        units = max(self.freq - DAILY, 0)
        return _combined((self.hours, self.minutes, self.seconds)[units:], SIZES[units:])

    def _first_in(self, period: datetime, low: datetime) -> datetime | None:
        if self.setpos:
            return min((at for at in self._at_positions(period) if at >= low), default=None)
        for start in self._starts_from(period, low):
            index = bisect_left(self._offsets, (low - start) // SECOND)
            if index < len(self._offsets):
                return start + self._offsets[index] * SECOND
        return None

    def _starts_from(self, period: datetime, low: datetime) -> Iterator[datetime]:
        """Yield a period, or its allowed days from ``low`` on if it is longer than a day."""
        if self.freq >= DAILY:
            yield period
            return
        index = self._index_of(period)
        day = self.days.first_from(max(period, low).date())
        while day is not None and self._index_of(day) == index:
            yield datetime(day.year, day.month, day.day)
            day = self.days.first_from(day + DAY)

    def _index_of(self, day: date) -> int:
        return period_index(self.freq, datetime(day.year, day.month, day.day), self.wkst)

    def _at_positions(self, period: datetime) -> Iterator[datetime]:
        """Yield the occurrences that BYSETPOS selects in a period."""
        # The first week of a rule begins at its start.
        low = self.start if self.freq == WEEKLY else period
        starts = list(self._starts_from(period, low))
        spend(len(self.setpos))
        for position in self.setpos:
            day, index = divmod(position - (position > 0), len(self._offsets))
            if -len(starts) <= day < len(starts):
                yield starts[day] + self._offsets[index] * SECOND
