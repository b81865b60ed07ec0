"""The commands ``celery redbeat add`` and ``celery redbeat edit``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError
from redbeat.management.apply import save_unchanged
from redbeat.management.names import UsedNames
from redbeat.presentation.describe import as_json, timing_text
from redbeat.presentation.rule_text import KINDS, cron_warning, has_own_zone, rule_of
from redbeat.printing import plural
from redbeat.storage.reading import static_among
from redbeat.transfer.entry_file import FIELDS, change_entry, new_entry

from .command import EX_CONFLICT, Console, command, failure
from .entry_options import EntryCommand, as_option_errors, entry_options, table_from
from .options import argument, entry_argument, load, option, option_error, task_names

#: Options whose values contain times; ``--timezone`` sets the zone of times without a UTC offset.
READ_IN_ZONE: Final = ("rrule", "at", "start", "end")

#: The fields that the command ``edit`` can change.
#: ``FIELDS`` lacks ``managed_by``, because a file of entries sets this field for all its entries.
KNOWN: Final = (*FIELDS, "managed_by")


@command("add", EntryCommand)
@argument("name", help="Name of the new entry.")
@argument("task", help="Name of the task to run.", shell_complete=task_names)
@entry_options
def add(console: Console, name: str, task: str, **values: Any) -> None:
    """Add the entry NAME, which runs TASK.

    Set the schedule with exactly one option, such as --every, --cron or --at.
    """
    table = table_from(console, values)
    if not any(kind in table for kind in KINDS):
        options = ", ".join(f"--{kind}" for kind in KINDS)
        problem = f"Give a schedule: one of {options}; for example: --every 5m"
        raise click.UsageError(problem, console.ctx)
    owner = {"managed_by": table.pop("managed_by")} if "managed_by" in table else {}
    with as_option_errors(console.ctx):
        entry = new_entry(console.schedule, name, {"task": task, **table}, **owner)
        hint = f"change the entry with: celery redbeat edit {name}"
        _save(entry, f"The entry {name!r} already exists; {hint}")
    warn_of_unknown_names(console, [entry])
    _report(console, entry, "Added")
    warn_of_schedules(console, [entry])


@command("edit", EntryCommand)
@entry_argument
@option(
    "--task",
    example="proj.tasks.report",
    help_group="Task",
    help="The task to run.",
    shell_complete=task_names,
)
@entry_options
def edit(console: Console, name: str, task: str | None, **values: Any) -> None:
    """Change the entry NAME.

    Fields whose options you do not use remain unchanged. The value none resets a field to its
    default, for example: --end none.
    """
    if task is None and not any(value not in (None, ()) for value in values.values()):
        problem = "Give at least one option to change; for example: --every 5m"
        raise click.UsageError(problem, console.ctx)
    entry = load(console, name)
    table = table_from(console, values)
    if task is not None:
        table["task"] = task
    with as_option_errors(console.ctx):
        change_entry(entry, table, KNOWN)
        _check_zone(console, entry, table, values)
        _save(entry, f"Somebody else has just changed {name!r}; check the entry and try again")
    if static_among(console.store, [name]):
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
    """End the command with an error if ``--timezone`` changes nothing."""
    is_used = not has_own_zone(entry.schedule) or any(values[name] for name in READ_IN_ZONE)
    if table.get("timezone") and not is_used:
        problem = "has no effect on this schedule without --rrule, --at, --start or --end"
        raise option_error(console.ctx, "timezone", problem)


def _save(entry: RedBeatSchedulerEntry, conflict: str) -> None:
    """Save an entry; end the command with the message ``conflict`` if another one is stored."""
    try:
        save_unchanged(entry)
    except ConflictError as error:
        raise failure(conflict, EX_CONFLICT) from error


def _report(console: Console, entry: RedBeatSchedulerEntry, action: str) -> None:
    """Print the saved entry; ``action`` is what was done, such as ``Added``."""
    due = "paused"
    if entry.enabled:
        when = console.when(entry.due_at)
        due = f"due {when}" if when else "no run left"
    console.result(as_json(entry), f"{action} {entry.name}: {timing_text(entry)}, {due}")


# -- warnings about valid entries that are probably not what their author wants --------------------

#: Maximum number of different warnings to print.
MAX_PRINTED: Final = 20


def warn_of_unknown_names(console: Console, entries: Sequence[RedBeatSchedulerEntry]) -> None:
    """Print a warning for each unknown task and each unknown option."""
    if not entries:
        return
    used = UsedNames(console.app)
    if used.error:
        why = f"because the tasks cannot be loaded: {used.error}"
        console.warn(f"task names are not checked, {why}")
    for entry in entries:
        used.note(entry)
    found = used.warnings()
    for warning in found[:MAX_PRINTED]:
        console.warn(warning)
    if len(found) > MAX_PRINTED:
        names = "other unknown name is", "other unknown names are"
        console.warn(f"{plural(len(found) - MAX_PRINTED, *names)} not listed")


def warn_of_schedules(console: Console, entries: Sequence[RedBeatSchedulerEntry]) -> None:
    """Print a warning for each crontab that cron runs on other days, and each time in the past."""
    for entry in entries:
        kind, text = rule_of(entry.schedule) or ("", "")
        if kind == "cron" and (warning := cron_warning(text)):
            console.warn(f"{entry.name}: {warning}")
        if kind == "at" and (at := entry.schedule.clocked_time) < console.now:
            soon = "at once" if entry.enabled else "when it is resumed"
            runs = "never runs" if entry.due_at is None else f"runs {soon}"
            console.warn(f"{entry.name}: its time is {console.when(at)}, so it {runs}")
