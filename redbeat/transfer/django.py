"""Reads django-celery-beat's entries from its database or from ``manage.py dumpdata`` output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from importlib import import_module
from typing import IO, Any, Final

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab
from celery.schedules import schedule as interval

from redbeat import InvalidEntryError, RedBeatSchedulerEntry, Schedule, clocked
from redbeat.calendar import sun, walltime, zones
from redbeat.codec.types import CRON_FIELDS
from redbeat.entries.decide import Plan, aware
from redbeat.entries.history import History, encode_meta
from redbeat.errors import described
from redbeat.management.apply import differences
from redbeat.printing import get_logger

from . import incoming
from .incoming import Incoming, UnreadableSourceError

logger = get_logger("celery.beat")

LABEL: Final = "django_celery_beat."
TASK: Final = f"{LABEL}periodictask"

#: django-celery-beat makes this row itself, as a beat of RedBeat makes its entry.
CLEANUP: Final = "celery.backend_cleanup"

#: A field of ``PeriodicTask`` -> the model that it refers to.
TABLES: Final = {
    kind: f"{LABEL}{kind}schedule" for kind in ("interval", "crontab", "solar", "clocked")
}

PERIODS: Final = ("days", "hours", "minutes", "seconds", "microseconds")

#: The kinds of a ``PeriodicTask``'s fields. Others are checked by the code that reads them.
KINDS: Final[dict[str, incoming.Kind]] = {
    **dict.fromkeys(("name", "task"), (str, "a string", True)),
    **dict.fromkeys(("enabled", "one_off"), (bool, "true or false", False)),
    **dict.fromkeys(("total_run_count", "priority"), (int, "an integer", False)),
    **dict.fromkeys(("queue", "exchange", "routing_key"), (str, "a string", False)),
    "expire_seconds": ((int, float), "a number of seconds", False),
}

ROW_KINDS: Final[dict[str, dict[str, incoming.Kind]]] = {
    "solar": {
        "event": (str, "the name of an event", True),
        **dict.fromkeys(("latitude", "longitude"), ((str, int, float, Decimal), "a number", True)),
    }
}

#: Fields that become options of ``apply_async``.
OPTIONS: Final = ("queue", "exchange", "routing_key", "priority")

Fields = Mapping[str, Any]

#: The fields of all rows, by model and primary key.
Tables = Mapping[tuple[str, str], Any]


def converted(schedule: Schedule, objects: Sequence[Mapping[str, Any]]) -> Iterator[Incoming]:
    """Yield the entry for each ``PeriodicTask``, with its run history.

    Naive times are in the app's time zone. The row :data:`CLEANUP` is left out.
    """
    tables = {(str(row.get("model")), str(row.get("pk"))): row.get("fields") for row in objects}
    for task in objects:
        if task.get("model") != TASK:
            continue
        fields = task.get("fields")
        name = fields.get("name") if isinstance(fields, Mapping) else None
        where = f"periodictask {task.get('pk')!r:.40} ({name!r:.80})"
        found = incoming.read_safely(where, _convert, schedule, fields, tables)
        if name != CLEANUP:
            yield found
        elif edits := found.problem or ", ".join(_edits(schedule, found.entry)):
            logger.warning(
                "%s is not imported, because a beat makes this entry itself, but the row was "
                "edited (%s): change the entry in beat_schedule, or disable it with "
                "result_expires = None",
                *(where, edits),
            )


def _edits(schedule: Schedule, entry: Any) -> Iterable[str]:
    """Return the fields of the row :data:`CLEANUP` that someone has changed."""
    usual = schedule.entry_class(CLEANUP, CLEANUP, crontab("0", "4"), [], {}, app=schedule.app)
    usual.options = {"expires": 12 * 3600} if entry.options else {}  # early versions wrote none
    usual.timezone = entry.timezone
    return differences(usual, entry)


def _convert(where: str, schedule: Schedule, fields: Any, tables: Tables) -> Incoming:
    app = schedule.app
    incoming.check_kinds("", fields, KINDS)
    kind, row = _schedule_row(fields, tables)
    start, end, last_run_at, changed = (
        _instant(app, field, fields.get(field))
        for field in ("start_time", "expires", "last_run_at", "date_changed")
    )
    policy: dict[str, Any] = {"end_time": end, "last_run_at": last_run_at}
    if kind != "clocked":
        # In django-celery-beat, a row that never ran counts from its last change.
        policy |= {"start_time": start, "last_run_at": last_run_at or changed}
    if kind == "crontab" and row.get("timezone"):
        policy["timezone"] = row["timezone"]
    if fields.get("one_off"):
        policy["max_runs"] = 1
    if end or fields.get("one_off"):
        policy["on_finish"] = "disable"
    entry = schedule.entry_class(
        fields["name"],
        fields["task"],
        _schedule(app, kind, row, start),
        incoming.json_from("args", fields.get("args") or [], list),
        incoming.json_from("kwargs", fields.get("kwargs") or {}, dict),
        bool(fields.get("enabled", True)),
        _options(fields, end),
        app=app,
        total_run_count=fields.get("total_run_count") or 0,
        description=fields.get("description") or None,
        **policy,
    )
    _continue(entry, never_ran=last_run_at is None)
    meta = encode_meta(entry.last_run_at, entry.total_run_count) if last_run_at else ""
    return Incoming(where, entry, meta=meta)


def _continue(entry: RedBeatSchedulerEntry, never_ran: bool) -> None:
    """Let an enabled entry run next when django-celery-beat would send the row's next run."""
    now, plan = datetime.now(zones.UTC), entry.occurrence_plan()
    start, end = plan.policy.start_time, plan.policy.end_time
    first = _next_run_of_row(entry, plan, never_ran, now)
    if first is None or not entry.enabled:
        return
    if end is not None and first >= end:
        entry.enabled = False  # django-celery-beat disables such a row
        return
    if start is not None and start != first and not _waits_for(start, entry.schedule, now):
        entry.start_time = None  # it has no effect in django-celery-beat any more
    if end is not None and entry.occurrence_plan().latest_run(first, end) == end:
        entry.end_time = end - walltime.TICK  # a row does not run at its ``expires``
    _count_to(first, entry, plan, now)


def _waits_for(start: datetime, schedule: Any, now: datetime) -> bool:
    """Return whether the row's first run is its first time after ``start_time``."""
    return isinstance(schedule, crontab) and start > now


def _count_to(first: datetime, entry: RedBeatSchedulerEntry, plan: Plan, now: datetime) -> None:
    """Set the history from which the next run is ``first``."""
    if isinstance(entry.schedule, interval):
        if first == now:  # count from the run that is due now, not from the one that it missed
            anchor = now - entry.schedule.run_every
            entry.adopt(History(entry.last_run_at, entry.total_run_count, anchor))
    elif plan.policy.misfire_grace_time is None:
        decision = entry.decision_at(now)
        if first != (now if decision.due else decision.next_at):
            entry.last_run_at = None  # due at once, or at ``start_time``


def _next_run_of_row(
    entry: RedBeatSchedulerEntry, plan: Plan, never_ran: bool, now: datetime
) -> datetime | None:
    """Return when django-celery-beat would send the next run, or None if never.

    Nothing is due until ``start_time``. From then on, a row that never ran is due at once, except
    that a crontab waits for its first time after a ``start_time`` in the future.
    """
    start, first = plan.policy.start_time, plan.policy.start_time
    if entry.runs_left == 0:
        return None
    if start is not None and _waits_for(start, plan.schedule, now):
        first = plan.next_run(start - walltime.TICK)
    elif plan.policy.max_runs and isinstance(plan.schedule, clocked):
        first = plan.schedule.start  # its last run does not count
    elif start is None or not never_ran:
        first = plan.next_run(aware(entry.last_run_at or now))
    return None if first is None else max(first, start or first, now)


def _schedule_row(fields: Fields, tables: Tables) -> tuple[str, Fields]:
    kinds = [kind for kind in TABLES if fields.get(kind) is not None]
    if len(kinds) != 1:
        problem = f"must be exactly one of {', '.join(TABLES)}; this task has {len(kinds)} of them"
        raise InvalidEntryError("schedule", problem)
    kind = kinds[0]
    row = tables.get((TABLES[kind], str(fields[kind])))
    if row is None:
        problem = f"the file has no {TABLES[kind]} {fields[kind]!r:.60}; dump the whole application"
        raise InvalidEntryError(kind, problem)
    incoming.check_kinds(f"{kind}.", row, ROW_KINDS.get(kind, {}))
    return kind, row


def _schedule(app: Celery, kind: str, row: Fields, start: datetime | None) -> Any:
    try:
        if kind == "interval":
            return _interval(row)
        if kind == "crontab":
            return crontab(**{name: str(row.get(name, "*")) for name in CRON_FIELDS}, app=app)
        if kind == "solar":
            place = (float(row["latitude"]), float(row["longitude"]))
            return sun.make_solar(row["event"], *place, app=app)
        at = incoming.instant_from("clocked_time", row.get("clocked_time"), app.timezone)
        return clocked(max(at, start or at))
    except InvalidEntryError:
        raise
    except ImproperlyConfigured as error:
        raise InvalidEntryError(kind, str(error)) from error
    except Exception as error:  # Celery's parsers raise many exception types
        raise InvalidEntryError(kind, f"is not valid: {described(error)}") from error


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
    headers = incoming.json_from("headers", fields.get("headers") or {}, dict)
    if headers:
        options["headers"] = headers
    if expires or fields.get("expire_seconds"):
        options["expires"] = expires or fields["expire_seconds"]
    return options


def _instant(app: Celery, field: str, text: Any) -> datetime | None:
    return None if text in (None, "") else incoming.instant_from(field, text, app.timezone)


def read_fixture(schedule: Schedule, file: IO[bytes]) -> Iterator[Incoming]:
    """Yield an entry for each ``PeriodicTask`` in ``dumpdata`` output, with its run history.

    Naive times are in the app's time zone. Raises :exc:`UnreadableSourceError`.
    """
    objects = _objects(file)
    if not any(row.get("model") == TASK for row in objects):
        raise UnreadableSourceError(
            f"has no {TASK}: create the file with manage.py dumpdata django_celery_beat"
        )
    yield from converted(schedule, objects)


def _objects(file: IO[bytes]) -> list[dict[str, Any]]:
    try:
        data = file.read()
        text = data.decode(json.detect_encoding(data))
        is_array = text.lstrip().startswith("[")  # a file without an array has JSON lines
        lines = (line for line in text.splitlines() if line.strip())
        objects = json.loads(text) if is_array else [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        problem = f"cannot be read as JSON: {error}; use manage.py dumpdata --format json"
        raise UnreadableSourceError(problem) from error
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise UnreadableSourceError("is not a fixture: create the file with manage.py dumpdata")
    return list(objects)


DEFAULT_ALIAS: Final = "default"


def read_database(schedule: Schedule, alias: str = DEFAULT_ALIAS) -> Iterator[Incoming]:
    """Yield an entry for each ``PeriodicTask`` in a Django database, with its run history.

    ``alias`` is a key of Django's ``DATABASES``. The database is only read. Raises
    :exc:`UnreadableSourceError`, also if Django isn't set up.
    """
    objects = []
    try:
        import_module("django").setup()
        models, serializers = map(import_module, ("django.apps", "django.core.serializers"))
        for label in (*TABLES.values(), TASK):
            rows = models.apps.get_model(label)._base_manager.using(alias).order_by("pk")
            # Like dumpdata, but with times as datetimes.
            objects += serializers.serialize("python", rows)
    except Exception as error:  # a settings module and a database may raise any error
        raise UnreadableSourceError(
            f"cannot be read: {described(error)}. The command needs django-celery-beat in "
            "INSTALLED_APPS, and DJANGO_SETTINGS_MODULE as in manage.py; or pass a FILE from "
            "dumpdata"
        ) from error
    yield from converted(schedule, objects)
