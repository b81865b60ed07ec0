"""Times of the day and days of the year in English: what crontabs and rules have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redbeat.web.wording import (
    DAYS,
    MONTHS,
    STEPS,
    joined,
    names,
    numbered,
    progression,
)

__all__ = ("ALL_HOURS", "ALL_MINUTES", "clock", "in_months", "on_weekdays", "only_if", "together")

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
