"""The results of measurements as table rows and plot lines, stored in a JSON file between runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ("NOTHING", "UNITS", "Finding", "Row", "Series", "Store", "cells", "target_row")

#: The text of an empty table cell.
NOTHING = "-"

UNITS: dict[str, Callable[[float], str]] = {
    "us": lambda value: f"{value * 1e6:,.{0 if value >= 1e-4 else 1}f} µs",
    "ms": lambda value: f"{value * 1e3:,.1f} ms",
    "s": lambda value: f"{value:,.2f} s",
    "count": lambda value: f"{value:,.0f}",
    "bytes": lambda value: f"{value:,.0f} B",
    "MiB": lambda value: f"{value / 2**20:,.1f} MiB",
    "share": lambda value: f"{value:.1%}",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the results table.

    Attributes:
        what: the title of the row.
        ours: the value of RedBeat 3, or None if there is no value.
        unit: a key of :data:`UNITS`.
        base: the value for comparison, in the same unit.
        against: the name of the scheduler or case with the value ``base``.
        ratio: the quotient ``base / ours``; a ratio above 1 means that RedBeat 3 is better.
        target: the target as text.
        reached: whether RedBeat 3 reaches the target, or None without a target.
    """

    what: str
    ours: float | None
    unit: str
    base: float | None = None
    against: str = ""
    ratio: float | None = None
    target: str = ""
    reached: bool | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one line of a plot.

    Attributes:
        plot: the name of the plot.
        name: the title of the line.
        points: pairs of x and y values.
    """

    plot: str
    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one measurement.

    Attributes:
        rows: rows of the results table.
        series: lines of plots.
        remarks: sentences to print below the table.
        facts: the software versions and the number of cores.
        quick: whether the result is from a run with ``--quick``.
    """

    rows: list[Row]
    series: list[Series] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: str = ""
    quick: bool = False


def target_row(
    what: str,
    unit: str,
    ours: float | None,
    base: float | None = None,
    against: str = "",
    target: str = "",
    reached: Callable[[float, float], bool] | None = None,
) -> Row:
    """Return a table row for a value; smaller values are better.

    ``reached`` returns, for the value and the ratio, whether the target is reached.
    """
    ratio = base / ours if ours and base is not None else None
    if ours is None or reached is None or (base is None and against):
        met = None
    else:
        met = bool(reached(ours, ratio or 0.0))
    return Row(what, ours, unit, base, against, ratio, target, met)


class Store:
    """A JSON file that stores the result of each measurement under its name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Finding]:
        """Return all stored results, or an empty dict if the file does not exist."""
        if not self._path.exists():
            return {}
        stored: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        return {name: _finding(fields) for name, fields in stored.items()}

    def keep(self, name: str, finding: Finding) -> None:
        """Store the result of one measurement; replace an earlier result with the same name."""
        findings = {**self.load(), name: finding}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({key: asdict(value) for key, value in findings.items()}, indent=1)
        self._path.write_text(text, encoding="utf-8")


def _finding(fields: Mapping[str, Any]) -> Finding:
    rows = [Row(**row) for row in fields["rows"]]
    series = [
        Series(each["plot"], each["name"], [(x, y) for x, y in each["points"]])
        for each in fields["series"]
    ]
    return Finding(rows, series, fields["remarks"], fields["facts"], fields["quick"])


def with_unit(value: float | None, unit: str) -> str:
    """Return a value as text with its unit."""
    return NOTHING if value is None else UNITS[unit](value)


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the cells of the results table as text; the first row is the heading."""
    table: list[tuple[str, ...]] = [
        ("measurement", "RedBeat 3", "compared with", "", "ratio", "target", "reached")
    ]
    for row in rows:
        reached = NOTHING if row.reached is None else "yes" if row.reached else "no"
        ratio = NOTHING if row.ratio is None else f"{row.ratio:,.2f}"
        base = with_unit(row.base, row.unit)
        met = reached if row.target else ""
        table.append(
            (row.what, with_unit(row.ours, row.unit), base, row.against, ratio, row.target, met)
        )
    return table
