"""Finds the wall-clock times at which a crontab runs."""

from __future__ import annotations

# ruff: noqa: DTZ001 - wall-clock times have no time zone
import re
from array import array
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from celery.schedules import crontab
from celery.utils.time import weekday
from dateutil.rrule import DAILY

from .recurrence import DAY, DaySet, shared_days

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

STEP = r"(?:/0*([1-9][0-9]*))?"
#: An item of a crontab field: a value, or ``*`` or a range, with or without a step.
ITEM = re.compile(rf"([a-z]+|[0-9]+)|\*{STEP}|([a-z]+|[0-9]+)-([a-z]+|[0-9]+){STEP}", re.IGNORECASE)
#: The full names; the short form of each is its first three letters.
NAMES = {
    "day_of_week": ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
    "month_of_year": (
        *("january", "february", "march", "april", "may", "june"),
        *("july", "august", "september", "october", "november", "december"),
    ),
}

CACHE = "_redbeat_rule"
SUNDAY = 7


def without_nickname(nickname: str) -> str:
    """Return the five crontab fields that a nickname such as ``@daily`` stands for.

    Raises ``ValueError`` for an unknown nickname. ``@reboot`` isn't supported, because a schedule
    can't depend on the start of a machine.
    """
    try:
        return NICKNAMES[nickname.strip().lower()]
    except KeyError:
        known = ", ".join(NICKNAMES)
        raise ValueError(
            f"{nickname} is unknown; use one of {known}, or five crontab fields"
        ) from None


def celery_field(field: str, text: str) -> str:
    """Return the text of a crontab field in the form that Celery reads.

    In ``day_of_week``, 7 means Sunday, as in cron; Celery knows only 0. Raises ``ValueError`` for
    what Celery would misread: it reads only the first three letters of a name, and ignores what
    follows a range or a step, so it takes ``mon#1`` for Monday. Celery itself checks that numbers
    are in range.
    """
    return ",".join(_celery_item(field, item) for item in text.split(","))


def _celery_item(field: str, item: str) -> str:
    match = ITEM.fullmatch(item)
    names = NAMES.get(field, ())
    known = {*names, *(name[:3] for name in names)}
    values = [match[number] for number in (1, 3, 4) if match[number]] if match else []
    if match is None or not all(value.isdigit() or value.lower() in known for value in values):
        number = f"a number or a name ({names[1][:3]}, {names[1]})" if names else "a number"
        problem = f"must be *, {number}, or a range; a step such as /2 follows * or a range"
        raise ValueError(f"{item!r:.60} {problem}")
    if field != "day_of_week":
        return item
    days = [int(value) if value.isdigit() else weekday(value) for value in values]
    return item if max(days, default=0) != SUNDAY else _without_seven(days, int(match[5] or 1))


def _without_seven(days: Sequence[int], step: int) -> str:
    begin, end = days[0], days[-1]
    if begin == SUNDAY:
        begin, end = 0, end % SUNDAY
    found = (str(day % SUNDAY) for day in range(begin, end + 1, step))
    return ",".join(dict.fromkeys(found))


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
