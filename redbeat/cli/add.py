"""The command ``celery redbeat add``."""

from __future__ import annotations

from typing import Any

import click

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError
from redbeat.presentation.describe import as_json, timing_text
from redbeat.presentation.rule_text import KINDS
from redbeat.transfer.entry_file import new_entry

from .checks import warn_of_crontabs, warn_of_unknown_names
from .command import EX_CONFLICT, Console, command, failure, save_unchanged
from .completion import task_names
from .entry_options import as_option_errors, entry_options, table_from


@command("add")
@click.argument("name")
@click.argument("task", shell_complete=task_names)
@entry_options
def add(console: Console, name: str, task: str, **values: Any) -> None:
    """Add the entry NAME, which runs TASK.

    Set the schedule with exactly one option, such as --every, --cron or --at.
    """
    table = table_from(console, values)
    if not any(kind in table for kind in KINDS):
        options = ", ".join(f"--{kind}" for kind in KINDS)
        problem = f"Give a schedule: one of {options}; for example: --every 30"
        raise click.UsageError(problem, console.ctx)
    owner = {"managed_by": table.pop("managed_by")} if "managed_by" in table else {}
    try:
        with as_option_errors(console.ctx):
            entry = new_entry(console.schedule, name, {"task": task, **table}, **owner)
            save_unchanged(entry)
    except ConflictError as error:
        hint = f"change the entry with: celery redbeat edit {name}"
        raise failure(f"The entry {name!r} already exists; {hint}", EX_CONFLICT) from error
    warn_of_unknown_names(console, entry)
    report(console, entry, "Added")
    warn_of_crontabs(console, entry)


def report(console: Console, entry: RedBeatSchedulerEntry, action: str) -> None:
    """Print the saved entry; ``action`` is what was done, such as ``Added``."""
    due = "paused"
    if entry.enabled:
        instant = entry.due_at
        due = f"due {console.time(instant)} {console.zone}" if instant else "no run left"
    console.result(as_json(entry), f"{action} {entry.name}: {timing_text(entry)}, {due}")
