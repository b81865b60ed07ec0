"""Where a rule that takes every period ends with its ``count``: computed, not walked."""

from __future__ import annotations

# ruff: noqa: DTZ001, DTZ901 - wall times have no zone
from bisect import bisect_left
from datetime import MAXYEAR, date, datetime, timedelta
from typing import Protocol

from .daysets import DaySet

__all__ = ("CountedRule", "last_of_all")

Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class CountedRule(Protocol):
    """What counts of a rule; an empty part is not restricted."""

    @property
    def start(self) -> datetime:
        """The first moment, in wall time."""

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


def last_of_all(rule: CountedRule, count: int) -> datetime:
    """The occurrence number ``count``, of a rule that has all its times on each of its days.

    ``datetime.max`` if that lies past the year 9999.
    """
    times = (
        rule.hours or tuple(range(24)),
        rule.minutes or tuple(range(60)),
        rule.seconds or tuple(range(60)),
    )
    left = count - 1
    if rule.start.date() in rule.days:
        left += _times_before(times, rule.start)
    hours, minutes, seconds = times
    left, second = divmod(left, len(seconds))
    left, minute = divmod(left, len(minutes))
    left, hour = divmod(left, len(hours))
    day = _nth_day(rule.days, rule.start.date(), left)
    if day is None:
        return datetime.max
    return datetime(day.year, day.month, day.day, hours[hour], minutes[minute], seconds[second])


def _times_before(times: Times, moment: datetime) -> int:
    """How many of the times of a day come before that of ``moment``."""
    hours, minutes, seconds = times
    before = bisect_left(hours, moment.hour) * len(minutes) * len(seconds)
    if moment.hour not in hours:
        return before
    before += bisect_left(minutes, moment.minute) * len(seconds)
    return before + bisect_left(seconds, moment.second) * (moment.minute in minutes)


def _nth_day(days: DaySet, first: date, n: int) -> date | None:
    """The allowed day that ``n`` others precede from ``first`` on; ``None`` past the year 9999."""
    number = first.timetuple().tm_yday - 1
    for year in range(first.year, MAXYEAR + 1):
        found = days.in_year(date(year, 1, 1))
        place = bisect_left(found, number) + n
        if place < len(found):
            return date(year, 1, 1) + timedelta(days=found[place])
        n, number = place - len(found), 0
    return None
