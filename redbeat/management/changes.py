"""Describes what an import, a migration or an apply does to each entry and calendar."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from redbeat.calendar.zones import UTC
from redbeat.codec.stored import instant_in
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.presentation.describe import policy, schedule_text, stored
from redbeat.schedules.calendars import Calendar

__all__ = ("Change", "Difference", "calendar_change", "differences", "next_run_of")


class Difference(NamedTuple):
    """The old and the new value of a field, as JSON values; None for no value."""

    old: Any
    new: Any


class Change(NamedTuple):
    """What happens to an entry or a calendar.

    Attributes:
        name: the name of the entry or calendar.
        action: ``created``, ``changed``, ``unchanged``, ``kept`` (the stored entry differs and
            stays) or ``removed``; for a migration ``copied``, ``same``, ``different``,
            ``unreadable`` or ``deleted``.
        fields: the fields that differ. A new entry has all of its fields, with old values of None.
        next_run: when the entry is due next, in UTC; None if never.
        is_calendar: whether this is a calendar.
    """

    name: str
    action: str
    fields: Mapping[str, Difference] = {}
    next_run: datetime | None = None
    is_calendar: bool = False


def differences(
    old: RedBeatSchedulerEntry | None, new: RedBeatSchedulerEntry
) -> dict[str, Difference]:
    """Return the fields of two entries that differ; ``old`` is None for a new entry."""
    before = {} if old is None else _values(old)
    after = _values(new)
    found = {
        name: Difference(before.get(name), after.get(name))
        for name in dict.fromkeys((*after, *before))
        if before.get(name) != after.get(name)
    }
    # Schedules with the same text may be stored in different ways, such as [1, 2] and "1,2".
    schedule = found.get("schedule")
    if old is not None and schedule is not None:
        texts = Difference(schedule_text(old.schedule), schedule_text(new.schedule))
        if texts.old != texts.new:
            found["schedule"] = texts
    elif schedule is not None:
        found["schedule"] = Difference(None, schedule_text(new.schedule))
    return found


def calendar_change(action: str, old: Calendar | None, new: Calendar) -> Change:
    """Return what happens to a calendar; ``old`` is None if no readable calendar is stored."""
    before: dict[str, Any] = {} if old is None else old.fields()
    fields = {
        name: Difference(before.get(name) or None, value or None)
        for name, value in new.fields().items()
        if (before.get(name) or None) != (value or None)
    }
    return Change(new.name, action, fields, is_calendar=True)


def _values(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the fields of an entry that have a value, as JSON values."""
    fields = {**stored(entry), **policy(entry)}
    del fields["name"]
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def next_run_of(score: float | None, now: datetime | None = None) -> datetime | None:
    """Return the instant of a score; None for a parked entry.

    An entry without a score is due at once: at ``now``, which is the present by default.
    """
    if score is None:
        return now or datetime.now(UTC)
    return None if score < 0 else instant_in(score)
