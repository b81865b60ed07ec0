"""``celery redbeat edit``."""

from __future__ import annotations

from typing import Any, Final

import click

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import ConflictError
from redbeat.presentation.rule_text import has_own_zone

from .add import report
from .command import EX_CONFLICT, command, failure
from .console import Console, save_unchanged
from .entry_options import blamed, entry_options, schedule_from, settings_from, with_queue
from .options import CLEARED, bad, load, option, static_names

__all__ = ("edit",)

#: The options whose times are read in the zone that is given.
READ_IN_ZONE: Final = ("rrule", "at", "start", "end")


@command("edit")
@click.argument("name")
@option("--task", example="proj.tasks.report", help_group="Task", help="The task to run.")
@entry_options
def edit(console: Console, name: str, task: str | None, **given: Any) -> None:
    """Change what is given of an entry, and keep the rest.

    The word none takes back what an option once said, as in --end none.
    """
    if task is None and not any(value not in (None, False, ()) for value in given.values()):
        problem = "Say what to change; for example: --every 30"
        raise click.UsageError(problem, console.ctx)
    entry = load(console, name)
    with blamed(console.ctx, given):
        _change(console, entry, given)
        if task is not None:
            entry.task = task
        _save(entry)
    if name in static_names(console):
        console.warn(f"{name} is in beat_schedule: what that says wins when it changes")
    report(console, entry, "Changed")


def _change(console: Console, entry: RedBeatSchedulerEntry, given: dict[str, Any]) -> None:
    timezone = entry.timezone if given["timezone"] is None else given["timezone"]
    entry.schedule = schedule_from(console, given, timezone) or entry.schedule
    settings = settings_from(console, given, timezone)
    if given["queue"] is not None:
        options = settings.get("options", entry.options)
        settings["options"] = with_queue(options, given["queue"])
    if has_own_zone(entry.schedule) and settings.get("timezone") not in (None, CLEARED):
        if not any(given[name] for name in READ_IN_ZONE):
            raise bad(console.ctx, "timezone", "is the zone of a crontab, or of new times")
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
        problem = f"Somebody else has just changed {entry.name!r}; look at it, and try again"
        raise failure(problem, EX_CONFLICT) from error
