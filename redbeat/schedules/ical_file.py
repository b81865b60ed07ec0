"""Refuses what the packages for iCalendar files leave out of them, and what takes them too long.

They have no bound of their own: they go through all occurrences from the start of a rule, and a
rule that never occurs keeps them busy until the year 9999.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from itertools import chain, takewhile
from typing import Any, Final

from redbeat.calendar.daysets import UNIT
from redbeat.calendar.steps import Steps, spend
from redbeat.calendar.walltime import TICK
from redbeat.calendar.zones import as_utc
from redbeat.errors import InvalidEntryError

from .ical import from_ical
from .next_run import latest_run
from .rule import rrule

#: What :exc:`TooManyStepsError` says about the events.
EXPANDING: Final = (
    *("days", "the days of the events"),
    "remove events, or those that repeat more often than daily",
)

#: The steps that the packages take to read a component, and for each time that an event occurs.
COMPONENT, EVENT = 100, 30

#: The characters that they read in a step.
CHARACTERS: Final = 8

MONTH: Final = timedelta(days=28)

#: Matches a line that decides how long it takes to expand the events; long lines are folded.
EXPANDED: Final = re.compile(
    r"""^[^\S\n]*(DTSTART|RRULE|EXRULE|RDATE|EXDATE|END)[^\S\n]*(?:;(?:"[^"\n]*"|[^":\n])*)?:(.*)""",
    re.IGNORECASE | re.MULTILINE,
)
FOLD: Final = re.compile(r"(?:\r?\n)+[ \t]")

#: The components that have days, and those that may be inside of them or describe their zones.
COMPONENTS: Final = ("VCALENDAR", "VEVENT", "VALARM", "VTIMEZONE", "STANDARD", "DAYLIGHT")

#: The properties of an event that decide on its days. An error in another one, such as
#: ``CREATED:00001231T000000Z``, is not reported.
DECIDING: Final = (
    *("", "DTEND", "DTSTART", "DURATION"),
    *("EXDATE", "RDATE", "RECURRENCE-ID", "RRULE", "SEQUENCE"),
)

CANCEL: Final = "CANCEL"
CANCELLED: Final = "CANCELLED"
STATUSES: Final = ("CONFIRMED", "TENTATIVE", CANCELLED)


def decoded(text: str | bytes) -> str:
    """Return the text of an iCalendar file, which is in UTF-8."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def named_offsets(text: str) -> str:
    """Return iCalendar text in which each offset of a custom time zone has a name.

    The packages take a zone whose offsets have no names, such as those of Outlook, for none, and
    move its times to the ``X-WR-TIMEZONE`` of the file. If there is a name, it comes later and
    counts.
    """
    named = r"\g<0>\nTZNAME:\1"
    return re.sub(r"(?im)^BEGIN:(STANDARD|DAYLIGHT)\r?$", named, text.removeprefix("\ufeff"))


def check_events(text: str, begin: datetime, end: datetime) -> None:
    """Raise :exc:`InvalidEntryError` if it takes too long to expand events from begin to end."""
    start, rules = "", list[str]()
    with Steps(about=EXPANDING):
        spend(len(text) // CHARACTERS)
        for name, value in EXPANDED.findall(FOLD.sub("", text)):
            kind = name.upper()
            if kind == "DTSTART":
                start = f"DTSTART:{value.strip()}\n"
            elif kind in ("EXRULE", "RRULE"):
                rules.append(value.strip())
            elif kind in ("EXDATE", "RDATE"):
                spend(value.count(",") * EVENT)
            else:
                spend(COMPONENT)
                for rule in rules:
                    _check_rule(_rule(start, rule), begin, end)
                start, rules = "", []


def _rule(start: str, text: str) -> rrule:
    try:
        rule = from_ical(f"{start}RRULE:{text}")
    except ValueError as error:
        raise InvalidEntryError("days", f"the rule {text!r:.60} is invalid: {error}") from error
    assert isinstance(rule, rrule)
    return rule


def _check_rule(rule: rrule, begin: datetime, end: datetime) -> None:
    endless = rrule(**{**rule.fields(), "count": None, "until": None})
    if endless.occurrence_after(end) is None:
        problem = f"the rule {rule.to_ical()!r:.60} does not occur after {end.year}; remove it"
        raise InvalidEntryError("days", problem)
    start = as_utc(rule.start)
    last = min(end, rule.until or end)
    if rule.count is not None:
        last = latest_run(rule, start - TICK, end) or start
    spend(max((last - start) // UNIT.get(rule.freq, MONTH) // rule.interval, 0))
    for found in takewhile(end.__gt__, rule.rrule):
        spend(EVENT if found >= begin else 1)


def check_complete(parsed: Any, text: str) -> None:
    """Raise ``ValueError``, with line and property, for a part that would be left out.

    ``parsed`` is the calendar that the package ``icalendar`` has read in ``text``.
    """
    problems = (_left_out(component) for component in parsed.walk())
    for name, value, problem in chain(*problems, _left_out_of_series(parsed.walk("VEVENT"))):
        pattern = f"^{re.escape(name)}.*{re.escape(value)}"
        found = name and re.search(pattern, text, re.MULTILINE | re.IGNORECASE)
        line = f"line {text.count(chr(10), 0, found.start()) + 1}: {name}: " if found else ""
        raise ValueError(f"{line}{problem}")


def _left_out(component: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name and the value of each property that would be left out, and the problem."""
    kind = component.name
    if kind not in COMPONENTS and not kind.startswith("X-"):
        yield "BEGIN", kind, f"{kind} has no days; only events (VEVENT) have; remove it"
    for name, problem in component.errors:
        if kind != "VEVENT" or (name or "").upper() in DECIDING:
            yield name or "", str(component.get(name or "", "")), problem
    if str(component.get("METHOD")).upper() == CANCEL:
        yield "METHOD", CANCEL, "the file cancels events; use one with the events"
    if kind == "VEVENT":
        yield from _left_out_of_event(component)


def _left_out_of_event(event: Any) -> Iterator[tuple[str, str, str]]:
    status = str(event.get("STATUS", STATUSES[0]))
    if status.upper() not in STATUSES:
        yield "STATUS", status, f"{status!r:.60} is not one of {', '.join(STATUSES)}"
    if "EXRULE" in event:
        yield "EXRULE", "", "RFC 5545 has removed it; use EXDATE"
    if "DURATION" in event and "DTEND" in event:
        yield "DURATION", "", "is given together with DTEND; remove one of them"
    has_days = not _has_times(event)
    for name, zone, moment in _moments(event):
        if isinstance(moment, time):  # old versions of icalendar read a short date as a time of day
            yield name, "", f"{moment} is not a date"
        if zone and moment.tzinfo is None:
            yield name, zone, f"unknown time zone {zone!r:.60}"
        if name == "EXDATE" and has_days:
            yield name, "", f"{moment} is a time, but DTSTART is a day; use VALUE=DATE"


def _left_out_of_series(events: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what the packages leave out of events with the same ``UID``."""
    series: dict[Any, Any] = {}
    for event in events:
        if "RECURRENCE-ID" in event:
            continue
        first = series.setdefault(event.get("UID", id(event)), event)
        is_version = first.get("SEQUENCE") != event.get("SEQUENCE")
        if first.get("DTSTART") != event.get("DTSTART") and not is_version:
            yield "UID", event["UID"], "is that of several events; give each its own"
    for event in events:
        day = getattr(event.get("RECURRENCE-ID"), "dt", None)
        is_day = day and not isinstance(day, datetime)
        if is_day and _has_times(series.get(event.get("UID"), {})):
            yield "RECURRENCE-ID", "", f"{day} is a day, but the DTSTART of the event is a time"


def _has_times(event: Any) -> bool:
    return isinstance(getattr(event.get("DTSTART"), "dt", None), datetime)


def _moments(event: Any) -> Iterator[tuple[str, str, datetime | time]]:
    """Yield the name, the ``TZID`` and the value of each time in the properties of an event."""
    for name in DECIDING:
        values = event.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            for item in getattr(value, "dts", [value]):
                found = getattr(item, "dt", None)
                moment = found[0] if isinstance(found, tuple) else found
                if isinstance(moment, (datetime, time)):
                    yield name, str(value.params.get("TZID", "")), moment
