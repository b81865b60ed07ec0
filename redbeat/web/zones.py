"""The zone in which an entry is written."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any

from redbeat.rulesets import rruleset
from redbeat.schedules import rrule

__all__ = ("zone_of",)


def zone_of(entry: Any) -> tzinfo | None:
    """Return the zone in which the rule of an entry is read, None for that of the app."""
    when = entry.schedule
    start = getattr(when, "dtstart", None) or getattr(when, "clocked_time", None)
    if isinstance(when, (rrule, rruleset)) or start is not None:
        found: tzinfo | None = getattr(start, "tzinfo", None)
        return found
    zone: tzinfo | None = entry.policy.zone
    return zone
