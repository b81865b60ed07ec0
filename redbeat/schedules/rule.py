"""Schedules with a start: RFC 5545 rules in a time zone, sets of rules and dates, an instant."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta, tzinfo
from functools import cached_property, partial
from inspect import signature
from typing import Any, ClassVar

from celery.schedules import BaseSchedule, schedstate
from dateutil.relativedelta import weekday
from dateutil.rrule import rrule as dateutil_rrule
from dateutil.rrule import rruleset as dateutil_rruleset

from redbeat.calendar import recurrence, walltime, zones
from redbeat.calendar.recurrence import DAY, UNIT, Frequency, Recurrence
from redbeat.calendar.steps import bounded, spend
from redbeat.config import App
from redbeat.errors import DecodeError

#: Steps of a search in a rule, without those for its periods and days.
SEARCH = 12

MOMENT = "%Y%m%dT%H%M%S"

#: A run at the start of a schedule is still due for this long after the start.
START_GRACE = timedelta(minutes=1)

# Limits of a set, so that a search takes only milliseconds.
MAX_RULES = 4
MAX_DATES = 1000


class RuleSchedule(BaseSchedule):
    """Base class of schedules that have a start and compute their own occurrences."""

    @property
    def start(self) -> datetime:
        """The start, as an aware datetime. No occurrence is before it."""
        raise NotImplementedError

    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """Return the first occurrence after the aware datetime ``after``, in UTC, or None.

        With ``inclusive``, the occurrence may also equal ``after``.
        """
        raise NotImplementedError

    def counts_from(self, now: datetime) -> datetime:
        """Return the UTC instant after which the runs of an entry created at ``now`` are due.

        That's usually ``now``. If ``start`` is less than a minute ago, it's just before ``start``,
        so that the run at ``start`` is still due.
        """
        start, now = zones.as_utc(self.start), zones.as_utc(now)
        return start - timedelta.resolution if now - START_GRACE < start <= now else now

    def remaining_estimate(self, last_run_at: datetime | None) -> timedelta | None:
        """Return the time from now to the occurrence after ``last_run_at``; None if there is none.

        For a ``last_run_at`` of None (the entry never ran), that's the first occurrence of all.
        """
        if last_run_at is None:
            following = self.occurrence_after(self.start, inclusive=True)
        else:
            following = self.occurrence_after(self.maybe_make_aware(last_run_at))
        now = zones.as_utc(self.maybe_make_aware(self.now()))
        return None if following is None else following - now

    def is_due(self, last_run_at: datetime | None) -> schedstate:
        """Return (is_due, seconds until the next check), as Celery's schedules do.

        The seconds are None if no occurrence is left.
        """
        remaining = self.remaining_estimate(last_run_at)
        is_due = remaining is not None and remaining <= timedelta(0)
        if is_due:
            remaining = self.remaining_estimate(self.now())
        return schedstate(is_due, None if remaining is None else remaining.total_seconds())

    def fields(self) -> dict[str, Any]:
        """Return the constructor arguments that create an equal schedule."""
        raise NotImplementedError

    def _identity(self) -> tuple[Any, ...]:
        """Return a value that is equal for equal schedules only."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RuleSchedule):
            return self._identity() == other._identity()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return partial(type(self), **self.fields(), nowfun=self.nowfun), ()


class rrule(RuleSchedule):  # noqa: N801 - the name users import
    """A recurrence rule, with the arguments of ``dateutil.rrule.rrule``.

    ``freq`` is a key or a value of ``FREQ_MAP``. ``dtstart`` defaults to the current time; it and
    ``until`` are in UTC if they have no time zone. The rule uses wall-clock time in the time zone
    of ``dtstart``: a run at 09:00 in New York stays at 09:00 in summer and winter. Microseconds are
    ignored. Raises ``ValueError`` with the name of the invalid argument.

    ``byweekday`` and ``wkst`` accept numbers from 0 (Monday) to 6, and the weekdays of
    ``dateutil``, such as ``MO``. ``nowfun`` and ``app`` have the same meaning as in
    :class:`celery.schedules.crontab`.
    """

    FREQ_MAP: ClassVar[dict[str, int]] = recurrence.FREQUENCIES

    def __init__(
        self,
        freq: int | Frequency,
        dtstart: datetime | None = None,
        interval: int = 1,
        wkst: int | weekday | None = None,
        count: int | None = None,
        until: datetime | None = None,
        bysetpos: int | Iterable[int] | None = None,
        bymonth: int | Iterable[int] | None = None,
        bymonthday: int | Iterable[int] | None = None,
        byyearday: int | Iterable[int] | None = None,
        byeaster: int | Iterable[int] | None = None,
        byweekno: int | Iterable[int] | None = None,
        byweekday: int | weekday | Iterable[int | weekday] | None = None,
        byhour: int | Iterable[int] | None = None,
        byminute: int | Iterable[int] | None = None,
        bysecond: int | Iterable[int] | None = None,
        *,
        nowfun: Callable[[], datetime] | None = None,
        app: App | None = None,
    ) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.freq = recurrence.frequency(freq)
        self.dtstart = aware_moment("dtstart", self._now() if dtstart is None else dtstart)
        self.interval = recurrence.positive("interval", interval)
        self.wkst = wkst
        self.count = None if count is None else recurrence.positive("count", count)
        self.until = None if until is None else aware_moment("until", until)
        self.bysetpos = _storable(bysetpos)
        self.bymonth = _storable(bymonth)
        self.bymonthday = _storable(bymonthday)
        self.byyearday = _storable(byyearday)
        self.byeaster = _storable(byeaster)
        self.byweekno = _storable(byweekno)
        self.byweekday = _storable(byweekday)
        self.byhour = _storable(byhour)
        self.byminute = _storable(byminute)
        self.bysecond = _storable(bysecond)
        self._zone = zones.wall_zone(self.dtstart.tzinfo or zones.UTC)
        # To UTC and back: a start that DST skips becomes a time that exists.
        self._start = zones.as_utc(self.start)
        wall = self._start.astimezone(self._zone).replace(tzinfo=None, fold=0)
        self._rule = recurrence.recurrence(self.fields(), wall)

    def _now(self) -> datetime:
        moment: datetime = self.maybe_make_aware(self.now())
        return moment.replace(microsecond=0)

    @property
    def start(self) -> datetime:
        return self.dtstart.replace(microsecond=0)

    def to_ical(self) -> str:
        """Return the rule as RFC 5545 text with two lines, ``DTSTART`` and ``RRULE``.

        Raises ``ValueError`` if the time zone of ``dtstart`` has no name.
        """
        return rruleset((self,)).to_ical()

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in RRULE_FIELDS}

    @cached_property
    def rrule(self) -> dateutil_rrule:
        until = self.until and self.until.astimezone(self.dtstart.tzinfo)
        return dateutil_rrule(**{**self.fields(), "until": until})

    @bounded
    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """Return the first occurrence after the aware datetime ``after``, in UTC.

        With ``inclusive``, the occurrence may also equal ``after``. Returns None once ``count`` or
        ``until`` has ended the rule, and if no time matches within about a century. A ``dtstart``
        long ago slows down only the first search, and only of a rule with both ``count`` and a
        ``by`` argument.
        """
        spend(SEARCH)
        occurrence = self._search(after - walltime.TICK if inclusive else after)
        last = min(self._last, self.until or walltime.END)
        return occurrence if occurrence is not None and occurrence <= last else None

    def _search(self, after: datetime) -> datetime | None:
        return walltime.next_instant(self._searched, after, self._zone, self._start)

    @cached_property
    def _depends_on_dst(self) -> bool:
        return self._rule.follows_real_time and zones.fixed_offset(self._zone) is None

    @cached_property
    def _searched(self) -> Recurrence:
        """The rule in which occurrences are searched.

        If the start is in an hour that DST repeats, a later instant can have an earlier wall-clock
        time. So where DST can repeat occurrences, the searched rule starts up to a day earlier.
        """
        if not self._depends_on_dst:
            return self._rule
        try:
            step = self._rule.interval * UNIT[self._rule.freq]
            early = self._rule.start - DAY // step * step
        except OverflowError:
            early = self._rule.start
        return replace(self._rule, start=early)

    @cached_property
    def _last(self) -> datetime:
        count = self.count
        if count is None:
            return walltime.END
        step = UNIT.get(self._rule.freq) if self._rule.plain else None
        try:
            if step is None:
                return self._walk(count)
            if self._depends_on_dst:
                return self._count_steps(count, step * self._rule.interval)
            wall = self._rule.start + (count - 1) * self._rule.interval * step
            return max(walltime.instant_of(wall.replace(tzinfo=self._zone)), self._start)
        except OverflowError:  # it would be after the year 9999
            return walltime.END

    def _count_steps(self, left: int, step: timedelta) -> datetime:
        # While the UTC offset is constant, each wall-clock time is exactly one instant, so the
        # instants can be counted as wall-clock times.
        for begin, end, offset in walltime.offset_spans(self._zone, self._start):
            wall = zones.NAIVE_EPOCH + (begin - zones.EPOCH + offset)
            first = walltime.at_offset(wall + (self._rule.start - wall) % step, offset)
            in_span = max(-((first - end) // step), 0)
            if left <= in_span or end == walltime.END:
                return first + (left - 1) * step
            left -= in_span
        return walltime.END

    def _walk(self, count: int) -> datetime:
        last = self._start - walltime.TICK
        for _ in range(count):
            spend(SEARCH)
            following = self._search(last)
            if following is None:
                break
            last = following
        return last

    def may_occur_near(self, day: date) -> bool:
        """Return False if there's surely no occurrence on ``day``, in any time zone."""
        days = self._rule.days
        return any(near in days for near in (day, day - DAY, day + DAY))

    def _identity(self) -> tuple[Any, ...]:
        until = None if self.until is None else zones.as_utc(self.until).replace(microsecond=0)
        offset = zones.fixed_offset(self._zone)
        zone = zones.zone_key(self._zone) if offset is None else offset
        return self._rule, self._start, self.count, until, zone, self.nowfun

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}: {value}" for name, value in self.fields().items() if value is not None
        )
        return f"<rrule: {fields}>"


RRULE_FIELDS = tuple(signature(rrule).parameters)[:-2]


class rruleset(RuleSchedule):  # noqa: N801 - the name in dateutil
    """A schedule with the occurrences of all ``rrules`` and all ``rdates``, except the ``exdates``.

    Each rule is an ``rrule`` of RedBeat, not of ``dateutil``. Dates without a time zone are in UTC.
    Dates are compared as instants, not as wall-clock times. If several rules or dates contain the
    same instant, the entry runs once. A set has at most ``MAX_RULES`` rules, ``MAX_DATES``
    ``rdates`` and ``MAX_DATES`` ``exdates``. Raises ``ValueError`` with the name of the invalid
    argument.

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
        self._dates = tuple(sorted(set(map(walltime.instant_of, self.rdates))))
        self._excluded = frozenset(map(walltime.instant_of, self.exdates))
        self._next_after_excluded: dict[datetime, datetime | None] = {}

    @property
    def start(self) -> datetime:
        starts = [zones.as_utc(rule.dtstart).replace(microsecond=0) for rule in self.rrules]
        return min((*starts, *self._dates[:1]))

    @bounded
    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        moment = zones.as_utc(after) - walltime.TICK if inclusive else zones.as_utc(after)
        first = self._first_after(moment)
        if first is None or first not in self._excluded:
            return first
        if first not in self._next_after_excluded:
            self._next_after_excluded[first] = self._skip_excluded(first)
        return self._next_after_excluded[first]

    def _first_after(self, moment: datetime) -> datetime | None:
        spend(1 + len(self._dates) // 64)
        upcoming = [rule.occurrence_after(moment) for rule in self.rrules]
        dates = self._dates[bisect_right(self._dates, moment) :][:1]
        return min((*dates, *(at for at in upcoming if at is not None)), default=None)

    def _skip_excluded(self, excluded: datetime) -> datetime | None:
        following = self._first_after(excluded)
        while following is not None and following in self._excluded:
            following = self._first_after(following)
        return following

    def may_occur_near(self, day: date) -> bool:
        return bool(self._dates) or any(rule.may_occur_near(day) for rule in self.rrules)

    def to_ical(self) -> str:
        """Return the set as RFC 5545 text.

        Raises ``ValueError`` for what RFC 5545 can't represent: rules with different starts, and a
        time zone without a name.
        """
        lines = list(dict.fromkeys(map(_start_line, self.rrules)))
        if len(lines) > 1:
            raise ValueError("DTSTART: the rules of the set must have the same start")
        lines += map(_rule_line, self.rrules)
        for name, dates in (("RDATE", self.rdates), ("EXDATE", self.exdates)):
            lines += [_moment_line(name, walltime.instant_of(at), at.tzinfo) for at in dates]
        return "\n".join(lines)

    def fields(self) -> dict[str, Any]:
        return {"rrules": self.rrules, "rdates": self.rdates, "exdates": self.exdates}

    def _identity(self) -> tuple[Any, ...]:
        return frozenset(self.rrules), self._dates, self._excluded, self.nowfun

    def __repr__(self) -> str:
        dates = f"rdates: {len(self.rdates)}, exdates: {len(self.exdates)}"
        return f"<rruleset: rrules: {list(self.rrules)}, {dates}>"


def _start_line(rule: rrule) -> str:
    # To UTC and back: a start that DST skips becomes a time that exists.
    line = _moment_line("DTSTART", zones.as_utc(rule.dtstart), rule.dtstart.tzinfo)
    if rule._start.astimezone(rule._zone).fold:
        raise ValueError(
            "DTSTART: the start is the second of two equal wall-clock times at the end of DST; "
            "use another start"
        )
    return line


def _moment_line(name: str, instant: datetime, zone: tzinfo | None) -> str:
    zone = zones.wall_zone(zone or zones.UTC)
    key = zones.zone_key(zone) if zones.fixed_offset(zone) != timedelta(0) else "UTC"
    if key is None:
        raise ValueError(f"{name}: the time zone {zone!r} has no name; use zoneinfo.ZoneInfo")
    moment = instant.astimezone(zone)
    if key == "UTC" or moment.fold:  # RFC 5545 has no fold, so write the time in UTC
        return f"{name}:{instant:{MOMENT}}Z"
    return f"{name};TZID={key}:{moment:{MOMENT}}"


def _rule_line(rule: rrule) -> str:
    # dateutil refuses some intervals, writes UNTIL without a time zone, and has another default of
    # WKST than RFC 5545.
    own = {"interval": 1, "until": None, "wkst": rule.wkst or 0}
    line = str(dateutil_rrule(**{**rule.fields(), **own})).splitlines()[-1]
    line = line.replace("+", "")  # dateutil writes +1FR
    if rule.interval != 1:
        line += f";INTERVAL={rule.interval}"
    if rule.until is not None:
        line += f";UNTIL={rule.until.astimezone(zones.UTC):{MOMENT}}Z"
    return line


def from_dateutil(recurring: dateutil_rrule | dateutil_rruleset) -> rrule | rruleset:
    """Convert an ``rrule`` or ``rruleset`` of ``dateutil`` to an equal schedule of RedBeat.

    Raises ``ValueError`` for anything else, and for a set with an EXRULE.
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
    if aware < zones.EPOCH:
        raise ValueError(f"{name}: {date} is before 1970")
    return aware


class clocked(RuleSchedule):  # noqa: N801 - the name users import
    """A schedule that runs once, at ``clocked_time``.

    An entry whose ``clocked_time`` is in the past runs at once, if it hasn't run since then. A
    naive ``clocked_time`` is in UTC. Raises ``ValueError`` if it isn't a datetime or is before
    1970. ``nowfun`` and ``app`` have the same meaning as in :class:`celery.schedules.crontab`.
    """

    def __init__(
        self,
        clocked_time: datetime,
        *,
        nowfun: Callable[[], datetime] | None = None,
        app: App | None = None,
    ) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.clocked_time = aware_moment("clocked_time", clocked_time)
        self._instant = walltime.instant_of(self.clocked_time)
        if self._instant < zones.EPOCH:
            raise ValueError(f"clocked_time: {self.clocked_time} is before 1970")

    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        moment = zones.as_utc(after)
        is_ahead = self._instant > moment or (inclusive and self._instant == moment)
        return self._instant if is_ahead else None

    @property
    def start(self) -> datetime:
        return self._instant

    def counts_from(self, now: datetime) -> datetime:
        """Return the UTC instant after which the runs of a new entry are due.

        It's before ``clocked_time``, so that an entry that is created later still runs.
        """
        return min(zones.as_utc(now), self._instant - timedelta.resolution)

    def fields(self) -> dict[str, Any]:
        return {"clocked_time": self.clocked_time}

    def _identity(self) -> tuple[Any, ...]:
        return self._instant, self.nowfun

    def __repr__(self) -> str:
        return f"<clocked: {self.clocked_time}>"


def zone_extension(schedule: object) -> dict[str, str]:
    """Return a rule's time zone names, as a dict with ``dtstart_zone`` and ``until_zone``.

    They are stored on their own, because RedBeat 2 has only UTC offsets in the JSON of a rule. The
    dict is empty for rules in UTC or with a fixed UTC offset, and for schedules that aren't an
    ``rrule``.
    """
    if not isinstance(schedule, rrule):
        return {}
    moments = {"dtstart_zone": schedule.dtstart, "until_zone": schedule.until}
    keys = {name: moment and zones.zone_key(moment.tzinfo) for name, moment in moments.items()}
    return {name: key for name, key in keys.items() if key and key != "UTC"}


def with_zones(schedule: Any, extension: Mapping[str, Any]) -> Any:
    """Return a copy of ``schedule`` with the time zones that :func:`zone_extension` returned.

    ``dtstart`` and ``until`` stay the same instants. ``schedule`` itself is returned if it isn't an
    ``rrule``, or if ``extension`` has no time zones. Raises ``DecodeError`` for an unknown time
    zone.
    """
    names = {name: extension.get(f"{name}_zone") for name in ("dtstart", "until")}
    if not isinstance(schedule, rrule) or not any(names.values()):
        return schedule
    changed = schedule.fields()
    for name, key in names.items():
        if key and changed[name] is not None:
            try:
                changed[name] = changed[name].astimezone(zones.zone_named(str(key)))
            except (ValueError, OverflowError) as error:
                raise DecodeError(f"schedule.{name}_zone", str(error)) from error
    return type(schedule)(**changed, nowfun=schedule.nowfun, app=schedule._app)


def aware_moment(name: str, moment: object) -> datetime:
    """Return ``moment`` as an aware datetime; a naive one is in UTC.

    Raises ``ValueError``, which begins with the argument's ``name``, for anything but a datetime
    between the years 1 and 9999 in UTC.
    """
    if not isinstance(moment, datetime):
        raise ValueError(f"{name}: {moment!r} is not a datetime")
    try:
        plain = zones.plain_datetime(moment)
        aware = plain if plain.tzinfo else plain.replace(tzinfo=zones.UTC)
        zones.as_utc(aware)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    except OverflowError as error:
        problem = f"{name}: {moment!r} is not between the years 1 and 9999 in UTC; correct it"
        raise ValueError(problem) from error
    return aware


def _storable(value: Any) -> Any:
    """Return the value of a ``by`` argument in a form that JSON can represent."""
    if isinstance(value, (str, list, tuple)) or not hasattr(value, "__iter__"):
        return value
    return sorted(value) if isinstance(value, (set, frozenset, range)) else list(value)
