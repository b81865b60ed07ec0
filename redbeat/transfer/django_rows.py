"""What the tables of django-celery-beat hold, as entries.

A row is ``{"model": ..., "pk": ..., "fields": {...}}``, as Django serializes it. What RedBeat has
no place for is left out: descriptions, and dates of change except for intervals that never ran.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from celery.schedules import crontab, schedule, solar

from redbeat.calendar.walltime import instant_of
from redbeat.entries.history import encode_meta
from redbeat.errors import InvalidEntryError
from redbeat.instant import clocked

from .incoming import EntryType, Incoming, fail

__all__ = ("LABEL", "TABLES", "TASK", "Tables", "converted")

LABEL: Final = "django_celery_beat."
TASK: Final = f"{LABEL}periodictask"

#: The tables of schedules, by the field of a task that refers to them.
TABLES: Final = {
    "interval": f"{LABEL}intervalschedule",
    "crontab": f"{LABEL}crontabschedule",
    "solar": f"{LABEL}solarschedule",
    "clocked": f"{LABEL}clockedschedule",
}

PERIODS: Final = ("days", "hours", "minutes", "seconds", "microseconds")

#: Fields of a crontab, the same as those of Celery's.
CRON_FIELDS: Final = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")

#: Fields of a task that are options of its messages.
OPTIONS: Final = ("queue", "exchange", "routing_key", "priority")

Fields = Mapping[str, Any]

#: The fields of rows, by model and primary key.
Tables = Mapping[tuple[str, Any], Fields]


def converted(app: Any, make: EntryType, task: Mapping[str, Any], tables: Tables) -> Incoming:
    """Return the entry of a task with its run history; times without a zone are in the app's."""
    fields = task.get("fields") or {}
    where = f"periodictask {task.get('pk')} ({fields.get('name')!r:.80})"
    try:
        return _convert(app, make, where, fields, tables)
    except InvalidEntryError as error:
        return fail(where, error)


def _convert(app: Any, make: EntryType, where: str, fields: Fields, tables: Tables) -> Incoming:
    kind, row = _schedule_row(fields, tables)
    policy: dict[str, Any] = {}
    if kind == "crontab" and row.get("timezone"):
        policy["timezone"] = row["timezone"]
    if fields.get("one_off"):
        policy["max_runs"] = 1
    policy["start_time"] = _instant(app, "start_time", fields.get("start_time"))
    policy["end_time"] = _instant(app, "expires", fields.get("expires"))
    if policy["end_time"] or fields.get("one_off"):
        policy["on_finish"] = "disable"
    last_run_at = _instant(app, "last_run_at", fields.get("last_run_at"))
    if kind == "interval" and not last_run_at and not policy["start_time"]:
        # From which django-celery-beat counts the first run.
        policy["last_run_at"] = _instant(app, "date_changed", fields.get("date_changed"))
    entry = make(
        fields.get("name"),
        fields.get("task"),
        _schedule(app, kind, row),
        _json("args", fields.get("args"), list),
        _json("kwargs", fields.get("kwargs"), dict),
        bool(fields.get("enabled", True)),
        _options(fields, policy["end_time"]),
        app=app,
        **policy,
    )
    meta = encode_meta(last_run_at, fields.get("total_run_count") or 0) if last_run_at else ""
    return Incoming(where, entry, meta=meta)


def _schedule_row(fields: Fields, tables: Tables) -> tuple[str, Fields]:
    kinds = [kind for kind in TABLES if fields.get(kind) is not None]
    if len(kinds) != 1:
        problem = f"must be one of {', '.join(TABLES)}, not {len(kinds)} of them"
        raise InvalidEntryError("schedule", problem)
    kind = kinds[0]
    row = tables.get((TABLES[kind], fields[kind]))
    if row is None:
        problem = f"the file has no {TABLES[kind]} {fields[kind]!r}; dump the whole application"
        raise InvalidEntryError(kind, problem)
    return kind, row


def _schedule(app: Any, kind: str, row: Fields) -> Any:
    try:
        if kind == "interval":
            return _interval(row)
        if kind == "crontab":
            return crontab(**{name: str(row.get(name, "*")) for name in CRON_FIELDS}, app=app)
        if kind == "solar":
            where = (float(row["latitude"]), float(row["longitude"]))
            return solar(row["event"], *where, app=app)
        return clocked(_instant(app, "clocked_time", row.get("clocked_time")) or _missing())
    except InvalidEntryError:
        raise
    except Exception as error:  # Celery's parsers have errors of their own
        raise InvalidEntryError(kind, f"is not understood: {error!r}") from error


def _missing() -> datetime:
    raise InvalidEntryError("clocked_time", "is missing")


def _interval(row: Fields) -> schedule:
    period, every = row.get("period"), row.get("every")
    if period not in PERIODS:
        problem = f"must be one of {', '.join(PERIODS)}, not {period!r:.60}"
        raise InvalidEntryError("interval.period", problem)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        problem = f"must be a whole number above 0, not {every!r:.60}"
        raise InvalidEntryError("interval.every", problem)
    return schedule(timedelta(**{period: every}))


def _options(fields: Fields, expires: datetime | None) -> dict[str, Any]:
    options = {name: fields[name] for name in OPTIONS if fields.get(name) not in (None, "")}
    headers = _json("headers", fields.get("headers"), dict)
    if headers:
        options["headers"] = headers
    if fields.get("expire_seconds") is not None:
        options["expires"] = fields["expire_seconds"]
    elif expires is not None:
        options["expires"] = expires
    return options


def _json(field: str, text: Any, kind: type) -> Any:
    """Return what stands as JSON in a text field."""
    if not text:
        return kind()
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise InvalidEntryError(field, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, kind):
        raise InvalidEntryError(field, f"must be a JSON {kind.__name__}, not {text!r:.60}")
    return value


def _instant(app: Any, field: str, text: Any) -> datetime | None:
    if text in (None, ""):
        return None
    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError as error:
        raise InvalidEntryError(field, f"{text!r:.60} is not ISO 8601") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=app.timezone)
    return instant_of(moment).astimezone(timezone.utc)
