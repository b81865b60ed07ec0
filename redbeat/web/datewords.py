"""The days that a recurrence rule allows, in English."""

from __future__ import annotations

from collections.abc import Sequence

from redbeat.calendar.periods import YEARLY
from redbeat.calendar.recurrence import Recurrence
from redbeat.web.clockwords import in_months, only_if
from redbeat.web.wording import DAYS, Unphrased, joined, numbered, ordinal

__all__ = ("dates", "place")

#: How many nth weekdays or distances from Easter are listed.
FEW = 4


def dates(rule: Recurrence) -> str:
    """Return ``on the first Friday of the month``; nothing if only weekdays and months restrict.

    ``Unphrased`` for what restricts the days in two ways at once, but for weekdays.
    """
    given = [part for part in (rule.monthdays, rule.yeardays, rule.weeknos, rule.easter) if part]
    if len(given) + bool(rule.nth_weekdays) > 1 or (rule.weekdays and rule.nth_weekdays):
        raise Unphrased
    if rule.nth_weekdays:
        return _nth_weekdays(rule)
    if rule.monthdays:
        return f"on {_counted('day', rule.monthdays)} of {_month(rule)}{only_if(rule.weekdays)}"
    if given and rule.months:
        raise Unphrased
    return _of_year(rule)


def _of_year(rule: Recurrence) -> str:
    only = only_if(rule.weekdays)
    if rule.yeardays:
        return f"on {_counted('day', rule.yeardays)} of the year{only}"
    if rule.weeknos:
        return f"on every day of {_counted('week', rule.weeknos)} of the year{only}"
    if rule.easter:
        return f"{_easter(rule.easter)}{only}"
    return ""


def _month(rule: Recurrence) -> str:
    return in_months(rule.months) if 0 < len(rule.months) < 12 else "the month"


def _nth_weekdays(rule: Recurrence) -> str:
    pairs = sorted(rule.nth_weekdays, key=lambda pair: (pair[1] < 0, pair[1], pair[0]))
    if len(pairs) > FEW:
        raise Unphrased
    period = "the year" if rule.freq == YEARLY and not rule.months else _month(rule)
    return f"on {joined([f'the {place(nth)} {DAYS[day]}' for day, nth in pairs])} of {period}"


def _counted(noun: str, numbers: Sequence[int]) -> str:
    """Return numbers of days or weeks, of which those below 0 count from the end."""
    front = [number for number in numbers if number > 0]
    back = [f"the {place(number)} {noun}" for number in reversed(numbers) if number < 0]
    if len(back) > FEW:
        raise Unphrased
    return joined([*([numbered(noun, front)] if front else []), *back])


def _easter(distances: Sequence[int]) -> str:
    if len(distances) > FEW:
        raise Unphrased
    return joined([_from_easter(days) for days in distances])


def _from_easter(days: int) -> str:
    if not days:
        return "on Easter Sunday"
    return f"on the {ordinal(abs(days))} day {'before' if days < 0 else 'after'} Easter Sunday"


def place(number: int) -> str:
    """Return ``first``, ``2nd``, ``last`` or ``2nd last``."""
    if number in (1, -1):
        return "first" if number > 0 else "last"
    return ordinal(number) if number > 0 else f"{ordinal(-number)} last"
