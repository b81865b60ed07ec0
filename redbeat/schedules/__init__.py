"""The types of schedules that Celery does not have, when each is due next, and their registry.

Programs for RedBeat 2 import ``rrule``, and what came with it, from here.
"""

from __future__ import annotations

from celery.schedules import BaseSchedule as schedule  # noqa: N813 - its name in RedBeat 2
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
