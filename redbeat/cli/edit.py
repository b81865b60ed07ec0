"""The command ``celery redbeat edit``."""

from __future__ import annotations

from typing import Any, Final

import click

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError
from redbeat.presentation.rule_text import has_own_zone
from redbeat.storage.reading import static_among
from redbeat.transfer.entry_file import FIELDS, change_entry

from . import add, checks, completion
from .command import EX_CONFLICT, Console, command, failure, save_unchanged
from .entry_options import as_option_errors, entry_options, table_from
from .options import load, option, option_error

#: Options whose values contain times; ``--timezone`` sets the zone of times without a UTC offset.
READ_IN_ZONE: Final = ("rrule", "at", "start", "end")

#: The fields that the command ``edit`` can change.
#: ``FIELDS`` lacks ``managed_by``, because a file of entries sets this field for all its entries.
KNOWN: Final = (*FIELDS, "managed_by")


@command("edit")
@click.argument("name", shell_complete=completion.entry_names)
@option(
    "--task",
    example="proj.tasks.report",
    help_group="Task",
    help="The task to run.",
    shell_complete=completion.task_names,
)
@entry_options
def edit(console: Console, name: str, task: str | None, **values: Any) -> None:
    """Change the entry NAME.

    Fields whose options you do not use remain unchanged. The value none resets a field to its
    default, for example: --end none.
    """
    if task is None and not any(value not in (None, False, ()) for value in values.values()):
        problem = "Give at least one option to change; for example: --every 30"
        raise click.UsageError(problem, console.ctx)
    entry = load(console, name)
    with as_option_errors(console.ctx):
        _change(console, entry, task, values)
        _save(entry)
    if static_among(console.store, [name]):
        console.warn(f"{name} is in beat_schedule: changing beat_schedule overwrites this edit")
    if task is not None or values["options"] is not None:
        checks.warn_of_unknown_names(console, entry)
    owner = entry.policy_field("managed_by")
    if owner and values["managed_by"] is None:
        console.warn(f"{name} is managed by {owner}: the next apply of {owner} undoes this edit")
    add.report(console, entry, "Changed")
    if values["cron"]:
        checks.warn_of_crontabs(console, entry)


def _change(
    console: Console, entry: RedBeatSchedulerEntry, task: str | None, values: dict[str, Any]
) -> None:
    table = table_from(console, values)
    if task is not None:
        table["task"] = task
    change_entry(entry, table, KNOWN)
    is_used = not has_own_zone(entry.schedule) or any(values[name] for name in READ_IN_ZONE)
    if table.get("timezone") and not is_used:
        problem = "has no effect on this schedule without --rrule, --at, --start or --end"
        raise option_error(console.ctx, "timezone", problem)


def _save(entry: RedBeatSchedulerEntry) -> None:
    try:
        save_unchanged(entry)
    except ConflictError as error:
        problem = f"Somebody else has just changed {entry.name!r}; check the entry and try again"
        raise failure(problem, EX_CONFLICT) from error
