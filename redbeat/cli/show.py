"""The commands ``celery redbeat show`` and ``celery redbeat history``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from redbeat.entries.backfill import Backfill
from redbeat.entries.runs import Occurrence
from redbeat.entries.status import NOT_SCHEDULED, PAUSED
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management.as_json import UPCOMING, entry_json, occurrence_json
from redbeat.management.forecast import upcoming_or_problem
from redbeat.presentation.describe import (
    last_run,
    overdue_text,
    policy,
    result_text,
    schedule_text,
    stored,
)
from redbeat.presentation.text import duration, plain_text
from redbeat.schedule import EntryStatus
from redbeat.transfer.entry_file import CALL

from .backfill import progress_text
from .command import Console, command
from .completion import entry_names
from .entry_options import OPTION_OF
from .options import existing, load

TITLES: Final = ("DISPATCHED", "LATE", "OUTCOME", "RESULT", "TASK ID")


@command("show")
@click.argument("name", shell_complete=entry_names)
def show(console: Console, name: str) -> None:
    """Show all details of an entry."""
    entry = load(console, name)
    static = bool(console.store.static_among([name]))
    with existing(console, name):
        if console.as_json:
            console.emit(entry_json(entry, static))
            return
        status, occurrences, backfills = entry.status, entry.history, entry.backfills
    console.fields(_fields(console, entry, status, occurrences, backfills, static))
    if occurrences:
        console.write()
        _print_history(console, entry, occurrences)


def _fields(
    console: Console,
    entry: RedBeatSchedulerEntry,
    status: EntryStatus,
    occurrences: list[Occurrence],
    backfills: list[Backfill],
    static: bool,
) -> Iterator[tuple[str, str | list[str]]]:
    yield "Name", str(entry.name)
    # Print the values in the syntax of command-line options, such as --task and --args.
    yield "Task", str(entry.task)
    yield "Schedule", schedule_text(entry.schedule)
    definition = stored(entry)
    for name in CALL:
        yield name.capitalize(), json.dumps(definition[name]) if definition[name] else ""
    for name, value in policy(entry).items():
        label = OPTION_OF.get(name, name).replace("_", " ").capitalize()
        yield label, plain_text(value)
    offset = entry.spread_offset
    yield "Offset", f"{duration(offset)} after each nominal time" if offset else ""
    yield "Kind", "static, from beat_schedule" if static else "dynamic"
    yield "State", console.state(status.state)
    yield "Reason", status.reason or ""
    failing = status.failing
    if failing is not None:
        first = f"{console.time(failing.first_at)} {console.zone}: {failing.first_error}"
        yield "First error", first
        again = failing.next_attempt_at
        yield "Next attempt", f"{console.time(again)} {console.zone}" if again else "now"
    yield "Note", status.note or ""
    yield "Due", f"{console.time(status.due_at)} {console.zone}" if status.due_at else ""
    ran_at = last_run(entry, occurrences)
    yield "Last run", f"{console.time(ran_at)} {console.zone}" if ran_at else "never"
    yield "Runs", str(entry.total_run_count)
    yield "Backfill", [progress_text(console, one) for one in backfills]
    success, failures = status.last_success, status.consecutive_failures
    yield "Last success", f"{console.time(success)} {console.zone}" if success else ""
    yield "Failures in a row", str(failures) if failures else ""
    yield "Overdue", f"the entry {overdue_text(status.overdue)}" if status.overdue else ""
    upcoming, problem = upcoming_or_problem(entry, UPCOMING)
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
            duration(entry.lateness_of(item)),
            item.outcome,
            result_text(item.result) or "-",
            item.task_id or "-",
        )

    def as_object(item: Occurrence) -> dict[str, Any]:
        return {"name": str(entry.name), **occurrence_json(item)}

    titles = (f"SCHEDULED ({console.zone})", *TITLES)
    nothing = f"{entry.name} has no recorded runs yet"
    console.items(occurrences, as_object, titles, row, nothing)


@command("history")
@click.argument("name", shell_complete=entry_names)
def history(console: Console, name: str) -> None:
    """Show the last runs of an entry, the most recent first."""
    entry = load(console, name)
    _print_history(console, entry, entry.history)
