"""Recurrence rules of RFC 5545 (iCalendar) as schedules, on the clock of a zone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from typing import Any, ClassVar

from celery.schedules import BaseSchedule, schedstate
from dateutil.rrule import rrule as dateutil_rrule

from redbeat.calendar.counting import is_computed, nth_from, number_between
from redbeat.calendar.daysets import UNIT
from redbeat.calendar.ical_text import rule_to_ical
from redbeat.calendar.recurrence import Recurrence
from redbeat.calendar.rules import FREQUENCIES, frequency, positive, recurrence
from redbeat.calendar.walltime import END, TICK, at_offset, next_instant, offset_spans
from redbeat.calendar.zones import (
    EPOCH,
    NAIVE_EPOCH,
    UTC,
    as_utc,
    fixed_offset,
    wall_zone,
    zone_key,
    zone_named,
)
from redbeat.errors import DecodeError

__all__ = (
    "RRULE_FIELDS",
    "TICK",
    "RuleSchedule",
    "ZonedRule",
    "rrule",
    "with_zones",
    "zone_extension",
)

DAY = timedelta(days=1)


@dataclass(frozen=True)
class ZonedRule:
    """The occurrences of ``rule`` on the clock of ``zone``.

    ``start`` is the instant of the rule's own start, in UTC and whole seconds. No occurrence is
    before it, and a ``count`` is one of runs where the rule follows real time; where it names hours
    each of these counts, as each runs once.
    """

    rule: Recurrence
    zone: tzinfo
    start: datetime

    def next_run(self, after: datetime) -> datetime | None:
        """The first occurrence after the aware ``after``, in UTC; ``None`` if none is left."""
        found = next_instant(self._searched, after, self.zone, self.start)
        return None if found is None or found > self._last else found

    @cached_property
    def _repeats(self) -> bool:
        """Whether changes of the clock repeat times of the rule, or leave them out."""
        return self.rule.follows_real_time and fixed_offset(self.zone) is None

    @cached_property
    def _searched(self) -> Recurrence:
        """The rule to search; of one that may repeat, from before the hour that its start is in."""
        if not self._repeats:
            return self.rule
        try:
            step = self.rule.interval * UNIT[self.rule.freq]
            early = self.rule.start - DAY // step * step
        except OverflowError:
            early = self.rule.start
        return replace(self.rule, start=early, count=None)

    @cached_property
    def _last(self) -> datetime:
        """The last run that ``count`` allows, where the rule does not know that itself."""
        if not self._repeats or (count := self.rule.count) is None:
            return END
        return self._computed(count) if is_computed(self.rule) else self._walked(count)

    def _computed(self, left: int) -> datetime:
        for begin, end, offset in offset_spans(self.zone, self.start):
            first = NAIVE_EPOCH + (begin - EPOCH + offset)
            if end < END:
                here = number_between(self.rule, first, NAIVE_EPOCH + (end - EPOCH + offset))
                if left > here:
                    left -= here
                    continue
            try:
                return at_offset(nth_from(self.rule, first, left), offset)
            except OverflowError:
                break
        return END

    def _walked(self, count: int) -> datetime:
        last = self.start - TICK
        for _ in range(count):
            following = next_instant(self._searched, last, self.zone, self.start)
            if following is None:
                break
            last = following
        return last


# The arguments of a rule, in the order of the constructor.
RRULE_FIELDS = (
    "freq",
    "dtstart",
    "interval",
    "wkst",
    "count",
    "until",
    "bysetpos",
    "bymonth",
    "bymonthday",
    "byyearday",
    "byeaster",
    "byweekno",
    "byweekday",
    "byhour",
    "byminute",
    "bysecond",
)

KEEP_TYPES = (int, list, tuple)


#: How long ago a start may be for an entry that is made now to begin with it.
JUST_NOW = timedelta(minutes=1)


class RuleSchedule(BaseSchedule):
    """A schedule that has a start of its own and knows its occurrences."""

    @property
    def start(self) -> datetime:
        """The instant before which there is no occurrence."""
        raise NotImplementedError

    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """The first occurrence after the aware ``after``, or at it if ``inclusive``, in UTC."""
        raise NotImplementedError

    def counts_from(self, now: datetime) -> datetime:
        """The instant from which an entry made at ``now`` counts, in UTC.

        A start that has only just passed, as one that was left out, is not skipped.
        """
        start, now = as_utc(self.start), as_utc(now)
        return start - timedelta.resolution if now - JUST_NOW < start <= now else now

    def remaining_estimate(self, last_run_at: datetime | None) -> timedelta | None:
        """Time from now to the occurrence after ``last_run_at``; ``None`` when finished.

        What has never run (``None``) begins with its first occurrence.
        """
        return self._remaining(last_run_at, as_utc(self.maybe_make_aware(self.now())))

    def _remaining(self, last_run_at: datetime | None, now: datetime) -> timedelta | None:
        if last_run_at is None:
            following = self.occurrence_after(self.start, inclusive=True)
        else:
            following = self.occurrence_after(self.maybe_make_aware(last_run_at))
        return None if following is None else following - now

    def is_due(self, last_run_at: datetime | None) -> schedstate:
        """``(is_due, seconds until the next check)``; the seconds are ``None`` when finished."""
        now = as_utc(self.maybe_make_aware(self.now()))
        remaining = self._remaining(last_run_at, now)
        if remaining is None:
            return schedstate(False, None)
        if remaining > timedelta(0):
            return schedstate(False, remaining.total_seconds())
        following = self._remaining(now, now)
        return schedstate(True, None if following is None else following.total_seconds())


class rrule(RuleSchedule):  # noqa: N801 - the name users import
    """A recurrence rule, with the arguments of ``dateutil.rrule.rrule``.

    ``freq`` is a name of ``FREQ_MAP`` or its number. ``dtstart`` and ``until`` without a zone
    are UTC; ``dtstart`` left out is now. The rule speaks of the wall clock in the zone of
    ``dtstart``, so that 09:00 in New York stays 09:00 there all year; seconds are its smallest
    unit. A wrong argument raises ``ValueError`` naming it.
    """

    FREQ_MAP: ClassVar[dict[str, int]] = FREQUENCIES

    def __init__(
        self,
        freq: int | str,
        dtstart: datetime | None = None,
        interval: int = 1,
        wkst: Any = None,
        count: int | None = None,
        until: datetime | None = None,
        bysetpos: Any = None,
        bymonth: Any = None,
        bymonthday: Any = None,
        byyearday: Any = None,
        byeaster: Any = None,
        byweekno: Any = None,
        byweekday: Any = None,
        byhour: Any = None,
        byminute: Any = None,
        bysecond: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.freq = frequency(freq)
        self.dtstart = self._now() if dtstart is None else _aware("dtstart", dtstart)
        self.interval = positive("interval", interval)
        self.wkst = wkst
        self.count = count
        self.until = None if until is None else _aware("until", until)
        self.bysetpos = _kept(bysetpos)
        self.bymonth = _kept(bymonth)
        self.bymonthday = _kept(bymonthday)
        self.byyearday = _kept(byyearday)
        self.byeaster = _kept(byeaster)
        self.byweekno = _kept(byweekno)
        self.byweekday = _kept(byweekday)
        self.byhour = _kept(byhour)
        self.byminute = _kept(byminute)
        self.bysecond = _kept(bysecond)
        self._zone = wall_zone(self.dtstart.tzinfo or UTC)
        self._rule = self._recurrence()
        self._zoned = ZonedRule(self._rule, self._zone, as_utc(self.start))
        self._ended: datetime | None = None

    def _now(self) -> datetime:
        moment: datetime = self.maybe_make_aware(self.now())
        return moment.replace(microsecond=0)

    def _recurrence(self) -> Recurrence:
        # Through UTC, so that a start that does not exist in its zone becomes one that does.
        start = as_utc(self.dtstart).astimezone(self._zone)
        return recurrence(self.fields(), start.replace(tzinfo=None, microsecond=0, fold=0))

    @property
    def start(self) -> datetime:
        """``dtstart``, in whole seconds."""
        return self.dtstart.replace(microsecond=0)

    def to_ical(self) -> str:
        """The text of RFC 5545, two lines; ``ValueError`` if its zone has no name."""
        return rule_to_ical(self)

    def fields(self) -> dict[str, Any]:
        """The constructor arguments that make an equal rule."""
        return {name: getattr(self, name) for name in RRULE_FIELDS}

    @cached_property
    def rrule(self) -> dateutil_rrule:
        """The same rule as an object of ``dateutil``."""
        until = self.until and self.until.astimezone(self.dtstart.tzinfo)
        return dateutil_rrule(**{**self.fields(), "until": until})

    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """The first occurrence after the aware ``after``, or at it if ``inclusive``, in UTC.

        ``None`` when ``count`` or ``until`` have ended the rule, or when nothing matches for
        about a century. The work is bounded however old ``dtstart`` is; only a ``count``
        together with a ``by`` part is counted from the start, once for each rule.
        """
        since = after - TICK if inclusive else after
        if self._ended is not None and since >= self._ended:
            return None
        found = self._zoned.next_run(since)
        if found is not None and not (self.until and found > self.until):
            return found
        self._ended = since  # a search in vain is the longest one
        return None

    def _identity(self) -> tuple[Any, ...]:
        until = None if self.until is None else as_utc(self.until).replace(microsecond=0)
        offset = fixed_offset(self._zone)
        zone = zone_key(self._zone) if offset is None else offset
        return self._rule, self._zoned.start, until, zone, self.nowfun

    def __eq__(self, other: object) -> bool:
        if isinstance(other, rrule):
            return self._identity() == other._identity()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (type(self), self.fields(), self.nowfun)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}: {value}" for name, value in self.fields().items() if value is not None
        )
        return f"<rrule: {shown}>"


def zone_extension(schedule: object) -> dict[str, str]:
    """The zone names of a rule that its JSON cannot hold: ``dtstart_zone``, ``until_zone``.

    Empty for every other schedule, for fixed offsets and for UTC.
    """
    if not isinstance(schedule, rrule):
        return {}
    zones = {"dtstart_zone": schedule.dtstart, "until_zone": schedule.until}
    keys = {name: moment and _named_zone(moment.tzinfo) for name, moment in zones.items()}
    return {name: key for name, key in keys.items() if key}


def with_zones(schedule: Any, extension: Mapping[str, Any]) -> Any:
    """``schedule`` with the zones that ``zone_extension`` gave; the instants stay the same.

    A schedule that is no rule, or an extension without zones, changes nothing. An unknown zone
    raises ``DecodeError``.
    """
    fields = [name for name in ("dtstart", "until") if extension.get(f"{name}_zone")]
    if not isinstance(schedule, rrule) or not fields:
        return schedule
    changed = schedule.fields()
    for name in fields:
        if changed[name] is not None:
            zone = _extension_zone(f"{name}_zone", extension[f"{name}_zone"])
            changed[name] = changed[name].astimezone(zone)
    return type(schedule)(**changed, nowfun=schedule.nowfun, app=schedule._app)


def _extension_zone(name: str, value: object) -> tzinfo:
    if not isinstance(value, str):
        raise DecodeError(f"schedule.{name}", f"{value!r} is not the name of a time zone")
    try:
        return zone_named(value)
    except ValueError as error:
        raise DecodeError(f"schedule.{name}", str(error)) from error


def _named_zone(zone: tzinfo | None) -> str | None:
    key = zone_key(zone)
    return None if key == "UTC" else key


def _aware(name: str, moment: object) -> datetime:
    if not isinstance(moment, datetime):
        raise ValueError(f"{name}: {moment!r} is not a datetime")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _kept(value: Any) -> Any:
    """``value`` in a form that can be read more than once and stored."""
    if value is None or isinstance(value, KEEP_TYPES) or hasattr(value, "weekday"):
        return value
    return sorted(value) if isinstance(value, (set, frozenset, range)) else _listed(value)


def _listed(value: Any) -> Any:
    return value if isinstance(value, str) or not hasattr(value, "__iter__") else list(value)


def _restore(cls: type[rrule], fields: dict[str, Any], nowfun: Any) -> rrule:
    return cls(**fields, nowfun=nowfun)
