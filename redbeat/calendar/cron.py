"""Find the wall-clock times at which a crontab runs, with lookup tables."""

from __future__ import annotations

# ruff: noqa: DTZ001 - wall-clock times have no time zone
import re
from calendar import monthrange
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property, lru_cache
from typing import Any

from celery.schedules import crontab
from celery.utils.time import weekday

from .steps import spend

#: The nicknames of crontab files, and the five crontab fields that each nickname replaces.
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
#: Matches an item of a crontab field, which is a value, or ``*`` or a range with or without a step.
ITEM = re.compile(rf"([a-z]+|[0-9]+)|\*{STEP}|([a-z]+|[0-9]+)-([a-z]+|[0-9]+){STEP}", re.IGNORECASE)
#: Matches a step without a range, as in Quartz. Some crons ignore such a step, some refuse it.
OPEN_STEP = re.compile(r"([a-z]+|[0-9]+)/([0-9]+)", re.IGNORECASE)
#: Matches the last, the nth and the nearest weekday of a month, as in Quartz.
OF_MONTH = re.compile(r"L|LW|L-\d+|\d+[LW]|[A-Za-z]{3}L|\w+#\d+", re.ASCII)
#: The largest value of each field.
LARGEST = {"minute": 59, "hour": 23, "day_of_month": 31, "month_of_year": 12, "day_of_week": 7}

#: The full names of weekdays and months. The short form of each name is its first three letters.
NAMES = {
    "day_of_week": ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
    "month_of_year": (
        *("january", "february", "march", "april", "may", "june"),
        *("july", "august", "september", "october", "november", "december"),
    ),
}

# The search for a matching date stops after 41 years. The rarest date is 29 February on a given
# weekday, which occurs at least every 40 years.
MONTHS_AHEAD = 12 * 41
CACHE = "_redbeat_rule"
SUNDAY = 7

month_range = lru_cache(maxsize=1024)(monthrange)


def without_nickname(nickname: str) -> str:
    """Return the five crontab fields that a nickname such as ``@daily`` replaces.

    Raises ``ValueError`` if the nickname is unknown. ``@reboot`` is not supported, because a
    schedule cannot depend on the start of a machine.
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

    In ``day_of_week``, 7 means Sunday, as in cron; Celery knows only 0. Raises ``ValueError`` if
    Celery would misread an item of the text: it reads only the first three letters of a name, and
    ignores the text after a range or a step. For example, Celery reads ``mon#1`` as Monday. Celery
    itself checks whether the numbers are in range.
    """
    return ",".join(_celery_item(field, item) for item in text.split(","))


def _celery_item(field: str, item: str) -> str:
    match = ITEM.fullmatch(item)
    names = NAMES.get(field, ())
    known = {*names, *(name[:3] for name in names)}
    values = [match[number] for number in (1, 3, 4) if match[number]] if match else []
    if match is None or not all(value.isdigit() or value.lower() in known for value in values):
        number = f"a number or a name ({names[1][:3]}, {names[1]})" if names else "a number"
        problem = f"must be *, {number}, or a range, with or without a step such as /2"
        raise ValueError(f"{item!r:.60} {problem}{_hint(field, item)}")
    if field != "day_of_week":
        return item
    days = [int(value) if value.isdigit() else weekday(value) for value in values]
    return item if max(days, default=0) != SUNDAY else _without_seven(days, int(match[5] or 1))


def _without_seven(days: Sequence[int], step: int) -> str:
    """Return the days from the first to the last of ``days``, in which 7 means Sunday."""
    begin, end = days[0], days[-1]
    if begin == SUNDAY:
        begin, end = 0, end % SUNDAY
    found = (str(day % SUNDAY) for day in range(begin, end + 1, step))
    return ",".join(dict.fromkeys(found))


def _hint(field: str, item: str) -> str:
    """Return how to write an item that other programs know, "" for no such item."""
    if item == "?":
        return "; write * instead"
    if OF_MONTH.fullmatch(item):
        return "; for such days use a rule, such as FREQ=MONTHLY;BYDAY=1MO,-1FR"
    step = OPEN_STEP.fullmatch(item)
    return f"; write the range of the step: {step[1]}-{LARGEST[field]}/{step[2]}" if step else ""


@dataclass(frozen=True)
class CronRule:
    """A crontab in the form of lookup tables.

    ``next_minute[m]`` is the first minute of the crontab at or after ``m``, or -1 if all minutes of
    the crontab are before ``m``. ``next_hour[h]`` is the first hour of the crontab at or after
    ``h``, or -1 if all hours of the crontab are before ``h``. In ``weekdays``, Sunday is 0, as in
    Celery. ``follows_real_time`` is true if the crontab runs in both occurrences of an hour that
    DST repeats.
    """

    next_minute: tuple[int, ...]
    next_hour: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    follows_real_time: bool

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first time after the minute of ``wall`` that matches the crontab.

        Returns None if no date matches the crontab, or if the result would be after the year 9999.
        """
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
        """Return the first time in a later month that matches the crontab, or None."""
        for ahead in range(MONTHS_AHEAD):
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if year > date.max.year:
                return None
            if month in self.months and (day := self._next_day(year, month)[1]) > 0:
                spend(ahead + 1)
                return datetime(year, month, day, self.next_hour[0], self.next_minute[0])
        spend(MONTHS_AHEAD)
        return None

    def _next_day(self, year: int, month: int) -> tuple[int, ...]:
        kind = month_range(year, month)
        return self._day_tables.get(kind) or self._next_day_in(kind)

    def _next_day_in(self, kind: tuple[int, int]) -> tuple[int, ...]:
        """Return a table in which item ``d`` is the first day of the crontab at or after day ``d``.

        The table is valid for all months of the same ``kind``. ``kind`` contains the weekday of the
        first day of the month (Monday is 0) and the number of days.
        """
        first, length = kind
        days = (day for day in self.days if day <= length and (first + day) % 7 in self.weekdays)
        self._day_tables[kind] = table = _next_table(days, length + 1)
        return table

    @cached_property
    def _day_tables(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Day tables for the 28 kinds of months, with 7 first weekdays and 4 lengths."""
        return {}


def cron_rule(schedule: crontab) -> CronRule:
    """Return the lookup tables of a crontab.

    The lookup tables are cached in the crontab object, so later changes of the crontab have no
    effect.
    """
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
    days: frozenset[int],
    months: frozenset[int],
    weekdays: frozenset[int],
    follows_real_time: bool,
) -> CronRule:
    """Return the rule that all crontabs of the same times share."""
    tables = _next_table(minutes, 60), _next_table(hours, 24)
    return CronRule(*tables, days, months, weekdays, follows_real_time)


def _any_hour(written: Any, hours: Iterable[int]) -> bool:
    """Return whether the hour field of a crontab has a wildcard, a step or all 24 hours."""
    wildcard = isinstance(written, str) and ("*" in written or "/" in written)
    return wildcard or len(set(hours)) == 24


def _next_table(values: Iterable[int], size: int) -> tuple[int, ...]:
    """Return a table in which item ``n`` is the smallest of ``values`` at or above ``n``.

    Item ``n`` of the table is -1 if all ``values`` are below ``n``.
    """
    table, allowed, following = [-1] * (size + 1), frozenset(values), -1
    for value in range(size - 1, -1, -1):
        following = value if value in allowed else following
        table[value] = following
    return tuple(table)
