"""Schedules from the text that people write, and back: for the command line and for the page.

A rule has a kind, one of :data:`KINDS`, and a text. Nothing here touches Redis.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Any, Final

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar
from dateutil.parser import isoparse

from redbeat.calendar.zones import zone_key
from redbeat.errors import InvalidEntryError
from redbeat.schedules.ical import from_ical
from redbeat.schedules.one_time import clocked
from redbeat.schedules.rule import RuleSchedule, rrule
from redbeat.schedules.rule_set import rruleset

from .describe import cron_text

__all__ = (
    "BAD_RULE",
    "KINDS",
    "has_own_zone",
    "make_schedule",
    "parse_rule",
    "rule_of",
    "seconds_from",
    "time_from",
)

#: The kinds of rules that are written as text.
KINDS: Final = ("every", "cron", "rrule", "at", "solar")

#: What :func:`make_schedule` raises for a rule that is none.
BAD_RULE: Final = (ImproperlyConfigured, ParseException, TypeError, ValueError)

UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

PLACE: Final = 3


def seconds_from(text: str) -> float:
    """Return the seconds in ``30``, ``30s``, ``5m``, ``2h`` or ``1d``; raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) *(s|m|min|h|d|)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a number of seconds, or one with s, m, h or d")
    seconds = float(found[1]) * UNITS[found[2]]
    return int(seconds) if seconds.is_integer() else seconds


def time_from(text: str) -> datetime:
    """Return a time in ISO 8601, naive where it has no offset; raises ValueError."""
    try:
        return isoparse(text.strip().replace(" ", "T", 1))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time in ISO 8601") from error


def make_schedule(kind: str, value: Any, zone: tzinfo, app: Any) -> BaseSchedule:
    """Return the schedule of a kind; raises :data:`BAD_RULE`.

    ``value`` is seconds for ``every``, a datetime for ``at``, text for the others; ``zone`` is
    where a time or a rule without a zone of its own is read.
    """
    return MAKERS[kind](value, zone, app)


def parse_rule(kind: str, text: str, zone: tzinfo, app: Any) -> BaseSchedule:
    """Return the schedule in a text; :exc:`InvalidEntryError` names ``kind`` or ``rule``."""
    if kind not in KINDS:
        raise InvalidEntryError("kind", f"must be one of {', '.join(KINDS)}, not {kind!r:.60}")
    text = text.strip()
    if not text:
        raise InvalidEntryError("rule", "is empty; say when it is to run")
    try:
        return make_schedule(kind, READERS.get(kind, str)(text), zone, app)
    except InvalidEntryError as error:
        raise InvalidEntryError("rule", error.problem) from error
    except (*BAD_RULE, OverflowError) as error:
        raise InvalidEntryError("rule", str(error)) from error


def rule_of(when: Any) -> tuple[str, str] | None:
    """Return the kind and the text of a schedule, None for a class that has no text."""
    if isinstance(when, schedule):
        return "every", f"{when.run_every.total_seconds():.15g}"
    if isinstance(when, crontab):
        return "cron", cron_text(when)
    if isinstance(when, solar):
        return "solar", f"{when.event},{when.lat},{when.lon}"
    if isinstance(when, clocked):
        return "at", when.clocked_time.isoformat()
    if isinstance(when, (rrule, rruleset)):
        try:
            return "rrule", when.to_ical()
        except ValueError:
            return None
    return None


def has_own_zone(when: Any) -> bool:
    """Whether a schedule does not ask for the ``timezone`` of its entry."""
    return isinstance(when, (schedule, solar, RuleSchedule))


def _every(seconds: float, _zone: tzinfo, app: Any) -> BaseSchedule:
    if not seconds:
        raise ValueError("must be above 0 seconds")
    return schedule(seconds, app=app)


def _cron(text: str, _zone: tzinfo, app: Any) -> BaseSchedule:
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(
            f"{text!r} has {len(fields)} field{'s' * (len(fields) != 1)}, not 5: minute, hour, day "
            "of month, month, day of week"
        )
    minute, hour, day_of_month, month_of_year, day_of_week = fields
    return crontab(
        minute=minute,
        hour=hour,
        day_of_month=day_of_month,
        month_of_year=month_of_year,
        day_of_week=day_of_week,
        app=app,
    )


def _rrule(text: str, zone: tzinfo, _app: Any) -> BaseSchedule:
    key = zone_key(zone)
    # Without a start a rule has no zone of its own; one with a count has to say its start.
    if "DTSTART" not in text.upper() and "COUNT" not in text.upper() and key not in (None, "UTC"):
        text = f"DTSTART;TZID={key}:19700101T000000\n{text}"
    return from_ical(text)


def _at(moment: datetime, zone: tzinfo, app: Any) -> BaseSchedule:
    return clocked(moment if moment.tzinfo else moment.replace(tzinfo=zone), app=app)


def _solar(text: str, _zone: tzinfo, app: Any) -> BaseSchedule:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != PLACE:
        raise ValueError(f"{text!r} is not EVENT,LAT,LON")
    event, latitude, longitude = parts
    return solar(event, float(latitude), float(longitude), app=app)


MAKERS: Final[dict[str, Callable[[Any, tzinfo, Any], BaseSchedule]]] = {
    "every": _every,
    "cron": _cron,
    "rrule": _rrule,
    "at": _at,
    "solar": _solar,
}

#: How the text of a kind becomes its value, where that is not the text.
READERS: Final[dict[str, Callable[[str], Any]]] = {"every": seconds_from, "at": time_from}
