"""Formats an entry as text for people, and as JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from redbeat.calendar.zones import as_utc
from redbeat.decoder import encode
from redbeat.entries import decide, status
from redbeat.entries.history import TRIGGERED, Occurrence, RunResult
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.printing import plural
from redbeat.schedules.next_run import asks_itself

from .rule_text import rule_of, schedule_text
from .text import duration


def iso(instant: datetime | None) -> str | None:
    return None if instant is None else as_utc(instant).isoformat()


def plain(value: Any) -> Any:
    """Return a JSON value: instants in ISO 8601, dataclasses and named tuples as dicts."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    return value


def timing_text(entry: RedBeatSchedulerEntry) -> str:
    text = schedule_text(entry.schedule)
    spread = entry.policy_field("spread")
    if not spread or asks_itself(entry.schedule):
        return text
    return f"{text} +{duration(round(entry.spread_offset))} (spread {duration(spread)})"


def stored(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the definition of an entry with the same JSON values as in Redis.

    An entry that was never stored may have values that JSON can't represent; these become their
    ``repr``.
    """
    return {name: _plain(value) for name, value in entry.definition().items()}


def _plain(value: Any) -> Any:
    try:
        return json.loads(encode(value))
    except InvalidEntryError:
        return repr(value)


def policy(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    return {name: plain(value) for name, value in entry.effective_policy.non_defaults().items()}


def as_json(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the JSON form of an entry; ``docs/json.rst`` documents the fields."""
    definition, rule = stored(entry), rule_of(entry.schedule)
    return {
        "name": entry.name,
        "task": entry.task,
        "schedule": definition["schedule"],
        "schedule_text": timing_text(entry),
        "rule": None if rule is None else dict([rule]),
        "args": definition["args"] or [],
        "kwargs": definition["kwargs"] or {},
        "options": definition["options"] or {},
        "enabled": entry.enabled,
        "policy": policy(entry),
        "last_run_at": iso(last_run(entry)),
        "total_run_count": entry.total_run_count,
    }


def overdue_text(item: status.Overdue) -> str:
    """Return why an entry is overdue, such as ``had no success for 3 h, ...``."""
    since = "the entry was saved or resumed"
    if item.last_success is not None:
        since = as_utc(item.last_success).isoformat(timespec="seconds")
    ago, within = duration(round(item.seconds)), duration(item.expect_within)
    return f"had no success for {ago}, since {since}; a success is expected within {within}"


def outcome_text(run: Occurrence) -> str:
    """Return the outcome of a run and the missed runs that it replaces: ``sent, 1 missed``."""
    return f"{run.outcome}, {run.missed} missed" if run.missed else run.outcome


def result_text(result: RunResult | None) -> str:
    """Return a result such as ``failed in 1.2 s after 2 retries``; "" if it's unknown."""
    if result is None:
        return ""
    text: str = result.state
    if result.seconds is not None:
        text += f" in {duration(round(result.seconds, 3))}"
    if result.retries:
        text += f" after {plural(result.retries, 'retry', 'retries')}"
    return f"{text}: {result.error}" if result.error else text


def last_run(entry: RedBeatSchedulerEntry, history: Iterable[Occurrence] = ()) -> datetime | None:
    """Return the time of the last run, or None for an entry that never ran.

    The ``last_run_at`` of an entry that never ran may be the time from which its first run is
    computed. A triggered run doesn't change ``last_run_at``, so its time comes from ``history``.
    """
    ran = entry.total_run_count or entry.nominal_at is not None
    runs = [run.dispatched_at for run in history if run.outcome == TRIGGERED]
    if ran and entry.last_run_at is not None:
        runs.append(decide.aware(entry.last_run_at))
    return max(runs, default=None)
