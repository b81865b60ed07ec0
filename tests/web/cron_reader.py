"""Parses English descriptions of crontabs, as a careful reader understands them.

The parser shares no code with the descriptions, so that the tests detect a wrong phrase.
"""

from __future__ import annotations

import re
from datetime import date
from typing import NamedTuple

__all__ = ("Understood", "understand")

DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
MONTHS = [date(2001, month, 1).strftime("%B") for month in range(1, 13)]
TIME = r"\d\d:\d\d"


class Understood(NamedTuple):
    """The matching minutes of a day, days of the month, months, and weekdays (Sunday is 0)."""

    times: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]


def understand(words: str) -> Understood:
    """Return the meaning of a description; raise `ValueError` for an unknown phrase."""
    days, months, weekdays = set(range(1, 32)), set(range(1, 13)), set(range(7))
    rest = words
    if found := re.search(r", in ([A-Z].*)$", rest):
        months, rest = _listed(found[1], MONTHS, 1), rest[: found.start()]
    if found := re.fullmatch(
        r"(every (?!minute|hour|\d)[\w ,]+?|on .*? of the month) (at .*)", rest
    ):
        on_days, rest = found[1], found[2]
    elif found := re.fullmatch(r"(.*), (every [\w ,]+|on .* of the month)", rest):
        rest, on_days = found[1], found[2]
    else:
        on_days = "every day"
    if found := re.fullmatch(r"on (days? .*) of the month", on_days):
        days = _numbers(found[1])
    elif on_days == "every weekday":
        weekdays = set(range(1, 6))
    elif on_days != "every day":
        weekdays = _listed(on_days.removeprefix("every "), DAYS, 0)
    return Understood(*map(frozenset, (_times(rest), days, months, weekdays)))


def _times(words: str) -> set[int]:
    """Return the minutes of the day."""
    if re.fullmatch(rf"at ({TIME})((, {TIME})* and {TIME})?", words):
        return set(map(_minute, re.findall(TIME, words)))
    if found := re.fullmatch(rf"every hour from ({TIME}) to ({TIME})", words):
        return set(range(_minute(found[1]), _minute(found[2]) + 1, 60))
    if found := re.fullmatch(rf"(.*) between ({TIME}) and ({TIME})", words):
        low, high = _minute(found[2]), _minute(found[3])
        return {at for at in _times(found[1]) if low <= at <= high}
    if found := re.fullmatch(r"every minute|every (\d+) minutes", words):
        return set(range(0, 1440, _divisor(found[1], 60)))
    if found := re.fullmatch(r"every (?:hour|(\d+) hours)(?: at (minutes? .*))?", words):
        minutes = _numbers(found[2]) if found[2] else {0}
        return {hour * 60 + at for hour in range(0, 24, _divisor(found[1], 24)) for at in minutes}
    raise ValueError(words)


def _divisor(text: str | None, size: int) -> int:
    step = int(text or 1)
    if size % step:
        raise ValueError(f"{text}: the last step before {size} is shorter")
    return step


def _numbers(words: str) -> set[int]:
    if not re.fullmatch(r"(minute|day)s? [\dto ,and]+", words):
        raise ValueError(words)
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", words):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _listed(words: str, known: list[str], base: int) -> set[int]:
    places: set[int] = set()
    for item in re.split(r", | and ", words):
        first, _, last = item.partition(" to ")
        low, high = known.index(first), known.index(last or first)
        size = (high - low) % len(known)
        places |= {(low + step) % len(known) + base for step in range(size + 1)}
    return places


def _minute(time: str) -> int:
    hour, minute = time.split(":")
    return int(hour) * 60 + int(minute)
