"""Reads entries of django-celery-beat from its database or from ``manage.py dumpdata`` output."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Final

from celery import Celery
from celery.schedules import crontab, solar
from celery.schedules import schedule as interval

from redbeat.codec.types import CRON_FIELDS
from redbeat.entries.history import encode_meta
from redbeat.errors import InvalidEntryError
from redbeat.schedules.one_time import clocked

from .incoming import (
    Incoming,
    Kind,
    UnreadableSourceError,
    check_kinds,
    instant_from,
    json_from,
    read_safely,
)

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

__all__ = (
    "DEFAULT_ALIAS",
    "TASK",
    "read_database",
    "read_fixture",
)

LABEL: Final = "django_celery_beat."
TASK: Final = f"{LABEL}periodictask"

#: Maps a field of ``PeriodicTask`` to the label of the model that the field refers to.
TABLES: Final = {
    "interval": f"{LABEL}intervalschedule",
    "crontab": f"{LABEL}crontabschedule",
    "solar": f"{LABEL}solarschedule",
    "clocked": f"{LABEL}clockedschedule",
}

PERIODS: Final = ("days", "hours", "minutes", "seconds", "microseconds")

#: Maps a field of ``PeriodicTask`` to the kind of its value. The code that reads a field without a
#: kind checks the value of the field.
KINDS: Final[dict[str, Kind]] = {
    "name": (str, "a string", True),
    "task": (str, "a string", True),
    "enabled": (bool, "true or false", False),
    "one_off": (bool, "true or false", False),
    "total_run_count": (int, "an integer", False),
    **dict.fromkeys(("queue", "exchange", "routing_key"), (str, "a string", False)),
    "priority": (int, "an integer", False),
    "expire_seconds": ((int, float), "a number of seconds", False),
}

#: Maps each kind of schedule to the fields of its database row, with the kinds of their values.
ROW_KINDS: Final[dict[str, dict[str, Kind]]] = {
    "interval": {},
    "crontab": {"timezone": (object, "the name of a time zone", False)},
    "solar": {"event": (str, "the name of an event", True)},
    "clocked": {},
}

#: Fields of a ``PeriodicTask`` that become options of ``apply_async``.
OPTIONS: Final = ("queue", "exchange", "routing_key", "priority")

#: The fields of one database row, by field name.
Fields = Mapping[str, Any]

#: The rows of all tables, by model label and primary key.
Tables = Mapping[tuple[str, Any], Any]


def converted(schedule: Schedule, task: Mapping[str, Any], tables: Tables) -> Incoming:
    """Return the entry for a ``PeriodicTask``, with the run history.

    Naive times are interpreted in the time zone of the app.
    """
    fields = task.get("fields")
    name = fields.get("name") if isinstance(fields, Mapping) else None
    where = f"periodictask {task.get('pk')!r:.40} ({name!r:.80})"
    return read_safely(where, lambda: _convert(schedule, where, fields, tables))


def _convert(schedule: Schedule, where: str, fields: Any, tables: Tables) -> Incoming:
    app = schedule.app
    _check_row("", fields, KINDS)
    kind, row = _schedule_row(fields, tables)
    policy: dict[str, Any] = {}
    if kind == "crontab" and row.get("timezone"):
        policy["timezone"] = row["timezone"]
    if fields.get("one_off"):
        policy["max_runs"] = 1
    policy["description"] = fields.get("description") or None
    policy["start_time"] = _instant(app, "start_time", fields.get("start_time"))
    policy["end_time"] = _instant(app, "expires", fields.get("expires"))
    if policy["end_time"] or fields.get("one_off"):
        policy["on_finish"] = "disable"
    last_run_at = _instant(app, "last_run_at", fields.get("last_run_at"))
    if kind == "interval" and not last_run_at and not policy["start_time"]:
        # In django-celery-beat, the first interval starts at ``date_changed``.
        policy["last_run_at"] = _instant(app, "date_changed", fields.get("date_changed"))
    count = fields.get("total_run_count") or 0
    entry = schedule.entry_class(
        fields["name"],
        fields["task"],
        _schedule(app, kind, row),
        json_from("args", fields.get("args") or [], list),
        json_from("kwargs", fields.get("kwargs") or {}, dict),
        bool(fields.get("enabled", True)),
        _options(fields, policy["end_time"]),
        app=app,
        total_run_count=count,
        **policy,
    )
    meta = encode_meta(last_run_at, count) if last_run_at else ""
    return Incoming(where, entry, meta=meta)


def _schedule_row(fields: Fields, tables: Tables) -> tuple[str, Fields]:
    kinds = [kind for kind in TABLES if fields.get(kind) is not None]
    if len(kinds) != 1:
        problem = f"must be exactly one of {', '.join(TABLES)}; this task has {len(kinds)} of them"
        raise InvalidEntryError("schedule", problem)
    kind = kinds[0]
    row = tables.get((TABLES[kind], _primary_key(fields[kind])))
    if row is None:
        problem = f"the file has no {TABLES[kind]} {fields[kind]!r:.60}; dump the whole application"
        raise InvalidEntryError(kind, problem)
    _check_row(f"{kind}.", row, ROW_KINDS[kind])
    return kind, row


def _primary_key(value: Any) -> Any:
    """Return a primary key that can be a dict key; a list (a natural key) becomes a string."""
    return value if isinstance(value, (int, str)) else repr(value)


def _check_row(parent: str, fields: Any, kinds: Mapping[str, Kind]) -> None:
    if not isinstance(fields, Mapping):
        name = parent.rstrip(".") or "fields"
        raise InvalidEntryError(name, f"must be an object, not {fields!r:.60}")
    check_kinds(parent, fields, kinds)


def _schedule(app: Celery, kind: str, row: Fields) -> Any:
    try:
        if kind == "interval":
            return _interval(row)
        if kind == "crontab":
            return crontab(**{name: str(row.get(name, "*")) for name in CRON_FIELDS}, app=app)
        if kind == "solar":
            place = (float(row["latitude"]), float(row["longitude"]))
            return solar(row["event"], *place, app=app)
        at = _instant(app, "clocked_time", row.get("clocked_time"))
        if at is None:
            raise InvalidEntryError("clocked_time", "is missing")
        return clocked(at)
    except InvalidEntryError:
        raise
    except Exception as error:  # Celery's parsers raise many exception types
        raise InvalidEntryError(kind, f"is not valid: {error!r}") from error


def _interval(row: Fields) -> interval:
    period, every = row.get("period"), row.get("every")
    if period not in PERIODS:
        problem = f"must be one of {', '.join(PERIODS)}, not {period!r:.60}"
        raise InvalidEntryError("interval.period", problem)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        problem = f"must be an integer greater than 0, not {every!r:.60}"
        raise InvalidEntryError("interval.every", problem)
    return interval(timedelta(**{period: every}))


def _options(fields: Fields, expires: datetime | None) -> dict[str, Any]:
    options = {name: fields[name] for name in OPTIONS if fields.get(name) not in (None, "")}
    headers = json_from("headers", fields.get("headers") or {}, dict)
    if headers:
        options["headers"] = headers
    if fields.get("expire_seconds") is not None:
        options["expires"] = fields["expire_seconds"]
    elif expires is not None:
        options["expires"] = expires
    return options


def _instant(app: Celery, field: str, text: Any) -> datetime | None:
    if text in (None, ""):
        return None
    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError as error:
        raise InvalidEntryError(field, f"{text!r:.60} is not ISO 8601") from error
    return instant_from(field, moment, app.timezone)


def read_fixture(schedule: Schedule, file: IO[bytes]) -> Iterator[Incoming]:
    """Yield an entry for each ``PeriodicTask`` in ``dumpdata`` output, with its run history.

    Naive times are interpreted in the time zone of the app. Raises :exc:`UnreadableSourceError` if
    the file cannot be read.
    """
    objects = _objects(file)
    tables = {
        (str(row.get("model")), _primary_key(row.get("pk"))): row.get("fields") for row in objects
    }
    tasks = [row for row in objects if row.get("model") == TASK]
    if not tasks:
        raise UnreadableSourceError(
            f"has no {TASK}: create the file with manage.py dumpdata django_celery_beat"
        )
    for task in tasks:
        yield converted(schedule, task, tables)


def _objects(file: IO[bytes]) -> list[dict[str, Any]]:
    try:
        text = file.read().decode("utf-8-sig")
        is_array = text.lstrip().startswith("[")  # a file without an array has JSON lines
        lines = (line for line in text.splitlines() if line.strip())
        objects = json.loads(text) if is_array else [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise UnreadableSourceError(f"cannot be read as JSON: {error}") from error
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise UnreadableSourceError("is not a fixture: create the file with manage.py dumpdata")
    return list(objects)


#: The alias of Django's default database.
DEFAULT_ALIAS: Final = "default"

#: Maximum number of database rows in memory.
CHUNK: Final = 500


def read_database(schedule: Schedule, alias: str = DEFAULT_ALIAS) -> Iterator[Incoming]:
    """Yield an entry for each ``PeriodicTask`` in a Django database, with its run history.

    ``alias`` is a key of Django's ``DATABASES`` setting. The database is not changed. Raises
    :exc:`UnreadableSourceError` if Django is not set up or the database cannot be read.
    """
    registry = _registry()
    errors: tuple[type[Exception], ...] = (
        import_module("django.db").Error,
        import_module("django.utils.connection").ConnectionDoesNotExist,
    )
    try:
        tables = _tables(registry, alias)
        for task in _rows(registry.get_model(TASK), alias):
            yield converted(schedule, task, tables)
    except errors as error:
        raise UnreadableSourceError(f"cannot be read: {error}") from error


def _registry() -> Any:
    """Set up Django and return its application registry."""
    try:
        django = import_module("django")
        conf = import_module("django.conf")
    except ImportError as error:
        problem = "needs Django: install django-celery-beat, or pass a FILE from dumpdata"
        raise UnreadableSourceError(problem) from error
    if not (os.environ.get("DJANGO_SETTINGS_MODULE") or conf.settings.configured):
        problem = (
            "needs DJANGO_SETTINGS_MODULE: set it as in manage.py, or pass a FILE from dumpdata"
        )
        raise UnreadableSourceError(problem)
    try:
        django.setup()
        registry = import_module("django.apps").apps
        registry.get_app_config(TASK.partition(".")[0])
    except LookupError as error:
        raise UnreadableSourceError("needs django_celery_beat in INSTALLED_APPS") from error
    except Exception as error:  # a settings module may raise any error
        raise UnreadableSourceError(
            f"belongs to a project that cannot be set up: {error!r}"
        ) from error
    return registry


def _tables(registry: Any, alias: str) -> Tables:
    models = {label: registry.get_model(label) for label in TABLES.values()}
    return {
        (label, row["pk"]): row["fields"]
        for label, model in models.items()
        for row in _rows(model, alias)
    }


def _rows(model: Any, alias: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in the format of ``dumpdata``, but with times as datetimes."""
    serialize = import_module("django.core.serializers").serialize
    for row in model._base_manager.using(alias).order_by("pk").iterator(chunk_size=CHUNK):
        yield from serialize("python", [row])
