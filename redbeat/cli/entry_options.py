"""The options that make an entry, for ``add`` and ``edit``."""

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
from .options import ARRAY, CLEARED, OBJECT, SECONDS, TIME, bad, option

__all__ = (
    "blamed",
    "entry_options",
    "schedule_from",
    "settings_from",
    "with_queue",
    "zone_from",
)

WHEN: Final = "Schedule"
WHAT: Final = "Task"
HOW: Final = "Policy"

OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    option(
        "--every",
        type=SECONDS,
        example="30",
        help_group=WHEN,
        help="Seconds between two runs; also 30s, 5m, 2h, 1d.",
    ),
    option(
        "--cron",
        metavar="FIELDS",
        example="'*/5 * * * *'",
        help_group=WHEN,
        help="Minute, hour, day of month, month, day of week.",
    ),
    option(
        "--rrule",
        multiple=True,
        metavar="LINE",
        example="'RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=0'",
        help_group=WHEN,
        help="A line of RFC 5545: DTSTART, RRULE, RDATE or EXDATE; may be given several times.",
    ),
    option(
        "--at",
        type=TIME,
        example="2026-12-31T09:00",
        help_group=WHEN,
        help="Run once, at this time.",
    ),
    option(
        "--solar",
        metavar="EVENT,LAT,LON",
        example="sunset,52.52,13.41",
        help_group=WHEN,
        help="An event of the sun, at a place on earth, in degrees.",
    ),
    option(
        "--timezone",
        clearable=True,
        metavar="ZONE",
        example="Europe/Paris",
        help_group=WHEN,
        help="Zone of --cron and --rrule, and of times without an offset; default the app's.",
    ),
    option(
        "--start",
        clearable=True,
        type=TIME,
        example="2026-12-01T00:00",
        help_group=WHEN,
        help="First run.",
    ),
    option(
        "--end",
        clearable=True,
        type=TIME,
        example="2026-12-31T23:59",
        help_group=WHEN,
        help="Last run.",
    ),
    option("--args", type=ARRAY, example="'[1, 2]'", help_group=WHAT, help="JSON array."),
    option(
        "--kwargs", type=OBJECT, example="""'{"user": 7}'""", help_group=WHAT, help="JSON object."
    ),
    option(
        "--options",
        type=OBJECT,
        example="""'{"priority": 5, "expires": 60}'""",
        help_group=WHAT,
        help="Options of apply_async, as a JSON object.",
    ),
    option(
        "--queue", clearable=True, example="reports", help_group=WHAT, help="The queue of the task."
    ),
    option(
        "--max-runs",
        clearable=True,
        type=int,
        example="10",
        help_group=HOW,
        help="The entry has finished after so many runs.",
    ),
    option(
        "--on-finish",
        clearable=True,
        type=click.Choice(ON_FINISH),
        example="delete",
        help_group=HOW,
        help="What becomes of an entry that has finished.",
    ),
    option(
        "--misfire-grace-time",
        clearable=True,
        type=SECONDS,
        example="60",
        help_group=HOW,
        help="How late an occurrence may still be run.",
    ),
    option(
        "--coalesce",
        clearable=True,
        type=click.Choice(COALESCE),
        example="latest",
        help_group=HOW,
        help="Which of several missed occurrences to run.",
    ),
    option(
        "--catch-up-limit",
        clearable=True,
        type=int,
        example="100",
        help_group=HOW,
        help="How many missed occurrences to run with --coalesce all.",
    ),
    option(
        "--jitter",
        clearable=True,
        type=SECONDS,
        example="10",
        help_group=HOW,
        help="Put off each run by up to so many seconds.",
    ),
    option(
        "--overlap",
        clearable=True,
        type=click.Choice(OVERLAP),
        example="allow",
        help_group=HOW,
        help="What to do while the last run still goes on.",
    ),
    option(
        "--overlap-timeout",
        clearable=True,
        type=SECONDS,
        example="3600",
        help_group=HOW,
        help="After how long a run counts as ended.",
    ),
    option(
        "--delivery",
        clearable=True,
        type=click.Choice(DELIVERIES),
        example="at_most_once",
        help_group=HOW,
        help="Whether a run may be sent twice, or be lost, when a beat dies.",
    ),
    option("--paused", is_flag=True, help_group=HOW, help="Save the entry without running it."),
)

#: The option for a field of an entry, where they have different names.
OPTION_OF: Final = {"start_time": "start", "end_time": "end", "enabled": "paused"}


def entry_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options that make an entry to a command."""
    return reduce(lambda made, add: add(made), reversed(OPTIONS), function)


@contextmanager
def blamed(ctx: click.Context, given: dict[str, Any]) -> Iterator[None]:
    """Let what is wrong with an entry be an error of the option that it came from."""
    try:
        yield
    except InvalidEntryError as error:
        field = error.field.replace("[", ".").split(".")[0]
        name = OPTION_OF.get(field, field)
        if field == "schedule":
            name = next((kind for kind in KINDS if given.get(kind)), "every")
        if name not in {param.name for param in ctx.command.params}:
            raise
        inner = error.field if error.field not in (field, "schedule.every") else ""
        problem = f"{inner}: {error.problem}" if inner else error.problem
        raise bad(ctx, name, problem) from error


#: The attributes of an entry that have an option of the same name.
SAME_NAME: Final = (
    *("args", "kwargs", "options", "timezone", "max_runs", "on_finish", "misfire_grace_time"),
    *("coalesce", "catch_up_limit", "jitter", "overlap", "overlap_timeout", "delivery"),
)


def zone_from(console: Console, name: Any) -> tzinfo:
    """Return the zone in which what was given is read: ``--timezone``, else the app's."""
    if not name or name is CLEARED:
        return console.zone
    try:
        return zone_named(name)
    except ValueError as error:
        raise bad(console.ctx, "timezone", error) from error


def schedule_from(console: Console, given: Mapping[str, Any], timezone: Any) -> BaseSchedule | None:
    """Return the schedule that was asked for, None where no option says one.

    ``timezone`` is the name of the zone of the entry.
    """
    kinds = [kind for kind in KINDS if given[kind] not in (None, ())]
    if len(kinds) > 1:
        problem = f"give one of --{kinds[0]} and --{kinds[1]}, not both"
        raise bad(console.ctx, kinds[1], problem)
    if not kinds:
        return None
    kind = kinds[0]
    value = "\n".join(given[kind]) if kind == "rrule" else given[kind]
    try:
        return make_schedule(kind, value, zone_from(console, timezone), console.app)
    except BAD_RULE as error:
        raise bad(console.ctx, kind, error) from error


def settings_from(console: Console, given: Mapping[str, Any], timezone: Any) -> dict[str, Any]:
    """Return the attributes of an entry that were given, but for its schedule and its queue.

    The value of one that is to be as if it was never given is :data:`CLEARED`.
    """
    zone = zone_from(console, timezone)
    found = {name: given[name] for name in SAME_NAME if given[name] is not None}
    for name, given_as in (("start_time", "start"), ("end_time", "end")):
        moment = given[given_as]
        if moment is not None:
            found[name] = moment if moment is CLEARED else console.instant(moment, zone)
    if given["paused"]:
        found["enabled"] = False
    return found


def with_queue(options: Mapping[str, Any] | None, queue: Any) -> dict[str, Any]:
    """Return options of a task with another queue, or with none where it is :data:`CLEARED`."""
    rest = {name: value for name, value in (options or {}).items() if name != "queue"}
    return rest if queue is CLEARED else {**rest, "queue": queue}
