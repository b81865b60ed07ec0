"""Converts wall-clock times to instants, including times that DST skips or repeats."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from .steps import spend
from .zones import EPOCH, NAIVE_EPOCH, UTC, as_utc, plain_datetime, wall_zone

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
TICK = timedelta.resolution
ZERO = timedelta(0)
EPOCH_DAY = EPOCH.toordinal()

#: Two changes of a zone's UTC offset are assumed to be at least this far apart.
MIN_CHANGE_DISTANCE = 3 * DAY
CENTURY = 36525 * DAY
END = datetime.max.replace(tzinfo=UTC)
BEGINNING = datetime.min.replace(tzinfo=UTC)


def at_offset(wall: datetime, offset: timedelta) -> datetime:
    return EPOCH + (wall - NAIVE_EPOCH - offset)


def offset_at(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or ZERO


@lru_cache(maxsize=4096)
def steady_offset(zone: tzinfo, day: int) -> timedelta | None:
    """Return the UTC offset of ``zone`` on ``day``, the ordinal of a UTC day.

    Returns None if the offset isn't constant on the day and on those before and after it: only then
    does each wall-clock time on ``day`` exist exactly once. Also returns None for the first and
    last days that a datetime can represent.
    """
    offsets = set()
    for near in range(day - 1, day + 3):
        try:
            midnight = EPOCH + timedelta(days=near - EPOCH_DAY)
            offsets.add(midnight.astimezone(zone).utcoffset())
        except OverflowError:
            return None
    return offsets.pop() if len(offsets) == 1 else None


def offset_spans(zone: tzinfo, start: datetime) -> Iterator[tuple[datetime, datetime, timedelta]]:
    """Yield (begin, end, offset) for each span ``[begin, end)`` with a constant UTC offset.

    The first span begins at ``start``. Changes more than a century later are ignored.
    """
    begin, checked, offset = start, start, offset_at(start, zone)
    while checked - start < CENTURY and checked < END - MIN_CHANGE_DISTANCE:
        spend()
        if offset_at(checked + MIN_CHANGE_DISTANCE, zone) == offset:
            checked += MIN_CHANGE_DISTANCE
            continue
        checked = change_between(checked, checked + MIN_CHANGE_DISTANCE, zone)
        yield begin, checked, offset
        begin, offset = checked, offset_at(checked, zone)
    yield begin, END, offset


def change_between(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return when in ``(before, after]`` the UTC offset changes, in whole seconds."""
    old = offset_at(before, zone)
    low, high = before.replace(microsecond=0), after
    while high - low > SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if offset_at(middle, zone) == old:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


def offsets_of(wall: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """Return the UTC offsets of ``wall`` for ``fold`` 0 and 1, as PEP 495 defines them.

    If they are equal, ``wall`` exists once. If the first is greater, ``wall`` exists twice. If the
    first is smaller, DST skips ``wall``: they are then the offsets before and after the gap.
    """
    # A new datetime is much faster than replace().
    day, clock = (wall.year, wall.month, wall.day), (wall.hour, wall.minute, wall.second)
    first = zone.utcoffset(datetime(*day, *clock, wall.microsecond))  # noqa: DTZ001
    second = zone.utcoffset(datetime(*day, *clock, wall.microsecond, fold=1))  # noqa: DTZ001
    return first or ZERO, second or ZERO


class WallRule(Protocol):
    """A rule in wall-clock time, with naive datetimes."""

    @property
    def follows_real_time(self) -> bool:
        """Whether the rule repeats in real time ("every hour") instead of at given hours.

        Then it runs in both occurrences of an hour that DST repeats, and not in an hour that DST
        skips.
        """

    def next_wall(self, wall: datetime) -> datetime | None:
        """Return the first wall-clock time of the rule after ``wall``, or None."""


def next_instant(
    rule: WallRule, after: datetime, zone: tzinfo, start: datetime = BEGINNING
) -> datetime | None:
    """Return the first instant of ``rule`` after ``after``, in UTC, or None.

    The rule uses wall-clock time in ``zone``. ``start`` is in UTC, and the result is never before
    it. If ``start`` is in an hour that DST repeats, the first result may be the second of two
    instants with the same wall-clock time.
    """
    after = as_utc(after)
    if start is not BEGINNING and after < start:
        after = start - TICK
    try:
        zone = wall_zone(zone)
        if isinstance(zone, (timezone, ZoneInfo)):
            return _next_in_zone(rule, after, zone, start)
        return _next_near_change(rule, after, zone, start)
    except OverflowError:
        return None


def instant_of(moment: datetime) -> datetime:
    """Return the aware datetime ``moment`` in UTC.

    If DST skips it, that's the first full minute after the gap, as in :func:`next_instant`.
    """
    moment = plain_datetime(moment)
    zone = wall_zone(moment.tzinfo or UTC)
    wall = moment.replace(tzinfo=None)
    first, second = offsets_of(wall, zone)
    return _first_instant(wall, zone) if first < second else as_utc(moment)


def _next_in_zone(
    rule: WallRule, after: datetime, zone: tzinfo, start: datetime
) -> datetime | None:
    day = after.toordinal()
    offset = steady_offset(zone, day)
    if offset is None:
        return _next_near_change(rule, after, zone, start)
    wall = rule.next_wall(NAIVE_EPOCH + (after - EPOCH + offset))
    if wall is None:
        return None
    # If the offset is constant near ``after`` and near the result, a DST change in between can't
    # skip or repeat a time of the rule.
    later = wall.toordinal()
    if later != day:
        offset = steady_offset(zone, later)
        if offset is None:
            return _next_near_change(rule, after, zone, start)
    return EPOCH + (wall - NAIVE_EPOCH - offset)


def _next_near_change(
    rule: WallRule, after: datetime, zone: tzinfo, start: datetime
) -> datetime | None:
    local = after.astimezone(zone)
    wall = NAIVE_EPOCH + (after - EPOCH + (local.utcoffset() or ZERO))
    if not rule.follows_real_time:
        return _next_named_time(rule, wall, after, zone, start)
    run = _next_real_time(rule, wall, after, zone)
    first, second = offsets_of(wall, zone)
    if first <= second or local.fold:
        return run
    # DST will repeat the wall-clock time of ``after``, so the next run may have an earlier one.
    change = change_between(after, at_offset(wall, second), zone)
    repeated_from = change.astimezone(zone).replace(tzinfo=None)
    repeated = _next_real_time(rule, repeated_from - TICK, change - TICK, zone)
    return min((at for at in (run, repeated) if at is not None), default=None)


def _next_named_time(
    rule: WallRule, wall: datetime | None, after: datetime, zone: tzinfo, start: datetime
) -> datetime | None:
    """Return the next run of a rule that runs once for each matching wall-clock time."""
    while wall is not None:
        spend()
        wall = rule.next_wall(wall)
        if wall is not None and (run := _first_instant(wall, zone, start)) > after:
            return run
    return None


def _next_real_time(
    rule: WallRule, wall: datetime | None, after: datetime, zone: tzinfo
) -> datetime | None:
    """Return the next run of a rule in real time, which leaves out times that DST skips."""
    while wall is not None and (wall := rule.next_wall(wall)) is not None:
        spend()
        first, second = offsets_of(wall, zone)
        if first < second:  # continue at the end of the gap
            change = change_between(at_offset(wall, second), at_offset(wall, first), zone)
            wall = change.astimezone(zone).replace(tzinfo=None) - TICK
            continue
        for offset in (first, second):
            if (run := at_offset(wall, offset)) > after:
                return run
    return None


def _first_instant(wall: datetime, zone: tzinfo, start: datetime = BEGINNING) -> datetime:
    """Return the first instant at or after ``start`` with the wall-clock time ``wall``.

    If DST skips ``wall``, that's the first full minute after the gap.
    """
    first, second = offsets_of(wall, zone)
    if first >= second:
        run = at_offset(wall, first)
        return run if run >= start else at_offset(wall, second)
    change = change_between(at_offset(wall, second), at_offset(wall, first), zone)
    minute = change.replace(second=0)
    return minute if minute == change else minute + MINUTE
