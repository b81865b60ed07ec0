"""The command-line options of ``add`` and ``edit`` that describe an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final

import click

from redbeat.entries.policy import FIELDS
from redbeat.errors import InvalidEntryError
from redbeat.presentation.rule_text import KINDS
from redbeat.transfer.entry_file import CALL

from .console import Console
from .options import ARRAY, CLEARED, INTERVAL, OBJECT, SECONDS, TIME, option, option_error

__all__ = (
    "as_option_errors",
    "call_from",
    "entry_options",
    "schedule_options",
    "table_from",
)

#: The headings of option groups in the help.
SCHEDULE_GROUP: Final = "Schedule"
TASK_GROUP: Final = "Task"
POLICY_GROUP: Final = "Policy"

#: Entry field -> option name, for each field with an option of a different name.
OPTION_OF: Final = {"start_time": "start", "end_time": "end", "enabled": "paused"}

#: The policy fields whose options stand with the schedule in the help.
SCHEDULE_FIELDS: Final = ("timezone", "start_time", "end_time")

#: The option type for each type of policy field, except for choices.
TYPES: Final = {
    "zone": click.STRING,
    "instant": TIME,
    "count": click.INT,
    "seconds": SECONDS,
    "text": click.STRING,
    "names": click.STRING,
}


def policy_option(name: str, help_group: str = POLICY_GROUP) -> Callable[[Any], Any]:
    """Return the option of a policy field, made from the description of the field."""
    about = FIELDS[name].metadata
    type_ = about["type"]
    return option(
        f"--{OPTION_OF.get(name, name).replace('_', '-')}",
        clearable=True,
        type=click.Choice(type_.choices) if type_.choices else TYPES[type_.name],
        metavar={"zone": "ZONE", "names": "NAMES"}.get(type_.name),
        example=about["example"],
        help_group=help_group,
        help=about["description"],
    )


SCHEDULE_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    option(
        "--every",
        type=INTERVAL,
        example="30",
        help_group=SCHEDULE_GROUP,
        help="Interval in seconds, or with the units w, d, h, m, s: 30, 5m, 1h30m, 1w.",
    ),
    option(
        "--cron",
        metavar="FIELDS",
        example="'*/5 * * * *'",
        help_group=SCHEDULE_GROUP,
        help="Crontab: minute, hour, day of month, month, day of week, with H for a value that "
        "depends on the name; or @hourly, @daily, @weekly, @monthly, @yearly.",
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
    *(policy_option(field, SCHEDULE_GROUP) for field in SCHEDULE_FIELDS),
)

OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    *SCHEDULE_OPTIONS,
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
    *(policy_option(field) for field in FIELDS if field not in SCHEDULE_FIELDS),
    option(
        "--paused",
        is_flag=True,
        help_group=POLICY_GROUP,
        help="Pause the entry: it does not run until resumed.",
    ),
)


def entry_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of this module to a command."""
    return reduce(lambda decorated, add: add(decorated), reversed(OPTIONS), function)


def schedule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a schedule to a command."""
    return reduce(lambda decorated, add: add(decorated), reversed(SCHEDULE_OPTIONS), function)


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


def table_from(console: Console, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule and the policy in the option values as a table of :mod:`.entry_file`.

    None stands for a field to reset. The call of the task is not in the table, see
    :func:`call_from`.
    """
    kinds = [kind for kind in KINDS if values[kind] not in (None, ())]
    if len(kinds) > 1:
        problem = f"give one of --{kinds[0]} and --{kinds[1]}, not both"
        raise option_error(console.ctx, kinds[1], problem)
    table = {name: values.get(OPTION_OF.get(name, name)) for name in (*kinds, *FIELDS)}
    table = {name: value for name, value in table.items() if value is not None}
    if kinds == ["rrule"]:
        table["rrule"] = list(values["rrule"])
    if values.get("paused"):
        table["enabled"] = False
    return {name: None if value is CLEARED else value for name, value in table.items()}


def call_from(values: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Any:
    """Return the attributes for the call of the task; ``options`` are those stored so far."""
    call = {name: values[name] for name in CALL if values[name] is not None}
    queue = values["queue"]
    if queue is not None:
        call["options"] = {**(call.get("options", options) or {}), "queue": queue}
        if queue is CLEARED:
            del call["options"]["queue"]
    return call
