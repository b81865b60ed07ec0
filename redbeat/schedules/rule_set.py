"""Sets of recurrence rules and dates: RRULE, RDATE and EXDATE of RFC 5545 together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import Any

from dateutil.rrule import rrule as dateutil_rrule
from dateutil.rrule import rruleset as dateutil_rruleset

from redbeat.calendar.ical_text import set_to_ical
from redbeat.calendar.walltime import instant_of
from redbeat.calendar.zones import EPOCH, UTC, as_utc

from .rule import RRULE_FIELDS, TICK, RuleSchedule, rrule

__all__ = (
    "MAX_DATES",
    "MAX_RULES",
    "from_dateutil",
    "rruleset",
)

# What keeps the search for the next occurrence within milliseconds.
MAX_RULES = 4
MAX_DATES = 1000


class rruleset(RuleSchedule):  # noqa: N801 - as dateutil calls it
    """The occurrences of all ``rrules`` and the ``rdates``, without the ``exdates``.

    Each rule is an ``rrule`` of this package. Dates without a zone are UTC; an excluded date
    excludes the occurrence of its instant. An instant that comes from several of them is one
    occurrence. ``ValueError`` naming what is wrong, also for more than ``MAX_RULES`` rules or
    ``MAX_DATES`` dates of a kind.
    """

    def __init__(
        self,
        rrules: Iterable[rrule] = (),
        rdates: Iterable[datetime] = (),
        exdates: Iterable[datetime] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rrules = _rules(rrules)
        self.rdates = _dates("rdates", rdates)
        self.exdates = _dates("exdates", exdates)
        if not self.rrules and not self.rdates:
            raise ValueError("rrules: there is neither a rule nor a date; give one")
        self._dates = tuple(sorted(set(map(instant_of, self.rdates))))
        self._excluded = frozenset(map(instant_of, self.exdates))
        self._beyond: dict[datetime, datetime | None] = {}

    @property
    def start(self) -> datetime:
        """The earliest ``dtstart`` or date, in UTC."""
        starts = [as_utc(rule.dtstart).replace(microsecond=0) for rule in self.rrules]
        return min((*starts, *self._dates[:1]))

    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """The first occurrence after the aware ``after``, or at it if ``inclusive``, in UTC.

        ``None`` when nothing is left, as for ``rrule``.
        """
        moment = as_utc(after) - TICK if inclusive else as_utc(after)
        upcoming = [rule.occurrence_after(moment) for rule in self.rrules]
        skipped: list[datetime] = []
        while (found := self._first(upcoming, moment)) in self._excluded and found is not None:
            if found in self._beyond:
                found = self._beyond[found]
                break
            skipped.append(found)
            moment = found
            upcoming = [
                rule.occurrence_after(moment) if instant == moment else instant
                for rule, instant in zip(self.rrules, upcoming, strict=True)
            ]
        self._beyond.update(dict.fromkeys(skipped, found))
        return found

    def _first(self, upcoming: list[datetime | None], moment: datetime) -> datetime | None:
        dates = self._dates[bisect_right(self._dates, moment) :][:1]
        return min((*dates, *(at for at in upcoming if at is not None)), default=None)

    @cached_property
    def rruleset(self) -> dateutil_rruleset:
        """The same set as an object of ``dateutil``."""
        made = dateutil_rruleset()
        for rule in self.rrules:
            made.rrule(rule.rrule)
        for date in self.rdates:
            made.rdate(date)
        for date in self.exdates:
            made.exdate(date)
        return made

    def to_ical(self) -> str:
        """The text of RFC 5545; ``ValueError`` for what it cannot say.

        That is: rules with different starts, and zones that have no name.
        """
        return set_to_ical(self.rrules, self.rdates, self.exdates)

    def _identity(self) -> tuple[Any, ...]:
        return frozenset(self.rrules), self._dates, self._excluded, self.nowfun

    def __eq__(self, other: object) -> bool:
        if isinstance(other, rruleset):
            return self._identity() == other._identity()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (type(self), self.rrules, self.rdates, self.exdates, self.nowfun)

    def __repr__(self) -> str:
        dates = f"rdates: {len(self.rdates)}, exdates: {len(self.exdates)}"
        return f"<rruleset: rrules: {list(self.rrules)}, {dates}>"


def from_dateutil(recurring: Any) -> rrule | rruleset:
    """The schedule of a ``dateutil`` rule or set; ``ValueError`` for a set with an EXRULE."""
    if isinstance(recurring, dateutil_rrule):
        return _rule_of(recurring)
    if not isinstance(recurring, dateutil_rruleset):
        raise ValueError(f"{recurring!r} is neither an rrule nor an rruleset of dateutil")
    parts: Any = recurring
    if parts._exrule:
        raise ValueError("exrule: EXRULE has left RFC 5545; use exdate")
    return rruleset(map(_rule_of, parts._rrule), parts._rdate, parts._exdate)


def _rule_of(rule: Any) -> rrule:
    given = rule._original_rule
    fields: dict[str, Any] = {name: getattr(rule, f"_{name}", None) for name in RRULE_FIELDS[:6]}
    fields.update({name: given.get(name) for name in RRULE_FIELDS[6:]})
    return rrule(**fields)


def _rules(rules: Iterable[rrule]) -> tuple[rrule, ...]:
    kept = tuple(rules)
    for rule in kept:
        if not isinstance(rule, rrule):
            raise ValueError(f"rrules: {rule!r:.60} is not a redbeat.schedules.rule.rrule")
    if len(kept) > MAX_RULES:
        raise ValueError(f"rrules: there are {len(kept)}; {MAX_RULES} at most")
    return kept


def _dates(name: str, dates: Iterable[datetime]) -> tuple[datetime, ...]:
    kept = tuple(dates)
    if len(kept) > MAX_DATES:
        raise ValueError(f"{name}: there are {len(kept)}; {MAX_DATES} at most")
    return tuple(_date(name, date) for date in kept)


def _date(name: str, date: datetime) -> datetime:
    if not isinstance(date, datetime):
        raise ValueError(f"{name}: {date!r} is not a datetime")
    aware = (date if date.tzinfo else date.replace(tzinfo=UTC)).replace(microsecond=0)
    if aware < EPOCH:
        raise ValueError(f"{name}: {date} is before 1970")
    return aware


def _restore(cls: type[rruleset], rrules: Any, rdates: Any, exdates: Any, nowfun: Any) -> rruleset:
    return cls(rrules, rdates, exdates, nowfun=nowfun)
