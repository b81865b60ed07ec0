"""The results as a table, for a terminal and for the documentation."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .beats import BeatCase
from .sides import PEER_VERSION, TELLING, versions
from .suite import Case, Results

__all__ = ("as_rst", "as_text", "rows")

COMMAND = "python -m benchmarks"
NOTHING = "-"

UNITS: dict[str, Callable[[float], str]] = {
    "us": lambda value: f"{value * 1e6:,.0f} µs",
    "ms": lambda value: f"{value * 1e3:,.1f} ms",
    "trips": lambda value: f"{value:,.0f}",
    "bytes": lambda value: f"{value:,.0f} bytes",
    "share": lambda value: f"{value:.1%}",
}


@dataclass(frozen=True, slots=True)
class Line:
    """How one metric is shown.

    ``aim`` is what this project wants of it, "" for nothing, and ``aim_from`` the number of entries
    from which it does: below, a tick is its round trips.
    """

    metric: str
    title: str
    unit: str
    aim: str = ""
    aim_from: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, as text."""

    title: str
    ours: str
    peer: str
    ratio: str
    aim: str


LINES: dict[str, tuple[Line, ...]] = {
    "tick": (
        Line("later_each", "time per due entry, {size} due ({kind})", "us", "ratio of 10", 500),
        Line("first_each", "the same, first tick of a beat", "us"),
        Line("round_trips", "round trips of a tick, {size} due ({kind})", "trips", "2 per 500"),
    ),
    "startup": (
        Line("cold", "start with {size} static entries, none stored", "ms", "ratio of 8"),
        Line("warm", "start with {size} static entries, unchanged", "ms", "ratio of 10"),
        Line("cold_round_trips", "round trips of that start, none stored", "trips"),
        Line("warm_round_trips", "round trips of that start, unchanged", "trips"),
    ),
    "idle": (
        Line("each", "idle tick, {size} stored", "us"),
        Line("round_trips", "round trips of an idle tick, {size} stored", "trips", "1"),
    ),
    "save": (
        Line("new_each", "save() of a new entry", "us"),
        Line("again_each", "save() of an entry that is stored", "us"),
        Line("new_round_trips", "round trips of save(), new", "trips"),
        Line("again_round_trips", "round trips of save(), stored", "trips"),
    ),
    "memory": (
        Line("saved_each", "memory of Redis per entry, saved", "bytes"),
        Line("ran_each", "memory of Redis per entry, after a run", "bytes"),
    ),
    "beat": (
        Line("share", "runs of {size} entries a second for {seconds} s", "share", "100 %"),
        Line("gap_p50", "between two runs of an entry, median", "ms"),
        Line("gap_p99", "between two runs of an entry, 99th percentile", "ms"),
        Line("late_p50", "from the nominal instant to the queue, median", "ms"),
        Line("late_p99", "from the nominal instant to the queue, 99th percentile", "ms"),
    ),
}


def rows(results: Results) -> Iterator[Row]:
    """Yield the lines of the table in the order of the cases."""
    for case, sides in results.items():
        kind, words = described(case)
        for line in LINES[kind]:
            ours, peer = (sides.get(side, {}).get(line.metric) for side in ("ours", "peer"))
            if ours is None and peer is None:
                continue
            show = UNITS[line.unit]
            yield Row(
                line.title.format(**words),
                NOTHING if ours is None else show(ours),
                NOTHING if peer is None else show(peer),
                NOTHING if line.unit == "share" else ratio(ours, peer),
                line.aim if case.entries >= line.aim_from else "",
            )


def described(case: Case | BeatCase) -> tuple[str, dict[str, str]]:
    """Return which lines a case has, and the words in their titles."""
    if isinstance(case, BeatCase):
        return "beat", {"size": f"{case.entries:,}", "seconds": str(case.seconds)}
    return case.workload, {"size": f"{case.entries:,}", "kind": case.schedule}


def ratio(ours: float | None, peer: float | None) -> str:
    """Return how many times as much the release needs."""
    return f"{peer / ours:.1f}" if ours and peer is not None else NOTHING


def facts(server: str) -> str:
    """Return what the numbers depend on, besides the machine; ``server`` names the Redis."""
    found = versions()
    shared = ", ".join(f"{name} {found[name]}" for name in TELLING if name in found)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {shared}, {server}, {os.cpu_count()} cores"


def cells(results: Results) -> list[tuple[str, ...]]:
    """Return the table with its heading."""
    heading = ("what", "3", PEER_VERSION, f"{PEER_VERSION} / 3", "aim")
    table = [(row.title, row.ours, row.peer, row.ratio, row.aim) for row in rows(results)]
    return [heading, *table]


def as_text(results: Results, server: str) -> str:
    """Return the table for a terminal."""
    table = cells(results)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join([*lines, "", facts(server)])


def as_rst(results: Results, server: str, options: str) -> str:
    """Return the table as an include of the documentation; ``options`` made it."""
    table = "\n".join("   " + ", ".join(f'"{cell}"' for cell in row) for row in cells(results))
    command = f"{COMMAND} {options}".strip()
    return (
        f".. Written by ``{command}``; not edited by hand.\n\n"
        f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{table}\n\n"
        f"Measured with {facts(server)}, by ``{command}``.\n"
    )
