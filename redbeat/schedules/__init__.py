"""RedBeat's schedule types, a registry for custom types, and the search for the next run.

Programs that were written for RedBeat 2 import the names in ``__all__`` from this module.
"""

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
