"""Numbers, lists, days and times in English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final

from redbeat.calendar.zones import fixed_offset, zone_key

__all__ = (
    "ALL_HOURS",
    "ALL_MINUTES",
    "DAYS",
    "MONTHS",
    "Unphrased",
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
    "together",
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
#: Items of a list that a person still reads.
LONGEST: Final = 8
#: From how many numbers on "1 to 3" or "every 2nd" is said in place of a list.
RUN: Final = 3
STEPS: Final = 4
UNITS: Final = (("day", 86400), ("hour", 3600), ("minute", 60))


class Unphrased(Exception):  # noqa: N818 - what it tells is no error
    """There are no good words for a rule; its own text has to be shown."""


def joined(items: Sequence[str], word: str = "and") -> str:
    """Return ``a, b and c``."""
    *most, last = items
    return f"{', '.join(most)} {word} {last}" if most else last


def plural(count: int, noun: str) -> str:
    """Return ``1 hour`` or ``2 hours``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``11th`` of a number above 0."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= number % 100 <= 20 else endings.get(number % 10, "th")
    return f"{number}{ending}"


def progression(values: Sequence[int]) -> int:
    """Return the step of at least four sorted numbers that are equally far apart, else 0."""
    steps = {after - before for before, after in pairwise(values)}
    return steps.pop() if len(values) >= STEPS and len(steps) == 1 else 0


def numbered(noun: str, values: Sequence[int]) -> str:
    """Return sorted numbers as ``day 1``, ``days 1 to 5 and 9`` or ``every 2nd day from 1 to 31``.

    ``Unphrased`` if the list would be too long.
    """
    step = progression(values)
    if step > 1:
        return f"every {ordinal(step)} {noun} from {values[0]} to {values[-1]}"
    return f"{noun if len(values) == 1 else noun + 's'} {_runs(values, list(map(str, values)))}"


def names(words: Sequence[str], places: Iterable[int]) -> str:
    """Return the words at sorted places as ``March``, ``Monday to Friday and Sunday``."""
    found = list(places)
    return _runs(found, [words[place] for place in found])


def _runs(values: Sequence[int], words: Sequence[str]) -> str:
    """Join words; those of three consecutive values or more become ``first to last``."""
    items: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[end - 1] + 1:
            run = words[start:end]
            items += [f"{run[0]} to {run[-1]}"] if len(run) >= RUN else run
            start = end
    if len(items) > LONGEST:
        raise Unphrased
    return joined(items)


def span(length: timedelta) -> str:
    """Return a duration above 0, exactly: ``hour``, ``2 hours``, ``1 minute and 30.5 seconds``."""
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
    """Return the IANA name of a zone, or ``UTC+05:30``."""
    name, offset = zone_key(zone), fixed_offset(zone)
    if name is not None or offset is None:
        return name or str(zone)
    return _offset(offset)


def _offset(offset: timedelta) -> str:
    if not offset:
        return "UTC"
    sign = "-" if offset < timedelta(0) else "+"
    minutes, seconds = divmod(int(abs(offset).total_seconds()), 60)
    return f"UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}" + (f":{seconds:02d}" * bool(seconds))


def moment(instant: datetime) -> str:
    """Return an aware instant as ``2026-01-01 09:00``, in its own zone, as exactly as it is.

    The zone is left to the caller; of a time that comes twice the offset is told.
    """
    exact = "seconds" if instant.second else "minutes"
    text = instant.replace(tzinfo=None).isoformat(
        " ", "microseconds" if instant.microsecond else exact
    )
    offset = instant.utcoffset() or timedelta(0)
    other = instant.replace(fold=1 - instant.fold).utcoffset()
    return text if other == offset else f"{text} ({_offset(offset)})"


ALL_MINUTES: Final = tuple(range(60))
ALL_HOURS: Final = tuple(range(24))
#: Times of a day that are listed.
FEW: Final = 6
WORKDAYS: Final = (0, 1, 2, 3, 4)


def clock(minutes: Sequence[int], hours: Sequence[int]) -> str:
    """Return the times of a day; both are sorted and not empty.

    It begins with ``at`` where it is a list: ``at 09:00 and 17:00``. ``Unphrased`` if it cannot be
    said in a few words.
    """
    if len(minutes) == 1 and (found := _hourly(minutes[0], hours)):
        return found
    if len(minutes) * len(hours) <= (FEW if len(minutes) == 1 else STEPS):
        return "at " + joined([_time(hour, minute) for hour in hours for minute in minutes])
    if len(hours) == 1 and progression(minutes) == 1 and len(minutes) < 60:
        return f"every minute from {_time(hours[0], minutes[0])} to {_time(hours[0], minutes[-1])}"
    return _of_hours(_of_minutes(minutes), hours)


def _hourly(minute: int, hours: Sequence[int]) -> str:
    """Return words for equally distant hours, one time in each; nothing for others."""
    first, last, size = hours[0], hours[-1], len(hours)
    if size == 24:
        return f"every hour at minute {minute}" if minute else "every hour"
    around = size > 1 and 24 % size == 0 and hours == tuple(range(first, 24, 24 // size))
    if around and (size >= STEPS or first == minute == 0):
        since = f" from {_time(first, minute)}" if first or minute else ""
        return f"every {24 // size} hours{since}"
    step = progression(hours)
    if not step:
        return ""
    every = f"every {step} hours" if step > 1 else "every hour"
    return f"{every} from {_time(first, minute)} to {_time(last, minute)}"


def _of_minutes(minutes: Sequence[int]) -> str:
    size, first = len(minutes), minutes[0]
    if size == 60:
        return "every minute"
    even = size > 1 and 60 % size == 0 and minutes == tuple(range(first, 60, 60 // size))
    if even and first == 0:
        return f"every {60 // size} minutes"
    words = numbered("minute", minutes)
    return words if words.startswith("every") else f"at {words}"


def _of_hours(words: str, hours: Sequence[int]) -> str:
    listed = words.startswith("at ") or " from " in words
    if len(hours) == 24:
        return f"{words} of every hour" if listed else words
    whole = hours == tuple(range(hours[0], hours[-1] + 1))
    if whole and not listed:
        return f"{words} between {_time(hours[0], 0)} and {_time(hours[-1], 59)}"
    return f"{words} of {numbered('hour', hours)}"


def _time(hour: int, minute: int) -> str:
    return f"{hour:02d}:{minute:02d}"


def on_weekdays(weekdays: Sequence[int]) -> str:
    """Return ``on Monday``, or ``Monday to Friday``; Monday is 0."""
    found = names(DAYS, weekdays)
    return found if " to " in found and " and " not in found else f"on {found}"


def only_if(weekdays: Sequence[int]) -> str:
    """Return the restriction of some days to those that are one of these; nothing for none."""
    if not weekdays or len(weekdays) == 7:
        return ""
    return f", but only if a {joined([DAYS[day] for day in weekdays], 'or')}"


def in_months(months: Sequence[int]) -> str:
    """Return ``January and July``; 1 is January."""
    return names(MONTHS, [month - 1 for month in months])


def together(times: str, days: str, weekdays: Sequence[int], months: Sequence[int]) -> str:
    """Return times with the days that they are on.

    ``days`` is what restricts the day of the month or year, with its own months and weekdays, such
    as ``on day 1 of January``. Else the days are those ``weekdays`` of those ``months``, where all
    or none are no restriction.
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
