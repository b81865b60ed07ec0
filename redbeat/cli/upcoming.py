"""``celery redbeat upcoming``."""

from __future__ import annotations

from datetime import datetime

import click

from redbeat.cli.command import command
from redbeat.cli.console import Console
from redbeat.cli.options import TIME, option
from redbeat.presentation.describe import iso

from .options import load

__all__ = ("upcoming",)


@command("upcoming")
@click.argument("name", required=False)
@option(
    "-n",
    "--number",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    example="20",
    help="Print so many runs at most.",
)
@option("--until", type=TIME, example="2026-12-31T09:00", help="Nothing after this time.")
def upcoming(console: Console, name: str | None, number: int, until: datetime | None) -> None:
    """Show the next runs, of all entries or of one."""
    end = console.instant(until)
    runs = _all(console, number, end) if name is None else _of(console, name, number, end)
    if console.as_json:
        for instant, entry in runs:
            console.emit({"scheduled_at": iso(instant), "name": entry})
    elif runs:
        rows = [(console.time(instant), console.name(entry)) for instant, entry in runs]
        console.table((f"SCHEDULED ({console.zone})", "NAME"), rows)
    else:
        console.note("No runs to come")


def _all(console: Console, number: int, until: datetime | None) -> list[tuple[datetime, str]]:
    return console.schedule.upcoming(number, until=until)


def _of(
    console: Console, name: str, number: int, until: datetime | None
) -> list[tuple[datetime, str]]:
    entry = load(console, name)
    if not entry.enabled:
        console.warn(f"{name} is paused: none of this happens before it is resumed")
    instants = entry.upcoming(number)
    return [(instant, name) for instant in instants if until is None or instant <= until]
