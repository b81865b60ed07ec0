"""Reads RFC 5545: the text of a rule, and the events in an iCalendar file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, tzinfo
from itertools import chain
from typing import Any, Final

from dateutil.rrule import DAILY, weekday, weekdays

from redbeat.calendar.recurrence import DAY, RANGES
from redbeat.calendar.steps import bounded
from redbeat.calendar.walltime import TICK
from redbeat.calendar.zones import EPOCH, UTC, time_from, zone_named
from redbeat.errors import InvalidEntryError

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


# -- iCalendar files ---------------------------------------------------------------------------

# The packages for them go through all occurrences from the start of a rule, and a rule that never
# occurs keeps them busy until the year 9999. So what they leave out is refused first.

#: A line with a rule, in unfolded text.
RULE: Final = re.compile(
    r"""^[^\S\n]*(?:RRULE|EXRULE)[^\S\n]*(?:;(?:"[^"\n]*"|[^":\n])*)?:(.*)""",
    re.IGNORECASE | re.MULTILINE,
)
FOLD: Final = re.compile(r"(?:\r?\n)+[ \t]")
ENDS: Final = re.compile(r"(?:COUNT|UNTIL)\s*=[^;]*;?", re.IGNORECASE)

#: The components that have days, and those inside of them or with their time zones.
COMPONENTS: Final = ("VCALENDAR", "VEVENT", "VALARM", "VTIMEZONE", "STANDARD", "DAYLIGHT")

#: The properties that decide on an event's days. An error in another one, such as
#: ``CREATED:00001231T000000Z``, isn't reported.
DECIDING: Final = (
    *("", "DTEND", "DTSTART", "DURATION"),
    *("EXDATE", "RDATE", "RECURRENCE-ID", "RRULE", "SEQUENCE"),
)

#: Events this many years after the current one, or more, are ignored.
YEARS: Final = 10


def events_in(text: str | bytes, now: date) -> list[tuple[date, date]]:
    """Return the first and last day or instant of each event from last year on."""
    try:
        import icalendar  # noqa: PLC0415 - libraries of an extra
        import recurring_ical_events  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError as error:
        problem = "the iCalendar packages are missing; use: pip install 'celery-redbeat[calendars]'"
        raise InvalidEntryError("days", problem) from error
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    begin, end = (date(now.year + years, 1, 1) for years in (-1, YEARS))
    try:
        lines = _named_offsets(text)
        _check_rules(lines)
        # The package would use the zones of one file for later files that name theirs alike.
        zones = icalendar.timezone.tzp
        zones.use("pytz" if zones.uses_pytz() else "zoneinfo")
        parsed = icalendar.Calendar.from_ical(lines)
        _check_complete(parsed, text)
        events = recurring_ical_events.of(parsed).between(begin, end)
        happen = (event for event in events if str(event.get("STATUS")).upper() != "CANCELLED")
        return [_span(event) for event in happen]
    except InvalidEntryError:
        raise
    except Exception as error:  # the iCalendar packages raise errors of many types
        raise InvalidEntryError("days", f"the iCalendar text cannot be read: {error}") from error


def _span(event: Any) -> tuple[date, date]:
    """Return the first and last day or instant of an event; its end in iCalendar is exclusive."""
    start, end = event["DTSTART"].dt, event["DTEND"].dt
    return start, max(start, end - (TICK if isinstance(end, datetime) else DAY))


def _named_offsets(text: str) -> str:
    """Return iCalendar text in which each offset of a custom time zone has a name.

    The packages ignore a zone whose offsets have no names, such as Outlook's, and read its times in
    the file's ``X-WR-TIMEZONE``. If an offset has a name of its own, that comes later and wins.
    """
    named = r"\g<0>\nTZNAME:\1"
    return re.sub(r"(?im)^BEGIN:(STANDARD|DAYLIGHT)\r?$", named, text.removeprefix("\ufeff"))


def _check_rules(text: str) -> None:
    """Refuse a rule, of an event or a time zone, that would take the packages too long."""
    for text_of_rule in RULE.findall(FOLD.sub("", text)):
        problem = ""
        try:
            rule = from_ical(f"RRULE:{ENDS.sub('', text_of_rule)}")
        except ValueError as error:
            problem = f"is invalid: {error}"
        else:
            if isinstance(rule, rrule) and rule.freq > DAILY:
                problem = "repeats more often than daily; remove it"
            elif rule.occurrence_after(EPOCH) is None:
                problem = "never occurs; remove it"
        if problem:
            raise InvalidEntryError("days", f"the rule {text_of_rule.strip()!r:.60} {problem}")


def _check_complete(parsed: Any, text: str) -> None:
    """Raise ``ValueError``, with line and property, for what ``parsed`` lacks of ``text``."""
    problems = (_left_out(component) for component in parsed.walk())
    for name, value, problem in chain(*problems, _left_out_of_series(parsed.walk("VEVENT"))):
        pattern = f"^{re.escape(name)}.*{re.escape(value)}"
        found = name and re.search(pattern, text, re.MULTILINE | re.IGNORECASE)
        line = f"line {text.count(chr(10), 0, found.start()) + 1}: {name}: " if found else ""
        raise ValueError(f"{line}{problem}")


def _left_out(component: Any) -> Iterator[tuple[str, str, str]]:
    kind = component.name
    if kind not in COMPONENTS and not kind.startswith("X-"):
        yield "BEGIN", kind, f"{kind} has no days; only events (VEVENT) have; remove it"
    for name, problem in component.errors:
        if kind != "VEVENT" or (name or "").upper() in DECIDING:
            yield name or "", str(component.get(name or "", "")), problem
    if kind == "VEVENT":
        yield from _left_out_of_event(component)


def _left_out_of_event(event: Any) -> Iterator[tuple[str, str, str]]:
    if "EXRULE" in event:
        yield "EXRULE", "", "RFC 5545 has removed it; use EXDATE"
    has_days = not isinstance(getattr(event.get("DTSTART"), "dt", None), datetime)
    for name, zone, moment in _times_in(event):
        if isinstance(moment, time):  # old versions of icalendar read a short date as a time of day
            yield name, "", f"{moment} is not a date"
        if zone and moment.tzinfo is None:
            yield name, zone, f"unknown time zone {zone!r:.60}"
        if name == "EXDATE" and has_days:
            yield name, "", f"{moment} is a time, but DTSTART is a day; use VALUE=DATE"


def _left_out_of_series(events: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what the packages leave out of several events with the same ``UID``."""
    series: dict[Any, Any] = {}
    for event in events:
        if "RECURRENCE-ID" in event:
            continue
        first = series.setdefault(event.get("UID", id(event)), event)
        is_version = first.get("SEQUENCE") != event.get("SEQUENCE")
        if first.get("DTSTART") != event.get("DTSTART") and not is_version:
            yield "UID", event["UID"], "is that of several events; give each its own"


def _times_in(event: Any) -> Iterator[tuple[str, str, datetime | time]]:
    for name in DECIDING:
        values = event.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            for item in getattr(value, "dts", [value]):
                found = getattr(item, "dt", None)
                moment = found[0] if isinstance(found, tuple) else found
                if isinstance(moment, (datetime, time)):
                    yield name, str(value.params.get("TZID", "")), moment
