"""Finds the entries that run otherwise, or not at all, with RedBeat 2: for the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from redbeat.codec.stored import record_in
from redbeat.codec.types import TAG
from redbeat.entries.definition import FIELDS
from redbeat.metrics.problems import Finding, finding
from redbeat.printing import encodable
from redbeat.storage.rows import Row
from redbeat.storage.store import store_of

from .find import pages_of

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

#: The schedules that RedBeat 2 knows, each with the fields that it needs.
SCHEDULES: Final = {"interval": {"every", "relative"}, "crontab": set[str](), "rrule": {"freq"}}

#: The fields of a definition that RedBeat 2 accepts; Celery's entry takes the last two.
ACCEPTED: Final = {*FIELDS, "last_run_at", "total_run_count"}

#: The fields of a policy that change no run.
NOTES: Final = {"description", "managed_by"}

ACCEPT: Final = "change the entry, or accept that it runs without"


def lost_on_the_way_back(schedule: Schedule) -> Iterator[Finding]:
    """Yield what RedBeat 2 cannot read, or ignores. One round trip per 500 entries."""
    for page in pages_of(store_of(schedule.app)):
        for row in page.rows:
            yield from _of_row(row)


def _of_row(row: Row) -> Iterator[Finding]:
    key = encodable(row.key)
    problem = _why_unreadable(record_in(row.definition or ""))
    if problem:
        yield finding("version_2", f"cannot be read by RedBeat 2: {problem}", key)
    ignored = ", ".join(sorted(record_in(row.policy or "").keys() - NOTES))
    if ignored:
        yield finding("version_2", f"loses {encodable(ignored)} with RedBeat 2", key, ACCEPT)


def _why_unreadable(definition: Mapping[str, Any]) -> str:
    rule: Any = definition.get("schedule")
    tag = rule.get(TAG) if isinstance(rule, dict) else None
    unknown = [name for name in definition if name not in ACCEPTED]
    if not {"name", "task", "schedule"} <= definition.keys():
        return "its definition is not complete"
    if not isinstance(tag, str) or tag not in SCHEDULES:
        return f"it does not know the schedule type {tag!r:.60}"
    if not SCHEDULES[tag] <= rule.keys():
        return f"its schedule needs {' and '.join(sorted(SCHEDULES[tag]))}"
    if unknown:
        return f"it does not know the field {unknown[0]!r:.60} of a definition"
    return ""
