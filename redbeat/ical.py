"""Recurrences as text of RFC 5545: ``DTSTART``, ``RRULE``, ``RDATE`` and ``EXDATE`` lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from dateutil.rrule import weekday

from .calendar.rules import FREQUENCIES
from .calendar.walltime import instant_of
from .calendar.zones import EPOCH, UTC, as_utc, fixed_offset, wall_zone, zone_key, zone_named
from .rulesets import rruleset
from .schedules import rrule

__all__ = ("from_ical", "rule_to_ical", "set_to_ical")

DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
NUMBERS = {
    "BYSETPOS": "bysetpos",
    "BYMONTH": "bymonth",
    "BYMONTHDAY": "bymonthday",
    "BYYEARDAY": "byyearday",
    "BYEASTER": "byeaster",
    "BYWEEKNO": "byweekno",
    "BYHOUR": "byhour",
    "BYMINUTE": "byminute",
    "BYSECOND": "bysecond",
}
NAMES = {number: name for name, number in FREQUENCIES.items()}
MOMENT = "%Y%m%dT%H%M%S"
MAX_LINES = 3000


def from_ical(text: str) -> rrule | rruleset:
    """The schedule that a text of RFC 5545 describes; ``ValueError`` says what is wrong in it.

    Times without ``Z`` or ``TZID`` are in the zone of ``DTSTART``, UTC if there is none. Without
    ``DTSTART`` a rule starts in 1970, and then it may have no ``COUNT``.
    """
    lines = _lines(text)
    starts = [line for line in lines if line[0] == "DTSTART"]
    if len(starts) > 1:
        raise ValueError("DTSTART: there are several; give one")
    start = _moments(starts[0], UTC)[0] if starts else None
    zone = (start and start.tzinfo) or UTC
    rules, rdates, exdates = [], list[datetime](), list[datetime]()
    for line in lines:
        if line[0] == "RRULE":
            rules.append(_rule(line[2], start))
        elif line[0] == "RDATE":
            rdates += _moments(line, zone)
        elif line[0] == "EXDATE":
            exdates += _moments(line, zone)
        elif line[0] != "DTSTART":
            raise ValueError(f"{line[0]}: is not one of DTSTART, RRULE, RDATE, EXDATE")
    return (
        rules[0] if len(rules) == 1 and not rdates + exdates else rruleset(rules, rdates, exdates)
    )


Line = tuple[str, dict[str, str], str]


def _lines(text: str) -> list[Line]:
    unfolded = re.sub(r"\r?\n[ \t]", "", text)
    found = [line.strip() for line in unfolded.splitlines() if line.strip()]
    if len(found) > MAX_LINES:
        raise ValueError(f"there are {len(found)} lines; {MAX_LINES} at most")
    return [_line(line) for line in found]


def _line(line: str) -> Line:
    head, colon, value = line.partition(":")
    if not colon:
        head, value = "RRULE", line  # the bare value of a rule, as many programs store it
    name, *parameters = head.split(";")
    return name.upper(), {key.upper(): item for key, item in map(_pair, parameters)}, value


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return key, value


def _moments(line: Line, zone: tzinfo) -> list[datetime]:
    name, parameters, value = line
    if "TZID" in parameters:
        zone = zone_named(parameters["TZID"].strip('"'))
    return [_moment(name, item, zone) for item in value.split(",")]


def _moment(name: str, text: str, zone: tzinfo) -> datetime:
    text = text.strip().upper()
    try:
        if text.endswith("Z"):
            return datetime.strptime(text[:-1], MOMENT).replace(tzinfo=UTC)
        return datetime.strptime(text if "T" in text else f"{text}T000000", MOMENT).replace(
            tzinfo=zone
        )
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is not a time such as 20260131T090000") from error


def _rule(text: str, start: datetime | None) -> rrule:
    parts = {key.upper(): value for key, value in map(_pair, filter(None, text.split(";")))}
    zone = (start and start.tzinfo) or UTC
    if start is None and "COUNT" in parts:
        raise ValueError("DTSTART: is missing; a rule with a COUNT has to start somewhere")
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
            raise ValueError(f"RRULE: {key!r} is no part of a rule")
    return rrule(**fields)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is not a whole number") from error


def _weekday(name: str, text: str) -> weekday:
    found = re.fullmatch(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", text.strip().upper())
    if found is None or (found[1] and not int(found[1])):
        raise ValueError(f"{name}: {text!r} is not a weekday such as MO, 1FR or -1SU")
    return weekday(DAYS.index(found[2]), int(found[1]) if found[1] else None)


def rule_to_ical(rule: rrule) -> str:
    """The text of a rule, two lines; ``ValueError`` if its zone has no name."""
    return set_to_ical((rule,), (), ())


def set_to_ical(
    rules: Iterable[rrule], rdates: Iterable[datetime], exdates: Iterable[datetime]
) -> str:
    """The text of a set; ``ValueError`` if its rules start apart, or a zone has no name."""
    rules = tuple(rules)
    lines = list(dict.fromkeys(_start(rule) for rule in rules))
    if len(lines) > 1:
        raise ValueError("DTSTART: the rules of the set start apart, which the text cannot say")
    lines += [_rule_line(rule) for rule in rules]
    lines += [_date("RDATE", date) for date in rdates]
    lines += [_date("EXDATE", date) for date in exdates]
    return "\n".join(lines)


def _start(rule: rrule) -> str:
    # A rule reads its start through UTC, see there.
    instant = as_utc(rule.dtstart)
    text = _written("DTSTART", instant, rule.dtstart.tzinfo)
    if instant.astimezone(wall_zone(rule.dtstart.tzinfo or UTC)).fold:
        raise ValueError("DTSTART: comes twice that night, and is the second; start earlier")
    return text


def _date(name: str, moment: datetime) -> str:
    return _written(name, instant_of(moment), moment.tzinfo)


def _written(name: str, instant: datetime, zone: tzinfo | None) -> str:
    zone = wall_zone(zone or UTC)
    key = zone_key(zone) if fixed_offset(zone) != timedelta(0) else "UTC"
    if key is None:
        raise ValueError(f"{name}: the zone {zone!r} has no name; use zoneinfo.ZoneInfo")
    moment = instant.astimezone(zone)
    if key == "UTC" or moment.fold:  # the second of a repeated time can only be told in UTC
        return f"{name}:{instant:{MOMENT}}Z"
    return f"{name};TZID={key}:{moment:{MOMENT}}"


def _rule_line(rule: rrule) -> str:
    parts: dict[str, Any] = {"FREQ": NAMES[rule.freq]}
    if rule.interval != 1:
        parts["INTERVAL"] = rule.interval
    if rule.wkst is not None:
        parts["WKST"] = _day(rule.wkst)
    if rule.count is not None:
        parts["COUNT"] = rule.count
    if rule.until is not None:
        parts["UNTIL"] = f"{rule.until.astimezone(UTC):{MOMENT}}Z"
    if rule.byweekday is not None:
        parts["BYDAY"] = ",".join(map(_day, _listed(rule.byweekday)))
    for key, name in NUMBERS.items():
        if getattr(rule, name) is not None:
            parts[key] = ",".join(map(str, _listed(getattr(rule, name))))
    return "RRULE:" + ";".join(f"{key}={value}" for key, value in parts.items() if value != "")


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _day(day: Any) -> str:
    name = DAYS[getattr(day, "weekday", day)]
    return f"{getattr(day, 'n', None) or ''}{name}"
