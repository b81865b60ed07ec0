"""When a schedule runs next: pure functions of a schedule and an instant.

No clock is read here, with one exception that says so: a schedule class of the user's own is
asked itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule, solar
from celery.utils.time import remaining

from .calendar.cron import cron_rule
from .calendar.sun import next_event
from .calendar.walltime import next_instant
from .calendar.zones import UTC, as_utc, wall_zone
from .instant import clocked
from .rulesets import rruleset
from .schedules import RuleSchedule, rrule

__all__ = ("asks_itself", "count_runs", "finder_of", "first_run", "latest_run", "next_run")

ZERO = timedelta(0)
#: Runs by the sun that are counted, at most.
SOLAR_LIMIT = 10
FIRST_STEP = timedelta(minutes=1)
UNITS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))

Finder = Callable[[Any, datetime, "tzinfo | None"], "datetime | None"]


def next_run(
    schedule: BaseSchedule, after: datetime, timezone: tzinfo | None = None
) -> datetime | None:
    """The first instant of ``schedule`` strictly after the aware ``after``, in UTC.

    ``None`` when nothing is left. Intervals count from ``after``; crontabs and relative
    intervals are read on the clock of ``timezone``, else of the schedule's app; rules on the
    clock of their ``dtstart``. A class for which ``asks_itself`` holds is asked with its own
    clock. ``ValueError`` for an interval that is not above 0 and for a naive ``after``.
    """
    return _finder(type(schedule))(schedule, after, timezone)


def latest_run(
    schedule: BaseSchedule, after: datetime, until: datetime, timezone: tzinfo | None = None
) -> datetime | None:
    """The last instant of ``schedule`` in ``(after, until]``, in UTC; ``None`` if there is none.

    The grid of an interval is anchored at ``after``.
    """
    finder, after, until = _finder(type(schedule)), as_utc(after), as_utc(until)
    if finder is _next_interval:
        latest = _latest_relative if schedule.relative else _latest_on_grid
        return latest(schedule, after, until, timezone)

    def probe(moment: datetime) -> datetime | None:
        found = finder(schedule, moment, timezone)
        return None if found is None or found > until else found

    return _latest(probe, after, until)


def count_runs(
    schedule: BaseSchedule,
    after: datetime,
    until: datetime,
    limit: int,
    timezone: tzinfo | None = None,
) -> int:
    """The number of instants of ``schedule`` in ``(after, until]``.

    Those of an interval, anchored at ``after``, are computed; all others are walked through, and
    counted up to ``limit``; those of the sun, which may be far apart and cost most where they are,
    up to :data:`SOLAR_LIMIT`.
    """
    finder, count = _finder(type(schedule)), 0
    if finder is _next_solar:
        limit = min(limit, SOLAR_LIMIT)
    if finder is _next_interval and not schedule.relative:
        return max((until - after) // _step(schedule), 0)
    found = finder(schedule, after, timezone)
    while found is not None and found <= until and count < limit:
        count += 1
        found = finder(schedule, found, timezone)
    return count


def first_run(
    schedule: BaseSchedule,
    since: datetime,
    timezone: tzinfo | None = None,  # noqa: ARG001 - the same arguments as its siblings
) -> datetime | None:
    """When an entry that exists ``since`` and has never run is due first, in UTC.

    A rule, a set of rules and a clocked one have their first occurrence at or after ``since``,
    ``None`` if there is none; any other schedule has no start of its own and is due at once.
    """
    if isinstance(schedule, RuleSchedule) and not asks_itself(schedule):
        return schedule.occurrence_after(since, inclusive=True)
    return as_utc(since)


def asks_itself(schedule: BaseSchedule) -> bool:
    """Whether only the schedule's own ``is_due`` knows when it runs.

    So it is for classes that are not ours or Celery's, and for subclasses that compute their
    times themselves. Callers then use ``schedule.is_due(last_run_at)``.
    """
    return finder_of(schedule) is None


def finder_of(schedule: BaseSchedule) -> Finder | None:
    """What :func:`next_run` asks for this schedule, None where :func:`asks_itself` holds."""
    finder = _finder(type(schedule))
    return None if finder is _next_of_itself else finder


def _next_interval(schedule: Any, after: datetime, timezone: tzinfo | None) -> datetime | None:
    step, after = _step(schedule), as_utc(after)
    if schedule.relative:
        return _next_relative(schedule, after, timezone)
    try:
        return after + step
    except OverflowError:
        return None


def _next_relative(schedule: Any, after: datetime, timezone: tzinfo | None) -> datetime:
    """As Celery rounds it, with the clock standing at ``after``."""
    start = after.astimezone(timezone or schedule.tz)
    wait: timedelta = remaining(start, schedule.run_every, after, True)
    # Rounding a short interval down may give no progress at all.
    return after + (wait if wait > ZERO else _step(schedule))


def _next_crontab(schedule: Any, after: datetime, timezone: tzinfo | None) -> datetime | None:
    return next_instant(cron_rule(schedule), after, timezone or schedule.tz)


def _next_rule(
    schedule: RuleSchedule, after: datetime, _timezone: tzinfo | None
) -> datetime | None:
    return schedule.occurrence_after(after)


def _next_solar(schedule: Any, after: datetime, _timezone: tzinfo | None) -> datetime | None:
    return next_event(schedule, after)


def _next_of_itself(schedule: Any, after: datetime, _timezone: tzinfo | None) -> datetime | None:
    wait = schedule.remaining_estimate(after)
    now = schedule.now()
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    return None if wait is None else as_utc(aware) + wait


def _step(schedule: Any) -> timedelta:
    step: timedelta = schedule.run_every
    if step <= ZERO:
        raise ValueError(f"schedule.every: {step} is not above 0; use a positive interval")
    return step


FINDERS: tuple[tuple[type, Finder], ...] = (
    (schedule, _next_interval),
    (crontab, _next_crontab),
    (solar, _next_solar),
    (rrule, _next_rule),
    (rruleset, _next_rule),
    (clocked, _next_rule),
)
DECIDES = ("is_due", "remaining_estimate", "remaining_delta", "occurrence_after", "_next_event")


# What was found for each class: classes are few and live as long as the process.
_known: dict[type, Finder] = {}


def _finder(cls: type) -> Finder:
    finder = _known.get(cls)
    if finder is None:
        known = (found for stock, found in FINDERS if _computes_as(cls, stock))
        finder = _known[cls] = next(known, _next_of_itself)
    return finder


def _computes_as(cls: type, stock: type) -> bool:
    """Whether a class is a stock one, or a subclass that leaves its computation alone."""
    return issubclass(cls, stock) and all(
        getattr(cls, name, None) is getattr(stock, name, None) for name in DECIDES
    )


def _latest_on_grid(
    schedule: Any, after: datetime, until: datetime, _timezone: tzinfo | None
) -> datetime | None:
    step = _step(schedule)
    slots = (until - after) // step
    return after + slots * step if slots > 0 else None


def _latest_relative(
    schedule: Any, after: datetime, until: datetime, timezone: tzinfo | None
) -> datetime | None:
    """Jump close to ``until``, then walk the few runs that are left."""
    found, following = None, _next_relative(schedule, after, timezone)
    while following <= until:
        if found is None:
            zone = timezone or schedule.tz
            following = _jump(following, until, _rounded(schedule.run_every), zone)
        found, following = following, _next_relative(schedule, following, timezone)
    return found


def _rounded(step: timedelta) -> timedelta:
    """How far a relative interval gets at a time, once it is on a round moment."""
    unit = next((unit for unit in UNITS if step >= unit), step)
    return step - step % unit


def _jump(start: datetime, until: datetime, step: timedelta, zone: tzinfo) -> datetime:
    """A whole number of steps on, two or three before ``until``; days are those of the zone."""
    slots = max((until - start) // step - 2, 0)
    if step < UNITS[0]:
        return start + slots * step
    wall = start.astimezone(zone).replace(tzinfo=None) + slots * step
    return wall.replace(tzinfo=wall_zone(zone)).astimezone(UTC)


def _latest(
    probe: Callable[[datetime], datetime | None], after: datetime, until: datetime
) -> datetime | None:
    """The last instant that ``probe`` can reach, in a number of probes that grows as a logarithm.

    ``probe(moment)`` gives the first one after ``moment``, ``None`` if that is too late.
    """
    if probe(after) is None:
        return None
    step, found, empty = FIRST_STEP, None, until
    while found is None:
        start = max(after, until - step)
        found = probe(start)
        if found is None:
            empty, step = start, step * 4
    return _latest_between(probe, found, empty)


def _latest_between(
    probe: Callable[[datetime], datetime | None], found: datetime, empty: datetime
) -> datetime:
    """Halve the span between a run and a moment after which there is none."""
    while (following := probe(found)) is not None:
        found = following
        middle = found + (empty - found) / 2
        if middle > found:
            later = probe(middle)
            found, empty = (later, empty) if later is not None else (found, middle)
    return found
