"""Numbers, days and times as English lists that leave nothing open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final

from redbeat.calendar.zones import fixed_offset, zone_key

__all__ = (
    "DAYS",
    "MONTHS",
    "Unphrased",
    "joined",
    "moment",
    "names",
    "numbered",
    "ordinal",
    "plural",
    "progression",
    "span",
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
