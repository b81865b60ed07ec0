"""The command ``celery redbeat upcoming``."""

from __future__ import annotations

from datetime import datetime

import click

from redbeat.cli.command import Console, command
from redbeat.cli.options import INSTANT, load, option
from redbeat.management.as_json import upcoming_json

from .completion import entry_names


@command("upcoming")
@click.argument("name", required=False, shell_complete=entry_names)
@option(
    "-n",
    "--number",
    type=click.IntRange(1),
    default=20,
    example="20",
    help="Maximum number of runs to print.",
)
@option(
    "--until",
    type=INSTANT,
    example="2026-12-31T09:00",
    help="Print no run after this time (ISO 8601).",
)
def upcoming(console: Console, name: str | None, number: int, until: datetime | None) -> None:
    """Show the next runs of all entries, or of the entry NAME.

    A run is due at its scheduled time plus the offsets of spread and jitter.
    """
    if name is None:
        runs = console.schedule.upcoming(number, until=until)
    else:
        runs = _of_one(console, name, number, until)
    console.items(
        runs,
        lambda run: upcoming_json(*run),
        (f"DUE ({console.zone})", "NAME"),
        lambda run: (console.time(run[0]), run[1]),
        "No upcoming runs",
    )


def _of_one(
    console: Console, name: str, number: int, until: datetime | None
) -> list[tuple[datetime, str]]:
    entry = load(console, name)
    if not entry.enabled:
        console.warn(f"{name} is paused: the runs take place only if you resume the entry first")
    instants = entry.upcoming(number)
    return [(instant, name) for instant in instants if until is None or instant <= until]
