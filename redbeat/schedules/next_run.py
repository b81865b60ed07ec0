"""When a schedule runs next: pure functions of a schedule and an instant.

No clock is read here, with one exception that says so: a schedule class of the user's own is
asked itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab, solar
from celery.schedules import schedule as Interval  # noqa: N812 - arguments are called schedule
from celery.utils.time import remaining

from redbeat.calendar.cron import cron_rule
from redbeat.calendar.sun import next_event
from redbeat.calendar.walltime import next_instant
from redbeat.calendar.zones import UTC, as_utc, wall_zone

from .one_time import clocked
from .rule import RuleSchedule, rrule
from .rule_set import rruleset

__all__ = (
    "asks_itself",
    "count_runs",
    "finder_of",
    "first_run",
    "in_zone",
    "latest_run",
    "next_run",
    "on_clock_of",
    "own_parts",
)

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
    clock of their ``dtstart``. A schedule for which ``asks_itself`` holds is asked with its own
    clock. ``ValueError`` for an interval that is not above 0 and for a naive ``after``.
    """
    return _finder(schedule)(schedule, after, timezone)


def latest_run(
    schedule: BaseSchedule, after: datetime, until: datetime, timezone: tzinfo | None = None
) -> datetime | None:
    """The last instant of ``schedule`` in ``(after, until]``, in UTC; ``None`` if there is none.

    The grid of an interval is anchored at ``after``.
    """
    finder, after, until = _finder(schedule), as_utc(after), as_utc(until)
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
    finder, count = _finder(schedule), 0
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

    So it is for classes that are not ours or Celery's, for subclasses that compute their times
    themselves, and for objects with a ``nowfun`` or a zone that is neither their entry's nor their
    app's. Callers then use ``schedule.is_due(last_run_at)``.
    """
    return finder_of(schedule) is None


def finder_of(schedule: BaseSchedule) -> Finder | None:
    """What :func:`next_run` asks for this schedule, None where :func:`asks_itself` holds."""
    finder = _finder(schedule)
    return None if finder is _next_of_itself else finder


def own_parts(schedule: BaseSchedule, stock: type) -> list[str]:
    """What decides when ``schedule`` runs and is not stored of a ``stock`` class, by name."""
    held = [name for name, has in HELD.items() if has(schedule)]
    return held + [name for name in DECIDES if _differs(type(schedule), stock, name)]


def in_zone(schedule: Any, zone: tzinfo) -> Any:
    """A copy of a crontab or an interval whose ``tz`` is ``zone``, the clock of its entry.

    Other schedules, and those that choose a zone themselves, are returned as they are.
    """
    chooses = _differs(type(schedule), BaseSchedule, "tz") or _has_own_zone(schedule)
    if chooses or not isinstance(schedule, (crontab, Interval)):
        return schedule
    copied = object.__new__(type(schedule))
    copied.__dict__.update(schedule.__dict__, tz=zone, **{ENTRY_ZONE: zone})
    return copied


def on_clock_of(schedule: BaseSchedule, instant: datetime) -> datetime:
    """``instant`` in the zone of ``schedule``: Celery before 5.7 reads a crontab in that of these.

    Unchanged for a class that tells no zone.
    """
    zone = getattr(schedule, "tz", None)
    return instant.astimezone(zone) if isinstance(zone, tzinfo) else instant


def _has_own_clock(schedule: Any) -> bool:
    return schedule.__dict__.get("nowfun") is not None


def _has_own_zone(schedule: Any) -> bool:
    """Whether somebody set a ``tz`` that decides; where it was only looked up, it is the app's."""
    held = schedule.__dict__
    by_clock = isinstance(schedule, crontab) or bool(getattr(schedule, "relative", False))
    if "tz" not in held or not by_clock:
        return False
    zone, known = held["tz"], held.get(ENTRY_ZONE) or schedule.app.timezone
    return zone is not known and str(zone) != str(known)


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
    clock, ahead = schedule.now(), ZERO
    if clock.tzinfo is None:  # Celery takes it for UTC, whatever clock on the wall it tells
        ahead = clock.replace(tzinfo=UTC) - datetime.now(UTC)
    wait = schedule.remaining_estimate(on_clock_of(schedule, after + ahead))
    now = schedule.now()
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    return None if wait is None else as_utc(aware) - ahead + wait


def _step(schedule: Any) -> timedelta:
    step: timedelta = schedule.run_every
    if step <= ZERO:
        raise ValueError(f"schedule.every: {step} is not above 0; use a positive interval")
    return step


FINDERS: tuple[tuple[type, Finder], ...] = (
    (Interval, _next_interval),
    (crontab, _next_crontab),
    (solar, _next_solar),
    (rrule, _next_rule),
    (rruleset, _next_rule),
    (clocked, _next_rule),
)
#: Methods and properties that decide when a schedule runs.
DECIDES = (
    *("is_due", "remaining_estimate", "remaining_delta", "occurrence_after", "counts_from"),
    *("now", "tz", "app", "maybe_make_aware", "to_local", "utc_enabled", "run_every", "relative"),
    *("_next_event", "_delta_to_next", "_expand_cronspec", "start"),
)
#: What an object of any class may hold that decides as well.
HELD: dict[str, Callable[[Any], bool]] = {"nowfun": _has_own_clock, "tz": _has_own_zone}
#: Says of a ``tz`` that it is the zone of the entry, which is stored beside the schedule.
ENTRY_ZONE = "_redbeat_entry_zone"


# What was found for each class: classes are few and live as long as the process.
_known: dict[type, Finder] = {}


def _finder(schedule: BaseSchedule) -> Finder:
    held = schedule.__dict__
    if held.get("nowfun") is not None or ("tz" in held and _has_own_zone(schedule)):
        return _next_of_itself
    cls = type(schedule)
    finder = _known.get(cls)
    if finder is None:
        known = (found for stock, found in FINDERS if _computes_as(cls, stock))
        finder = _known[cls] = next(known, _next_of_itself)
    return finder


def _computes_as(cls: type, stock: type) -> bool:
    """Whether a class is a stock one, or a subclass that leaves its computation alone."""
    return issubclass(cls, stock) and not any(_differs(cls, stock, name) for name in DECIDES)


def _differs(cls: type, stock: type, name: str) -> bool:
    return getattr(cls, name, None) is not getattr(stock, name, None)


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
