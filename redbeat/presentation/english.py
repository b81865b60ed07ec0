"""Formats numbers, lists, days and times in English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Final

from redbeat.calendar.zones import fixed_offset, zone_key

__all__ = (
    "ALL_HOURS",
    "ALL_MINUTES",
    "DAYS",
    "MONTHS",
    "TooComplex",
    "clock",
    "in_months",
    "joined",
    "moment",
    "names",
    "numbered",
    "on_weekdays",
    "only_if",
    "ordinal",
    "plural",
    "progression",
    "span",
    "times_on_days",
    "zone_label",
)

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
#: Maximum number of items in a list.
MAX_ITEMS: Final = 8
#: Minimum length of a sequence of consecutive numbers that is shortened to "1 to 3".
MIN_RANGE: Final = 3
#: Minimum length of a sequence of equally spaced numbers that is shortened to "every 2nd".
MIN_STEPS: Final = 4
UNITS: Final = (("day", 86400), ("hour", 3600), ("minute", 60))


class TooComplex(Exception):  # noqa: N818 - control flow, not an error
    """Raised if a rule is too complex for a short phrase; callers show the rule itself instead."""


def joined(items: Sequence[str], word: str = "and") -> str:
    """Return the items as a list in English: ``a, b and c``."""
    *most, last = items
    return f"{', '.join(most)} {word} {last}" if most else last


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a number with a noun: ``1 hour`` or ``2 hours``; ``nouns`` is an irregular plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def ordinal(number: int) -> str:
    """Return a positive number as an ordinal: ``1st``, ``2nd``, ``11th``."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= number % 100 <= 20 else endings.get(number % 10, "th")
    return f"{number}{ending}"


def progression(values: Sequence[int]) -> int:
    """Return the step of equally spaced numbers, or 0 for irregular or fewer than four numbers."""
    steps = {after - before for before, after in pairwise(values)}
    return steps.pop() if len(values) >= MIN_STEPS and len(steps) == 1 else 0


def numbered(noun: str, values: Sequence[int]) -> str:
    """Return sorted numbers with a noun: ``days 1 to 5 and 9``, ``every 2nd day from 1 to 31``.

    Raises ``TooComplex`` if the list is too long.
    """
    step = progression(values)
    if step > 1:
        return f"every {ordinal(step)} {noun} from {values[0]} to {values[-1]}"
    label = noun if len(values) == 1 else f"{noun}s"
    return f"{label} {_joined_ranges(values, list(map(str, values)))}"


def names(words: Sequence[str], indexes: Iterable[int]) -> str:
    """Return the words at the sorted indexes as a list: ``Monday to Friday and Sunday``."""
    values = list(indexes)
    return _joined_ranges(values, [words[index] for index in values])


def _joined_ranges(values: Sequence[int], words: Sequence[str]) -> str:
    """Return the words for sorted values as a list; raise ``TooComplex`` if it is too long.

    Three or more consecutive values become ``first to last``.
    """
    items: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[end - 1] + 1:
            run = words[start:end]
            items += [f"{run[0]} to {run[-1]}"] if len(run) >= MIN_RANGE else run
            start = end
    if len(items) > MAX_ITEMS:
        raise TooComplex
    return joined(items)


def span(length: timedelta) -> str:
    """Return a duration in the form used after "every": ``hour``, ``1 minute and 30.5 seconds``."""
    rest, parts = length // timedelta(microseconds=1), []
    for unit, size in UNITS:
        count, rest = divmod(rest, size * 1_000_000)
        parts += [plural(count, unit)] if count else []
    seconds = f"{rest // 1_000_000}.{rest % 1_000_000:06d}".rstrip("0").rstrip(".")
    if rest:
        parts.append(f"{seconds} second{'' if seconds == '1' else 's'}")
    single = len(parts) == 1 and parts[0].startswith("1 ")
    return parts[0].removeprefix("1 ") if single else joined(parts)


def zone_label(zone: tzinfo) -> str:
    """Return the IANA name of a time zone, or its UTC offset: ``UTC+05:30``."""
    name, offset = zone_key(zone), fixed_offset(zone)
    if name is not None or offset is None:
        return name or str(zone)
    return str(timezone(offset))


def moment(instant: datetime) -> str:
    """Return an aware instant as wall-clock time, without its time zone: ``2026-01-01 09:00``.

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
#: Maximum number of times in a list: if all times have the same minute, and if minutes differ.
MAX_TIMES: Final = 6
MAX_MIXED_TIMES: Final = 4
WORKDAYS: Final = (0, 1, 2, 3, 4)


def clock(minutes: Sequence[int], hours: Sequence[int]) -> str:
    """Return a phrase for all times of a day with these minutes and hours.

    Both arguments are sorted and not empty. A list of times begins with ``at``:
    ``at 09:00 and 17:00``. Raises ``TooComplex`` if the phrase would be too long.
    """
    if len(minutes) == 1 and (hourly := _hourly(minutes[0], hours)):
        return hourly
    if len(minutes) * len(hours) <= (MAX_TIMES if len(minutes) == 1 else MAX_MIXED_TIMES):
        return "at " + joined([_time(hour, minute) for hour in hours for minute in minutes])
    if len(hours) == 1 and progression(minutes) == 1 and len(minutes) < 60:
        return f"every minute from {_time(hours[0], minutes[0])} to {_time(hours[0], minutes[-1])}"
    return _of_hours(_of_minutes(minutes), hours)


def _hourly(minute: int, hours: Sequence[int]) -> str:
    """Return a phrase for the same minute in equally spaced hours, or "" for irregular hours."""
    first, last, size = hours[0], hours[-1], len(hours)
    if size == 24:
        return f"every hour at minute {minute}" if minute else "every hour"
    # The step divides 24, so the hours are also equally spaced across midnight.
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
    """Return weekdays as ``on Monday`` or ``Monday to Friday``; Monday is 0."""
    text = names(DAYS, weekdays)
    return text if " to " in text and " and " not in text else f"on {text}"


def only_if(weekdays: Sequence[int]) -> str:
    """Return a condition such as ``, but only if a Monday or Friday``.

    Returns "" if there are no weekdays or all seven.
    """
    if not weekdays or len(weekdays) == 7:
        return ""
    return f", but only if a {joined([DAYS[day] for day in weekdays], 'or')}"


def in_months(months: Sequence[int]) -> str:
    """Return months as ``January and July``; January is 1."""
    return names(MONTHS, [month - 1 for month in months])


def times_on_days(times: str, days: str, weekdays: Sequence[int], months: Sequence[int]) -> str:
    """Return a phrase for ``times`` on certain days.

    ``days`` is a phrase such as ``on day 1 of January``. If ``days`` is empty, the runs are on the
    ``weekdays`` in the ``months``; an empty or complete list of either means no restriction. If
    ``days`` is not empty, ``weekdays`` and ``months`` are ignored, because ``days`` includes them.
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
