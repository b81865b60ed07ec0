"""The sparse profile: one beat, long waits, and years with every clock change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from zoneinfo import available_timezones

from tests.simulation.clock_changes import ZONES, changes_of
from tests.simulation.scenario import Scenario

DAY: Final = 86400.0


def years(first: int, count: int, zones: Sequence[str] = ZONES) -> Scenario:
    """Return a scenario that covers ``count`` years from the start of the year ``first``."""
    statics: dict[str, dict[str, Any]] = {}
    for zone in zones:
        days = days_near_changes(zone, first, count)
        common = {
            "kind": "crontab",
            "timezone": zone,
            "month_of_year": ",".join(map(str, sorted({day.month for day in days}))),
            "day_of_month": ",".join(map(str, sorted({day.day for day in days}))),
        }
        for hour, minute in ((0, 0), (0, 30), (1, 30), (2, 0), (2, 30), (3, 0)):
            statics[f"{zone} {hour}:{minute:02}"] = {**common, "hour": hour, "minute": minute}
        statics[f"{zone} every six hours"] = {**common, "hour": "*/6", "minute": 15}
    statics["every day"] = {"kind": "every", "seconds": DAY}
    start = datetime(first, 1, 1, tzinfo=timezone.utc).timestamp()
    return Scenario(
        seed=first,
        beats=1,
        locked=False,
        duration=datetime(first + count, 1, 1, tzinfo=timezone.utc).timestamp() - start,
        calm=DAY,
        start=start,
        statics=statics,
        embedded=True,
        profile="years",
    )


def days_near_changes(name: str, first: int, count: int) -> list[datetime]:
    """Return the days around each clock change of a zone; around New Year without a change.

    A simulation of all days takes long, and only clock changes can cause errors.
    """
    changes = changes_of(name, first, count)
    return [
        day + timedelta(days=ahead) for day, _ in changes[1:] or changes for ahead in range(-2, 2)
    ]


def changing_zones(first: int, count: int) -> list[str]:
    """Return one zone for each pattern of clock changes in ``count`` years."""
    found: dict[tuple[Any, ...], str] = {}
    for name in sorted(available_timezones()):
        changes = changes_of(name, first, count)
        if len(changes) > 1:
            found.setdefault(tuple(changes), name)
    return sorted(found.values())
