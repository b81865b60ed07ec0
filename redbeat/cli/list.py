"""``celery redbeat list``."""

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

#: Cells of the columns that may be long, at most; ``show`` has it all.
WIDE: Final = 40

#: What to sort by; entries come in due order as they are stored.
SORTS: Final[dict[str, Callable[[Record], Any] | None]] = {
    "due": None,
    "name": lambda record: record.name,
    "task": lambda record: (_task(record), record.name),
    "state": lambda record: (record.state, record.name),
}


def _task(record: Record) -> str:
    return "" if record.entry is None else str(record.entry.task)


def record_json(record: Record) -> dict[str, Any]:
    """Return an entry of a listing as the JSON of ``docs/operating.rst``."""
    stored = {"name": record.name} if record.entry is None else as_json(record.entry)
    return {
        **stored,
        "state": record.state,
        "due_at": iso(record.due_at),
        "static": record.static,
        "problem": record.problem,
    }


@command("list")
@option("--pattern", metavar="GLOB", example="'billing-*'", help="Only names like this.")
@option("--task", metavar="GLOB", example="'proj.tasks.*'", help="Only tasks like this.")
@option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    example="paused",
    help="Only entries in this state; may be given several times.",
)
@click.option(
    "--static/--dynamic",
    default=None,
    cls=CeleryOption,
    help="Only entries of beat_schedule, or only the others.",
)
@option(
    "--due-before",
    type=TIME,
    example="2026-12-31T09:00",
    help="Only entries that are due before this time.",
)
@option("--limit", type=click.IntRange(1), example="20", help="Print so many entries at most.")
@option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    default="due",
    show_default=True,
    example="name",
    help="In which order; all but 'due' read the whole schedule before anything is printed.",
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
    """List entries, those that are due next first."""
    by = SORTS[sort]
    records: Iterable[Record] = console.schedule.records(
        pattern=pattern,
        task=task,
        static=static,
        due_before=console.instant(due_before),
        states=states or None,
        limit=None if by else limit,
    )
    if by:
        records = islice(sorted(records, key=by), limit)
    if console.as_json:
        for record in records:
            console.emit(record_json(record))
        return
    rows = [_row(console, record) for record in records]
    if rows:
        console.table((*TITLES, f"DUE ({console.zone})", "RUNS"), rows)
    if len(rows) == limit:
        console.note(f"{limit} entries; there may be more")
    elif not rows:
        console.note("No entries")


def _row(console: Console, record: Record) -> tuple[str, ...]:
    name, kind = console.name(record.name), "static" if record.static else "dynamic"
    if record.entry is None:
        problem = clipped(console.name(record.problem or "-"), WIDE)
        return name, "-", problem, record.state, kind, "-", "-"
    entry = record.entry
    return (
        name,
        clipped(console.name(entry.task), WIDE),
        clipped(schedule_text(entry.schedule), WIDE),
        record.state,
        kind,
        console.time(record.due_at),
        str(entry.total_run_count),
    )
