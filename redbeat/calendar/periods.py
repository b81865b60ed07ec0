"""The periods that a recurrence counts in, numbered from the year 1, in wall time."""

from __future__ import annotations

# ruff: noqa: DTZ001 - wall times have no zone
from calendar import isleap, monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta

__all__ = (
    "DAILY",
    "HOURLY",
    "MINUTELY",
    "MONTHLY",
    "SECOND",
    "SECONDLY",
    "UNIT",
    "WEEKLY",
    "YEARLY",
    "month_days",
    "month_length",
    "period_index",
    "period_start",
    "year_length",
)

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
    """The number of the period of ``moment``, counted from the year 1."""
    if freq <= MONTHLY:
        return moment.year if freq == YEARLY else moment.year * 12 + moment.month - 1
    days = moment.toordinal()
    if freq <= DAILY:
        return days if freq == DAILY else (days - 1 - wkst) // 7
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    return (days * 86400 + seconds) // int(UNIT[freq].total_seconds())


def period_start(freq: int, index: int, wkst: int) -> datetime:
    """The first moment of the period with this number."""
    if freq == YEARLY:
        return datetime(index, 1, 1)
    if freq == MONTHLY:
        return datetime(index // 12, index % 12 + 1, 1)
    if freq == WEEKLY:
        return datetime.fromordinal(max(index * 7 + 1 + wkst, 1))
    days, rest = divmod(index * int(UNIT[freq].total_seconds()), 86400)
    return datetime.fromordinal(days) + timedelta(seconds=rest)


def month_days(year: int, month: int) -> Iterator[date]:
    """Every day of a month."""
    return (date(year, month, day) for day in range(1, monthrange(year, month)[1] + 1))


def month_length(day: date) -> int:
    """How many days the month of ``day`` has."""
    return monthrange(day.year, day.month)[1]


def year_length(year: int) -> int:
    """How many days a year has."""
    return 366 if isleap(year) else 365
