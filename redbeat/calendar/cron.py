"""The wall times of a crontab, found by jumping instead of by trying minutes."""

from __future__ import annotations

# ruff: noqa: DTZ001 - wall times have no zone
from calendar import monthrange
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property, lru_cache
from typing import Any

from celery.schedules import crontab

__all__ = ("CronRule", "cron_rule")

# 29 February on a given weekday comes back after at most 40 years, so that a longer search
# would find nothing.
MONTHS_AHEAD = 12 * 41
CACHE = "_redbeat_rule"

month_range = lru_cache(maxsize=1024)(monthrange)


@dataclass(frozen=True)
class CronRule:
    """A crontab, expanded for searching.

    ``next_minute[m]`` is the first minute of the rule at or after ``m``, -1 if there is none;
    ``next_hour`` likewise. ``weekdays`` count from Sunday = 0, as Celery's crontab does.
    """

    next_minute: tuple[int, ...]
    next_hour: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    follows_real_time: bool

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first matching minute after that of ``wall``, ``None`` if no date ever matches."""
        if self.next_hour[0] < 0 or self.next_minute[0] < 0:
            return None
        year, month, day = wall.year, wall.month, wall.day
        if month in self.months:
            next_day = self._next_day(year, month)
            if next_day[day] == day:
                hour = wall.hour
                minute = self.next_minute[wall.minute + 1] if self.next_hour[hour] == hour else -1
                if minute < 0:
                    hour, minute = self.next_hour[hour + 1], self.next_minute[0]
                if hour >= 0:
                    return datetime(year, month, day, hour, minute)
            day = next_day[day + 1]
            if day > 0:
                return datetime(year, month, day, self.next_hour[0], self.next_minute[0])
        return self._in_later_month(year, month)

    def _in_later_month(self, year: int, month: int) -> datetime | None:
        """The first time of the first day after a month."""
        for _ in range(MONTHS_AHEAD):
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if year > date.max.year:
                return None
            if month in self.months and (day := self._next_day(year, month)[1]) > 0:
                return datetime(year, month, day, self.next_hour[0], self.next_minute[0])
        return None

    def _next_day(self, year: int, month: int) -> tuple[int, ...]:
        kind = month_range(year, month)
        return self._known.get(kind) or self._next_day_in(kind)

    def _next_day_in(self, kind: tuple[int, int]) -> tuple[int, ...]:
        """The table for a month by the weekday of its first day (Monday = 0) and its length."""
        first, length = kind
        days = (day for day in self.days if day <= length and (first + day) % 7 in self.weekdays)
        self._known[kind] = found = _next_table(days, length + 1)
        return found

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The tables of the 28 kinds of months, as far as they were asked for."""
        return {}


def cron_rule(schedule: crontab) -> CronRule:
    """The rule of a crontab; made once for each object, which is then taken as unchanging."""
    rule: CronRule | None = schedule.__dict__.get(CACHE)
    if rule is None:
        rule = _expand(schedule)
        setattr(schedule, CACHE, rule)
    return rule


def _expand(schedule: crontab) -> CronRule:
    return CronRule(
        next_minute=_next_table(schedule.minute, 60),
        next_hour=_next_table(schedule.hour, 24),
        days=frozenset(schedule.day_of_month),
        months=frozenset(schedule.month_of_year),
        weekdays=frozenset(schedule.day_of_week),
        follows_real_time=_any_hour(schedule._orig_hour, schedule.hour),
    )


def _any_hour(written: Any, hours: Iterable[int]) -> bool:
    """Whether the hour has a wildcard or a step, or names every hour there is."""
    wildcard = isinstance(written, str) and ("*" in written or "/" in written)
    return wildcard or len(set(hours)) == 24


def _next_table(values: Iterable[int], size: int) -> tuple[int, ...]:
    table, wanted, following = [-1] * (size + 1), frozenset(values), -1
    for value in range(size - 1, -1, -1):
        following = value if value in wanted else following
        table[value] = following
    return tuple(table)
