"""The command ``celery redbeat timeline``, which draws upcoming runs in the terminal."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from math import ceil
from typing import Any, Final

import click

from redbeat.calendar.zones import UTC
from redbeat.cli.command import command
from redbeat.cli.console import Console, Styled
from redbeat.cli.options import SECONDS, option
from redbeat.management.forecast import per_minute
from redbeat.presentation.describe import iso
from redbeat.presentation.english import plural
from redbeat.presentation.text import clipped, duration, width_of

__all__ = ("Picture", "draw", "timeline")

MINUTE: Final = timedelta(minutes=1)

#: Maximum width of the entry names, in terminal cells.
MAX_LABEL: Final = 24

#: Possible lengths of the period that one column covers, in minutes.
COLUMN_MINUTES: Final = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)

#: Number of columns between two times on the axis.
TICK_COLUMNS: Final = 10

BARS: Final = " ▁▂▃▄▅▆▇█"
ASCII_BARS: Final = " .:-=+*#@"


@dataclass(frozen=True)
class Picture:
    """A chart whose columns cover whole minutes.

    Attributes:
        start: the start of the first minute, in UTC.
        minutes: number of minutes per column.
        columns: number of columns.
        runs: entry name -> the instants of its runs; entries are ordered by their first run.
    """

    start: datetime
    minutes: int
    columns: int
    runs: Mapping[str, Sequence[datetime]]

    def column(self, instant: datetime) -> int:
        """Return the index of the column that contains an instant."""
        return int((instant - self.start) / (MINUTE * self.minutes))

    def marks(self, name: str) -> str:
        """Return the row of an entry: ``|`` means one run in a column, ``#`` 10 runs or more."""
        counts = Counter(self.column(instant) for instant in self.runs[name])
        return "".join(_mark(counts[column]) for column in range(self.columns)).rstrip()

    def load(self) -> list[int]:
        """Return the number of runs in each minute of the chart."""
        return per_minute(self.runs, self.start, self.columns * self.minutes)

    def bars(self, levels: str) -> str:
        """Return one character of ``levels`` per column, for the load of its busiest minute."""
        load = self.load()
        peak = max(load, default=0) or 1
        starts = range(0, len(load), self.minutes)
        highest = (max(load[first : first + self.minutes]) for first in starts)
        return "".join(levels[ceil(count * (len(levels) - 1) / peak)] for count in highest)


def _mark(count: int) -> str:
    if not count:
        return " "
    return "|" if count == 1 else str(count) if count < 10 else "#"


@command("timeline")
@option(
    "--span",
    type=SECONDS,
    default="1h",
    show_default=True,
    example="1d",
    help="How far to look ahead: seconds, or with units, such as 1h30m or 1w.",
)
@option(
    "--pattern",
    metavar="GLOB",
    example="'billing-*'",
    help="Draw only entries whose name matches this pattern.",
)
@option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    example="20",
    help="Maximum number of rows. The load per minute counts the other entries too.",
)
def timeline(console: Console, span: float, pattern: str | None, limit: int) -> None:
    """Draw the upcoming runs and the number of runs per minute."""
    now = datetime.now(UTC)
    until = now + timedelta(seconds=span)
    forecast = console.schedule.forecast(until, now)
    runs = {
        name: instants
        for name, instants in forecast.runs.items()
        if pattern is None or fnmatchcase(name, pattern)
    }
    if console.as_json:
        console.emit(_json(now, until, runs))
    elif runs:
        draw(console, now, until, runs, limit)
    else:
        console.note("No upcoming runs")
    if not forecast.complete:
        end = console.time(forecast.until)
        console.warn(
            f"too many runs: the chart ends at {end}; use a shorter --span to see all runs"
        )


def _json(now: datetime, until: datetime, runs: Mapping[str, Sequence[datetime]]) -> dict[str, Any]:
    start = _floor(now)
    minutes = ceil((until - start) / MINUTE)
    return {
        "since": iso(now),
        "until": iso(until),
        "first_minute": iso(start),
        "per_minute": Picture(start, 1, minutes, runs).load(),
        "entries": [
            {"name": name, "runs": [iso(instant) for instant in instants]}
            for name, instants in runs.items()
        ],
    }


def _floor(instant: datetime) -> datetime:
    return instant.replace(second=0, microsecond=0)


def draw(
    console: Console,
    now: datetime,
    until: datetime,
    runs: Mapping[str, Sequence[datetime]],
    limit: int,
) -> None:
    """Draw a row for each entry, and the number of runs per minute, from ``now`` to ``until``."""
    names = list(runs)[:limit]
    longest = max(width_of(console.name(name)) for name in names)
    label_width = min(max(len("per minute"), longest), MAX_LABEL)
    start = _floor(now)
    total = ceil((until - start) / MINUTE) + 1
    room = max(shutil.get_terminal_size().columns - label_width - 2, TICK_COLUMNS)
    minutes = next((size for size in COLUMN_MINUTES if total <= size * room), ceil(total / room))
    picture = Picture(start, minutes, ceil(total / minutes), runs)
    console.write(f"{'':{label_width}}  {_axis(console, picture)}")
    for name in names:
        console.write(_padded(console.name(name), label_width), "  ", picture.marks(name))
    if len(runs) > limit:
        console.write(f"and {plural(len(runs) - limit, 'more entry', 'more entries')}")
    _write_load(console, picture, label_width)


def _write_load(console: Console, picture: Picture, label_width: int) -> None:
    load = picture.load()
    busiest = load.index(max(load))
    at = (picture.start + busiest * MINUTE).astimezone(console.zone)
    bars = Styled(picture.bars(_bar_levels()), fg="cyan")
    console.write(f"{'per minute':{label_width}}  ", bars)
    size = duration(picture.minutes * 60)
    runs = sum(load)
    peak = f"{load[busiest]} of them in the minute from {at:%H:%M}"
    count = f"1 run, at {at:%H:%M}" if runs == 1 else f"{runs} runs, {peak}"
    console.write(f"Each column is {size}; {count} ({console.zone})")


def _bar_levels() -> str:
    try:
        BARS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII_BARS
    return BARS


def _axis(console: Console, picture: Picture) -> str:
    step = picture.minutes * MINUTE
    ticks = range(0, picture.columns - len("00:00") + 1, TICK_COLUMNS)
    times = ((picture.start + column * step).astimezone(console.zone) for column in ticks)
    return "".join(f"{time:%H:%M}".ljust(TICK_COLUMNS) for time in times).rstrip()


def _padded(name: str, width: int) -> str:
    label = clipped(name, width)
    return label + " " * (width - width_of(label))
