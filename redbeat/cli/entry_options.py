"""The command-line options of ``add`` and ``edit`` that describe an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import click
from celery.bin.base import JSON_ARRAY, JSON_OBJECT

from redbeat.entries.policy import FIELDS
from redbeat.errors import InvalidEntryError
from redbeat.presentation.rule_text import KINDS
from redbeat.transfer.entry_file import CALL

from .command import Console, RedBeatCommand
from .options import CLEARED, SECONDS, TIME, option, option_error, options

#: Functions that add an option below a heading of the help.
schedule_option: Final = partial(option, help_group="Schedule")
task_option: Final = partial(option, help_group="Task")
policy_option: Final = partial(option, help_group="Policy")

#: Entry field -> option name, for each field with an option of a different name.
OPTION_OF: Final = {"start_time": "start", "end_time": "end", "enabled": "paused"}

#: The policy fields whose options the help lists below the heading ``Schedule``.
SCHEDULE_FIELDS: Final = ("timezone", "start_time", "end_time")

#: Type of policy field -> type of its option. The option of a field with choices is a Choice, and
#: the option of any other field is a text.
TYPES: Final = {"instant": TIME, "count": click.INT, "seconds": SECONDS}


def field_option(name: str) -> Callable[[Any], Any]:
    """Return the option of a policy field, made from the description of the field."""
    about = FIELDS[name].metadata
    type_, add = about["type"], schedule_option if name in SCHEDULE_FIELDS else policy_option
    return add(
        f"--{OPTION_OF.get(name, name).replace('_', '-')}",
        clearable=True,
        type=click.Choice(type_.choices) if type_.choices else TYPES.get(type_.name),
        metavar={"zone": "ZONE", "names": "NAMES"}.get(type_.name),
        example=about["example"],
        help=about["description"],
    )


def call_option(name: str) -> Callable[[Any], Any]:
    """Return the option for ``args``, ``kwargs`` or ``options`` of the task call."""
    about = CALL[name]
    type_ = JSON_ARRAY if about.type is list else JSON_OBJECT
    return task_option(
        f"--{name}", type=type_, example=f"'{about.example}'", help=about.description
    )


SCHEDULE_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    schedule_option(
        "--every",
        metavar="DURATION",
        example="5m",
        help="Interval in seconds, or with the units w, d, h, m, s: 30, 5m, 1h30m, 1w.",
    ),
    schedule_option(
        "--cron",
        metavar="FIELDS",
        help="Crontab: minute, hour, day of month, month, day of week; or @hourly, @daily, "
        "@weekly, @monthly, @yearly. H stands for a value that depends on the entry name.",
    ),
    schedule_option(
        "--rrule",
        multiple=True,
        metavar="LINE",
        example="'RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=0'",
        help="RFC 5545 line with DTSTART, RRULE, RDATE or EXDATE. Repeat the option for several "
        "lines.",
    ),
    schedule_option(
        "--at", type=TIME, example="2026-12-31T09:00", help="Run once, at this time (ISO 8601)."
    ),
    schedule_option(
        "--solar",
        metavar="EVENT,LAT,LON",
        example="sunset,52.52,13.41",
        help="Solar event, with latitude and longitude in degrees.",
    ),
    *map(field_option, SCHEDULE_FIELDS),
)

#: Adds the options of a schedule to a command.
schedule_options: Final = options(*SCHEDULE_OPTIONS)

#: Adds all options of an entry to a command.
entry_options: Final = options(
    *SCHEDULE_OPTIONS,
    *map(call_option, CALL),
    task_option("--queue", clearable=True, example="reports", help="Queue to publish to."),
    *(field_option(name) for name in FIELDS if name not in SCHEDULE_FIELDS),
    policy_option(
        "--paused",
        type=click.Choice(("yes", "no")),
        help="Whether the entry is paused until you resume it; --paused alone means yes.",
    ),
)


class EntryCommand(RedBeatCommand):
    """A command in which ``--paused`` needs no value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; ``--paused`` before any other word is ``--paused yes``."""
        pairs = zip(args, [*args[1:], ""], strict=True)
        alone = {"--paused": "--paused=yes"}
        given = [one if then in ("yes", "no") else alone.get(one, one) for one, then in pairs]
        rest: list[str] = super().parse_args(ctx, given)
        return rest


@contextmanager
def as_option_errors(ctx: click.Context) -> Iterator[None]:
    """Convert :exc:`InvalidEntryError` into an error about the option with the invalid value."""
    try:
        yield
    except InvalidEntryError as error:
        field = error.field.replace("[", ".").split(".")[0]
        name = OPTION_OF.get(field, field)
        if field == "schedule":
            name = next((kind for kind in KINDS if ctx.params.get(kind)), "every")
        if name not in {param.name for param in ctx.command.params}:
            raise
        inner = error.field if error.field not in (field, "schedule.every") else ""
        problem = f"{inner}: {error.problem}" if inner else error.problem
        raise option_error(ctx, name, problem, name in KINDS) from error


def table_from(console: Console, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the options set, in the format of an entry file.

    The value None resets a field to its default.
    """
    kinds = [kind for kind in KINDS if values[kind] not in (None, ())]
    if len(kinds) > 1:
        problem = f"give either --{kinds[0]} or --{kinds[1]}, not both"
        raise option_error(console.ctx, kinds[1], problem)
    names = (*kinds, *CALL, "queue", "enabled", *FIELDS)
    table = {name: values.get(OPTION_OF.get(name, name)) for name in names}
    table = {name: value for name, value in table.items() if value is not None}
    if kinds == ["rrule"]:
        table["rrule"] = list(values["rrule"])
    if "enabled" in table:
        table["enabled"] = table["enabled"] == "no"
    return {name: None if value is CLEARED else value for name, value in table.items()}
