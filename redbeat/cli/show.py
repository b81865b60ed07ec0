"""The commands ``celery redbeat show`` and ``celery redbeat history``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from redbeat.entries.runs import Occurrence
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.presentation.describe import as_json, call_text, iso, last_run, policy, schedule_text
from redbeat.presentation.text import duration
from redbeat.schedule import EntryStatus

from .command import command
from .console import Console
from .options import load, not_found, static_names

__all__ = (
    "history",
    "show",
)

#: Number of upcoming runs that ``show`` prints.
UPCOMING: Final = 5

TITLES: Final = ("DISPATCHED", "LATE", "OUTCOME", "TASK ID")


@command("show")
@click.argument("name")
def show(console: Console, name: str) -> None:
    """Show all details of an entry."""
    entry = load(console, name)
    static = name in static_names(console)
    occurrences = entry.history
    try:
        status = entry.status
    except KeyError:  # Another program deleted the entry after load().
        raise not_found(console, name) from None
    if console.as_json:
        console.emit(_entry_json(entry, status, occurrences, static))
        return
    console.fields(_fields(console, entry, status, static))
    if occurrences:
        console.write()
        _print_history(console, occurrences)


def _entry_json(
    entry: RedBeatSchedulerEntry, status: EntryStatus, occurrences: list[Occurrence], static: bool
) -> dict[str, Any]:
    return {
        **as_json(entry),
        "state": status.state,
        "due_at": iso(status.due_at),
        "static": static,
        "problem": None,
        "reason": status.reason,
        "note": status.note,
        "upcoming": [iso(instant) for instant in entry.upcoming(UPCOMING)],
        "history": [occurrence_json(item) for item in occurrences],
    }


def _fields(
    console: Console, entry: RedBeatSchedulerEntry, status: EntryStatus, static: bool
) -> Iterator[tuple[str, str]]:
    yield "Name", console.name(entry.name)
    yield "Task", console.name(call_text(entry))
    yield "Schedule", schedule_text(entry.schedule)
    yield "Options", json.dumps(entry.options, default=repr) if entry.options else ""
    for name, value in policy(entry).items():
        yield name.replace("_", " ").capitalize(), str(value)
    yield "Kind", "static, from beat_schedule" if static else "dynamic"
    yield "State", status.state
    yield "Reason", console.name(status.reason or "")
    yield "Note", console.name(status.note or "")
    yield "Due", f"{console.time(status.due_at)} {console.zone}" if status.due_at else ""
    ran_at = last_run(entry)
    yield "Last run", f"{console.time(ran_at)} {console.zone}" if ran_at else "never"
    yield "Runs", str(entry.total_run_count)
    yield "Upcoming", "\n".join(console.time(instant) for instant in entry.upcoming(UPCOMING))


def occurrence_json(item: Occurrence) -> dict[str, Any]:
    """Return the JSON object of a recorded run; ``docs/operating.rst`` documents its fields."""
    return {
        "scheduled_at": iso(item.scheduled_at),
        "dispatched_at": iso(item.dispatched_at),
        "task_id": item.task_id or None,
        "outcome": item.outcome,
    }


def _print_history(console: Console, occurrences: Iterable[Occurrence]) -> None:
    titles = (f"SCHEDULED ({console.zone})", *TITLES)
    console.table(titles, [_history_row(console, item) for item in occurrences])


def _history_row(console: Console, item: Occurrence) -> tuple[str, ...]:
    late = (item.dispatched_at - item.scheduled_at).total_seconds()
    return (
        console.time(item.scheduled_at),
        console.time(item.dispatched_at),
        duration(late),
        console.name(item.outcome),
        console.name(item.task_id or "-"),
    )


@command("history")
@click.argument("name")
def history(console: Console, name: str) -> None:
    """Show the last runs of an entry, the most recent first."""
    entry = load(console, name)
    occurrences = entry.history
    if console.as_json:
        for item in occurrences:
            console.emit({"name": name, **occurrence_json(item)})
    elif occurrences:
        _print_history(console, occurrences)
    else:
        console.note(f"{console.name(name)} has no recorded runs yet")
