"""Formats an entry as text for people, and as JSON for scripts."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from celery.schedules import crontab, schedule, solar

from redbeat.calendar.zones import as_utc
from redbeat.decoder import encode
from redbeat.entries.decide import aware
from redbeat.entries.lazy import hidden
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.schedules.one_time import clocked
from redbeat.schedules.rule import rrule
from redbeat.schedules.rule_set import rruleset

from .text import duration

__all__ = (
    "as_json",
    "call_text",
    "cron_text",
    "iso",
    "last_run",
    "policy",
    "schedule_text",
    "stored",
)

#: The fields of a crontab, in the order that the command line uses.
CRON_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def iso(instant: datetime | None) -> str | None:
    """Return an instant as an ISO 8601 string in UTC."""
    return None if instant is None else as_utc(instant).isoformat()


def schedule_text(when: Any) -> str:
    """Return a schedule as one line of text, in the syntax of the command-line options.

    Examples: ``every 30 s``, ``cron 0 9 * * *``, ``at 2027-01-01T09:00:00+00:00``.
    """
    if isinstance(when, schedule):
        relative = " (relative)" if when.relative else ""
        return f"every {duration(when.run_every.total_seconds())}{relative}"
    if isinstance(when, crontab):
        return f"cron {cron_text(when)}"
    if isinstance(when, solar):
        return f"solar {when.event},{when.lat},{when.lon}"
    if isinstance(when, clocked):
        return f"at {when.clocked_time.isoformat()}"
    if isinstance(when, (rrule, rruleset)):
        return _rule_text(when)
    return str(when)


def cron_text(when: crontab) -> str:
    """Return the five fields of a crontab, separated by spaces."""
    return " ".join(_cron_field(when, name) for name in CRON_FIELDS)


def _cron_field(when: crontab, name: str) -> str:
    original = getattr(when, f"_orig_{name}")
    if isinstance(original, (list, set, frozenset, tuple)):
        return ",".join(map(str, original))
    return str(original).replace(" ", "")


def _rule_text(when: rrule | rruleset) -> str:
    try:
        start, *rest = when.to_ical().splitlines()
    except ValueError:
        return repr(when)
    return " ".join((*rest, start))  # moves DTSTART to the end


def call_text(entry: RedBeatSchedulerEntry) -> str:
    """Return the task call of an entry, such as ``proj.tasks.add(1, y=2)``."""
    fields = stored(entry)
    arguments = [json.dumps(value) for value in fields["args"] or ()]
    arguments += [f"{name}={json.dumps(value)}" for name, value in (fields["kwargs"] or {}).items()]
    return f"{entry.task}({', '.join(arguments)})"


def stored(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the definition of an entry with the same JSON values as in Redis.

    A value that JSON cannot represent is replaced by its ``repr``. Only an entry that was never
    stored in Redis can have such a value.
    """
    definition, _ = hidden(entry.definition(), static=True)
    return {name: _plain(value) for name, value in definition.items()}


def _plain(value: Any) -> Any:
    try:
        return json.loads(encode(value))
    except InvalidEntryError:
        return repr(value)


def policy(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the policy fields that differ from their defaults, with instants in ISO 8601."""
    fields = entry.policy.given()
    return {
        name: iso(value) if isinstance(value, datetime) else value for name, value in fields.items()
    }


def as_json(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the JSON form of an entry; ``docs/operating.rst`` documents the fields."""
    fields = stored(entry)
    return {
        "name": entry.name,
        "task": entry.task,
        "schedule": fields["schedule"],
        "schedule_text": schedule_text(entry.schedule),
        "args": fields["args"] or [],
        "kwargs": fields["kwargs"] or {},
        "options": fields["options"] or {},
        "enabled": entry.enabled,
        "policy": policy(entry),
        "last_run_at": iso(last_run(entry)),
        "total_run_count": entry.total_run_count,
    }


def last_run(entry: RedBeatSchedulerEntry) -> datetime | None:
    """Return the time of the last run, or None for an entry that never ran.

    An entry that never ran may also have a ``last_run_at``: the time from which its first run is
    computed.
    """
    ran = entry.total_run_count or entry.scheduled_at is not None
    return aware(entry.last_run_at) if ran and entry.last_run_at is not None else None
