"""RFC 5545 recurrence rules in wall-clock time: their arguments, and a fast search for runs.

The occurrences are the same as dateutil's, but the index of a period (year, week, second, ...) is
computed from a datetime. dateutil goes through all periods from the start of the rule, which takes
50 times as long. For a rule that never matches, it goes on until the year 9999, which takes
seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import isleap, monthrange
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import count, islice
from math import gcd
from typing import Any, Literal, get_args

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
MIN = datetime.min  # noqa: DTZ901
DAY = UNIT[DAILY]
SECOND = UNIT[SECONDLY]

#: Hours in a day, minutes in an hour, seconds in a minute.
SIZES = (24, 60, 60)
#: Years after which a search for an allowed day stops.
YEARS = 100
#: Steps of a search for a period.
PERIOD = 5

DayTest = Callable[[date], bool]

easter = lru_cache(maxsize=256)(easter_of)


def period_index(freq: int, moment: datetime, wkst: int) -> int:
    """Return the index of the period that contains ``moment``, counted from the year 1.

    ``freq`` is the length of a period, such as ``DAILY``, and ``wkst`` the first day of the week.
    """
    if freq <= MONTHLY:
        return moment.year if freq == YEARLY else moment.year * 12 + moment.month - 1
    days = moment.toordinal()
    if freq <= DAILY:
        return days if freq == DAILY else (days - 1 - wkst) // 7
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    return (days * 86400 + seconds) // int(UNIT[freq].total_seconds())


def period_start(freq: int, index: int, wkst: int) -> datetime:
    if freq == YEARLY:
        return datetime(index, 1, 1)
    if freq == MONTHLY:
        return datetime(index // 12, index % 12 + 1, 1)
    if freq == WEEKLY:
        return datetime.fromordinal(max(index * 7 + 1 + wkst, 1))
    return MIN + (index * UNIT[freq] - DAY)


def month_length(day: date) -> int:
    return monthrange(day.year, day.month)[1]


def year_length(year: int) -> int:
    return 366 if isleap(year) else 365


@dataclass(frozen=True)
class DaySet:
    """The days that the ``by`` arguments of a rule allow. An empty tuple allows all days."""

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
            days = self._years.get(year) or self._in_year(year)
            first = date(year, 1, 1)
            index = bisect_left(days, (day - first).days)
            if index < len(days):
                return first + days[index] * DAY
        return None

    def _in_year(self, year: int) -> Sequence[int]:
        """Return the allowed days of a year, whose 1 January is 0."""
        # Years of the same kind have the same days. A week of an adjacent year may extend into this
        # one, so the kind includes the lengths of the years before and after it.
        leaps = isleap(year - 1), isleap(year), isleap(year + 1)
        kind = year if self.easter else (date(year, 1, 1).weekday(), leaps)
        if kind not in self._kinds:
            self._kinds[kind] = self._find_in_year(date(year, 1, 1))
        self._years[year] = self._kinds[kind]
        return self._years[year]

    def _find_in_year(self, first: date) -> Sequence[int]:
        days: Sequence[int] = range(year_length(first.year))
        if self.easter:
            sunday = (easter(first.year) - first).days
            days = [sunday + after for after in self.easter if sunday + after in days]
        spend(len(days) * (1 + len(self.easter) // 64))
        return tuple(day for day in days if first + day * DAY in self)

    @cached_property
    def _years(self) -> dict[int, Sequence[int]]:
        return {}

    @cached_property
    def _kinds(self) -> dict[Hashable, Sequence[int]]:
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
        """Return the positions of ``day`` among the same weekdays of its month or year.

        The first is counted from the start (1 is the first such day), the second from the end (-1
        is the last).
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


#: Equal sets share the days of the years, as computing those of one takes half a millisecond.
shared_days = lru_cache(maxsize=1024)(DaySet)


def _combined(parts: Iterable[Sequence[int]], sizes: Iterable[int]) -> tuple[int, ...]:
    """Combine hours, minutes and seconds in all ways; the results are in the shortest unit."""
    numbers = [0]
    for part, size in zip(parts, sizes, strict=True):
        numbers = [number * size + value for number in numbers for value in part or range(size)]
    return tuple(numbers)


@dataclass(frozen=True)
class Recurrence:
    """A normalised recurrence rule. Equal ``Recurrence`` objects have the same occurrences.

    ``start`` is naive and in whole seconds. All tuples are sorted, without duplicates; an empty one
    allows all values. Those of units shorter than ``freq`` are never empty: a daily rule always has
    ``hours``. A rule without any ``by`` argument, such as ``byhour``, is ``plain``.
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
        if not self._has_slot:
            return None
        # Relative to their start, all periods of a day or less have the same occurrences. If the
        # first two have none after ``low``, no later one has.
        periods = islice(self._periods(low), 2 if self.freq >= DAILY else None)
        occurrences = (self._first_in(period, low) for period in periods)
        return next((at for at in occurrences if at is not None), None)

    def _periods(self, low: datetime) -> Iterator[datetime]:
        """Yield the starts of the periods with an allowed day, hour, minute or second.

        The search begins at the period that contains ``low``.
        """
        index = self._aligned(period_index(self.freq, low, self.wkst))
        for tried in count():
            spend(PERIOD)
            period = period_start(self.freq, index, self.wkst)
            allowed = self._allowed_from(max(period, low))
            if allowed is None or (tried >= YEARS and period.year > low.year + YEARS):
                return
            index_of_allowed = period_index(self.freq, allowed, self.wkst)
            if index_of_allowed <= index:
                yield period
            index = self._aligned(max(index + 1, index_of_allowed))

    @cached_property
    def _has_slot(self) -> bool:
        """Whether the interval ever reaches an allowed hour, minute or second."""
        units = max(self.freq - DAILY, 0)
        parts = (self.hours, self.minutes, self.seconds)[:units]
        if not any(parts):
            return True
        common = gcd(self.interval, DAY // UNIT[self.freq])
        return any((self._base - slot) % common == 0 for slot in _combined(parts, SIZES[:units]))

    def _allowed_from(self, moment: datetime) -> datetime | None:
        """Return ``moment``, or a later one if its day or a unit of its clock isn't allowed.

        Only the units that are at least as long as a period count.
        """
        while (day := self.days.first_from(moment.date())) is not None:
            if day > moment.date():
                moment = datetime(day.year, day.month, day.day)
            later = self._clock_from(moment)
            if later == moment:
                return moment
            moment = later
        return None

    def _clock_from(self, moment: datetime) -> datetime:
        clock = (
            (self.hours, moment.hour, UNIT[HOURLY]),
            (self.minutes, moment.minute, UNIT[MINUTELY]),
            (self.seconds, moment.second, UNIT[SECONDLY]),
        )
        units = max(self.freq - DAILY, 0)
        for (allowed, value, unit), size in zip(clock[:units], SIZES, strict=False):
            following = (*allowed, size)[bisect_left(allowed, value)] if allowed else value
            if following > value:  # the first of the next longer unit, if it is ``size``
                return moment - (moment - MIN) % unit + (following - value) * unit
        return moment

    def _aligned(self, index: int) -> int:
        """Return the index of the rule's first period at or after the period ``index``."""
        return index + (self._base - index) % self.interval

    @cached_property
    def _base(self) -> int:
        return period_index(self.freq, self.start, self.wkst)

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        """The occurrences of an allowed day, or a shorter period, in seconds from its start."""
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
        """Yield ``period``, or its allowed days from ``low`` on if it's longer than a day."""
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
        spend(PERIOD + len(self.setpos))
        for position in self.setpos:
            day, index = divmod(position - (position > 0), len(self._offsets))
            if -len(starts) <= day < len(starts):
                yield starts[day] + self._offsets[index] * SECOND


# -- the arguments of a rule -----------------------------------------------------------------------

Name = Literal["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]
Lower = Literal["yearly", "monthly", "weekly", "daily", "hourly", "minutely", "secondly"]
Frequency = Literal[Name, Lower]

#: The names of RFC 5545 and the numbers of dateutil.
FREQUENCIES = {name: number for number, name in enumerate(get_args(Name))}

# The smallest and the largest valid value. Where the smallest is negative, 0 is invalid, except for
# the arguments in WITH_ZERO.
RANGES = {
    "bysetpos": (-366, 366),
    "bymonth": (1, 12),
    "bymonthday": (-31, 31),
    "byyearday": (-366, 366),
    "byeaster": (-366, 366),
    "byweekno": (-53, 53),
    "byhour": (0, 23),
    "byminute": (0, 59),
    "bysecond": (0, 59),
}
WITH_ZERO = frozenset({"byeaster"})  # arguments for which 0 is also valid
RESTRICT_DAYS = ("byweekno", "byyearday", "bymonthday", "byweekday", "byeaster")


def frequency(freq: object) -> int:
    if isinstance(freq, str) and freq.upper() in FREQUENCIES:
        return FREQUENCIES[freq.upper()]
    if isinstance(freq, int) and not isinstance(freq, bool) and 0 <= freq <= SECONDLY:
        return int(freq)
    raise ValueError(f"freq: {freq!r} is not one of {', '.join(FREQUENCIES)} or 0 to {SECONDLY}")


def positive(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise ValueError(f"{name}: {value!r} is not an integer above 0")


def recurrence(fields: Mapping[str, Any], start: datetime) -> Recurrence:
    """Return the rule for ``fields``, the constructor arguments of an ``rrule``.

    ``start`` is ``dtstart`` as a naive wall-clock time. As in RFC 5545, missing arguments are taken
    from it: a daily rule without hours runs at the time of ``start``. Raises ``ValueError`` with
    the name of the invalid argument.
    """
    freq, by = fields["freq"], {name: _numbers(name, fields[name]) for name in RANGES}
    weekdays, nth = _weekdays("byweekday", fields["byweekday"])
    day_of_start = all(fields[name] is None for name in RESTRICT_DAYS)
    if day_of_start and freq == YEARLY and fields["bymonth"] is None:
        by["bymonth"] = (start.month,)
    if day_of_start and freq <= MONTHLY:
        by["bymonthday"] = (start.day,)
    if day_of_start and freq == WEEKLY:
        weekdays = (start.weekday(),)
    wkst = 0 if fields["wkst"] is None else _weekday("wkst", fields["wkst"])[0]
    ignored_nth = tuple(weekday for weekday, _ in nth) if freq > MONTHLY else ()
    return Recurrence(
        freq=freq,
        interval=fields["interval"],
        start=start,
        wkst=wkst,
        plain=all(fields[name] is None for name in (*RANGES, "byweekday")),
        setpos=by["bysetpos"],
        days=shared_days(
            freq=freq,
            wkst=wkst,
            months=by["bymonth"],
            monthdays=by["bymonthday"],
            yeardays=by["byyearday"],
            easter=by["byeaster"],
            weeknos=by["byweekno"],
            weekdays=tuple(sorted({*weekdays, *ignored_nth})),
            nth_weekdays=() if freq > MONTHLY else nth,
        ),
        hours=by["byhour"] or ((start.hour,) if freq < HOURLY else ()),
        minutes=by["byminute"] or ((start.minute,) if freq < MINUTELY else ()),
        seconds=by["bysecond"] or ((start.second,) if freq < SECONDLY else ()),
    )


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(sorted({_number(name, item) for item in _items(name, value)}))


def _items(name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, int) or hasattr(value, "weekday"):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return value
    raise ValueError(f"{name}: {value!r} is neither an integer nor a list of integers")


def _number(name: str, value: Any) -> int:
    low, high = RANGES[name]
    valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if not valid or (value == 0 and low < 0 and name not in WITH_ZERO):
        without = ", without 0" if low < 0 and name not in WITH_ZERO else ""
        raise ValueError(f"{name}: {value!r} is not an integer from {low} to {high}{without}")
    return int(value)


def _weekdays(name: str, value: Any) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    pairs = [] if value is None else [_weekday(name, item) for item in _items(name, value)]
    every = {weekday for weekday, nth in pairs if not nth}
    return tuple(sorted(every)), tuple(sorted({pair for pair in pairs if pair[1]}))


def _weekday(name: str, value: Any) -> tuple[int, int]:
    """Return (weekday, n) for the ``n``-th weekday of a month or year; 0 means every one."""
    day, nth = getattr(value, "weekday", value), getattr(value, "n", None) or 0
    if isinstance(day, int) and not isinstance(day, bool) and 0 <= day <= 6:
        return int(day), int(nth)
    raise ValueError(f"{name}: {value!r} is not a weekday; use 0 (Monday) to 6, or MO to SU")
