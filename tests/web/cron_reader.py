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
ON_DAYS = r",? on (days? [\w ,]+?|every \w+ day [\w ]+?) of ([A-Z].*|the month)$"
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
    if found := re.search(r", but only if a (.*)$", rest):
        weekdays, rest = _listed(found[1], DAYS, 0), rest[: found.start()]
    if found := re.search(ON_DAYS, rest):
        days, rest = _numbers(found[1]), rest[: found.start()]
        months = months if found[2] == "the month" else _listed(found[2], MONTHS, 1)
    if found := re.search(r", in ([A-Z].*)$", rest):
        months, rest = _listed(found[1], MONTHS, 1), rest[: found.start()]
    if found := re.search(r", (?:on )?([A-Z][a-zA-Z ,]*)$", rest):
        weekdays, rest = _listed(found[1], DAYS, 0), rest[: found.start()]
    if found := re.match(r"every day (?=at)", rest):
        rest = rest[found.end() :]
    if found := re.match(r"every weekday (?=at)", rest):
        weekdays, rest = set(range(1, 6)), rest[found.end() :]
    if found := re.match(r"(?:every )?([A-Z][a-zA-Z ,]*?) (?=at)", rest):
        weekdays, rest = _listed(found[1], DAYS, 0), rest[found.end() :]
    return Understood(*map(frozenset, (_times(rest), days, months, weekdays)))


def _times(words: str) -> set[int]:
    if re.fullmatch(rf"at ({TIME})((, {TIME})* and {TIME})?", words):
        return set(map(_minute, re.findall(TIME, words)))
    found = _spaced(words)
    return _limited(words) if found is None else found


def _spaced(words: str) -> set[int] | None:
    """Return times at equal intervals, as minutes of the day; None for other phrases."""
    if found := re.fullmatch(rf"every minute from ({TIME}) to ({TIME})", words):
        return set(range(_minute(found[1]), _minute(found[2]) + 1))
    if found := re.fullmatch(rf"every (hour|\d+ hours) from ({TIME}) to ({TIME})", words):
        return set(range(_minute(found[2]), _minute(found[3]) + 1, 60 * _leading(found[1])))
    if found := re.fullmatch(rf"every (\d+) hours(?: from ({TIME}))?", words):
        first = _minute(found[2] or "00:00")
        return {at % 1440 for at in range(first, first + 1440, 60 * int(found[1]))}
    if found := re.fullmatch(r"every hour(?: at minute (\d+))?", words):
        return {hour * 60 + int(found[1] or 0) for hour in range(24)}
    return None


def _limited(words: str) -> set[int]:
    """Return the minutes of the day for a phrase that limits the hours."""
    if found := re.fullmatch(rf"(.*) between ({TIME}) and ({TIME})", words):
        low, high = _minute(found[2]), _minute(found[3])
        return {at for at in _within(found[1]) if low <= at <= high}
    if found := re.fullmatch(r"(.*) of (hours? .*|every \w+ hour .*)", words):
        hours = _numbers(found[2])
        return {at for at in _within(found[1]) if at // 60 in hours}
    return _within(words.removesuffix(" of every hour"))


def _within(words: str) -> set[int]:
    """Return the minutes of the day for a phrase about the minutes of each hour."""
    if words == "every minute":
        minutes = set(range(60))
    elif found := re.fullmatch(r"every (\d+) minutes", words):
        step = int(found[1])
        if 60 % step:
            raise ValueError(f"{words}: and then an hour begins")
        minutes = set(range(0, 60, step))
    else:
        minutes = _numbers(words.removeprefix("at "))
    return {hour * 60 + minute for hour in range(24) for minute in minutes}


def _numbers(words: str) -> set[int]:
    if found := re.fullmatch(r"every (\d+)(?:st|nd|rd|th) \w+ from (\d+) to (\d+)", words):
        return set(range(int(found[2]), int(found[3]) + 1, int(found[1])))
    if not re.fullmatch(r"(minute|hour|day)s? [\dto ,and]+", words):
        raise ValueError(words)
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", words):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _listed(words: str, known: list[str], base: int) -> set[int]:
    places: set[int] = set()
    for item in re.split(r", | and | or ", words):
        first, _, last = item.partition(" to ")
        low, high = known.index(first), known.index(last or first)
        size = (high - low) % len(known)
        places |= {(low + step) % len(known) + base for step in range(size + 1)}
    return places


def _minute(time: str) -> int:
    hour, minute = time.split(":")
    return int(hour) * 60 + int(minute)


def _leading(words: str) -> int:
    return 1 if words == "hour" else int(words.split(maxsplit=1)[0])
