"""The commands ``celery redbeat show`` and ``celery redbeat history``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from redbeat.entries.runs import Occurrence
from redbeat.entries.status import NOT_SCHEDULED, PAUSED
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management import as_json, forecast
from redbeat.presentation import describe, text
from redbeat.storage.reading import static_among
from redbeat.transfer.entry_file import CALL

from . import completion, entry_options, options
from .backfill import progress_text
from .command import Console, command

TITLES: Final = ("DISPATCHED", "LATE", "OUTCOME", "RESULT", "TASK ID")


@command("show")
@click.argument("name", shell_complete=completion.entry_names)
def show(console: Console, name: str) -> None:
    """Show all details of an entry."""
    entry = options.load(console, name)
    static = bool(static_among(console.store, [name]))
    with options.existing(console, name):
        if console.as_json:
            console.emit(as_json.entry_json(entry, static))
            return
        occurrences = entry.history
        console.fields(_fields(console, entry, occurrences, static))
    if occurrences:
        console.write()
        _print_history(console, entry, occurrences)


def _fields(
    console: Console, entry: RedBeatSchedulerEntry, occurrences: list[Occurrence], static: bool
) -> Iterator[tuple[str, str | list[str]]]:
    yield "Name", str(entry.name)
    # Print the values in the syntax of command-line options, such as --task and --args.
    yield "Task", str(entry.task)
    yield "Schedule", describe.schedule_text(entry.schedule)
    definition = describe.stored(entry)
    for name in CALL:
        yield name.capitalize(), json.dumps(definition[name]) if definition[name] else ""
    for name, value in describe.policy(entry).items():
        label = entry_options.OPTION_OF.get(name, name).replace("_", " ").capitalize()
        yield label, text.plain_text(value)
    offset = entry.spread_offset
    yield "Offset", f"{text.duration(offset)} after each nominal time" if offset else ""
    yield "Kind", "static, from beat_schedule" if static else "dynamic"
    status = entry.status
    yield "State", console.state(status.state)
    yield "Reason", status.reason or ""
    failing = status.failing
    if failing is not None:
        yield "First error", f"{console.when(failing.first_at)}: {failing.first_error}"
        yield "Next attempt", console.when(failing.next_attempt_at) or "now"
    yield "Note", status.note or ""
    yield "Due", console.when(status.due_at)
    yield "Last run", console.when(describe.last_run(entry, occurrences)) or "never"
    yield "Runs", str(entry.total_run_count)
    yield "Backfill", [progress_text(console, one) for one in entry.backfills]
    yield "Last success", console.when(status.last_success)
    yield "Failures in a row", str(status.consecutive_failures or "")
    yield "Overdue", f"the entry {describe.overdue_text(status.overdue)}" if status.overdue else ""
    upcoming, problem = forecast.upcoming_or_problem(entry, as_json.UPCOMING)
    waits = status.state in (PAUSED, NOT_SCHEDULED)
    title = "Upcoming, if resumed" if waits else "Upcoming"
    yield title, [console.time(instant) for instant in upcoming]
    yield "Problem", problem or ""


def _print_history(
    console: Console, entry: RedBeatSchedulerEntry, occurrences: Sequence[Occurrence]
) -> None:
    """Print runs as a table; with ``--json`` print an object per run."""

    def row(item: Occurrence) -> tuple[str, ...]:
        return (
            console.time(item.scheduled_at),
            console.time(item.dispatched_at),
            text.duration(entry.lateness_of(item)),
            item.outcome,
            describe.result_text(item.result) or "-",
            item.task_id or "-",
        )

    def as_object(item: Occurrence) -> dict[str, Any]:
        return {"name": str(entry.name), **as_json.occurrence_json(item)}

    titles = (f"SCHEDULED ({console.zone})", *TITLES)
    nothing = f"{entry.name} has no recorded runs yet"
    console.items(occurrences, as_object, titles, row, nothing)


@command("history")
@click.argument("name", shell_complete=completion.entry_names)
def history(console: Console, name: str) -> None:
    """Show the last runs of an entry, the most recent first."""
    entry = options.load(console, name)
    _print_history(console, entry, entry.history)
