"""RedBeat's schedule types. Programs written for RedBeat 2 import these names from here."""

from __future__ import annotations

from celery.schedules import BaseSchedule as schedule  # noqa: N813 - the name in RedBeat 2
from celery.schedules import schedstate
from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY
from dateutil.rrule import rrule as dateutil_rrule

from .rule import rrule

__all__ = (
    "DAILY",
    "HOURLY",
    "MINUTELY",
    "MONTHLY",
    "SECONDLY",
    "WEEKLY",
    "YEARLY",
    "dateutil_rrule",
    "rrule",
    "schedstate",
    "schedule",
)
