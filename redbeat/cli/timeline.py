"""The commands ``celery redbeat upcoming`` and ``celery redbeat timeline``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final

import click

from redbeat.calendar.zones import UTC
from redbeat.management.as_json import timeline_json, upcoming_json
from redbeat.management.forecast import MAX_LOADED, MINUTE, Periods, minutes_between
from redbeat.presentation.text import clipped, duration, in_zone, width_of
from redbeat.printing import plural

from .command import Console, Styled, command
from .completion import entry_names
from .options import INSTANT, SECONDS, load, option

DAY_MINUTES: Final = 1440

#: Maximum width of the entry names, in terminal cells.
MAX_LABEL: Final = 24

#: Possible lengths of the period that one column covers, in minutes.
COLUMN_MINUTES: Final = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)

#: Number of columns between two times on the axis.
TICK_COLUMNS: Final = 10

BARS: Final = " ▁▂▃▄▅▆▇█"
ASCII_BARS: Final = " .:-=+*#@"


@command("upcoming")
@click.argument("name", required=False, shell_complete=entry_names)
@option(
    "-n",
    "--number",
    type=click.IntRange(1),
    default=20,
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
        entry = load(console, name)
        if not entry.enabled:
            problem = "the runs take place only if you resume the entry first"
            console.warn(f"{name} is paused: {problem}")
        runs = [(at, name) for at in entry.upcoming(number) if until is None or at <= until]
    console.items(
        runs,
        lambda run: upcoming_json(*run),
        (f"DUE ({console.zone})", "NAME"),
        lambda run: (console.time(run[0]), run[1]),
        "No upcoming runs",
    )


@command("timeline")
@option(
    "--span",
    type=SECONDS,
    default="1h",
    example="1d",
    help="How far to look ahead, in seconds or with units, such as 1h30m or 1w.",
)
@option(
    "--pattern",
    metavar="GLOB",
    default="*",
    help="Draw only entries whose name matches this pattern.",
)
@option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    help="Maximum number of rows. The load per minute also counts entries without a row.",
)
def timeline(console: Console, span: float, pattern: str, limit: int) -> None:
    """Draw the upcoming runs and the number of runs per minute."""
    now = datetime.now(UTC)
    periods = minutes_between(now, now + timedelta(seconds=span))
    found = console.schedule.load(periods, pattern, totals=True)
    if console.as_json:
        console.emit(timeline_json(periods, found))
    elif found.entries:
        rows = {name: found.found[name] for name in found.entries}
        draw(console, periods, found.counts, rows, Periods.counts, limit)
    else:
        console.note("No upcoming runs")
    if not found.complete:
        console.warn(f"only the {MAX_LOADED:,} entries that are due first are in the timeline")


def draw(
    console: Console,
    periods: Periods,
    load: Sequence[int],
    rows: Mapping[str, Any],
    counts: Callable[[Periods, Any], Sequence[int]],
    limit: int,
) -> None:
    """Draw the first ``limit`` rows, and the number of runs per minute.

    ``load`` contains the number of runs in each minute of ``periods``. ``counts`` returns the
    number of runs of a value of ``rows`` in each column.
    """
    shown = list(rows)[:limit]
    longest = max(width_of(console.name(name)) for name in shown)
    label_width = min(max(len("per minute"), longest), MAX_LABEL)
    room = max(shutil.get_terminal_size().columns - label_width - 2, TICK_COLUMNS)
    total = len(load)
    minutes = next((size for size in COLUMN_MINUTES if total <= size * room), ceil(total / room))
    columns = replace(periods, length=minutes * MINUTE)
    clock = "%H:%M" if total <= DAY_MINUTES + 1 else "%a %H:%M"
    console.write(f"{'':{label_width}}  {_axis(console, columns, clock)}")
    for name in shown:
        row = "".join(map(_mark, counts(columns, rows[name]))).rstrip()
        console.write(_padded(console.name(name), label_width), "  ", row)
    if len(rows) > limit:
        console.write(f"and {plural(len(rows) - limit, 'more entry', 'more entries')}")
    chart = Styled(bars(load, minutes, _bar_levels()), fg="cyan")
    console.write(f"{'per minute':{label_width}}  ", chart)
    busiest = load.index(max(load))
    at = f"{in_zone(periods.start + busiest * MINUTE, console.zone):{clock}}"
    runs = sum(load)
    peak = f"{load[busiest]} in the busiest minute, from {at}"
    count = f"1 run, at {at}" if runs == 1 else f"{runs} runs, {peak}"
    console.write(f"Each column is {duration(minutes * 60)}; {count} ({console.zone})")


def _bar_levels() -> str:
    try:
        BARS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII_BARS
    return BARS


def _axis(console: Console, columns: Periods, clock: str) -> str:
    ticks = range(0, columns.number - len("00:00") + 1, TICK_COLUMNS)
    times = (in_zone(columns.start + tick * columns.length, console.zone) for tick in ticks)
    return "".join(f"{time:{clock}}".ljust(TICK_COLUMNS) for time in times).rstrip()


def _padded(name: str, width: int) -> str:
    label = clipped(name, width)
    return label + " " * (width - width_of(label))


def bars(load: Sequence[int], minutes: int, levels: str) -> str:
    """Return one character of ``levels`` per column, for the load of its busiest minute."""
    peak = max(load, default=0) or 1
    highest = (max(load[first : first + minutes]) for first in range(0, len(load), minutes))
    return "".join(levels[ceil(count * (len(levels) - 1) / peak)] for count in highest)


def _mark(count: int) -> str:
    if not count:
        return " "
    return "|" if count == 1 else str(count) if count < 10 else "#"
