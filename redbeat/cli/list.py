"""The command ``celery redbeat list``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import chain, islice
from typing import Final

import click
from celery.bin.base import CeleryOption

from redbeat.entries.status import STATES, EntryState
from redbeat.management import as_json, find
from redbeat.presentation import describe, text
from redbeat.schedule import Record
from redbeat.storage.commands import batches

from .command import Console, command
from .options import INSTANT, option

TITLES: Final = ("NAME", "TASK", "SCHEDULE", "STATE", "KIND")

#: Maximum width of a column, in terminal cells. The command ``show`` prints the full text.
MAX_WIDTH: Final = 40

#: The sort orders. The order ``due`` is the order in Redis.
SORTS: Final = ("due", *find.ORDERS)

#: Maximum number of rows per table. A longer list is printed as several tables.
CHUNK: Final = 10_000


@command("list")
@option("--pattern", metavar="GLOB", help="List only entries whose name matches this pattern.")
@option("--task", metavar="GLOB", help="List only entries whose task name matches this pattern.")
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
    help="List only static entries (those of beat_schedule), or only dynamic entries.",
)
@option(
    "--due-before",
    type=INSTANT,
    example="2026-12-31T09:00",
    help="List only entries that are due before this time (ISO 8601).",
)
@option("--limit", type=click.IntRange(1), example="20", help="Maximum number of entries to list.")
@option(
    "--sort",
    type=click.Choice(SORTS),
    default="due",
    example="name",
    help="Sort order. For any order except 'due', the command must read all names or entries.",
)
def list_(
    console: Console,
    pattern: str | None,
    task: str | None,
    states: tuple[EntryState, ...],
    static: bool | None,
    due_before: datetime | None,
    limit: int | None,
    sort: str,
) -> None:
    """List entries, the next due entry first."""
    filters = find.Filter.of(pattern, task, None, static, due_before, states or STATES)
    records: Iterable[Record]
    if sort == "due":
        found = find.Search(console.schedule, filters).pages()
        records = islice(chain.from_iterable(found), limit)
    else:
        records = find.in_order(console.schedule, filters, sort, limit)
    if console.as_json:
        for record in records:
            console.emit(as_json.record_json(record))
        return
    count = 0
    for rows in batches((_row(console, record) for record in records), CHUNK):
        console.table((*TITLES, f"DUE ({console.zone})", "RUNS"), rows)
        count += len(rows)
    if count == limit:
        console.note(f"Stopped at --limit {limit}; there may be more entries")
    elif not count:
        console.note("No entries")


def _row(console: Console, record: Record) -> tuple[str, ...]:
    name, kind = console.name(record.name), "static" if record.static else "dynamic"
    if record.entry is None:
        problem = text.clipped(console.name(record.problem or "-"), MAX_WIDTH)
        return name, "-", problem, console.state(record.state), kind, "-", "-"
    entry = record.entry
    return (
        name,
        text.clipped(console.name(entry.task), MAX_WIDTH),
        text.clipped(describe.timing_text(entry), MAX_WIDTH),
        console.state(record.state),
        kind,
        console.time(record.due_at),
        str(entry.total_run_count),
    )
