"""Bounds the expansion of the events in iCalendar text, before a library expands them.

The library has no bound of its own: it goes through all occurrences from the start of a rule, and a
rule that never occurs keeps it busy until the year 9999.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import takewhile
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

#: The steps that the library takes to read a component, and for each time that an event occurs.
COMPONENT, EVENT = 100, 30

#: The characters that the library reads in a step.
CHARACTERS = 8

MONTH = timedelta(days=28)


def check_events(
    text: str | bytes, lines_in: Callable[[Any], Iterable[Any]], begin: datetime, end: datetime
) -> None:
    """Raise :exc:`InvalidEntryError` if it takes too long to expand events from begin to end.

    ``lines_in`` is the function of the library that returns the content lines of a text.
    """
    start, rules = "", list[str]()
    with Steps(about=EXPANDING):
        spend(len(text) // CHARACTERS)
        for line in lines_in(text):
            name = re.split("[:;]", line, maxsplit=1)[0].upper()
            if name == "DTSTART":
                start = f"DTSTART:{_value(line)}\n"
            elif name in ("EXRULE", "RRULE"):
                rules.append(_value(line))
            elif name in ("EXDATE", "RDATE"):
                spend(line.count(",") * EVENT)
            elif name == "END" or not line:  # the last line is empty
                spend(COMPONENT)
                for rule in rules:
                    _check_rule(_rule(start, rule), begin, end)
                start, rules = "", []


def _value(line: Any) -> str:
    try:
        value: str = line.parts()[2]
    except ValueError:
        return ""  # the library reads the line in the same way
    return value


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
