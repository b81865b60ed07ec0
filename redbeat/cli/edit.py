"""The command ``celery redbeat edit``."""

from __future__ import annotations

from typing import Any, Final

import click

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError
from redbeat.presentation.rule_text import has_own_zone

from .add import report
from .checks import warn_of_unknown_names
from .command import EX_CONFLICT, command, failure
from .completion import entry_names, task_names
from .console import Console, save_unchanged
from .entry_options import (
    as_option_errors,
    entry_options,
    schedule_from,
    settings_from,
    with_queue,
)
from .options import CLEARED, load, option, option_error, static_among

__all__ = ("edit",)

#: Options with a time. A time without a UTC offset is a wall-clock time in ``--timezone``.
READ_IN_ZONE: Final = ("rrule", "at", "start", "end")


@command("edit")
@click.argument("name", shell_complete=entry_names)
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

    Options that you leave out keep their values. The value none resets an option to its
    default, for example: --end none.
    """
    if task is None and not any(value not in (None, False, ()) for value in values.values()):
        problem = "Give at least one option to change; for example: --every 30"
        raise click.UsageError(problem, console.ctx)
    entry = load(console, name)
    with as_option_errors(console.ctx, values):
        _change(console, entry, values)
        if task is not None:
            entry.task = task
        _save(entry)
    if static_among(console, [name]):
        console.warn(f"{name} is in beat_schedule: a later change there overwrites this edit")
    if task is not None or values["options"] is not None:
        warn_of_unknown_names(console, entry)
    owner = entry.policy_field("managed_by")
    if owner and values["managed_by"] is None:
        console.warn(f"{name} is managed by {owner}: the next apply of that file undoes this edit")
    report(console, entry, "Changed")


def _change(console: Console, entry: RedBeatSchedulerEntry, values: dict[str, Any]) -> None:
    timezone = entry.timezone if values["timezone"] is None else values["timezone"]
    entry.schedule = schedule_from(console, values, timezone, str(entry.name)) or entry.schedule
    settings = settings_from(console, values, timezone)
    if values["queue"] is not None:
        options = settings.get("options", entry.options)
        settings["options"] = with_queue(options, values["queue"])
    if has_own_zone(entry.schedule) and settings.get("timezone") not in (None, CLEARED):
        if not any(values[name] for name in READ_IN_ZONE):
            problem = "has no effect on this schedule without --rrule, --at, --start or --end"
            raise option_error(console.ctx, "timezone", problem)
        del settings["timezone"]
    for field, value in settings.items():
        if value is CLEARED:
            entry.__dict__.pop(field, None)
        else:
            setattr(entry, field, value)


def _save(entry: RedBeatSchedulerEntry) -> None:
    try:
        save_unchanged(entry)
    except ConflictError as error:
        problem = f"Somebody else has just changed {entry.name!r}; check the entry and try again"
        raise failure(problem, EX_CONFLICT) from error
