"""Describes schedules in English, for users who know neither crontabs nor RFC 5545.

There are words for what people write: intervals, times of day, weekdays, days of the month and
months. Any other rule is shown as its own text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from celery.schedules import crontab, schedule, solar
from dateutil.rrule import HOURLY, WEEKLY, YEARLY

from redbeat.calendar import recurrence, zones
from redbeat.calendar.cron import cron_rule
from redbeat.presentation.cron_text import NAMES
from redbeat.printing import plural
from redbeat.schedules import next_run
from redbeat.schedules.rule import clocked, rrule, rruleset

from .rule_text import schedule_text
from .text import quantities

SUNDAY, *OTHER_DAYS = map(str.title, NAMES["day_of_week"])
DAYS: Final = (*OTHER_DAYS, SUNDAY)
MONTHS: Final = tuple(map(str.title, NAMES["month_of_year"]))
UNITS: Final = ("year", "month", "week", "day", "hour", "minute", "second")
LONG_UNITS: Final = {"d": "day", "h": "hour", "min": "minute", "s": "second"}
#: Positions in a month; -1 is the last one.
POSITIONS: Final = {1: "first", 2: "2nd", 3: "3rd", 4: "4th", 5: "5th", -1: "last"}
#: Maximum numbers of items and of times of day in a phrase.
MAX_ITEMS: Final = 8
MAX_TIMES: Final = 6
#: From this many on, consecutive numbers are written as "1 to 3".
MIN_RANGE: Final = 3


class TooComplex(Exception):  # noqa: N818 - control flow, not an error
    """Raised if no short phrase describes a rule; the rule's text is shown instead."""


# -- lists and times -------------------------------------------------------------------------------


def joined(items: Sequence[str]) -> str:
    """Return a list such as ``a, b and c``; raise ``TooComplex`` if it's too long."""
    if len(items) > MAX_ITEMS:
        raise TooComplex
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def ranges(values: Sequence[int], word_of: Callable[[int], str] = str) -> str:
    """Return sorted numbers as a list of words, such as ``Monday to Friday and Sunday``."""
    items: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[end - 1] + 1:
            run = [word_of(value) for value in values[start:end]]
            items += [f"{run[0]} to {run[-1]}"] if len(run) >= MIN_RANGE else run
            start = end
    return joined(items)


def numbered(noun: str, values: Sequence[int]) -> str:
    """Return sorted numbers with a noun, such as ``days 1 to 5 and 9``."""
    return f"{noun}{'' if len(values) == 1 else 's'} {ranges(values)}"


def positioned(number: int, noun: str) -> str:
    """Return a phrase such as ``the 2nd Friday``; raise ``TooComplex`` for a rare position."""
    if number not in POSITIONS:
        raise TooComplex
    return f"the {POSITIONS[number]} {noun}"


def every(number: int | str, unit: str) -> str:
    """Return a phrase such as ``every 5 minutes`` or ``every hour``."""
    return f"every {unit}" if str(number) == "1" else f"every {number} {unit}s"


def zone_label(zone: tzinfo) -> str:
    """Return the IANA name of a time zone, or its UTC offset, such as ``UTC+05:30``."""
    return zones.zone_key(zone) or str(zone)


def moment(instant: datetime) -> str:
    """Return ``2026-01-01 09:00``, with seconds and microseconds only if they aren't 0.

    The UTC offset says which one it is, if the wall-clock time occurs twice at the end of DST.
    """
    text = instant.replace(tzinfo=None).isoformat(" ").removesuffix(":00")
    offset = instant.utcoffset() or timedelta(0)
    other_offset = instant.replace(fold=1 - instant.fold).utcoffset()
    return text if other_offset == offset else f"{text} ({timezone(offset)})"


# -- times of day, days and months -----------------------------------------------------------------


def clock(minutes: Sequence[int], hours: Sequence[int]) -> str:
    """Return a phrase for all times with one of the ``minutes`` and one of the ``hours``.

    Both are sorted and not empty. A phrase that lists times begins with ``at``, as in ``at 09:00
    and 17:00``. Raises ``TooComplex`` unless the times are few, or hours at the same minutes, or
    equally spaced minutes of consecutive hours.
    """
    minute_step, hour_step = _step(minutes, 60), _step(hours, 24)
    if minute_step and hour_step == 1:
        return every(minute_step, "minute")
    if hour_step and len(minutes) <= MAX_TIMES:
        at = "" if tuple(minutes) == (0,) else f" at {numbered('minute', minutes)}"
        return every(hour_step, "hour") + at
    if len(minutes) * len(hours) <= MAX_TIMES:
        return "at " + joined([f"{hour:02d}:{minute:02d}" for hour in hours for minute in minutes])
    first, last = hours[0], hours[-1]
    if len(hours) == last - first + 1:
        if len(minutes) == 1:
            return f"every hour from {first:02d}:{minutes[0]:02d} to {last:02d}:{minutes[0]:02d}"
        if minute_step:
            return f"{every(minute_step, 'minute')} between {first:02d}:00 and {last:02d}:59"
    raise TooComplex


def _step(values: Sequence[int], size: int) -> int:
    """Return the step between two or more values that divide 0 to ``size`` equally, else 0."""
    step = size // len(values)
    return step if len(values) > 1 and tuple(values) == tuple(range(0, size, step)) else 0


def days(weekdays: Sequence[int], monthdays: Sequence[int]) -> str:
    """Return a phrase such as ``every Monday and Friday`` or ``on day 1 of the month``.

    Monday is 0, and the last day of a month is -1. Returns "" if both are empty; raises
    ``TooComplex`` if neither is.
    """
    if monthdays and weekdays:
        raise TooComplex
    if monthdays:
        front = [number for number in monthdays if number > 0]
        back = [positioned(number, "day") for number in monthdays if number < 0]
        listed = joined([*([numbered("day", front)] if front else []), *back])
        return f"on {listed} of the month"
    if tuple(weekdays) == (0, 1, 2, 3, 4):
        return "every weekday"
    return f"every {ranges(weekdays, DAYS.__getitem__)}" if weekdays else ""


def phrase(times: str, on_days: str, months: Iterable[int]) -> str:
    """Join phrases; no ``on_days`` means every day, no ``months`` (1 to 12) every month."""
    if times.startswith("at "):
        text = f"{on_days or 'every day'} {times}"
    else:
        text = f"{times}, {on_days}" if on_days else times
    season = sorted(months)
    if not 0 < len(season) < len(MONTHS):
        return text
    return f"{text}, in {ranges(season, lambda month: MONTHS[month - 1])}"


# -- types of schedules ----------------------------------------------------------------------------


def in_words(schedule: Any, timezone: str | None = None) -> str:
    """Return a schedule in English, without a capital letter and without a full stop.

    ``timezone`` is the IANA name of the time zone for crontabs and ``clocked`` times; an rrule has
    its own. The text names the time zone if the runs depend on it. A custom schedule is its
    ``repr``, or the name of its type. Raises ``ValueError`` for an unknown ``timezone`` of a
    ``clocked`` schedule.
    """
    if next_run.asks_itself(schedule):
        cls: Any = type(schedule)
        has_repr = cls.__repr__ is not object.__repr__
        return repr(schedule) if has_repr else f"custom schedule {cls.__qualname__}"
    words = next(words for cls, words in WORDS.items() if isinstance(schedule, cls))
    try:
        text = words(schedule, timezone)
    except TooComplex:
        text = schedule_text(schedule)
    return f"{text}, {timezone}" if timezone and isinstance(schedule, crontab) else text


def _interval(when: Any, _timezone: str | None) -> str:
    seconds = max(when.run_every, next_run.MIN_EVERY).total_seconds()
    (count, unit), *more = quantities(seconds, 6)
    if when.relative or more:
        raise TooComplex
    return every(count, LONG_UNITS[unit])


ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall-clock time


def _crontab(when: crontab, _timezone: str | None) -> str:
    # The package cron-descriptor won't do: in Celery, both the day of the month and the day of the
    # week must match.
    if cron_rule(when).next_wall(ANY_DAY) is None:
        return f"never: no time matches {schedule_text(when)}"
    weekdays = sorted((day - 1) % 7 for day in when.day_of_week)  # Sunday is 0 in Celery
    monthdays = sorted(when.day_of_month)
    on_days = days(
        weekdays if len(weekdays) < len(DAYS) else (), monthdays if len(monthdays) < 31 else ()
    )
    return phrase(clock(sorted(when.minute), sorted(when.hour)), on_days, when.month_of_year)


def _clocked(when: clocked, timezone: str | None) -> str:
    time = when.clocked_time
    local = time.astimezone(zones.zone_named(timezone)) if timezone else time
    return f"once, at {moment(local)}, {timezone or zone_label(time.tzinfo or zones.UTC)}"


def _rule(when: rrule, _timezone: str | None) -> str:
    rule, zone = when._rule, when.dtstart.tzinfo or zones.UTC
    text = phrase(_rule_times(rule), _rule_days(rule), rule.days.months)
    if rule.interval > 1 and rule.freq < HOURLY:
        text += f", only {every(rule.interval, UNITS[rule.freq])}"
    if rule.interval > 1 or when.count or zones.as_utc(when.start) > zones.EPOCH:
        text += f", from {moment(zones.as_utc(when.start).astimezone(zone))}"
    if when.count:
        text += f", {plural(when.count, 'run')} in all"
    if when.until:
        text += f", until {moment(when.until.astimezone(zone))}"
    return f"{text}, {zone_label(zone)}"


def _rule_times(rule: recurrence.Recurrence) -> str:
    steps = rule.freq >= HOURLY and rule.interval > 1
    if steps and rule.plain:
        return every(rule.interval, UNITS[rule.freq])
    if steps or rule.seconds != (0,):
        raise TooComplex
    return clock(rule.minutes or range(60), rule.hours or range(24))


def _rule_days(rule: recurrence.Recurrence) -> str:
    allowed = rule.days
    in_year = rule.freq == YEARLY and not allowed.months
    starts_week = rule.wkst and rule.freq == WEEKLY and rule.interval > 1
    if rule.setpos or allowed.yeardays or allowed.weeknos or allowed.easter or starts_week:
        raise TooComplex
    if not allowed.nth_weekdays:
        return days(allowed.weekdays, allowed.monthdays)
    if allowed.weekdays or allowed.monthdays or in_year:
        raise TooComplex
    pairs = sorted(allowed.nth_weekdays, key=lambda pair: (pair[1] < 0, pair[1], pair[0]))
    listed = joined([positioned(nth, DAYS[day]) for day, nth in pairs])
    return f"on {listed} of the month"


def _rule_set(when: rruleset, timezone: str | None) -> str:
    parts = [_rule(rule, timezone) for rule in when.rrules]
    if when.rdates:
        parts.append(f"on {plural(len(set(when.rdates)), 'date')}")
    text = "; and ".join(parts)
    return f"{text}; except on {plural(len(set(when.exdates)), 'date')}" if when.exdates else text


WORDS: Final[dict[type, Callable[[Any, str | None], str]]] = {
    schedule: _interval,
    crontab: _crontab,
    solar: lambda when, _timezone: schedule_text(when),
    clocked: _clocked,
    rrule: _rule,
    rruleset: _rule_set,
}
