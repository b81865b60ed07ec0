"""Compute the n-th occurrence of a recurrence rule, and count the occurrences in a time span.

The functions of this module support only rules for which :func:`is_computed` returns True.
"""

from __future__ import annotations

# ruff: noqa: DTZ001, DTZ901 - wall-clock times have no time zone
from bisect import bisect_left
from datetime import MAXYEAR, date, datetime, timedelta
from typing import TYPE_CHECKING

from .daysets import CYCLE, UNIT, DaySet
from .steps import spend

if TYPE_CHECKING:
    from .recurrence import Recurrence

DAY = timedelta(days=1)
FOREVER = 10**8 * DAY

Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def is_computed(rule: Recurrence) -> bool:
    """Return whether :func:`nth_from` and the other functions of this module support the rule.

    The functions of this module support rules with a fixed step, and rules that have the same times
    on all their days.
    """
    return _has_fixed_step(rule) or (rule.interval == 1 and not rule.setpos)


def nth_from(rule: Recurrence, begin: datetime, n: int) -> datetime:
    """Return the ``n``-th occurrence at or after ``begin``, even if the rule starts later.

    Returns ``datetime.max`` if the occurrence would be after the year 9999.
    """
    if _has_fixed_step(rule):
        step = _step(rule)
        try:
            return begin + (rule.start - begin) % step + (n - 1) * step
        except OverflowError:
            return datetime.max
    return _nth_of_all(rule, begin, n - 1)


def number_between(rule: Recurrence, begin: datetime, end: datetime) -> int:
    """Return the number of occurrences in ``[begin, end)``, even before the start of the rule."""
    if _has_fixed_step(rule):
        step = _step(rule)
        return (begin - rule.start) // -step - (end - rule.start) // -step
    times = _times(rule)
    days = _number_of_days(rule.days, begin.date(), end.date())
    partial_days = _earlier_that_day(rule, times, end) - _earlier_that_day(rule, times, begin)
    return days * len(times[0]) * len(times[1]) * len(times[2]) + partial_days


def _has_fixed_step(rule: Recurrence) -> bool:
    return rule.plain and rule.freq in UNIT


def _step(rule: Recurrence) -> timedelta:
    try:
        return rule.interval * UNIT[rule.freq]
    except OverflowError:
        return FOREVER


def _times(rule: Recurrence) -> Times:
    return (
        rule.hours or tuple(range(24)),
        rule.minutes or tuple(range(60)),
        rule.seconds or tuple(range(60)),
    )


def _nth_of_all(rule: Recurrence, begin: datetime, left: int) -> datetime:
    times = hours, minutes, seconds = _times(rule)
    left += _earlier_that_day(rule, times, begin)
    left, second = divmod(left, len(seconds))
    left, minute = divmod(left, len(minutes))
    left, hour = divmod(left, len(hours))
    day = _nth_day(rule.days, begin.date(), left)
    if day is None:
        return datetime.max
    return datetime(day.year, day.month, day.day, hours[hour], minutes[minute], seconds[second])


def _earlier_that_day(rule: Recurrence, times: Times, moment: datetime) -> int:
    """Return the number of occurrences on the day of ``moment`` that are before ``moment``."""
    if moment.date() not in rule.days:
        return 0
    hours, minutes, seconds = times
    before = bisect_left(hours, moment.hour) * len(minutes) * len(seconds)
    if moment.hour not in hours:
        return before
    before += bisect_left(minutes, moment.minute) * len(seconds)
    return before + bisect_left(seconds, moment.second) * (moment.minute in minutes)


def _nth_day(days: DaySet, first: date, n: int) -> date | None:
    """Return the ``n``-th day of ``days`` at or after ``first``; ``n`` is counted from 0.

    Returns None if the day would be after the year 9999.
    """
    cycles, n = divmod(n, days.in_cycle) if days.in_cycle else (0, n)
    number = first.timetuple().tm_yday - 1
    for year in range(first.year + cycles * CYCLE, MAXYEAR + 1):
        spend()
        allowed = days.in_year(date(year, 1, 1))
        index = bisect_left(allowed, number) + n
        if index < len(allowed):
            return date(year, 1, 1) + allowed[index] * DAY
        n, number = index - len(allowed), 0
    return None


def _number_of_days(days: DaySet, first: date, end: date) -> int:
    """Return how many days of ``days`` are in ``[first, end)``."""
    number = 0
    for year in range(first.year, end.year + 1):
        spend()
        begin = date(year, 1, 1)
        allowed = days.in_year(begin)
        low, high = max(first - begin, 0 * DAY).days, (end - begin).days
        number += bisect_left(allowed, high) - bisect_left(allowed, low)
    return number
