"""Validate and normalise the arguments of a recurrence rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, get_args

from dateutil.rrule import HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY

from .recurrence import Recurrence, shared_days

Name = Literal["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]
Lower = Literal["yearly", "monthly", "weekly", "daily", "hourly", "minutely", "secondly"]
#: The names of the frequencies in RFC 5545, in upper and lower case.
Frequency = Literal[Name, Lower]

#: The number of each frequency, from ``YEARLY`` to ``SECONDLY``, as in dateutil.
FREQUENCIES = {name: number for number, name in enumerate(get_args(Name))}

# The smallest and the largest valid value of each argument. If the smallest value is negative, 0 is
# invalid, except for the arguments in WITH_ZERO.
RANGES = {
    "bysetpos": (-366, 366),
    "bymonth": (1, 12),
    "bymonthday": (-31, 31),
    "byyearday": (-366, 366),
    "byeaster": (-366, 366),
    "byweekno": (-53, 53),
    "byhour": (0, 23),
    "byminute": (0, 59),
    "bysecond": (0, 59),
}
WITH_ZERO = frozenset({"byeaster"})  # arguments for which 0 is also valid
RESTRICT_DAYS = ("byweekno", "byyearday", "bymonthday", "byweekday", "byeaster")


def frequency(freq: object) -> int:
    """Return the number of a frequency; raise ``ValueError`` if ``freq`` is not a frequency."""
    if isinstance(freq, str) and freq.upper() in FREQUENCIES:
        return FREQUENCIES[freq.upper()]
    if isinstance(freq, int) and not isinstance(freq, bool) and 0 <= freq <= SECONDLY:
        return int(freq)
    raise ValueError(f"freq: {freq!r} is not one of {', '.join(FREQUENCIES)} or 0 to {SECONDLY}")


def positive(name: str, value: object) -> int:
    """Return ``value``, or raise ``ValueError`` if ``value`` is not an integer above 0.

    The error message begins with ``name``.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise ValueError(f"{name}: {value!r} is not an integer above 0")


def recurrence(fields: Mapping[str, Any], start: datetime) -> Recurrence:
    """Return the rule for ``fields``, which are the constructor arguments of an ``rrule``.

    ``start`` is the argument ``dtstart`` as a naive wall-clock time. As in RFC 5545, missing
    arguments are taken from ``start``; for example, a daily rule without hours runs at the time of
    ``start``. Raises ``ValueError`` with a message that names the invalid argument.
    """
    freq, by = fields["freq"], {name: _numbers(name, fields[name]) for name in RANGES}
    weekdays, nth = _weekdays("byweekday", fields["byweekday"])
    day_of_start = all(fields[name] is None for name in RESTRICT_DAYS)
    if day_of_start and freq == YEARLY and fields["bymonth"] is None:
        by["bymonth"] = (start.month,)
    if day_of_start and freq <= MONTHLY:
        by["bymonthday"] = (start.day,)
    if day_of_start and freq == WEEKLY:
        weekdays = (start.weekday(),)
    wkst = 0 if fields["wkst"] is None else _weekday("wkst", fields["wkst"])[0]
    ignored_nth = tuple(weekday for weekday, _ in nth) if freq > MONTHLY else ()
    return Recurrence(
        freq=freq,
        interval=fields["interval"],
        start=start,
        wkst=wkst,
        plain=all(fields[name] is None for name in (*RANGES, "byweekday")),
        setpos=by["bysetpos"],
        days=shared_days(
            freq=freq,
            wkst=wkst,
            months=by["bymonth"],
            monthdays=by["bymonthday"],
            yeardays=by["byyearday"],
            easter=by["byeaster"],
            weeknos=by["byweekno"],
            weekdays=tuple(sorted({*weekdays, *ignored_nth})),
            nth_weekdays=() if freq > MONTHLY else nth,
        ),
        hours=by["byhour"] or ((start.hour,) if freq < HOURLY else ()),
        minutes=by["byminute"] or ((start.minute,) if freq < MINUTELY else ()),
        seconds=by["bysecond"] or ((start.second,) if freq < SECONDLY else ()),
    )


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(sorted({_number(name, item) for item in _items(name, value)}))


def _items(name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, int) or hasattr(value, "weekday"):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return value
    raise ValueError(f"{name}: {value!r} is neither an integer nor a list of integers")


def _number(name: str, value: Any) -> int:
    low, high = RANGES[name]
    valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if not valid or (value == 0 and low < 0 and name not in WITH_ZERO):
        without = ", without 0" if low < 0 and name not in WITH_ZERO else ""
        raise ValueError(f"{name}: {value!r} is not an integer from {low} to {high}{without}")
    return int(value)


def _weekdays(name: str, value: Any) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    pairs = [] if value is None else [_weekday(name, item) for item in _items(name, value)]
    every = {weekday for weekday, nth in pairs if not nth}
    return tuple(sorted(every)), tuple(sorted({pair for pair in pairs if pair[1]}))


def _weekday(name: str, value: Any) -> tuple[int, int]:
    """Return the pair (weekday, n), which means the ``n``-th ``weekday`` of a month or year.

    The pair ``(weekday, 0)`` means every ``weekday`` of the month or year.
    """
    day, nth = getattr(value, "weekday", value), getattr(value, "n", None) or 0
    if isinstance(day, int) and not isinstance(day, bool) and 0 <= day <= 6:
        return int(day), int(nth)
    raise ValueError(f"{name}: {value!r} is not a weekday; use 0 (Monday) to 6, or MO to SU")
