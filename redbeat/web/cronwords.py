"""A crontab in English.

The words are made of the sets of numbers that Celery has expanded the crontab to, so that what
they say is what runs: a day has to match the day of the month *and* the weekday, and ``*/7`` is not
every seven minutes, since it begins anew with each hour.
"""

from __future__ import annotations

from datetime import datetime

from celery.schedules import crontab

from redbeat.calendar.cron import cron_rule
from redbeat.presentation.describing import schedule_text
from redbeat.web.clockwords import clock, in_months, only_if, together
from redbeat.web.wording import Unphrased, numbered

__all__ = ("cron_words",)

ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall time


def cron_words(schedule: crontab) -> str:
    """Return what the crontab says; its own text where that takes too many words."""
    if cron_rule(schedule).next_wall(ANY_DAY) is None:
        return f"never: no time matches {schedule_text(schedule)}"
    try:
        return _phrased(schedule)
    except Unphrased:
        return schedule_text(schedule)


def _phrased(schedule: crontab) -> str:
    weekdays = sorted((day - 1) % 7 for day in schedule.day_of_week)  # Celery's Sunday is 0
    days, months = sorted(schedule.day_of_month), sorted(schedule.month_of_year)
    named = _days(days, months) + only_if(weekdays) if len(days) < 31 else ""
    times = clock(tuple(sorted(schedule.minute)), tuple(sorted(schedule.hour)))
    return together(times, named, weekdays, months)


def _days(days: list[int], months: list[int]) -> str:
    month = "the month" if len(months) == 12 else in_months(months)
    return f"on {numbered('day', days)} of {month}"
