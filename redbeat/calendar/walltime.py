"""From rules about wall clocks to instants, through every change of the clock.

One place decides what happens when a zone changes its offset, for crontabs and recurrences
alike:

- A rule with fixed times runs once a day, whatever the clock does. A wall time that does not
  exist runs at the first valid minute after it, one that exists twice runs the first time.
- A rule that follows real time (any hour will do) runs whenever the clock on the wall shows
  one of its times: not in an hour that is left out, and twice in one that is repeated.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from .offsets import at_offset, change_between, offsets_of, steady_offset
from .zones import EPOCH, NAIVE_EPOCH, UTC, as_utc, fixed_offset, wall_zone

__all__ = ("TICK", "WallRule", "instant_of", "next_instant")

MINUTE = timedelta(minutes=1)
TICK = timedelta.resolution
NOTHING = timedelta(0)
#: Before every instant that is asked about.
DAWN = datetime.min.replace(tzinfo=UTC)


class WallRule(Protocol):
    """A rule that knows wall times only, all of them naive."""

    @property
    def follows_real_time(self) -> bool:
        """Whether the rule counts real hours instead of naming some."""

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first wall time of the rule after ``wall``, ``None`` if there is no more."""


def next_instant(
    rule: WallRule, after: datetime, zone: tzinfo, start: datetime = DAWN
) -> datetime | None:
    """The first instant of ``rule`` strictly after ``after``, in UTC; ``None`` if none is left.

    ``after`` is aware; ``zone`` is the zone of the clock that the rule speaks about. Nothing is
    before ``start``, in UTC, not even the first of two times that a clock shows.
    """
    after = as_utc(after)
    if start is not DAWN and after < start:
        after = start - TICK
    try:
        if not isinstance(zone, ZoneInfo):
            offset = fixed_offset(zone)
            if offset is not None:
                wall = rule.next_wall(NAIVE_EPOCH + (after - EPOCH + offset))
                return None if wall is None else at_offset(wall, offset)
            zone = wall_zone(zone)
            if not isinstance(zone, ZoneInfo):
                return _next_near_change(rule, after, zone, start)
        return _next_in_zone(rule, after, zone, start)
    except OverflowError:
        return None


def instant_of(moment: datetime) -> datetime:
    """The aware ``moment`` in UTC.

    A wall time that does not exist is the first valid minute after it, as in ``next_instant``.
    """
    zone = wall_zone(moment.tzinfo or UTC)
    wall = moment.replace(tzinfo=None)
    if fixed_offset(zone) is None:
        first, second = offsets_of(wall, zone)
        if first < second:
            return _first_instant(wall, zone)
    return as_utc(moment)


def _next_in_zone(
    rule: WallRule, after: datetime, zone: ZoneInfo, start: datetime
) -> datetime | None:
    day = after.toordinal()
    offset = steady_offset(zone, day)
    if offset is None:
        return _next_near_change(rule, after, zone, start)
    wall = rule.next_wall(NAIVE_EPOCH + (after - EPOCH + offset))
    if wall is None:
        return None
    # Both a day or more away from any change: one in between has repeated no time of the rule, and
    # left out none.
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
    wall = NAIVE_EPOCH + (after - EPOCH + (local.utcoffset() or NOTHING))
    if not rule.follows_real_time:
        return _next_fixed(rule, wall, after, zone, start)
    found = _next_real(rule, wall, after, zone)
    first, second = offsets_of(wall, zone)
    if first <= second or local.fold:
        return found
    # This wall time comes a second time, so that the next run may be at an earlier wall time.
    change = change_between(after, at_offset(wall, second), zone)
    again = change.astimezone(zone).replace(tzinfo=None)
    repeated = _next_real(rule, again - TICK, change - TICK, zone)
    return min((run for run in (found, repeated) if run is not None), default=None)


def _next_fixed(
    rule: WallRule, wall: datetime | None, after: datetime, zone: tzinfo, start: datetime
) -> datetime | None:
    while wall is not None:
        wall = rule.next_wall(wall)
        if wall is not None and (run := _first_instant(wall, zone, start)) > after:
            return run
    return None


def _next_real(
    rule: WallRule, wall: datetime | None, after: datetime, zone: tzinfo
) -> datetime | None:
    while wall is not None and (wall := rule.next_wall(wall)) is not None:
        first, second = offsets_of(wall, zone)
        if first < second:
            continue
        for offset in (first, second):
            if (run := at_offset(wall, offset)) > after:
                return run
    return None


def _first_instant(wall: datetime, zone: tzinfo, start: datetime = DAWN) -> datetime:
    first, second = offsets_of(wall, zone)
    if first >= second:
        run = at_offset(wall, first)
        return run if run >= start else at_offset(wall, second)
    change = change_between(at_offset(wall, second), at_offset(wall, first), zone)
    beyond = change.replace(second=0)
    return beyond if beyond == change else beyond + MINUTE
