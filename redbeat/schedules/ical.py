"""Reads RFC 5545 text: lines with ``DTSTART``, ``RRULE``, ``RDATE`` and ``EXDATE``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Any

from dateutil.rrule import weekday, weekdays

from redbeat.calendar.recurrence import RANGES
from redbeat.calendar.steps import bounded
from redbeat.calendar.zones import EPOCH, UTC, time_from, zone_named

from .rule import MAX_DATES, MOMENT, rrule, rruleset

#: The parts of a rule that are lists of numbers -> their names in dateutil.
NUMBERS = {name.upper(): name for name in RANGES}
PROPERTIES = ("DTSTART", "RRULE", "RDATE", "EXDATE")
#: Parameters of properties that are read, or that mean nothing.
PARAMETER = re.compile(r"TZID=.*|VALUE=DATE(-TIME)?|X-.*", re.IGNORECASE)
MAX_CHARACTERS = 150_000


@bounded
def from_ical(text: str) -> rrule | rruleset:
    """Return the schedule that the RFC 5545 ``text`` describes.

    Times without ``Z`` or ``TZID`` are in the time zone of ``DTSTART``, or in UTC if there's no
    ``DTSTART``. A rule without one starts in 1970, and must not have a ``COUNT``. Raises
    ``ValueError`` with the name of the invalid part.
    """
    lines = _lines(text)
    starts = [line for line in lines if line[0] == "DTSTART"]
    if len(starts) > 1:
        raise ValueError(f"DTSTART: the text has {len(starts)} DTSTART lines; give one")
    start = _moments(starts[0], UTC)[0] if starts else None
    zone = (start and start.tzinfo) or UTC
    rules = [_rule(value, start) for name, _, value in lines if name == "RRULE"]
    rdates = [date for line in lines if line[0] == "RDATE" for date in _moments(line, zone)]
    exdates = [
        date for line in lines if line[0] == "EXDATE" for date in _exceptions(line, zone, rules)
    ]
    return (
        rules[0] if len(rules) == 1 and not rdates + exdates else rruleset(rules, rdates, exdates)
    )


Line = tuple[str, dict[str, str], str]


def _lines(text: str) -> list[Line]:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the text has {len(text)} characters; the maximum is {MAX_CHARACTERS}")
    unfolded = re.sub(r"\r?\n[ \t]", "", text)
    return [_line(line.strip()) for line in unfolded.splitlines() if line.strip()]


def _line(line: str) -> Line:
    head, colon, value = line.partition(":")
    if not colon:
        head, value = "RRULE", line  # many programs omit the prefix "RRULE:"
    name, *parameters = head.split(";")
    name = name.upper()
    if name not in PROPERTIES:
        raise ValueError(f"{name}: the property must be DTSTART, RRULE, RDATE or EXDATE")
    if value.count(",") >= MAX_DATES:
        raise ValueError(f"{name}: the line has more than {MAX_DATES} values")
    return name, {key.upper(): item for key, item in map(_pair, parameters)}, value


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return key, value


def _moments(line: Line, zone: tzinfo) -> list[datetime]:
    name, parameters, value = line
    for key, given in parameters.items():
        if not PARAMETER.fullmatch(f"{key}={given}"):
            raise ValueError(f"{name}: {key}={given} cannot be read; remove it")
    if "TZID" in parameters:
        zone = zone_named(parameters["TZID"].strip('"'))
    kind = parameters.get("VALUE", "").upper()
    for item in map(str.strip, value.upper().split(",")):
        has_zone, has_time = item.endswith("Z"), "T" in item
        if ("TZID" in parameters and has_zone) or kind == ("DATE" if has_time else "DATE-TIME"):
            raise ValueError(f"{name}: {item!r:.60} does not fit {' and '.join(parameters)}")
    return [_moment(name, item, zone) for item in value.split(",")]


def _exceptions(line: Line, zone: tzinfo, rules: Iterable[rrule]) -> list[datetime]:
    """Return the times of an EXDATE; refuse a day on which ``rules`` have other times."""
    moments = _moments(line, zone)
    for text, day in zip(line[2].split(","), moments, strict=True):
        for rule in rules if "T" not in text.upper() else ():
            found = rule.occurrence_after(day)
            local = found and found.astimezone(day.tzinfo)
            if local and local.date() == day.date():
                raise ValueError(f"EXDATE: {text} excludes only midnight; write {local:{MOMENT}}")
    return moments


def _moment(name: str, text: str, zone: tzinfo) -> datetime:
    try:
        moment = time_from(text.strip())
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is not a time such as 20260131T090000") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def _rule(text: str, start: datetime | None) -> rrule:
    parts = {key.upper(): value for key, value in map(_pair, filter(None, text.split(";")))}
    zone = (start and start.tzinfo) or UTC
    if start is None and "COUNT" in parts:
        raise ValueError("DTSTART: missing; a rule with a COUNT needs a start")
    fields: dict[str, Any] = {"freq": parts.pop("FREQ", ""), "dtstart": start or EPOCH}
    for key, value in parts.items():
        if key in NUMBERS:
            fields[NUMBERS[key]] = [_number(key, item) for item in value.split(",")]
        elif key in ("INTERVAL", "COUNT"):
            fields[key.lower()] = _number(key, value)
        elif key == "UNTIL":
            fields["until"] = _moment(key, value, zone)
        elif key == "WKST":
            fields["wkst"] = _weekday(key, value)
        elif key in ("BYDAY", "BYWEEKDAY"):
            fields["byweekday"] = [_weekday(key, item) for item in value.split(",")]
        else:
            raise ValueError(f"RRULE: {key!r} is not a valid part of a rule")
    return rrule(**fields)


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text.strip(), re.ASCII):
        raise ValueError(f"{name}: {text!r} is not an integer")
    return int(text)


def _weekday(name: str, text: str) -> weekday:
    match = re.fullmatch(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", text.strip().upper())
    if match is None or (match[1] and not int(match[1])):
        raise ValueError(f"{name}: {text!r} is not a weekday such as MO, 1FR or -1SU")
    day = next(day for day in weekdays if str(day) == match[2])
    return day(int(match[1])) if match[1] else day
