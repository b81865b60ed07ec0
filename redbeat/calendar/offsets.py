"""What the clocks of a zone show: offsets from UTC, when they change, and times shown twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from .zones import EPOCH, NAIVE_EPOCH, UTC

__all__ = (
    "END",
    "at_offset",
    "change_between",
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
