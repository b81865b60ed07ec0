"""From rules about wall clocks to instants, through every change of the clock.

One place decides what happens when a zone changes its offset, for crontabs and recurrences
alike:

- A rule with fixed times runs once a day, whatever the clock does. A wall time that does not
  exist runs at the first valid minute after it, one that exists twice runs the first time.
- A rule that follows real time (any hour will do) runs whenever the clock on the wall shows
  one of its times: not in an hour that is left out, and twice in one that is repeated.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from .zones import UTC, as_utc, fixed_offset, wall_zone

__all__ = ("WallRule", "instant_of", "next_instant")

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
TICK = timedelta.resolution


class WallRule(Protocol):
    """A rule that knows wall times only, all of them naive."""

    @property
    def follows_real_time(self) -> bool:
        """Whether the rule counts real hours instead of naming some."""

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first wall time of the rule after ``wall``, ``None`` if there is no more."""


def next_instant(rule: WallRule, after: datetime, zone: tzinfo) -> datetime | None:
    """The first instant of ``rule`` strictly after ``after``, in UTC; ``None`` if none is left.

    ``after`` is aware; ``zone`` is the zone of the clock that the rule speaks about.
    """
    after = as_utc(after)
    try:
        offset = fixed_offset(zone)
        if offset is None:
            return _next_in_zone(rule, after, wall_zone(zone))
        wall = rule.next_wall(after.replace(tzinfo=None) + offset)
        return None if wall is None else _instant(wall, offset)
    except OverflowError:
        return None


def instant_of(moment: datetime) -> datetime:
    """The aware ``moment`` in UTC.

    A wall time that does not exist is the first valid minute after it, as in ``next_instant``.
    """
    zone = wall_zone(moment.tzinfo or UTC)
    wall = moment.replace(tzinfo=None)
    if fixed_offset(zone) is None:
        first, second = _offsets(wall, zone)
        if first < second:
            return _first_instant(wall, zone)
    return as_utc(moment)


def _next_in_zone(rule: WallRule, after: datetime, zone: tzinfo) -> datetime | None:
    local = after.astimezone(zone)
    wall = local.replace(tzinfo=None)
    if not rule.follows_real_time:
        return _next_fixed(rule, wall, after, zone)
    found = _next_real(rule, wall, after, zone)
    first, second = _offsets(wall, zone)
    if first <= second or local.fold:
        return found
    # This wall time comes a second time, so that the next run may be at an earlier wall time.
    change = _change(after, _instant(wall, second), zone)
    again = change.astimezone(zone).replace(tzinfo=None)
    repeated = _next_real(rule, again - TICK, change - TICK, zone)
    return min((run for run in (found, repeated) if run is not None), default=None)


def _next_fixed(
    rule: WallRule, wall: datetime | None, after: datetime, zone: tzinfo
) -> datetime | None:
    while wall is not None:
        wall = rule.next_wall(wall)
        if wall is not None and (run := _first_instant(wall, zone)) > after:
            return run
    return None


def _next_real(
    rule: WallRule, wall: datetime | None, after: datetime, zone: tzinfo
) -> datetime | None:
    while wall is not None and (wall := rule.next_wall(wall)) is not None:
        first, second = _offsets(wall, zone)
        if first < second:
            continue
        for offset in (first, second):
            if (run := _instant(wall, offset)) > after:
                return run
    return None


def _first_instant(wall: datetime, zone: tzinfo) -> datetime:
    first, second = _offsets(wall, zone)
    if first >= second:
        return _instant(wall, first)
    change = _change(_instant(wall, second), _instant(wall, first), zone)
    beyond = change.replace(second=0)
    return beyond if beyond == change else beyond + MINUTE


def _instant(wall: datetime, offset: timedelta) -> datetime:
    return (wall - offset).replace(tzinfo=UTC, fold=0)


def _offset_at(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The instant in ``(before, after]`` when the offset changes, to the second."""
    old = _offset_at(before, zone)
    low, high = before.replace(microsecond=0), after
    while high - low > SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if _offset_at(middle, zone) == old:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


def _offsets(wall: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """The offsets for ``fold`` 0 and 1, as PEP 495 defines them.

    Equal: an ordinary wall time. First greater: it exists twice. First smaller: it does not
    exist, and these are the offsets before and after.
    """
    if isinstance(zone, (ZoneInfo, timezone)):
        first = zone.utcoffset(wall.replace(fold=0))
        second = zone.utcoffset(wall.replace(fold=1))
        return first or timedelta(0), second or timedelta(0)
    return _observed_offsets(wall, zone)


def _observed_offsets(wall: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """The same for zone classes that do not keep PEP 495, from conversions out of UTC alone."""
    guess = wall.replace(tzinfo=UTC, fold=0)
    before, after = _offset_at(guess - DAY, zone), _offset_at(guess + DAY, zone)
    shown = [offset for offset in (before, after) if _shows(wall, offset, zone)]
    if len(shown) == 1:
        return shown[0], shown[0]
    return before, after


def _shows(wall: datetime, offset: timedelta, zone: tzinfo) -> bool:
    return _instant(wall, offset).astimezone(zone).replace(tzinfo=None) == wall
