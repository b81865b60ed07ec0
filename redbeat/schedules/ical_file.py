"""Reads the events of iCalendar files, and refuses what the packages for them leave out.

These packages go through all occurrences from the start of a rule, and a rule that never occurs
keeps them busy until the year 9999.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime, time
from itertools import chain
from typing import Any, Final

from dateutil.rrule import DAILY

from redbeat.calendar.recurrence import DAY
from redbeat.calendar.walltime import TICK
from redbeat.calendar.zones import EPOCH
from redbeat.errors import InvalidEntryError

from .ical import from_ical
from .rule import rrule

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
    for name, zone, moment in _moments(event):
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


def _moments(event: Any) -> Iterator[tuple[str, str, datetime | time]]:
    for name in DECIDING:
        values = event.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            for item in getattr(value, "dts", [value]):
                found = getattr(item, "dt", None)
                moment = found[0] if isinstance(found, tuple) else found
                if isinstance(moment, (datetime, time)):
                    yield name, str(value.params.get("TZID", "")), moment
