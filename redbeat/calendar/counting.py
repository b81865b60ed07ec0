"""Occurrences of a rule by number: computed where it leaves out nothing, not walked."""

from __future__ import annotations

# ruff: noqa: DTZ001, DTZ901 - wall times have no zone
from bisect import bisect_left
from datetime import MAXYEAR, date, datetime, timedelta
from typing import Protocol

from .daysets import CYCLE, UNIT, DaySet

__all__ = ("CountedRule", "is_computed", "nth_from", "number_between")

DAY = timedelta(days=1)
FOREVER = 10**8 * DAY

Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class CountedRule(Protocol):
    """What counts of a rule; an empty part is not restricted."""

    @property
    def freq(self) -> int:
        """The unit that the rule counts in."""

    @property
    def interval(self) -> int:
        """Each how many units it has an occurrence."""

    @property
    def start(self) -> datetime:
        """The first moment, in wall time."""

    @property
    def plain(self) -> bool:
        """Whether nothing but the interval restricts it."""

    @property
    def setpos(self) -> tuple[int, ...]:
        """The positions of its occurrences among those of a period."""

    @property
    def days(self) -> DaySet:
        """The days of the rule."""

    @property
    def hours(self) -> tuple[int, ...]:
        """The hours of each day."""

    @property
    def minutes(self) -> tuple[int, ...]:
        """The minutes of each hour."""

    @property
    def seconds(self) -> tuple[int, ...]:
        """The seconds of each minute."""


def is_computed(rule: CountedRule) -> bool:
    """Whether the functions below know the rule: an even step, or all its times on all its days."""
    return _is_even(rule) or (rule.interval == 1 and not rule.setpos)


def nth_from(rule: CountedRule, begin: datetime, n: int) -> datetime:
    """Occurrence number ``n`` from ``begin`` on, as if the rule had begun long before.

    ``datetime.max`` if that lies past the year 9999.
    """
    if _is_even(rule):
        step = _step(rule)
        try:
            return begin + (rule.start - begin) % step + (n - 1) * step
        except OverflowError:
            return datetime.max
    return _nth_of_all(rule, begin, n - 1)


def number_between(rule: CountedRule, begin: datetime, end: datetime) -> int:
    """How many occurrences are in ``[begin, end)``, as if the rule had begun long before."""
    if _is_even(rule):
        step = _step(rule)
        return (begin - rule.start) // -step - (end - rule.start) // -step
    times = _times(rule)
    days = _number_of_days(rule.days, begin.date(), end.date())
    before = _before(rule, times, end) - _before(rule, times, begin)
    return days * len(times[0]) * len(times[1]) * len(times[2]) + before


def _is_even(rule: CountedRule) -> bool:
    return rule.plain and rule.freq in UNIT


def _step(rule: CountedRule) -> timedelta:
    try:
        return rule.interval * UNIT[rule.freq]
    except OverflowError:
        return FOREVER


def _times(rule: CountedRule) -> Times:
    return (
        rule.hours or tuple(range(24)),
        rule.minutes or tuple(range(60)),
        rule.seconds or tuple(range(60)),
    )


def _nth_of_all(rule: CountedRule, begin: datetime, left: int) -> datetime:
    times = hours, minutes, seconds = _times(rule)
    left += _before(rule, times, begin)
    left, second = divmod(left, len(seconds))
    left, minute = divmod(left, len(minutes))
    left, hour = divmod(left, len(hours))
    day = _nth_day(rule.days, begin.date(), left)
    if day is None:
        return datetime.max
    return datetime(day.year, day.month, day.day, hours[hour], minutes[minute], seconds[second])


def _before(rule: CountedRule, times: Times, moment: datetime) -> int:
    """How many occurrences of its day come before ``moment``."""
    if moment.date() not in rule.days:
        return 0
    hours, minutes, seconds = times
    before = bisect_left(hours, moment.hour) * len(minutes) * len(seconds)
    if moment.hour not in hours:
        return before
    before += bisect_left(minutes, moment.minute) * len(seconds)
    return before + bisect_left(seconds, moment.second) * (moment.minute in minutes)


def _nth_day(days: DaySet, first: date, n: int) -> date | None:
    """The allowed day that ``n`` others precede from ``first`` on; ``None`` past the year 9999."""
    cycles, n = divmod(n, days.in_cycle) if days.in_cycle else (0, n)
    number = first.timetuple().tm_yday - 1
    for year in range(first.year + cycles * CYCLE, MAXYEAR + 1):
        found = days.in_year(date(year, 1, 1))
        place = bisect_left(found, number) + n
        if place < len(found):
            return date(year, 1, 1) + found[place] * DAY
        n, number = place - len(found), 0
    return None


def _number_of_days(days: DaySet, first: date, end: date) -> int:
    """How many allowed days there are in ``[first, end)``."""
    number = 0
    for year in range(first.year, end.year + 1):
        begin = date(year, 1, 1)
        found = days.in_year(begin)
        low, high = max(first - begin, 0 * DAY).days, (end - begin).days
        number += bisect_left(found, high) - bisect_left(found, low)
    return number
