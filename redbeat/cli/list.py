"""The command ``celery redbeat list``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import Any, Final

import click
from celery.bin.base import CeleryOption

from redbeat.entries.status import STATES
from redbeat.presentation.describe import as_json, iso, schedule_text
from redbeat.presentation.text import clipped
from redbeat.schedule import Record

from .command import command
from .console import Console
from .options import TIME, option

__all__ = (
    "list_",
    "record_json",
)

TITLES: Final = ("NAME", "TASK", "SCHEDULE", "STATE", "KIND")

#: Maximum width of a column, in terminal cells. The command ``show`` prints the full text.
MAX_WIDTH: Final = 40

#: The sort keys with their functions. None keeps the order in Redis, which is by due time.
SORTS: Final[dict[str, Callable[[Record], Any] | None]] = {
    "due": None,
    "name": lambda record: record.name,
    "task": lambda record: (_task(record), record.name),
    "state": lambda record: (record.state, record.name),
}


def _task(record: Record) -> str:
    return "" if record.entry is None else str(record.entry.task)


def record_json(record: Record) -> dict[str, Any]:
    """Return the JSON object of a listed entry; ``docs/operating.rst`` documents its fields."""
    stored = {"name": record.name} if record.entry is None else as_json(record.entry)
    return {
        **stored,
        "state": record.state,
        "due_at": iso(record.due_at),
        "static": record.static,
        "problem": record.problem,
    }


@command("list")
@option(
    "--pattern",
    metavar="GLOB",
    example="'billing-*'",
    help="List only entries whose name matches this pattern.",
)
@option(
    "--task",
    metavar="GLOB",
    example="'proj.tasks.*'",
    help="List only entries whose task name matches this pattern.",
)
@option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    example="paused",
    help="List only entries in this state. Repeat the option for several states.",
)
@click.option(
    "--static/--dynamic",
    default=None,
    cls=CeleryOption,
    help="List only static entries (those of beat_schedule), or only dynamic ones.",
)
@option(
    "--due-before",
    type=TIME,
    example="2026-12-31T09:00",
    help="List only entries that are due before this time (ISO 8601).",
)
@option("--limit", type=click.IntRange(1), example="20", help="Maximum number of entries to list.")
@option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    default="due",
    show_default=True,
    example="name",
    help="Sort order. Every order except 'due' reads the whole schedule first.",
)
def list_(
    console: Console,
    pattern: str | None,
    task: str | None,
    states: tuple[str, ...],
    static: bool | None,
    due_before: datetime | None,
    limit: int | None,
    sort: str,
) -> None:
    """List entries, the next due entry first."""
    sort_key = SORTS[sort]
    records: Iterable[Record] = console.schedule.records(
        pattern=pattern,
        task=task,
        static=static,
        due_before=console.instant(due_before),
        states=states or None,
        limit=None if sort_key else limit,
    )
    if sort_key:
        records = islice(sorted(records, key=sort_key), limit)
    if console.as_json:
        for record in records:
            console.emit(record_json(record))
        return
    rows = [_row(console, record) for record in records]
    if rows:
        console.table((*TITLES, f"DUE ({console.zone})", "RUNS"), rows)
    if len(rows) == limit:
        console.note(f"Stopped at --limit {limit}; there may be more entries")
    elif not rows:
        console.note("No entries")


def _row(console: Console, record: Record) -> tuple[str, ...]:
    name, kind = console.name(record.name), "static" if record.static else "dynamic"
    if record.entry is None:
        problem = clipped(console.name(record.problem or "-"), MAX_WIDTH)
        return name, "-", problem, record.state, kind, "-", "-"
    entry = record.entry
    return (
        name,
        clipped(console.name(entry.task), MAX_WIDTH),
        clipped(schedule_text(entry.schedule), MAX_WIDTH),
        record.state,
        kind,
        console.time(record.due_at),
        str(entry.total_run_count),
    )
