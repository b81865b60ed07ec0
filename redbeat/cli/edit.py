"""Entries as options describe them, and the commands ``celery redbeat add`` and ``edit``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from shlex import quote
from typing import Any, Final

import click
from celery.bin.base import JSON_ARRAY, JSON_OBJECT

from redbeat import ConflictError, InvalidEntryError, RedBeatSchedulerEntry
from redbeat.entries.policy import FIELDS
from redbeat.management import apply, find, names
from redbeat.presentation.describe import as_json, timing_text
from redbeat.presentation.rule_text import KINDS, RULES, cron_warning, has_own_zone, rule_of
from redbeat.printing import plural
from redbeat.transfer import entry_file

from . import options
from .command import Console, Exit, RedBeatCommand, command, failure

#: Add an option below a heading of the help.
schedule_option: Final = partial(options.option, help_group="Schedule")
task_option: Final = partial(options.option, help_group="Task")
policy_option: Final = partial(options.option, help_group="Policy")

#: The options that are not named like their fields.
OPTION_OF: Final = {"start_time": "start", "end_time": "end", "enabled": "paused"}

#: The policy fields that the help lists below ``Schedule``.
SCHEDULE_FIELDS: Final = ("timezone", "start_time", "end_time")

#: The types of options, by type of policy field. A field with choices has a Choice instead; any
#: other is a text.
TYPES: Final = {"instant": options.TIME, "count": click.INT, "seconds": options.SECONDS}

JSON_TYPES: Final[dict[type, Any]] = {list: JSON_ARRAY, dict: JSON_OBJECT}


def field_option(name: str) -> Callable[[Any], Any]:
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


def rule_option(kind: str) -> Callable[[Any], Any]:
    about = RULES[kind]
    return schedule_option(
        f"--{kind}",
        metavar=about.placeholder,
        multiple=about.lines,
        type=options.TIME if kind == "at" else None,
        example="" if kind == "cron" else quote(about.example),  # its errors have their own
        help=about.description + " Repeat the option for several lines." * about.lines,
    )


def call_option(name: str, **about: Any) -> Callable[[Any], Any]:
    field = entry_file.TASK[name]
    return task_option(
        f"--{name}",
        type=JSON_TYPES.get(field.type),
        example=quote(field.example),
        help=field.description,
        **about,
    )


SCHEDULE_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    *map(rule_option, RULES),
    *map(field_option, SCHEDULE_FIELDS),
)

#: Adds the options of a schedule to a command.
schedule_options: Final = options.options(*SCHEDULE_OPTIONS)

#: Adds all options of an entry to a command.
entry_options: Final = options.options(
    *SCHEDULE_OPTIONS,
    *map(call_option, entry_file.CALL),
    call_option("queue", clearable=True),
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
        """Read ``--paused`` before any other word as ``--paused yes``."""
        pairs = zip(args, [*args[1:], ""], strict=True)
        alone = {"--paused": "--paused=yes"}
        given = [one if then in ("yes", "no") else alone.get(one, one) for one, then in pairs]
        rest: list[str] = super().parse_args(ctx, given)
        return rest


@contextmanager
def as_option_errors(ctx: click.Context) -> Iterator[None]:
    """Turn :exc:`InvalidEntryError` into an error about the option with the invalid value."""
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
        raise options.option_error(ctx, name, problem, name in KINDS) from error


def table_from(console: Console, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the options set, as in an entry file; None stands for the default."""
    kinds = [kind for kind in KINDS if values[kind] not in (None, ())]
    if len(kinds) > 1:
        problem = f"give either --{kinds[0]} or --{kinds[1]}, not both"
        raise options.option_error(console.ctx, kinds[1], problem)
    fields = (*kinds, *entry_file.CALL, "queue", "enabled", *FIELDS)
    table = {name: values.get(OPTION_OF.get(name, name)) for name in fields}
    table = {name: value for name, value in table.items() if value is not None}
    if kinds == ["rrule"]:
        table["rrule"] = list(values["rrule"])
    if "enabled" in table:
        table["enabled"] = table["enabled"] == "no"
    return {name: None if value is options.CLEARED else value for name, value in table.items()}


# -- the commands --------------------------------------------------------------------------------

#: Options with times; ``--timezone`` is the zone of those without a UTC offset.
READ_IN_ZONE: Final = ("rrule", "at", "start", "end")

#: What ``edit`` can change. An entry file sets ``managed_by`` for all its entries, so ``FIELDS``
#: lacks it.
KNOWN: Final = (*entry_file.FIELDS, "managed_by")


@command("add", EntryCommand)
@options.argument("name", help="Name of the new entry.")
@options.argument("task", help="Name of the task to run.", shell_complete=options.task_names)
@entry_options
def add(console: Console, name: str, task: str, **values: Any) -> None:
    """Add the entry NAME, which runs TASK.

    Set the schedule with exactly one option, such as --every, --cron or --at.
    """
    table = table_from(console, values)
    if not any(kind in table for kind in KINDS):
        kinds = ", ".join(f"--{kind}" for kind in KINDS)
        problem = f"Give a schedule: one of {kinds}; for example: --every 5m"
        raise click.UsageError(problem, console.ctx)
    owner = {"managed_by": table.pop("managed_by")} if "managed_by" in table else {}
    with as_option_errors(console.ctx):
        entry = entry_file.new_entry(console.schedule, name, {"task": task, **table}, **owner)
        hint = f"change the entry with: celery redbeat edit {name}"
        _save(entry, f"The entry {name!r} already exists; {hint}")
    warn_of_unknown_names(console, [entry])
    _report(console, entry, "Added")
    warn_of_schedules(console, [entry])


@command("edit", EntryCommand)
@options.entry_argument
@call_option("task", shell_complete=options.task_names)
@entry_options
def edit(console: Console, name: str, task: str | None, **values: Any) -> None:
    """Change the entry NAME.

    Fields whose options you do not use remain unchanged. The value none resets a field to its
    default, for example: --end none.
    """
    if task is None and not any(value not in (None, ()) for value in values.values()):
        problem = "Give at least one option to change; for example: --every 5m"
        raise click.UsageError(problem, console.ctx)
    entry = options.load(console, name)
    table = table_from(console, values)
    if task is not None:
        table["task"] = task
    with as_option_errors(console.ctx):
        entry_file.change_entry(entry, table, KNOWN)
        _check_zone(console, entry, table, values)
        _save(entry, f"Somebody else has just changed {name!r}; check the entry and try again")
    if find.static_among(console.store, [name]):
        console.warn(f"{name} is in beat_schedule: changing beat_schedule overwrites this edit")
    if task is not None or values["options"] is not None:
        warn_of_unknown_names(console, [entry])
    owner = entry.policy_field("managed_by")
    if owner and values["managed_by"] is None:
        console.warn(f"{name} is managed by {owner}: the next apply of {owner} undoes this edit")
    _report(console, entry, "Changed")
    if values["cron"] or values["at"]:
        warn_of_schedules(console, [entry])


def _check_zone(
    console: Console, entry: RedBeatSchedulerEntry, table: dict[str, Any], values: dict[str, Any]
) -> None:
    """Refuse ``--timezone`` where it changes nothing."""
    is_used = not has_own_zone(entry.schedule) or any(values[name] for name in READ_IN_ZONE)
    if table.get("timezone") and not is_used:
        problem = "has no effect on this schedule without --rrule, --at, --start or --end"
        raise options.option_error(console.ctx, "timezone", problem)


def _save(entry: RedBeatSchedulerEntry, conflict: str) -> None:
    try:
        apply.save_unchanged(entry)
    except ConflictError as error:
        raise failure(conflict, Exit.CONFLICT) from error


def _report(console: Console, entry: RedBeatSchedulerEntry, action: str) -> None:
    due = "paused"
    if entry.enabled:
        when = console.when(entry.due_at)
        due = f"due {when}" if when else "no run left"
    console.result(as_json(entry), f"{action} {entry.name}: {timing_text(entry)}, {due}")


# -- warnings about valid entries that are probably not what their author wants --------------------

#: Maximum number of different warnings to print.
MAX_PRINTED: Final = 20


def warn_of_unknown_names(console: Console, entries: Sequence[RedBeatSchedulerEntry]) -> None:
    if not entries:
        return
    used = names.UsedNames(console.app)
    for entry in entries:
        used.note(entry)
    found = used.warnings()
    for warning in found[:MAX_PRINTED]:
        console.warn(warning)
    if len(found) > MAX_PRINTED:
        others = "other unknown name is", "other unknown names are"
        console.warn(f"{plural(len(found) - MAX_PRINTED, *others)} not listed")


def warn_of_schedules(console: Console, entries: Sequence[RedBeatSchedulerEntry]) -> None:
    """Warn of crontabs that cron runs on other days, and of times in the past."""
    for entry in entries:
        kind, text = rule_of(entry.schedule) or ("", "")
        if kind == "cron" and (warning := cron_warning(text)):
            console.warn(f"{entry.name}: {warning}")
        if kind == "at" and (at := entry.schedule.clocked_time) < console.now:
            soon = "at once" if entry.enabled else "when it is resumed"
            runs = "never runs" if entry.due_at is None else f"runs {soon}"
            console.warn(f"{entry.name}: its time is {console.when(at)}, so it {runs}")
