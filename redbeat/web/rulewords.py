"""Recurrence rules, and sets of them, in English."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from redbeat.calendar.periods import DAILY, HOURLY, SECONDLY, WEEKLY
from redbeat.calendar.recurrence import Recurrence
from redbeat.calendar.zones import EPOCH, as_utc
from redbeat.presentation.describing import schedule_text
from redbeat.rulesets import rruleset
from redbeat.schedules import rrule
from redbeat.web.clockwords import ALL_HOURS, ALL_MINUTES, clock, in_months, together
from redbeat.web.datewords import dates, place
from redbeat.web.wording import DAYS, Unphrased, joined, moment, numbered, zone_label

__all__ = ("rule_words", "set_words")

UNITS: Final = ("year", "month", "week", "day", "hour", "minute", "second")
#: Times of a day, and dates of a set, that are listed.
FEW_TIMES: Final = 6
FEW_DATES: Final = 3


def rule_words(rule: rrule) -> str:
    """Return what the rule says, with its start and zone; RFC 5545 where that takes too long."""
    try:
        return _phrased(rule)
    except Unphrased:
        return schedule_text(rule)


def set_words(schedule: rruleset) -> str:
    """Return the rules of a set, then the dates, all of them or how many they are."""
    parts = ["; and ".join(map(rule_words, schedule.rrules))] if schedule.rrules else []
    if schedule.rdates:
        more = _some(schedule.rdates, "more date" if parts else "date")
        parts.append(f"and on {more}" if parts else f"on {more}")
    if schedule.exdates:
        parts.append(f"except on {_some(schedule.exdates, 'date')}")
    return "; ".join(parts)


def _some(given: Sequence[datetime], noun: str) -> str:
    found = sorted(set(given))
    if len(found) > FEW_DATES:
        return f"{len(found)} {noun}s"
    return joined([f"{moment(date)} {zone_label(date.tzinfo)}" for date in found if date.tzinfo])


def _phrased(schedule: rrule) -> str:
    rule = schedule._rule
    zone = schedule.dtstart.tzinfo
    if zone is None or (rule.wkst and _counts_weeks(rule)):
        raise Unphrased
    text = _every(rule) if rule.interval > 1 else _plain(rule)
    text += _positions(rule)
    if rule.interval > 1 or rule.count or as_utc(schedule.start) > EPOCH:
        text += f", from {moment(as_utc(schedule.start).astimezone(zone))}"
    if rule.count:
        text += f", {rule.count} times in all" if rule.count > 1 else ", once in all"
    if schedule.until:
        text += f", until {moment(schedule.until.astimezone(zone))}"
    return f"{text}, {zone_label(zone)}"


def _counts_weeks(rule: Recurrence) -> bool:
    weekly = rule.freq == WEEKLY and (rule.interval > 1 or rule.setpos)
    return bool(weekly or rule.weeknos)


def _plain(rule: Recurrence) -> str:
    """Return a rule that leaves out no period: its times on its days."""
    return together(_times(rule), dates(rule), rule.weekdays, rule.months)


def _times(rule: Recurrence) -> str:
    if rule.freq == SECONDLY and not (rule.hours or rule.minutes or rule.seconds):
        return "every second"
    hours, minutes = rule.hours or ALL_HOURS, rule.minutes or ALL_MINUTES
    if rule.seconds == (0,):
        return clock(minutes, hours)
    if not rule.seconds or len(hours) * len(minutes) * len(rule.seconds) > FEW_TIMES:
        raise Unphrased
    listed = [f"{h:02d}:{m:02d}:{s:02d}" for h in hours for m in minutes for s in rule.seconds]
    return f"at {joined(listed)}"


def _every(rule: Recurrence) -> str:
    """Return a rule of every second period or less."""
    every = f"every {rule.interval} {UNITS[rule.freq]}s"
    days = dates(rule)
    if not days:
        season = f"in {in_months(rule.months)}" if 0 < len(rule.months) < 12 else ""
        days = " ".join(filter(None, (_weekdays(rule), season)))
    if rule.freq < HOURLY:
        return " ".join(filter(None, (every, days, _times(rule))))
    return f"{every}{_within(rule)}" + (f", {days}" if days else "")


def _weekdays(rule: Recurrence) -> str:
    if not rule.weekdays:
        return ""
    every = "every " if rule.freq < WEEKLY else ""
    return f"on {every}{joined([DAYS[day] for day in rule.weekdays])}"


def _within(rule: Recurrence) -> str:
    """Return the minutes of a rule of hours; those that its start gives go without saying."""
    start = rule.start
    named = (rule.hours, rule.minutes, rule.seconds)[: rule.freq - DAILY]
    if any(named) or (rule.freq < SECONDLY and rule.seconds != (start.second,)):
        raise Unphrased
    if rule.freq > HOURLY or rule.minutes == (start.minute,):
        return ""
    if start.second:
        raise Unphrased
    return f" at {numbered('minute', rule.minutes)}"


def _positions(rule: Recurrence) -> str:
    if not rule.setpos:
        return ""
    found = joined([f"the {place(number)}" for number in rule.setpos])
    return f", only {found} of these in each {UNITS[rule.freq]}"
