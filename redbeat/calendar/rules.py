"""The arguments of a recurrence rule: checked by name, then normalised for searching."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from .daysets import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY
from .recurrence import Recurrence

__all__ = ("FREQUENCIES", "frequency", "positive", "recurrence")

FREQUENCIES = {
    "YEARLY": YEARLY,
    "MONTHLY": MONTHLY,
    "WEEKLY": WEEKLY,
    "DAILY": DAILY,
    "HOURLY": HOURLY,
    "MINUTELY": MINUTELY,
    "SECONDLY": SECONDLY,
}

# Smallest and largest value; where the smallest is negative, counting starts at 1 and -1.
RANGES = {
    "bysetpos": (-366, 366),
    "bymonth": (1, 12),
    "bymonthday": (-31, 31),
    "byyearday": (-366, 366),
    "byweekno": (-53, 53),
    "byeaster": (-366, 366),
    "byhour": (0, 23),
    "byminute": (0, 59),
    "bysecond": (0, 59),
}
WITH_ZERO = frozenset({"byeaster"})
RESTRICT_DAYS = ("byweekno", "byyearday", "bymonthday", "byweekday", "byeaster")

# A count that is not mere multiplication is counted by days; one occurrence after the other where
# the rule leaves out periods or chooses by position.
MAX_COUNTED = 100_000
MAX_WALKED = 2000


def frequency(freq: object) -> int:
    """``freq`` as a number; ``ValueError`` naming the valid values if it is none."""
    if isinstance(freq, str) and freq.upper() in FREQUENCIES:
        return FREQUENCIES[freq.upper()]
    if isinstance(freq, int) and not isinstance(freq, bool) and 0 <= freq <= SECONDLY:
        return int(freq)
    raise ValueError(f"freq: {freq!r} is not one of {', '.join(FREQUENCIES)} or 0 to {SECONDLY}")


def positive(name: str, value: object) -> int:
    """``value`` if it is a whole number above 0, else ``ValueError`` naming it."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise ValueError(f"{name}: {value!r} is not a whole number above 0")


def recurrence(fields: Mapping[str, Any], start: datetime) -> Recurrence:
    """The rule of these constructor arguments; ``ValueError`` naming the one that is wrong.

    ``start`` is ``dtstart`` as a naive wall time. As in RFC 5545, parts that are left out and
    that the frequency does not run through are taken from it.
    """
    freq, by = fields["freq"], {name: _numbers(name, fields[name]) for name in RANGES}
    weekdays, nth = _weekdays("byweekday", fields["byweekday"])
    anchored = all(fields[name] is None for name in RESTRICT_DAYS)
    if anchored and freq == YEARLY and fields["bymonth"] is None:
        by["bymonth"] = (start.month,)
    if anchored and freq <= MONTHLY:
        by["bymonthday"] = (start.day,)
    if anchored and freq == WEEKLY:
        weekdays = (start.weekday(),)
    ignored_nth = tuple(weekday for weekday, _ in nth) if freq > MONTHLY else ()
    plain = all(fields[name] is None for name in (*RANGES, "byweekday"))
    return Recurrence(
        freq=freq,
        interval=fields["interval"],
        start=start,
        wkst=_week_start(fields["wkst"]),
        count=_count(fields, plain and freq >= WEEKLY),
        plain=plain,
        setpos=by["bysetpos"],
        months=by["bymonth"],
        monthdays=by["bymonthday"],
        yeardays=by["byyearday"],
        easter=by["byeaster"],
        weeknos=by["byweekno"],
        weekdays=tuple(sorted({*weekdays, *ignored_nth})),
        nth_weekdays=() if freq > MONTHLY else nth,
        hours=by["byhour"] or ((start.hour,) if freq < HOURLY else ()),
        minutes=by["byminute"] or ((start.minute,) if freq < MINUTELY else ()),
        seconds=by["bysecond"] or ((start.second,) if freq < SECONDLY else ()),
    )


def _count(fields: Mapping[str, Any], computed: bool) -> int | None:
    if fields["count"] is None:
        return None
    number = positive("count", fields["count"])
    every = fields["interval"] == 1 and fields["bysetpos"] is None
    limit = MAX_COUNTED if every else MAX_WALKED
    if number > limit and not computed:
        raise ValueError(f"count: {number} is above {limit}; use 'until' instead")
    return number


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(sorted({_number(name, item) for item in _items(name, value)}))


def _items(name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, int) or hasattr(value, "weekday"):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return value
    raise ValueError(f"{name}: {value!r} is neither a whole number nor a list of them")


def _number(name: str, value: Any) -> int:
    low, high = RANGES[name]
    valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if not valid or (value == 0 and low < 0 and name not in WITH_ZERO):
        without = ", without 0" if low < 0 and name not in WITH_ZERO else ""
        raise ValueError(f"{name}: {value!r} is not a whole number from {low} to {high}{without}")
    return int(value)


def _week_start(wkst: Any) -> int:
    return 0 if wkst is None else _weekday("wkst", wkst)[0]


def _weekdays(name: str, value: Any) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    found = [] if value is None else [_weekday(name, item) for item in _items(name, value)]
    every = {weekday for weekday, nth in found if not nth}
    return tuple(sorted(every)), tuple(sorted({pair for pair in found if pair[1]}))


def _weekday(name: str, value: Any) -> tuple[int, int]:
    """The day and which one of its month or year; 0 for every one."""
    day, nth = getattr(value, "weekday", value), getattr(value, "n", None) or 0
    if isinstance(day, int) and not isinstance(day, bool) and 0 <= day <= 6:
        return int(day), int(nth)
    raise ValueError(f"{name}: {value!r} is not a weekday: 0 (Monday) to 6, or MO to SU")
