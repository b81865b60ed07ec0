"""Finds the runs of a schedule after a given instant.

A clock is read only for custom schedule classes, because they compute their next run themselves;
see :func:`asks_itself`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, crontab, solar
from celery.schedules import schedule as Interval  # noqa: N812 - arguments are called schedule
from celery.utils.time import remaining

from redbeat.calendar.cron import cron_rule
from redbeat.calendar.steps import bounded, spend
from redbeat.calendar.sun import next_event
from redbeat.calendar.walltime import TICK, next_instant
from redbeat.calendar.zones import UTC, as_utc, plain_datetime, wall_zone

from .rule import RuleSchedule, clocked, rrule, rruleset

ZERO = timedelta(0)
#: Two estimates of the same instant may differ by this, if a schedule reads a clock.
CLOCK_NOISE = timedelta(milliseconds=1)
CLOCK_READS = 5

#: The shortest interval, which is the precision with which Celery's beat waits. It replaces any
#: shorter one, including 0 and negative ones.
MIN_EVERY = timedelta(milliseconds=10)

SOLAR_LIMIT = 10
#: Steps of a search for one run, without those that a rule or the sun needs.
RUN = 4
#: Steps of Celery's search for the next run of a relative interval.
RELATIVE = 30
FIRST_STEP = timedelta(minutes=1)
UNITS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))

Finder = Callable[[Any, datetime, "tzinfo | None"], "datetime | None"]


@bounded
def next_run(
    schedule: BaseSchedule, after: datetime, timezone: tzinfo | None = None
) -> datetime | None:
    """Return the first run of ``schedule`` after ``after``, in UTC, or None if no run is left.

    An interval runs one interval after ``after``. Crontabs and relative intervals use wall-clock
    time in ``timezone`` (default: that of the schedule's app), rules use that of their ``dtstart``.
    A schedule for which :func:`asks_itself` is true uses its own clock. Raises ``ValueError`` if
    ``after`` is naive.
    """
    spend(RUN)
    find = finder_of(schedule) or _next_of_custom
    return find(schedule, after, timezone)


@bounded
def latest_run(
    schedule: BaseSchedule, after: datetime, until: datetime, timezone: tzinfo | None = None
) -> datetime | None:
    """Return the last run of ``schedule`` in ``(after, until]``, in UTC, or None.

    An interval runs one interval after ``after``, two intervals after it, and so on.
    """
    finder = finder_of(schedule) or _next_of_custom
    after, until = as_utc(after), as_utc(until)
    if finder is _next_interval:
        if schedule.relative:
            return _latest_relative(schedule, after, until, timezone)
        slots = (until - after) // _step(schedule)
        return after + slots * _step(schedule) if slots > 0 else None
    return find_latest(lambda moment: finder(schedule, moment, timezone), after, until)


def run_before(
    schedule: Any, anchor: datetime, before: datetime, timezone: tzinfo | None = None
) -> datetime:
    """Return the last run of an interval schedule before ``before``, in UTC.

    ``anchor`` is any of its runs at or after ``before``.
    """
    anchor, before, step = as_utc(anchor), as_utc(before), _step(schedule)
    if not schedule.relative:
        return anchor - ((anchor - before) // step + 1) * step
    step = _rounded(step)
    # DST makes some steps of a day or more longer or shorter, so start one step earlier than
    # without DST.
    start = _shifted(anchor, -((anchor - before) // step + 2), step, timezone or schedule.tz)
    return _latest_relative(schedule, start, before - TICK, timezone) or start


@bounded
def count_runs(
    schedule: BaseSchedule,
    after: datetime,
    until: datetime,
    limit: int,
    timezone: tzinfo | None = None,
) -> int:
    """Count the runs of ``schedule`` in ``(after, until]``, up to ``limit``.

    Those of an interval that isn't relative are computed without a search, and ``limit`` is
    ignored. Those of a solar schedule are counted only up to :data:`SOLAR_LIMIT`, because each
    search for an event of the sun is expensive.
    """
    finder, count = finder_of(schedule) or _next_of_custom, 0
    if finder is _next_solar:
        limit = min(limit, SOLAR_LIMIT)
    if finder is _next_interval and not schedule.relative:
        return max((until - after) // _step(schedule), 0)
    run = finder(schedule, after, timezone)
    while run is not None and run <= until and count < limit:
        spend(RUN)
        count += 1
        run = finder(schedule, run, timezone)
    return count


def asks_itself(schedule: BaseSchedule) -> bool:
    """Return whether only ``schedule.is_due(last_run_at)`` can compute the next run.

    That's so for custom schedule classes, for subclasses that override how runs are computed, for
    objects with a ``nowfun``, and for objects whose ``tz`` differs from the time zones of the entry
    and the app.
    """
    return finder_of(schedule) is None


def finder_of(schedule: BaseSchedule) -> Finder | None:
    """Return the function that finds the next run, or None if the schedule :func:`asks_itself`."""
    attributes = schedule.__dict__
    if attributes.get("nowfun") is not None or ("tz" in attributes and _has_own_zone(schedule)):
        return None
    cls = type(schedule)
    if cls not in _finders:
        matches = (match for base, match in FINDERS if _computes_as(cls, base))
        _finders[cls] = next(matches, None)
    return _finders[cls]


def unstored_parts(schedule: BaseSchedule, base: type) -> list[str]:
    """Return the attributes and methods that are lost if ``schedule`` is stored as ``base``.

    Only those that influence when the schedule runs are named.
    """
    attributes = ["nowfun"] if schedule.__dict__.get("nowfun") is not None else []
    attributes += ["tz"] if _has_own_zone(schedule) else []
    return attributes + [name for name in DECIDING_METHODS if _differs(type(schedule), base, name)]


def in_zone(schedule: Any, zone: tzinfo) -> Any:
    """Return a copy of ``schedule`` that uses ``zone``, the time zone of the entry.

    A crontab or interval with a time zone of its own is returned unchanged, and so are all other
    schedules, which can't use the entry's time zone.
    """
    has_zone = _differs(type(schedule), BaseSchedule, "tz") or _has_own_zone(schedule)
    if has_zone or not isinstance(schedule, (crontab, Interval)):
        return schedule
    copied = object.__new__(type(schedule))
    copied.__dict__.update(schedule.__dict__, tz=zone, **{ENTRY_ZONE: zone})
    return copied


def on_clock_of(schedule: BaseSchedule, instant: datetime) -> datetime:
    """Return ``instant`` in the time zone of ``schedule``, or unchanged if it has none.

    This matters because Celery before 5.7 evaluates a crontab in the time zone of ``last_run_at``.
    """
    zone = getattr(schedule, "tz", None)
    return instant.astimezone(zone) if isinstance(zone, tzinfo) else instant


def _has_own_zone(schedule: Any) -> bool:
    """Return whether user code set ``tz`` to a time zone that changes the schedule's runs.

    Otherwise ``tz`` is a cached property, with the time zone of the app or of the entry.
    """
    attributes = schedule.__dict__
    uses_zone = isinstance(schedule, crontab) or bool(getattr(schedule, "relative", False))
    if "tz" not in attributes or not uses_zone:
        return False
    zone, default = attributes["tz"], attributes.get(ENTRY_ZONE) or schedule.app.timezone
    return zone is not default and str(zone) != str(default)


def _next_interval(schedule: Any, after: datetime, timezone: tzinfo | None) -> datetime | None:
    if type(after) is not datetime or after.tzinfo is not UTC:
        after = as_utc(after)
    if schedule.relative:
        return _next_relative(schedule, after, timezone)
    try:
        return after + _step(schedule)
    except OverflowError:
        return None


def _next_relative(schedule: Any, after: datetime, timezone: tzinfo | None) -> datetime:
    spend(RELATIVE)
    start = after.astimezone(timezone or schedule.tz)
    wait: timedelta = remaining(start, schedule.run_every, after, True)
    # Celery rounds down, so an interval below a second may run too soon, or not after ``after``.
    usable = wait > ZERO and (wait >= MIN_EVERY or schedule.run_every >= UNITS[-1])
    return after + (wait if usable else _step(schedule))


def _next_crontab(schedule: Any, after: datetime, timezone: tzinfo | None) -> datetime | None:
    return next_instant(cron_rule(schedule), after, timezone or schedule.tz)


def _next_rule(
    schedule: RuleSchedule, after: datetime, _timezone: tzinfo | None
) -> datetime | None:
    return schedule.occurrence_after(after)


def _next_solar(schedule: Any, after: datetime, _timezone: tzinfo | None) -> datetime | None:
    return next_event(schedule, after)


def _lead_of(schedule: Any) -> timedelta:
    """Return how far the clock of a schedule is ahead of UTC; zero if it has a time zone.

    A naive time counts as UTC, as in Celery. A process that is interrupted between reading the two
    clocks reads them again, because with a wrong lead a run would follow itself.
    """
    lead = ZERO
    for _ in range(CLOCK_READS):
        before, clock = datetime.now(UTC), plain_datetime(schedule.now())
        if clock.tzinfo is not None:
            return ZERO
        lead = clock.replace(tzinfo=UTC) - before
        if datetime.now(UTC) - before < CLOCK_NOISE:
            break
    return lead


def _next_of_custom(schedule: Any, after: datetime, _timezone: tzinfo | None) -> datetime | None:
    ahead = _lead_of(schedule)
    wait = schedule.remaining_estimate(on_clock_of(schedule, after + ahead))
    now = schedule.now()
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    return None if wait is None else as_utc(aware) - ahead + wait


def _step(schedule: Any) -> timedelta:
    step: timedelta = schedule.run_every
    if type(step) is not timedelta:  # a duration of pendulum cannot be divided by a plain one
        step = timedelta(seconds=step.total_seconds())
    return max(step, MIN_EVERY)


FINDERS: tuple[tuple[type, Finder], ...] = (
    (Interval, _next_interval),
    (crontab, _next_crontab),
    (solar, _next_solar),
    *((cls, _next_rule) for cls in (rrule, rruleset, clocked)),
)
DECIDING_METHODS = (
    *("is_due", "remaining_estimate", "remaining_delta", "occurrence_after", "counts_from"),
    *("now", "tz", "app", "maybe_make_aware", "to_local", "utc_enabled", "run_every", "relative"),
    *("_next_event", "_delta_to_next", "_expand_cronspec", "start"),
)
#: The attribute with the entry's time zone, which is stored in the entry, not in its schedule.
ENTRY_ZONE = "_redbeat_entry_zone"


# This cache has no limit, because a process has few schedule classes.
_finders: dict[type, Finder | None] = {}


def _computes_as(cls: type, base: type) -> bool:
    return issubclass(cls, base) and not any(_differs(cls, base, name) for name in DECIDING_METHODS)


def _differs(cls: type, base: type, name: str) -> bool:
    return getattr(cls, name, None) is not getattr(base, name, None)


def _latest_relative(
    schedule: Any, after: datetime, until: datetime, timezone: tzinfo | None
) -> datetime | None:
    # Jump to a run two or three steps before ``until``, and go on one by one.
    latest, following = None, _next_relative(schedule, after, timezone)
    while following <= until:
        spend(RUN)
        if latest is None:
            step = _rounded(_step(schedule))
            slots = max((until - following) // step - 2, 0)
            following = _shifted(following, slots, step, timezone or schedule.tz)
        latest, following = following, _next_relative(schedule, following, timezone)
    return latest


def _rounded(step: timedelta) -> timedelta:
    """Return ``step``, rounded down to whole days, hours, minutes or seconds, as Celery does."""
    unit = next((unit for unit in UNITS if step >= unit), step)
    return step - step % unit


def _shifted(start: datetime, slots: int, step: timedelta, zone: tzinfo) -> datetime:
    """Add ``slots`` steps; those of a day or more are in wall-clock time of ``zone``."""
    if step < UNITS[0]:
        return start + slots * step
    wall = start.astimezone(zone).replace(tzinfo=None) + slots * step
    return wall.replace(tzinfo=wall_zone(zone)).astimezone(UTC)


def find_latest(
    find: Callable[[datetime], datetime | None], after: datetime, until: datetime
) -> datetime | None:
    """Return the last run in ``(after, until]``, or None.

    ``find(moment)`` returns the first run after ``moment``, or None. It's called a number of times
    that is logarithmic in the length of the span.
    """

    def probe(moment: datetime) -> datetime | None:
        spend(RUN)
        run = find(moment)
        return None if run is None or run > until else run

    if probe(after) is None:
        return None
    # Go back from ``until`` in growing steps, until there is a run.
    step, run, no_run_after = FIRST_STEP, None, until
    while run is None:
        start = max(after, until - step)
        run = probe(start)
        if run is None:
            no_run_after, step = start, step * 4
    # The last run is between ``run`` and ``no_run_after``: bisect.
    while (following := probe(run)) is not None:
        run = following
        middle = run + (no_run_after - run) / 2
        if middle > run:
            later = probe(middle)
            run, no_run_after = (later, no_run_after) if later is not None else (run, middle)
    return run
