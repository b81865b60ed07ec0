"""Write recurrence rules as the RFC 5545 lines ``DTSTART``, ``RRULE``, ``RDATE`` and ``EXDATE``.

:mod:`redbeat.schedules.ical` parses RFC 5545 text.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from dateutil.rrule import rrule as dateutil_rrule

from .walltime import instant_of
from .zones import UTC, as_utc, fixed_offset, wall_zone, zone_key

#: The ``strftime`` format of a date with time in RFC 5545 text.
MOMENT = "%Y%m%dT%H%M%S"


def set_to_ical(
    rules: Iterable[Any], rdates: Iterable[datetime], exdates: Iterable[datetime]
) -> str:
    """Return a set of rules and dates as RFC 5545 text.

    Raises ``ValueError`` if the rules have different starts, or if a time zone has no name.
    """
    rules = tuple(rules)
    lines = list(dict.fromkeys(_start(rule) for rule in rules))
    if len(lines) > 1:
        raise ValueError("DTSTART: the rules of the set must have the same start")
    lines += [_rule_line(rule) for rule in rules]
    lines += [_date("RDATE", date) for date in rdates]
    lines += [_date("EXDATE", date) for date in exdates]
    return "\n".join(lines)


def _start(rule: Any) -> str:
    # Convert the start of the rule to UTC and back to its time zone, as rrule does. If DST skips
    # the start of the rule, the conversion to UTC and back returns a time that exists.
    instant = as_utc(rule.dtstart)
    text = _written("DTSTART", instant, rule.dtstart.tzinfo)
    if instant.astimezone(wall_zone(rule.dtstart.tzinfo or UTC)).fold:
        raise ValueError(
            "DTSTART: the start is the second of two equal wall-clock times at the end of DST; "
            "use another start"
        )
    return text


def _date(name: str, moment: datetime) -> str:
    return _written(name, instant_of(moment), moment.tzinfo)


def _written(name: str, instant: datetime, zone: tzinfo | None) -> str:
    zone = wall_zone(zone or UTC)
    key = zone_key(zone) if fixed_offset(zone) != timedelta(0) else "UTC"
    if key is None:
        raise ValueError(f"{name}: the time zone {zone!r} has no name; use zoneinfo.ZoneInfo")
    moment = instant.astimezone(zone)
    if key == "UTC" or moment.fold:  # RFC 5545 has no fold, so write the time in UTC
        return f"{name}:{instant:{MOMENT}}Z"
    return f"{name};TZID={key}:{moment:{MOMENT}}"


def _rule_line(rule: Any) -> str:
    # dateutil refuses some intervals, writes UNTIL without a time zone, and has another default of
    # WKST than RFC 5545.
    own = {"interval": 1, "until": None, "wkst": rule.wkst or 0}
    line = str(dateutil_rrule(**{**rule.fields(), **own})).splitlines()[-1]
    line = line.replace("+", "")  # dateutil writes +1FR
    if rule.interval != 1:
        line += f";INTERVAL={rule.interval}"
    return line if rule.until is None else f"{line};UNTIL={rule.until.astimezone(UTC):{MOMENT}}Z"
