"""Computes when a stored schedule runs according to the documentation, without the package's code.

An interval counts from the last run, a crontab follows the clock of the app, and dateutil evaluates
a rule.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.schedules import crontab
from dateutil.rrule import SECONDLY, rrule, weekday

__all__ = ("latest_run", "next_run")

Json = dict[str, Any]
MINUTE = timedelta(minutes=1)
#: Each rule in seconds has a run within this many seconds before any instant.
SHORTLY = 600
#: Maximum days between two runs of any crontab in the recordings.
DAYS = 40


def next_run(schedule: Json, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the first run of a schedule after ``after``, which is the time of the last run."""
    kind = schedule["__type__"]
    if kind == "interval":
        following = after.astimezone(timezone.utc) + timedelta(seconds=schedule["every"])
        if schedule["relative"] and schedule["every"] >= MINUTE.total_seconds():
            following = _minute(following)
        return following
    if kind == "rrule":
        found: datetime | None = _rule(schedule, after).after(after)
        return found
    return _first_match(schedule, _minute(after) + MINUTE, MINUTE, zone)


def latest_run(schedule: Json, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """Return the last run of a schedule in ``(after, until]``, or None if there is no run."""
    kind = schedule["__type__"]
    if kind == "rrule":
        latest = _rule(schedule, until).before(until, inc=True)
        return latest if latest is not None and latest > after else None
    if kind == "crontab":
        latest = _first_match(schedule, _minute(until), -MINUTE, zone)
        return latest if latest is not None and latest > after else None
    first, every = next_run(schedule, after, zone), timedelta(seconds=schedule["every"])
    return None if first is None or first > until else first + (until - first) // every * every


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _rule(schedule: Json, near: datetime) -> Any:
    """Return the rule; for dateutil's speed, it may start shortly before ``near``."""
    fields = {name: value for name, value in schedule.items() if name != "__type__"}
    if fields["freq"] == SECONDLY and fields["count"] is None:
        last = min(near.timestamp(), fields.get("until", math.inf))
        skipped = int(last - fields["dtstart"] - SHORTLY) // fields["interval"]
        fields["dtstart"] += max(skipped, 0) * fields["interval"]
    for name in ("dtstart", "until"):
        offset = timezone(timedelta(minutes=fields.pop(f"{name}_tz", 0)))
        if name in fields:
            fields[name] = _instant(fields[name]).astimezone(offset)
    if fields["byweekday"] is not None:
        fields["byweekday"] = [weekday(day["wkday"]) for day in fields["byweekday"]]
    return rrule(**fields)


def _first_match(schedule: Json, start: datetime, step: timedelta, zone: tzinfo) -> datetime | None:
    """Return the first minute that a crontab matches, in steps of ``step`` from ``start``.

    Return None if the crontab matches no minute within DAYS days.
    """
    fields = crontab(**{name: value for name, value in schedule.items() if name != "__type__"})
    for number in range(DAYS * 24 * 60):
        instant = start + number * step
        local = instant.astimezone(zone)
        if (
            local.minute in fields.minute
            and local.hour in fields.hour
            and local.isoweekday() % 7 in fields.day_of_week
            and local.day in fields.day_of_month
            and local.month in fields.month_of_year
        ):
            return instant
    return None


def _minute(instant: datetime) -> datetime:
    return instant.astimezone(timezone.utc).replace(second=0, microsecond=0)
