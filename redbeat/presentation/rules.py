"""Describes schedules in English, for users who know neither crontabs nor RFC 5545."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Any, Final

from celery.schedules import crontab, schedule, solar

from redbeat.calendar import cron, daysets, recurrence, zones
from redbeat.schedules import next_run, one_time, registry, rule_set
from redbeat.schedules.rule import rrule

from .describe import schedule_text
from .text import quantities

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
#: Maximum number of items that a phrase lists.
MAX_ITEMS: Final = 8
#: Minimum number of consecutive numbers that a phrase shortens to "1 to 3".
MIN_RANGE: Final = 3
#: Minimum number of equally spaced numbers that a phrase shortens to "every 2nd".
MIN_STEPS: Final = 4
SPAN_UNITS: Final = {"d": "day", "h": "hour", "min": "minute", "s": "second"}


class TooComplex(Exception):  # noqa: N818 - control flow, not an error
    """Raised if a rule is too complex for a short phrase; callers show the rule text instead."""


def progression(values: Sequence[int]) -> int:
    """Return the step between equally spaced numbers.

    Returns 0 if the numbers are not equally spaced, or if there are fewer than four numbers.
    """
    steps = {after - before for before, after in pairwise(values)}
    return steps.pop() if len(values) >= MIN_STEPS and len(steps) == 1 else 0


def numbered(noun: str, values: Sequence[int]) -> str:
    """Return sorted numbers with a noun, such as ``days 1 to 5 and 9``.

    Raises ``TooComplex`` if the text would list too many items.
    """
    step = progression(values)
    if step > 1:
        return f"every {ordinal(step)} {noun} from {values[0]} to {values[-1]}"
    label = noun if len(values) == 1 else f"{noun}s"
    return f"{label} {_joined_ranges(values, list(map(str, values)))}"


def names(words: Sequence[str], indexes: Iterable[int]) -> str:
    """Return the words at the sorted indexes as a list, such as ``Monday to Friday and Sunday``."""
    values = list(indexes)
    return _joined_ranges(values, [words[index] for index in values])


def _joined_ranges(values: Sequence[int], words: Sequence[str]) -> str:
    """Return the words for sorted values as a list.

    Three or more consecutive values become ``first to last``.
    """
    items: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[end - 1] + 1:
            run = words[start:end]
            items += [f"{run[0]} to {run[-1]}"] if len(run) >= MIN_RANGE else run
            start = end
    return joined(items)


def span(length: timedelta) -> str:
    """Return a duration as text that can follow "every", such as ``1 minute and 30.5 seconds``."""
    parts = [
        f"{count} {SPAN_UNITS[unit]}{'' if count == '1' else 's'}"
        for count, unit in quantities(length.total_seconds(), 6)
    ]
    single = len(parts) == 1 and parts[0].startswith("1 ")
    return parts[0].removeprefix("1 ") if single else joined(parts)


def zone_label(zone: tzinfo) -> str:
    """Return the IANA name of a time zone, or its UTC offset, such as ``UTC+05:30``."""
    name, offset = zones.zone_key(zone), zones.fixed_offset(zone)
    if name is not None or offset is None:
        return name or str(zone)
    return str(timezone(offset))


def moment(instant: datetime) -> str:
    """Return an aware datetime as text without the time zone, such as ``2026-01-01 09:00``.

    Seconds and microseconds are included if they are not 0. The UTC offset is included if the
    wall-clock time occurs twice, at the end of DST.
    """
    precision = "seconds" if instant.second else "minutes"
    text = instant.replace(tzinfo=None).isoformat(
        " ", "microseconds" if instant.microsecond else precision
    )
    offset = instant.utcoffset() or timedelta(0)
    other_offset = instant.replace(fold=1 - instant.fold).utcoffset()
    return text if other_offset == offset else f"{text} ({timezone(offset)})"


ALL_MINUTES: Final = tuple(range(60))
ALL_HOURS: Final = tuple(range(24))
#: Maximum number of times that a phrase lists.
MAX_TIMES: Final = 6
#: Maximum number of times with different minutes that a phrase lists.
MAX_MIXED_TIMES: Final = 4
WORKDAYS: Final = (0, 1, 2, 3, 4)


def clock(minutes: Sequence[int], hours: Sequence[int]) -> str:
    """Return a phrase for all times of day with a minute in ``minutes`` and an hour in ``hours``.

    ``minutes`` and ``hours`` are sorted and not empty. A phrase that lists times begins with
    ``at``, as in ``at 09:00 and 17:00``. Raises ``TooComplex`` if the phrase would be too long.
    """
    if len(minutes) == 1 and (hourly := _hourly(minutes[0], hours)):
        return hourly
    if len(minutes) * len(hours) <= (MAX_TIMES if len(minutes) == 1 else MAX_MIXED_TIMES):
        return "at " + joined([_time(hour, minute) for hour in hours for minute in minutes])
    if len(hours) == 1 and progression(minutes) == 1 and len(minutes) < 60:
        return f"every minute from {_time(hours[0], minutes[0])} to {_time(hours[0], minutes[-1])}"
    return _of_hours(_of_minutes(minutes), hours)


def _hourly(minute: int, hours: Sequence[int]) -> str:
    """Return a phrase for one minute in equally spaced hours, or "" if the hours are irregular."""
    first, last, size = hours[0], hours[-1], len(hours)
    if size == 24:
        return f"every hour at minute {minute}" if minute else "every hour"
    # If the step divides 24, the hours are also equally spaced across midnight.
    all_day = size > 1 and 24 % size == 0 and hours == tuple(range(first, 24, 24 // size))
    if all_day and (size >= MIN_STEPS or first == minute == 0):
        start = f" from {_time(first, minute)}" if first or minute else ""
        return f"every {24 // size} hours{start}"
    step = progression(hours)
    if not step:
        return ""
    every = f"every {step} hours" if step > 1 else "every hour"
    return f"{every} from {_time(first, minute)} to {_time(last, minute)}"


def _of_minutes(minutes: Sequence[int]) -> str:
    size, first = len(minutes), minutes[0]
    if size == 60:
        return "every minute"
    regular = size > 1 and 60 % size == 0 and minutes == tuple(range(first, 60, 60 // size))
    if regular and first == 0:
        return f"every {60 // size} minutes"
    words = numbered("minute", minutes)
    return words if words.startswith("every") else f"at {words}"


def _of_hours(words: str, hours: Sequence[int]) -> str:
    listed = words.startswith("at ") or " from " in words
    if len(hours) == 24:
        return f"{words} of every hour" if listed else words
    consecutive = hours == tuple(range(hours[0], hours[-1] + 1))
    if consecutive and not listed:
        return f"{words} between {_time(hours[0], 0)} and {_time(hours[-1], 59)}"
    return f"{words} of {numbered('hour', hours)}"


def _time(hour: int, minute: int) -> str:
    return f"{hour:02d}:{minute:02d}"


def on_weekdays(weekdays: Sequence[int]) -> str:
    """Return weekdays as ``on Monday`` or ``Monday to Friday``; the number of Monday is 0."""
    text = names(DAYS, weekdays)
    return text if " to " in text and " and " not in text else f"on {text}"


def only_if(weekdays: Sequence[int]) -> str:
    """Return a condition such as ``, but only if a Monday or Friday``.

    Returns "" if ``weekdays`` is empty or contains all seven days.
    """
    if not weekdays or len(weekdays) == 7:
        return ""
    return f", but only if a {joined([DAYS[day] for day in weekdays], 'or')}"


def in_months(months: Sequence[int]) -> str:
    """Return months as ``January and July``; the number of January is 1."""
    return names(MONTHS, [month - 1 for month in months])


def times_on_days(times: str, days: str, weekdays: Sequence[int], months: Sequence[int]) -> str:
    """Return a phrase for runs at ``times`` on certain days.

    ``days`` is a phrase such as ``on day 1 of January``. If ``days`` is empty, the runs are on the
    ``weekdays`` in the ``months``. An empty or complete list of weekdays or months restricts
    nothing. If ``days`` is not empty, ``weekdays`` and ``months`` are ignored, because the phrase
    ``days`` already contains the weekdays and months.
    """
    listed = times.startswith("at ") and "minute" not in times
    if days:
        return f"{times}{'' if listed else ','} {days}"
    season = f", in {in_months(months)}" if 0 < len(months) < 12 else ""
    if not weekdays or len(weekdays) == 7:
        return f"every day {times}{season}" if listed else f"{times}{season}"
    if not listed:
        return f"{times}, {on_weekdays(weekdays)}{season}"
    if tuple(weekdays) == WORKDAYS:
        return f"every weekday {times}{season}"
    every = on_weekdays(weekdays)
    return f"{every.replace('on ', 'every ', 1)} {times}{season}"


def dates(rule: recurrence.Recurrence) -> str:
    """Return the days of a rule in English, such as ``on the first Friday of the month``.

    Returns "" if the rule restricts the days only by weekdays and months. Raises ``TooComplex`` for
    days and weeks of the year and days around Easter, which are rare, and for nth weekdays together
    with other days.
    """
    days = rule.days
    if days.yeardays or days.weeknos or days.easter:
        raise TooComplex
    if days.nth_weekdays:
        return _nth_weekdays(rule)
    if days.monthdays:
        return f"on {_monthdays(days.monthdays)} of {_month(days.months)}{only_if(days.weekdays)}"
    return ""


def _month(months: Sequence[int]) -> str:
    return in_months(months) if 0 < len(months) < 12 else "the month"


def _nth_weekdays(rule: recurrence.Recurrence) -> str:
    allowed = rule.days
    pairs = sorted(allowed.nth_weekdays, key=lambda pair: (pair[1] < 0, pair[1], pair[0]))
    if allowed.weekdays or allowed.monthdays:
        raise TooComplex
    in_year = rule.freq == daysets.YEARLY and not allowed.months
    days = joined([f"the {position_name(nth)} {DAYS[day]}" for day, nth in pairs])
    return f"on {days} of {'the year' if in_year else _month(allowed.months)}"


def _monthdays(numbers: Sequence[int]) -> str:
    front = [number for number in numbers if number > 0]
    back = [f"the {position_name(number)} day" for number in reversed(numbers) if number < 0]
    return joined([*([numbered("day", front)] if front else []), *back])


def position_name(number: int) -> str:
    """Return a position in English, such as ``first``, ``2nd``, ``last`` or ``2nd last``."""
    if number in (1, -1):
        return "first" if number > 0 else "last"
    return ordinal(number) if number > 0 else f"{ordinal(-number)} last"


UNITS: Final = ("year", "month", "week", "day", "hour", "minute", "second")
#: Maximum number of dates of a rule set that a phrase lists.
MAX_DATES: Final = 3


def rule_words(rule: rrule) -> str:
    """Return a rule in English with its start and time zone, or a complex rule as RFC 5545."""
    try:
        return _rule_phrase(rule)
    except TooComplex:
        return schedule_text(rule)


def set_words(schedule: rule_set.rruleset) -> str:
    """Return the rules and dates of a rule set in English.

    If there are many dates, the text contains only the number of dates.
    """
    parts = ["; and ".join(map(rule_words, schedule.rrules))] if schedule.rrules else []
    if schedule.rdates:
        added = _dates_or_count(schedule.rdates, "more date" if parts else "date")
        parts.append(f"and on {added}" if parts else f"on {added}")
    if schedule.exdates:
        parts.append(f"except on {_dates_or_count(schedule.exdates, 'date')}")
    return "; ".join(parts)


def _dates_or_count(dates: Sequence[datetime], noun: str) -> str:
    unique = sorted(set(dates))
    if len(unique) > MAX_DATES:
        return f"{len(unique)} {noun}s"
    return joined([f"{moment(date)} {zone_label(date.tzinfo)}" for date in unique if date.tzinfo])


def _rule_phrase(schedule: rrule) -> str:
    rule, zone = schedule._rule, schedule.dtstart.tzinfo or zones.UTC
    counts_weeks = rule.freq == daysets.WEEKLY and (rule.interval > 1 or rule.setpos)
    if rule.wkst and counts_weeks:
        raise TooComplex
    if rule.interval > 1:
        text = _every(rule)
    else:
        text = times_on_days(_times(rule), dates(rule), rule.days.weekdays, rule.days.months)
    if rule.setpos:
        positions = joined([f"the {position_name(number)}" for number in rule.setpos])
        text += f", only {positions} of these in each {UNITS[rule.freq]}"
    if rule.interval > 1 or schedule.count or zones.as_utc(schedule.start) > zones.EPOCH:
        text += f", from {moment(zones.as_utc(schedule.start).astimezone(zone))}"
    if schedule.count:
        text += f", {schedule.count} times in all" if schedule.count > 1 else ", once in all"
    if schedule.until:
        text += f", until {moment(schedule.until.astimezone(zone))}"
    return f"{text}, {zone_label(zone)}"


def _times(rule: recurrence.Recurrence) -> str:
    if rule.freq == daysets.SECONDLY and not (rule.hours or rule.minutes or rule.seconds):
        return "every second"
    if rule.seconds != (0,):
        raise TooComplex
    return clock(rule.minutes or ALL_MINUTES, rule.hours or ALL_HOURS)


def _every(rule: recurrence.Recurrence) -> str:
    """Return the phrase for an interval above 1, such as ``every 2 weeks on Monday at 09:00``."""
    every = f"every {rule.interval} {UNITS[rule.freq]}s"
    days = dates(rule)
    if not days:
        season = f"in {in_months(rule.days.months)}" if 0 < len(rule.days.months) < 12 else ""
        days = " ".join(filter(None, (_weekdays(rule), season)))
    if rule.freq < daysets.HOURLY:
        return " ".join(filter(None, (every, days, _times(rule))))
    minutes = (rule.start.minute,) if rule.freq < daysets.MINUTELY else ()
    seconds = (rule.start.second,) if rule.freq < daysets.SECONDLY else ()
    if (rule.hours, rule.minutes, rule.seconds) != ((), minutes, seconds):
        raise TooComplex
    return every + (f", {days}" if days else "")


def _weekdays(rule: recurrence.Recurrence) -> str:
    if not rule.days.weekdays:
        return ""
    every = "every " if rule.freq < daysets.WEEKLY else ""
    return f"on {every}{joined([DAYS[day] for day in rule.days.weekdays])}"


ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall-clock time


def _crontab(when: Any, timezone: str | None) -> str:
    """Return a crontab in English, or its five fields if the crontab is too complex."""
    # RedBeat cannot use the package cron-descriptor, because in Celery both the day of the month
    # and the day of the week must match.
    if cron.cron_rule(when).next_wall(ANY_DAY) is None:
        return _in_zone(f"never: no time matches {schedule_text(when)}", timezone)
    try:
        return _in_zone(_cron_phrase(when), timezone)
    except TooComplex:
        return _in_zone(schedule_text(when), timezone)


def _cron_phrase(when: crontab) -> str:
    weekdays = sorted((day - 1) % 7 for day in when.day_of_week)  # Sunday is 0 in Celery
    days, months = sorted(when.day_of_month), sorted(when.month_of_year)
    on_days = ""
    if len(days) < 31:
        on_days = f"on {numbered('day', days)} of {_month(months)}{only_if(weekdays)}"
    times = clock(tuple(sorted(when.minute)), tuple(sorted(when.hour)))
    return times_on_days(times, on_days, weekdays, months)


#: The units to which Celery rounds the runs of relative intervals, the longest unit first.
ROUNDED = (
    (timedelta(days=1), "midnight"),
    (timedelta(hours=1), "the full hour"),
    (timedelta(minutes=1), "the full minute"),
)


def in_words(schedule: Any, timezone: str | None = None) -> str:
    """Return a schedule in English, without a capital letter and without a full stop.

    ``timezone`` is the IANA name of the time zone for crontabs and ``clocked`` times; an rrule has
    its own time zone. The text contains the time zone if the runs depend on the time zone. For a
    custom schedule, the text is the ``repr`` or the name of its type. Raises ``ValueError`` for a
    ``clocked`` schedule if ``timezone`` is unknown.
    """
    if next_run.asks_itself(schedule):
        return _custom(schedule)
    return next(words for cls, words in WORDS if isinstance(schedule, cls))(schedule, timezone)


def _interval(when: Any, timezone: str | None) -> str:
    every: timedelta = max(when.run_every, next_run.MIN_EVERY)
    text = f"every {span(every)}"
    unit = next((unit for size, unit in ROUNDED if every >= size), None)
    if not when.relative or unit is None:
        return text
    return _in_zone(f"{text}, rounded down to {unit}", timezone)


def _solar(when: Any, _timezone: str | None) -> str:
    first, _, kind = when.event.partition("_")
    event = "solar noon" if first == "solar" else f"{kind} {first}".strip()
    latitude = _degrees(when.lat, "N", "S")
    return f"at every {event} at {latitude}, {_degrees(when.lon, 'E', 'W')}"


def _degrees(angle: Any, above: str, below: str) -> str:
    number = float(angle)
    return f"{abs(number)}".removesuffix(".0") + f"° {below if number < 0 else above}"


def _clocked(when: one_time.clocked, timezone: str | None) -> str:
    time = when.clocked_time
    local = time.astimezone(zones.zone_named(timezone)) if timezone else time
    return f"once, at {moment(local)}, {timezone or zone_label(time.tzinfo or zones.UTC)}"


def _in_zone(text: str, timezone: str | None) -> str:
    return f"{text}, {timezone}" if timezone else text


def _custom(when: Any) -> str:
    cls: Any = type(when)
    if cls.__repr__ is not object.__repr__:
        return repr(when)
    registered = registry.of_class(cls)
    return f"custom schedule {registered.tag if registered else cls.__qualname__}"


WORDS: tuple[tuple[type, Callable[[Any, str | None], str]], ...] = (
    (schedule, _interval),
    (crontab, _crontab),
    (solar, _solar),
    (one_time.clocked, _clocked),
    (rrule, lambda when, _timezone: rule_words(when)),
    (rule_set.rruleset, lambda when, _timezone: set_words(when)),
)


def joined(items: Sequence[str], word: str = "and") -> str:
    """Return the items as a list in English, such as ``a, b and c``.

    Raises ``TooComplex`` if there are too many items.
    """
    if len(items) > MAX_ITEMS:
        raise TooComplex
    *most, last = items
    return f"{', '.join(most)} {word} {last}" if most else last


def ordinal(number: int) -> str:
    """Return a positive number as an ordinal, such as ``1st``, ``2nd`` or ``11th``."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= number % 100 <= 20 else endings.get(number % 10, "th")
    return f"{number}{ending}"
