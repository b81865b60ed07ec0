"""``celery redbeat timeline``: what is to come, drawn in the terminal."""

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
from redbeat.cli.console import Console
from redbeat.cli.options import SECONDS, option
from redbeat.management.forecast import per_minute
from redbeat.presentation.describe import iso
from redbeat.presentation.text import clipped, duration, width_of

__all__ = ("Picture", "timeline")

MINUTE: Final = timedelta(minutes=1)

#: Cells for the names, at most.
LABEL: Final = 24

#: Minutes of a column.
SIZES: Final = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)

#: Columns between two times on the axis.
TICKS: Final = 10

BARS: Final = " ▁▂▃▄▅▆▇█"
ASCII_BARS: Final = " .:-=+*#@"


@dataclass(frozen=True)
class Picture:
    """Runs in columns of whole minutes.

    Attributes:
        start: the first minute, UTC.
        minutes: how many of them a column holds.
        columns: how many columns there are.
        runs: the instants of each entry, by name, the entry that runs first before the others.
    """

    start: datetime
    minutes: int
    columns: int
    runs: Mapping[str, Sequence[datetime]]

    def column(self, instant: datetime) -> int:
        """Return the column of an instant."""
        return int((instant - self.start) / (MINUTE * self.minutes))

    def marks(self, name: str) -> str:
        """Return the row of an entry: a mark, or how many runs a column holds, ``#`` for many."""
        counts = Counter(self.column(instant) for instant in self.runs[name])
        return "".join(_mark(counts[column]) for column in range(self.columns)).rstrip()

    def load(self) -> list[int]:
        """Return the runs of each minute."""
        return per_minute(self.runs, self.start, self.columns * self.minutes)

    def bars(self, steps: str) -> str:
        """Return the load as a bar for each column: that of the busiest of its minutes."""
        load = self.load()
        peak = max(load, default=0) or 1
        starts = range(0, len(load), self.minutes)
        highest = (max(load[first : first + self.minutes]) for first in starts)
        return "".join(steps[ceil(count * (len(steps) - 1) / peak)] for count in highest)


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
    help="How far to look ahead.",
)
@option("--pattern", metavar="GLOB", example="'billing-*'", help="Only names like this.")
@option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    example="20",
    help="Draw so many entries at most; the load is that of all.",
)
def timeline(console: Console, span: float, pattern: str | None, limit: int) -> None:
    """Draw the runs of the next hour, and the load of each minute."""
    now = datetime.now(UTC)
    until = now + timedelta(seconds=span)
    found = console.schedule.forecast(until, now)
    runs = {
        name: own
        for name, own in found.runs.items()
        if pattern is None or fnmatchcase(name, pattern)
    }
    if console.as_json:
        console.emit(_json(now, until, runs))
    elif runs:
        _draw(console, now, until, runs, limit)
    else:
        console.note("No runs to come")
    if not found.complete:
        end = console.time(found.until)
        console.warn(f"these are too many to draw all: only the runs up to {end}")


def _json(now: datetime, until: datetime, runs: Mapping[str, Sequence[datetime]]) -> dict[str, Any]:
    start = _floor(now)
    minutes = ceil((until - start) / MINUTE)
    return {
        "since": iso(now),
        "until": iso(until),
        "first_minute": iso(start),
        "per_minute": Picture(start, 1, minutes, runs).load(),
        "entries": [
            {"name": name, "runs": [iso(instant) for instant in found]}
            for name, found in runs.items()
        ],
    }


def _floor(instant: datetime) -> datetime:
    return instant.replace(second=0, microsecond=0)


def _draw(
    console: Console,
    now: datetime,
    until: datetime,
    runs: Mapping[str, Sequence[datetime]],
    limit: int,
) -> None:
    names = list(runs)[:limit]
    label = min(max(len("per minute"), *(width_of(console.name(name)) for name in names)), LABEL)
    start = _floor(now)
    total = ceil((until - start) / MINUTE) + 1
    room = max(shutil.get_terminal_size().columns - label - 2, TICKS)
    minutes = next((size for size in SIZES if total <= size * room), ceil(total / room))
    picture = Picture(start, minutes, ceil(total / minutes), runs)
    console.say(f"{'':{label}}  {_axis(console, picture)}")
    for name in names:
        console.say(f"{_padded(console.name(name), label)}  {picture.marks(name)}")
    if len(runs) > limit:
        console.say(f"and {len(runs) - limit} more entries")
    _say_load(console, picture, label)


def _say_load(console: Console, picture: Picture, label: int) -> None:
    load = picture.load()
    busiest = load.index(max(load))
    at = (picture.start + busiest * MINUTE).astimezone(console.zone)
    console.say(f"{'per minute':{label}}  {console.style(picture.bars(_steps()), fg='cyan')}")
    size = duration(picture.minutes * 60)
    peak = f"{load[busiest]} of them in the minute from {at:%H:%M}"
    console.say(f"Each column is {size}; {sum(load)} runs, {peak} ({console.zone})")


def _steps() -> str:
    try:
        BARS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII_BARS
    return BARS


def _axis(console: Console, picture: Picture) -> str:
    step = picture.minutes * MINUTE
    ticks = range(0, picture.columns - len("00:00") + 1, TICKS)
    times = ((picture.start + column * step).astimezone(console.zone) for column in ticks)
    return "".join(f"{time:%H:%M}".ljust(TICKS) for time in times).rstrip()


def _padded(name: str, label: int) -> str:
    shown = clipped(name, label)
    return shown + " " * (label - width_of(shown))
