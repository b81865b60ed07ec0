"""Parses and formats rules, which represent schedules as text in commands and on the dashboard.

A rule consists of a kind, which is one of :data:`KINDS`, and a text.
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

#: The kinds of rules.
KINDS: Final = ("every", "cron", "rrule", "at", "solar")

#: The exceptions that :func:`make_schedule` raises for an invalid rule.
BAD_RULE: Final = (ImproperlyConfigured, ParseException, TypeError, ValueError)

UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

#: Number of fields of a solar rule, which are event, latitude and longitude.
SOLAR_FIELDS: Final = 3


def seconds_from(text: str) -> float:
    """Return a duration such as ``30``, ``30s``, ``5m``, ``2h`` or ``1d`` in seconds.

    Raises ValueError for any other text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) *(s|m|min|h|d|)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number of seconds, nor a number with s, m, h or d")
    seconds = float(match[1]) * UNITS[match[2]]
    return int(seconds) if seconds.is_integer() else seconds


def time_from(text: str) -> datetime:
    """Return a time in ISO 8601 as a datetime, which is naive if the text has no UTC offset.

    Raises ValueError for any other text.
    """
    try:
        return isoparse(text.strip().replace(" ", "T", 1))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time in ISO 8601") from error


def make_schedule(kind: str, value: Any, zone: tzinfo, app: Any) -> BaseSchedule:
    """Return a schedule of this kind; raise one of :data:`BAD_RULE` for an invalid value.

    ``value`` is a number of seconds for ``every``, a datetime for ``at``, and a string for all
    other kinds. ``zone`` applies to times and rules that name no time zone.
    """
    return MAKERS[kind](value, zone, app)


def parse_rule(kind: str, text: str, zone: tzinfo, app: Any) -> BaseSchedule:
    """Return the schedule that a rule describes.

    Raises :exc:`InvalidEntryError` for an invalid rule; its field is ``kind`` or ``rule``.
    """
    if kind not in KINDS:
        raise InvalidEntryError("kind", f"must be one of {', '.join(KINDS)}, not {kind!r:.60}")
    text = text.strip()
    if not text:
        raise InvalidEntryError("rule", "is empty; enter when the entry runs")
    try:
        return make_schedule(kind, READERS.get(kind, str)(text), zone, app)
    except InvalidEntryError as error:
        raise InvalidEntryError("rule", error.problem) from error
    except (*BAD_RULE, OverflowError) as error:
        raise InvalidEntryError("rule", str(error)) from error


def rule_of(when: Any) -> tuple[str, str] | None:
    """Return the kind and the text of a schedule, or None if no rule can describe the schedule."""
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
    """Return whether a schedule ignores the ``timezone`` of its entry."""
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
    # Only DTSTART can contain a time zone, so this adds a DTSTART at the epoch to a rule without a
    # start. A rule with COUNT needs a start from the user, because COUNT counts from the start.
    if "DTSTART" not in text.upper() and "COUNT" not in text.upper() and key not in (None, "UTC"):
        text = f"DTSTART;TZID={key}:19700101T000000\n{text}"
    return from_ical(text)


def _at(moment: datetime, zone: tzinfo, app: Any) -> BaseSchedule:
    return clocked(moment if moment.tzinfo else moment.replace(tzinfo=zone), app=app)


def _solar(text: str, _zone: tzinfo, app: Any) -> BaseSchedule:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != SOLAR_FIELDS:
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

#: Functions that convert the text of a rule. Kinds without a function use the text unchanged.
READERS: Final[dict[str, Callable[[str], Any]]] = {"every": seconds_from, "at": time_from}
