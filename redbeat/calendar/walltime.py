"""From rules about wall clocks to instants: offsets from UTC, times skipped and repeated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from .zones import EPOCH, NAIVE_EPOCH, UTC, as_utc, fixed_offset, wall_zone

__all__ = (
    "END",
    "TICK",
    "WallRule",
    "at_offset",
    "change_between",
    "instant_of",
    "next_instant",
    "offset_at",
    "offset_spans",
    "offsets_of",
    "steady_offset",
)

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
EPOCH_DAY = EPOCH.toordinal()

#: No two changes of one zone are closer.
APART = 3 * DAY
CENTURY = 36525 * DAY
END = datetime.max.replace(tzinfo=UTC)


def at_offset(wall: datetime, offset: timedelta) -> datetime:
    """The instant, in UTC, at which clocks of this offset show ``wall``."""
    return EPOCH + (wall - NAIVE_EPOCH - offset)


def offset_at(instant: datetime, zone: tzinfo) -> timedelta:
    """The offset of ``zone`` at the aware ``instant``."""
    return instant.astimezone(zone).utcoffset() or timedelta(0)


@lru_cache(maxsize=4096)
def steady_offset(zone: ZoneInfo, day: int) -> timedelta | None:
    """The offset in the UTC day of this ordinal, the day before and the day after.

    ``None`` if it changes in these three days, and at the ends of the calendar. A wall time of such
    a day exists once.
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
    """The spans ``[begin, end)`` in which ``zone`` keeps an offset, and that, from ``start`` on.

    A change that is more than a century after ``start`` is left out.
    """
    begin, known, offset = start, start, offset_at(start, zone)
    while known - start < CENTURY and known < END - APART:
        if offset_at(known + APART, zone) == offset:
            known += APART
            continue
        known = change_between(known, known + APART, zone)
        yield begin, known, offset
        begin, offset = known, offset_at(known, zone)
    yield begin, END, offset


def change_between(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The instant in ``(before, after]`` when the offset changes, to the second."""
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
    """The offsets for ``fold`` 0 and 1, as PEP 495 defines them.

    Equal: an ordinary wall time. First greater: it exists twice. First smaller: it does not
    exist, and these are the offsets before and after.
    """
    if isinstance(zone, (ZoneInfo, timezone)):
        # Made anew, which takes a fraction of the time of replace().
        day, clock = (wall.year, wall.month, wall.day), (wall.hour, wall.minute, wall.second)
        first = zone.utcoffset(datetime(*day, *clock, wall.microsecond))  # noqa: DTZ001
        second = zone.utcoffset(datetime(*day, *clock, wall.microsecond, fold=1))  # noqa: DTZ001
        return first or timedelta(0), second or timedelta(0)
    return _observed_offsets(wall, zone)


def _observed_offsets(wall: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """The same for zone classes that do not keep PEP 495, from conversions out of UTC alone."""
    guess = wall.replace(tzinfo=UTC, fold=0)
    before, after = offset_at(guess - DAY, zone), offset_at(guess + DAY, zone)
    shown = [offset for offset in (before, after) if _shows(wall, offset, zone)]
    if len(shown) == 1:
        return shown[0], shown[0]
    return before, after


def _shows(wall: datetime, offset: timedelta, zone: tzinfo) -> bool:
    return at_offset(wall, offset).astimezone(zone).replace(tzinfo=None) == wall


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
