"""The command ``celery redbeat add``."""

from __future__ import annotations

from typing import Any

import click

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError
from redbeat.presentation.describe import as_json, timing_text
from redbeat.presentation.rule_text import KINDS, has_own_zone

from .checks import warn_of_unknown_names
from .command import EX_CONFLICT, command, failure
from .completion import task_names
from .console import Console, save_unchanged
from .entry_options import (
    as_option_errors,
    entry_options,
    schedule_from,
    settings_from,
    with_queue,
)
from .options import CLEARED

__all__ = ("add",)


@command("add")
@click.argument("name")
@click.argument("task", shell_complete=task_names)
@entry_options
def add(console: Console, name: str, task: str, **values: Any) -> None:
    """Add the entry NAME, which runs TASK.

    Give the schedule with exactly one of --every, --cron, --rrule, --at and --solar.
    """
    entry = build_entry(console, name, task, values)
    try:
        with as_option_errors(console.ctx, values):
            save_unchanged(entry)
    except ConflictError as error:
        hint = f"change it with: celery redbeat edit {name}"
        raise failure(f"There is an entry {name!r} already; {hint}", EX_CONFLICT) from error
    warn_of_unknown_names(console, entry)
    report(console, entry, "Added")


def build_entry(
    console: Console, name: str, task: str, values: dict[str, Any]
) -> RedBeatSchedulerEntry:
    """Return an entry built from the option values, without saving the entry."""
    ctx = console.ctx
    schedule = schedule_from(console, values, values["timezone"], name)
    if schedule is None:
        options = ", ".join(f"--{kind}" for kind in KINDS)
        raise click.UsageError(f"Give a schedule: one of {options}; for example: --every 30", ctx)
    settings = settings_from(console, values, values["timezone"])
    if values["queue"] is not None:
        settings["options"] = with_queue(settings.get("options"), values["queue"])
    if has_own_zone(schedule):
        settings.pop("timezone", None)
    settings = {field: value for field, value in settings.items() if value is not CLEARED}
    with as_option_errors(ctx, values):
        return console.schedule.entry_class(
            name=name, task=task, schedule=schedule, app=console.app, **settings
        )


def report(console: Console, entry: RedBeatSchedulerEntry, action: str) -> None:
    """Print the saved entry; ``action`` is a verb such as ``Added``."""
    if console.as_json:
        console.emit(as_json(entry))
        return
    due = f"due {console.time(entry.due_at)} {console.zone}" if entry.enabled else "paused"
    name = entry.name
    console.note(f"{action} {name}: {timing_text(entry)}, {due}")
