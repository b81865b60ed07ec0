"""Finds the wall-clock times at which a crontab runs."""

from __future__ import annotations

# ruff: noqa: DTZ001 - wall-clock times have no time zone
from array import array
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from celery.schedules import crontab
from dateutil.rrule import DAILY

from .recurrence import DAY, DaySet, shared_days

CACHE = "_redbeat_rule"


@dataclass(frozen=True)
class CronRule:
    """The times of day and the days of a crontab.

    ``times`` are minutes of the day, in ascending order. With ``follows_real_time``, the crontab
    runs in both occurrences of an hour that DST repeats.
    """

    times: Sequence[int]
    days: DaySet
    follows_real_time: bool

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first time after the minute of ``wall`` that matches the crontab.

        Returns None if no date of the next century matches. Raises ``OverflowError`` after the year
        9999.
        """
        if not self.times:
            return None
        today, index = wall.date(), 0
        day = self.days.first_from(today)
        if day == today:
            index = bisect_right(self.times, wall.hour * 60 + wall.minute)
            if index == len(self.times):
                day, index = self.days.first_from(today + DAY), 0
        if day is None:
            return None
        hour, minute = divmod(self.times[index], 60)
        return datetime(day.year, day.month, day.day, hour, minute)


def cron_rule(schedule: crontab) -> CronRule:
    """Return a crontab's rule, which is cached in the crontab: later changes have no effect."""
    rule: CronRule | None = schedule.__dict__.get(CACHE)
    if rule is None:
        rule = _rule_of(
            frozenset(schedule.minute),
            frozenset(schedule.hour),
            frozenset(schedule.day_of_month),
            frozenset(schedule.month_of_year),
            frozenset(schedule.day_of_week),
            _any_hour(schedule._orig_hour, schedule.hour),
        )
        setattr(schedule, CACHE, rule)
    return rule


@lru_cache(maxsize=1024)
def _rule_of(
    minutes: frozenset[int],
    hours: frozenset[int],
    monthdays: frozenset[int],
    months: frozenset[int],
    weekdays: frozenset[int],
    follows_real_time: bool,
) -> CronRule:
    has_days = bool(monthdays and months and weekdays)
    times = [hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)]
    days = shared_days(
        DAILY,
        months=_restricted(months, 12),
        monthdays=_restricted(monthdays, 31),
        weekdays=_restricted({(day - 1) % 7 for day in weekdays}, 7),
    )
    return CronRule(array("H", times if has_days else ()), days, follows_real_time)


def _restricted(values: Collection[int], size: int) -> tuple[int, ...]:
    """Return sorted values, or an empty tuple if all ``size`` values are allowed."""
    return () if len(values) == size else tuple(sorted(values))


def _any_hour(written: Any, hours: Collection[int]) -> bool:
    wildcard = isinstance(written, str) and ("*" in written or "/" in written)
    return wildcard or len(set(hours)) == 24
