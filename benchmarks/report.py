"""The findings as text for a terminal, and as tables and plots of the documentation."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from .growth import DUE, PEERS_DUE, PEERS_IDLE, STORED
from .plots import Plot, bars, lines
from .rows import NOTHING, Finding, Row, Series, cells
from .scaling import arithmetic
from .sides import TELLING, versions

__all__ = ("as_rst", "as_text", "facts", "write_docs")

COMMAND = "python -m benchmarks"

#: The sections of the page: heading, and the names of the findings below it.
SECTIONS = (
    (
        "Targets",
        (
            *("entry", "beat", "two-beats", "network", "far-broker", "startup", "save", "idle"),
            *("lateness", "regular", "burst", "memory", "crontab", "import"),
        ),
    ),
    ("Growth", ("growth",)),
    ("Other schedulers", ("peers",)),
)

PLOTS = {
    DUE: Plot("Scheduler time per due entry", "entries due at once", "time per entry"),
    STORED: Plot("A tick with nothing due", "entries stored", "time of a tick"),
    PEERS_DUE: Plot("Time per due entry, publishing excluded", "entries due", "time per entry"),
    PEERS_IDLE: Plot("A tick with nothing due", "entries stored", "time of a tick"),
}

#: The number of entries of which bars are drawn, the first that all have.
BARS = (1000.0, 100.0)


def facts(server: str) -> str:
    """Return what the numbers depend on, besides the machine; ``server`` names the Redis."""
    found = versions()
    shared = ", ".join(f"{name} {found[name]}" for name in TELLING if name in found)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {shared}, {server}, {os.cpu_count()} cores"


def as_text(rows: Sequence[Row]) -> str:
    """Return a table for a terminal."""
    table = cells(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def as_rst(findings: Mapping[str, Finding]) -> str:
    """Return all the tables as an include of the documentation."""
    parts = [f".. Written by ``{COMMAND}``; not edited by hand.\n"]
    for heading, names in SECTIONS:
        found = [findings[name] for name in names if name in findings]
        if not found:
            continue
        parts.append(f".. rubric:: {heading}\n")
        parts.append(csv_table([row for finding in found for row in finding.rows]))
        parts += images(list(chain.from_iterable(finding.series for finding in found)))
        remarks = list(chain.from_iterable(finding.remarks for finding in found))
        parts += [f"{remark}\n" for remark in [*quickly(found), *remarks]]
    told = sorted({finding.facts for finding in findings.values()})
    parts += [f"Measured with {each}.\n" for each in told]
    return "\n".join(parts)


def quickly(found: Sequence[Finding]) -> list[str]:
    """Return a warning where sizes were small."""
    few = any(finding.quick for finding in found)
    return [f"**Some of it by** ``{COMMAND} --quick``: **small sizes, one round.**"] if few else []


def csv_table(rows: Sequence[Row]) -> str:
    """Return rows as a table of reStructuredText."""
    table = "\n".join("   " + ", ".join(map(quoted, line)) for line in cells(rows))
    return f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{table}\n"


def quoted(cell: str) -> str:
    """Return the cell of a table; a crontab in it is no emphasis, and nothing is no list."""
    return '"{}"'.format("" if cell == NOTHING else cell.replace("*", "\\*"))


def images(series: Sequence[Series]) -> list[str]:
    """Return the directives of the plots that these series make."""
    names = [name for name, _ in drawn(series)]
    return [f".. image:: _static/benchmarks/{name}.svg\n   :alt: {name}\n" for name in names]


def drawn(series: Sequence[Series]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each image."""
    for name, plot in PLOTS.items():
        chosen = [each for each in series if each.plot == name and each.points]
        if chosen:
            yield name, lines(plot, chosen)
            yield from side_by_side(name, plot, chosen)


def side_by_side(name: str, plot: Plot, series: Sequence[Series]) -> Iterator[tuple[str, str]]:
    """Yield the bars of one number of entries beside the other schedulers."""
    if name not in (PEERS_DUE, PEERS_IDLE):
        return
    for count in BARS:
        values = [
            (each.name, dict(each.points)[count]) for each in series if count in dict(each.points)
        ]
        if len(values) > 1:
            what = "due" if name == PEERS_DUE else "stored"
            yield f"{name}-bars", bars(f"{plot.title}, {count:,.0f} {what}", values)
            return


def write_docs(findings: Mapping[str, Finding], docs: Path) -> list[Path]:
    """Write tables, plots and the arithmetic of :doc:`scale` into the documentation."""
    directory = docs / "_static" / "benchmarks"
    directory.mkdir(parents=True, exist_ok=True)
    tables, limits = docs / "benchmarks-results.inc", docs / "scale-results.inc"
    tables.write_text(as_rst(findings), encoding="utf-8")
    limits.write_text(arithmetic(findings), encoding="utf-8")
    written = [tables, limits]
    for name, image in drawn(list(chain.from_iterable(f.series for f in findings.values()))):
        written.append(directory / f"{name}.svg")
        written[-1].write_text(image, encoding="utf-8")
    return written
