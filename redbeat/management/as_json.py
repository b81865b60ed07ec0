"""The JSON objects of the commands and the web API, which ``docs/json.rst`` documents."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from platform import python_version
from typing import Any, Final

from redbeat.entries import backfill, history
from redbeat.entries.status import EntryStatus, Record
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.metrics.problems import Finding
from redbeat.presentation.describe import as_json, iso, plain
from redbeat.printing import encodable
from redbeat.schedules.calendars import Calendar
from redbeat.storage.rows import Row

from .forecast import MAX_RUNS, Load, Periods, first_runs, upcoming_or_problem
from .status import Status

#: Number of upcoming runs of an entry.
UPCOMING: Final = 5


def record_json(record: Record) -> dict[str, Any]:
    stored = {"name": record.name} if record.entry is None else as_json(record.entry)
    return stored | _state_json(record, record.static, record.problem)


def unreadable_json(record: Record, row: Row) -> dict[str, Any]:
    """Like :func:`record_json`, with the stored texts of an entry that cannot be read."""
    texts = {name: encodable(text) for name, text in row.texts.items()}
    return {**record_json(record), "stored": texts}


def _state_json(shown: Record | EntryStatus, static: bool, problem: str | None) -> dict[str, Any]:
    return {
        "state": shown.state,
        "due_at": iso(shown.due_at),
        "static": static,
        "problem": problem,
        "failing": plain(shown.failing),
        "last_result": shown.last_result,
        "quarantined_since": iso(shown.quarantined_since),
    }


def entry_json(entry: RedBeatSchedulerEntry, static: bool) -> dict[str, Any]:
    """Return an entry with its state and its runs.

    Takes three round trips, and more for its calendars and for results that workers report. Raises
    KeyError if the entry is not stored.
    """
    status, (upcoming, problem) = entry.status, upcoming_or_problem(entry, UPCOMING)
    problem = problem or (status.failing.reason if status.failing else None)
    return {
        **as_json(entry),
        **_state_json(status, static, problem),
        **plain(status),
        "upcoming": plain(upcoming),
        "backfills": [progress_json(one) for one in entry.backfills],
        "history": [occurrence_json(item) for item in entry.history],
    }


def occurrence_json(item: history.Occurrence) -> dict[str, Any]:
    fields: dict[str, Any] = {**plain(item), "task_id": item.task_id or None}
    if item.result is not None:
        fields["result"]["started_at"] = iso(item.result.started_at)
    return fields


def upcoming_json(at: datetime, name: str) -> dict[str, Any]:
    return {"due_at": iso(at), "name": name}


def timeline_json(minutes: Periods, load: Load) -> dict[str, Any]:
    """Return the number of runs per minute and per entry.

    The runs themselves are listed too, if there are at most :data:`MAX_RUNS`.
    """
    listed = sum(load.counts) <= MAX_RUNS
    runs = {
        name: plain(first_runs(load.entry(name), minutes.since, minutes.end, sum(counts)))
        for name, counts in (load.entries.items() if listed else ())
    }
    return {
        "since": iso(minutes.since),
        "until": iso(minutes.end),
        "complete": load.complete,
        "first_minute": iso(minutes.start),
        "per_minute": load.counts,
        "entries": [
            {"name": name, "count": sum(counts), "runs": runs.get(name)}
            for name, counts in load.entries.items()
        ],
    }


def calendar_json(calendar: Calendar) -> dict[str, Any]:
    return {"name": calendar.name, **calendar.fields()}


def finding_json(finding: Finding) -> dict[str, Any]:
    return {**plain(finding), "key": encodable(finding.key), "severity": finding.severity}


def progress_json(one: backfill.Backfill) -> dict[str, Any]:
    names = ("since", "until", "sent", "total", "rate", "finished")
    return {name: plain(getattr(one, name)) for name in names}


#: The fields of a status that its JSON object has under the same names.
SHOWN: Final = (
    *("leader", "beats", "standbys", "lock_key", "entries", "statics", "due_now", "most_late"),
    *("overdue", "clock_offset", "beat_clock_offset", "key_prefix", "shards"),
)


def status_json(status: Status) -> dict[str, Any]:
    return {
        "healthy": status.healthy,
        "problems": [one.problem for one in status.problems],
        "findings": list(map(finding_json, status.problems)),
        "total": sum(status.entries.values()),
        **{name: plain(getattr(status, name)) for name in SHOWN},
        "redis": {"url": status.redis_url, **status.server},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    packages = {"redbeat": "celery-redbeat", "celery": "celery", "redis": "redis"}
    versions = {name: version(package) for name, package in packages.items()}
    return {**versions, "python": python_version()}
