"""The instants at which the clocks of a time zone change."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

#: Zones with different clock changes: by an hour, by half an hour, around Ramadan, at midnight, and
#: never.
ZONES: Final = (
    "Africa/Casablanca",
    "America/New_York",
    "America/Santiago",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Europe/Berlin",
)
DAY: Final = timedelta(days=1)


def changes_of(name: str, first: int, count: int) -> list[tuple[datetime, timedelta | None]]:
    """Return the first day and each day of a clock change in a zone, with the UTC offsets."""
    zone = ZoneInfo(name)
    changes: list[tuple[datetime, timedelta | None]] = []
    at, end = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (first, first + count))
    while at < end:
        offset = at.astimezone(zone).utcoffset()
        if not changes or offset != changes[-1][1]:
            changes.append((at, offset))
        at += DAY
    return changes


@cache
def instants_of_changes(year: int) -> list[tuple[str, float]]:
    """Return the clock changes of :data:`ZONES` in a year: the zone, and the UNIX seconds."""
    return [
        (name, _first_second(ZoneInfo(name), day))
        for name in ZONES
        for day, _ in changes_of(name, year, 1)[1:]
    ]


def _first_second(zone: ZoneInfo, day: datetime) -> float:
    """Return the UNIX second from which a zone has the UTC offset that it has at ``day``."""
    after = day.astimezone(zone).utcoffset()
    early, late = (day - DAY).timestamp(), day.timestamp()
    while late - early > 1:
        middle = (early + late) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == after:
            late = middle
        else:
            early = middle
    return late
