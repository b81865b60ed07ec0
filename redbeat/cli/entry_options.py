"""The command-line options of ``add`` and ``edit`` that describe an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import tzinfo
from functools import reduce
from typing import Any, Final

import click
from celery.schedules import BaseSchedule

from redbeat.calendar.zones import zone_named
from redbeat.entries.policy import COALESCE, ON_FINISH, OVERLAP
from redbeat.errors import InvalidEntryError
from redbeat.presentation.rule_text import BAD_RULE, KINDS, make_schedule
from redbeat.settings import DELIVERIES

from .console import Console
from .options import ARRAY, CLEARED, OBJECT, SECONDS, TIME, option, option_error

__all__ = (
    "as_option_errors",
    "entry_options",
    "schedule_from",
    "settings_from",
    "with_queue",
    "zone_from",
)

#: The headings of option groups in the help.
SCHEDULE_GROUP: Final = "Schedule"
TASK_GROUP: Final = "Task"
POLICY_GROUP: Final = "Policy"

OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    option(
        "--every",
        type=SECONDS,
        example="30",
        help_group=SCHEDULE_GROUP,
        help="Interval in seconds, or with a unit: 30s, 5m, 2h, 1d.",
    ),
    option(
        "--cron",
        metavar="FIELDS",
        example="'*/5 * * * *'",
        help_group=SCHEDULE_GROUP,
        help="Crontab: minute, hour, day of month, month, day of week.",
    ),
    option(
        "--rrule",
        multiple=True,
        metavar="LINE",
        example="'RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=0'",
        help_group=SCHEDULE_GROUP,
        help="RFC 5545 line: DTSTART, RRULE, RDATE or EXDATE. Repeat the option for several lines.",
    ),
    option(
        "--at",
        type=TIME,
        example="2026-12-31T09:00",
        help_group=SCHEDULE_GROUP,
        help="Run once, at this time (ISO 8601).",
    ),
    option(
        "--solar",
        metavar="EVENT,LAT,LON",
        example="sunset,52.52,13.41",
        help_group=SCHEDULE_GROUP,
        help="Solar event, with latitude and longitude in degrees.",
    ),
    option(
        "--timezone",
        clearable=True,
        metavar="ZONE",
        example="Europe/Paris",
        help_group=SCHEDULE_GROUP,
        help="Time zone of --cron, --rrule and times without UTC offset; default: that of the app.",
    ),
    option(
        "--start",
        clearable=True,
        type=TIME,
        example="2026-12-01T00:00",
        help_group=SCHEDULE_GROUP,
        help="No run before this time (ISO 8601).",
    ),
    option(
        "--end",
        clearable=True,
        type=TIME,
        example="2026-12-31T23:59",
        help_group=SCHEDULE_GROUP,
        help="No run after this time (ISO 8601).",
    ),
    option(
        "--args",
        type=ARRAY,
        example="'[1, 2]'",
        help_group=TASK_GROUP,
        help="Positional arguments of the task, as a JSON array.",
    ),
    option(
        "--kwargs",
        type=OBJECT,
        example="""'{"user": 7}'""",
        help_group=TASK_GROUP,
        help="Keyword arguments of the task, as a JSON object.",
    ),
    option(
        "--options",
        type=OBJECT,
        example="""'{"priority": 5, "expires": 60}'""",
        help_group=TASK_GROUP,
        help="Options of apply_async, as a JSON object.",
    ),
    option(
        "--queue",
        clearable=True,
        example="reports",
        help_group=TASK_GROUP,
        help="Queue to publish to.",
    ),
    option(
        "--max-runs",
        clearable=True,
        type=int,
        example="10",
        help_group=POLICY_GROUP,
        help="Finish the entry after this number of runs.",
    ),
    option(
        "--on-finish",
        clearable=True,
        type=click.Choice(ON_FINISH),
        example="delete",
        help_group=POLICY_GROUP,
        help="What to do with the entry when it has finished.",
    ),
    option(
        "--misfire-grace-time",
        clearable=True,
        type=SECONDS,
        example="60",
        help_group=POLICY_GROUP,
        help="Skip runs that are late by more than this.",
    ),
    option(
        "--coalesce",
        clearable=True,
        type=click.Choice(COALESCE),
        example="latest",
        help_group=POLICY_GROUP,
        help="Which of several missed runs to catch up.",
    ),
    option(
        "--catch-up-limit",
        clearable=True,
        type=int,
        example="100",
        help_group=POLICY_GROUP,
        help="Maximum number of missed runs to catch up with --coalesce all.",
    ),
    option(
        "--jitter",
        clearable=True,
        type=SECONDS,
        example="10",
        help_group=POLICY_GROUP,
        help="Delay each run by up to this time.",
    ),
    option(
        "--overlap",
        clearable=True,
        type=click.Choice(OVERLAP),
        example="allow",
        help_group=POLICY_GROUP,
        help="What to do if the previous run has not ended.",
    ),
    option(
        "--overlap-timeout",
        clearable=True,
        type=SECONDS,
        example="3600",
        help_group=POLICY_GROUP,
        help="Time after which a run counts as ended.",
    ),
    option(
        "--delivery",
        clearable=True,
        type=click.Choice(DELIVERIES),
        example="at_most_once",
        help_group=POLICY_GROUP,
        help="Delivery guarantee if a beat dies while it sends a run.",
    ),
    option(
        "--paused",
        is_flag=True,
        help_group=POLICY_GROUP,
        help="Pause the entry: it does not run until resumed.",
    ),
)

#: Entry field -> option name, for each field with an option of a different name.
OPTION_OF: Final = {"start_time": "start", "end_time": "end", "enabled": "paused"}


def entry_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of this module to a command."""
    return reduce(lambda decorated, add: add(decorated), reversed(OPTIONS), function)


@contextmanager
def as_option_errors(ctx: click.Context, values: dict[str, Any]) -> Iterator[None]:
    """Convert :exc:`InvalidEntryError` into an error that names the option with a bad value."""
    try:
        yield
    except InvalidEntryError as error:
        field = error.field.replace("[", ".").split(".")[0]
        name = OPTION_OF.get(field, field)
        if field == "schedule":
            name = next((kind for kind in KINDS if values.get(kind)), "every")
        if name not in {param.name for param in ctx.command.params}:
            raise
        inner = error.field if error.field not in (field, "schedule.every") else ""
        problem = f"{inner}: {error.problem}" if inner else error.problem
        raise option_error(ctx, name, problem) from error


#: Entry attributes whose command-line option has the same name.
SAME_NAME: Final = (
    *("args", "kwargs", "options", "timezone", "max_runs", "on_finish", "misfire_grace_time"),
    *("coalesce", "catch_up_limit", "jitter", "overlap", "overlap_timeout", "delivery"),
)


def zone_from(console: Console, name: Any) -> tzinfo:
    """Return the time zone with this name, or the app's time zone if the name is empty."""
    if not name or name is CLEARED:
        return console.zone
    try:
        return zone_named(name)
    except ValueError as error:
        raise option_error(console.ctx, "timezone", error) from error


def schedule_from(
    console: Console, values: Mapping[str, Any], timezone: Any
) -> BaseSchedule | None:
    """Return the schedule from the option values, or None if no option gives a schedule.

    ``timezone`` is the name of the entry's time zone.
    """
    kinds = [kind for kind in KINDS if values[kind] not in (None, ())]
    if len(kinds) > 1:
        problem = f"give one of --{kinds[0]} and --{kinds[1]}, not both"
        raise option_error(console.ctx, kinds[1], problem)
    if not kinds:
        return None
    kind = kinds[0]
    value = "\n".join(values[kind]) if kind == "rrule" else values[kind]
    try:
        return make_schedule(kind, value, zone_from(console, timezone), console.app)
    except BAD_RULE as error:
        raise option_error(console.ctx, kind, error) from error


def settings_from(console: Console, values: Mapping[str, Any], timezone: Any) -> dict[str, Any]:
    """Return the entry attributes from the option values, without the schedule and the queue.

    The value :data:`CLEARED` means that the attribute must be reset to its default.
    """
    zone = zone_from(console, timezone)
    settings = {name: values[name] for name in SAME_NAME if values[name] is not None}
    for name, option_name in (("start_time", "start"), ("end_time", "end")):
        moment = values[option_name]
        if moment is not None:
            settings[name] = moment if moment is CLEARED else console.instant(moment, zone)
    if values["paused"]:
        settings["enabled"] = False
    return settings


def with_queue(options: Mapping[str, Any] | None, queue: Any) -> dict[str, Any]:
    """Return the task options with this queue; remove the queue if it is :data:`CLEARED`."""
    rest = {name: value for name, value in (options or {}).items() if name != "queue"}
    return rest if queue is CLEARED else {**rest, "queue": queue}
