"""Sets of recurrence rules and dates (RRULE, RDATE and EXDATE of RFC 5545)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from datetime import date, datetime
from functools import partial
from typing import Any

from dateutil.rrule import rrule as dateutil_rrule
from dateutil.rrule import rruleset as dateutil_rruleset

from redbeat.calendar.ical_text import set_to_ical
from redbeat.calendar.steps import bounded, remembered, spend
from redbeat.calendar.walltime import TICK, instant_of
from redbeat.calendar.zones import EPOCH, as_utc
from redbeat.config import App

from .rule import RRULE_FIELDS, RuleSchedule, aware_moment, rrule

# Rules and dates are limited, so that a search for the next occurrence takes only milliseconds.
MAX_RULES = 4
MAX_DATES = 1000


class rruleset(RuleSchedule):  # noqa: N801 - the name in dateutil
    """A schedule with the occurrences of all ``rrules`` and all ``rdates``, except the ``exdates``.

    Each rule is an ``rrule`` of RedBeat, not of ``dateutil``. Dates without a time zone are
    interpreted as UTC. Dates are compared as instants, not as wall-clock times. If several rules or
    dates contain the same instant, the entry runs once. Raises ``ValueError`` with the name of the
    invalid argument. The maximum is ``MAX_RULES`` rules, ``MAX_DATES`` ``rdates`` and ``MAX_DATES``
    ``exdates``.

    ``nowfun`` and ``app`` have the same meaning as in :class:`celery.schedules.crontab`.
    """

    def __init__(
        self,
        rrules: Iterable[rrule] = (),
        rdates: Iterable[datetime] = (),
        exdates: Iterable[datetime] = (),
        *,
        nowfun: Callable[[], datetime] | None = None,
        app: App | None = None,
    ) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.rrules = _rules(rrules)
        self.rdates = _dates("rdates", rdates)
        self.exdates = _dates("exdates", exdates)
        if not self.rrules and not self.rdates:
            raise ValueError("rrules: there is neither a rule nor a date; give at least one")
        self._dates = tuple(sorted(set(map(instant_of, self.rdates))))
        self._excluded = frozenset(map(instant_of, self.exdates))
        # A cache: excluded instant -> the next occurrence after this instant.
        self._next_after_excluded: dict[Hashable, tuple[datetime | None, int]] = {}

    @property
    def start(self) -> datetime:
        """The earliest of all ``rdates`` and of the ``dtstart`` of all rules, in UTC."""
        starts = [as_utc(rule.dtstart).replace(microsecond=0) for rule in self.rrules]
        return min((*starts, *self._dates[:1]))

    @bounded
    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """Return the first occurrence after the aware datetime ``after``, in UTC.

        If ``inclusive`` is true, the occurrence may also equal ``after``. Returns None if no
        occurrence is left.
        """
        moment = as_utc(after) - TICK if inclusive else as_utc(after)
        first = self._first_after(moment)
        if first not in self._excluded:
            return first
        return remembered(self._next_after_excluded, first, partial(self._skip_excluded, first))

    def _first_after(self, moment: datetime) -> datetime | None:
        spend(1 + len(self._dates) // 64)
        upcoming = [rule.occurrence_after(moment) for rule in self.rrules]
        dates = self._dates[bisect_right(self._dates, moment) :][:1]
        return min((*dates, *(at for at in upcoming if at is not None)), default=None)

    def _skip_excluded(self, first: datetime | None) -> datetime | None:
        while first is not None and first in self._excluded:
            first = self._first_after(first)
        return first

    def may_occur_near(self, day: date) -> bool:
        """Return False if there is surely no occurrence on ``day``, in any time zone."""
        return bool(self._dates) or any(rule.may_occur_near(day) for rule in self.rrules)

    def to_ical(self) -> str:
        """Return the set as RFC 5545 text.

        Raises ``ValueError`` if the rules have different starts or if a time zone has no name,
        because RFC 5545 cannot represent such a set.
        """
        return set_to_ical(self.rrules, self.rdates, self.exdates)

    def fields(self) -> dict[str, Any]:
        """Return the constructor arguments that create an equal set."""
        return {"rrules": self.rrules, "rdates": self.rdates, "exdates": self.exdates}

    def _identity(self) -> tuple[Any, ...]:
        return frozenset(self.rrules), self._dates, self._excluded, self.nowfun

    def __repr__(self) -> str:
        dates = f"rdates: {len(self.rdates)}, exdates: {len(self.exdates)}"
        return f"<rruleset: rrules: {list(self.rrules)}, {dates}>"


def from_dateutil(recurring: dateutil_rrule | dateutil_rruleset) -> rrule | rruleset:
    """Convert an ``rrule`` or ``rruleset`` of ``dateutil`` to an equal schedule of RedBeat.

    Raises ``ValueError`` if ``recurring`` has a different type, or is a set with an EXRULE.
    """
    if isinstance(recurring, dateutil_rrule):
        return _rule_of(recurring)
    given: object = recurring
    if not isinstance(given, dateutil_rruleset):
        raise ValueError(f"{given!r} is neither an rrule nor an rruleset of dateutil")
    parts: Any = given
    if parts._exrule:
        raise ValueError("exrule: RFC 5545 has removed EXRULE; use exdate")
    return rruleset(map(_rule_of, parts._rrule), parts._rdate, parts._exdate)


def _rule_of(rule: Any) -> rrule:
    by_parts = rule._original_rule
    fields: dict[str, Any] = {name: getattr(rule, f"_{name}", None) for name in RRULE_FIELDS[:6]}
    fields.update({name: by_parts.get(name) for name in RRULE_FIELDS[6:]})
    return rrule(**fields)


def _rules(rules: Iterable[rrule]) -> tuple[rrule, ...]:
    checked = tuple(rules)
    for rule in checked:
        if not isinstance(rule, rrule):
            raise ValueError(f"rrules: {rule!r:.60} is not a redbeat.schedules.rule.rrule")
    if len(checked) > MAX_RULES:
        raise ValueError(f"rrules: there are {len(checked)} rules; the maximum is {MAX_RULES}")
    return checked


def _dates(name: str, dates: Iterable[datetime]) -> tuple[datetime, ...]:
    checked = tuple(dates)
    if len(checked) > MAX_DATES:
        raise ValueError(f"{name}: there are {len(checked)} dates; the maximum is {MAX_DATES}")
    return tuple(_date(name, date) for date in checked)


def _date(name: str, date: datetime) -> datetime:
    aware = aware_moment(name, date).replace(microsecond=0)
    if aware < EPOCH:
        raise ValueError(f"{name}: {date} is before 1970")
    return aware
