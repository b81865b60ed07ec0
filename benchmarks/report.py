"""Formats results as text for a terminal, and as tables and plots for the documentation."""

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

#: The sections of the page: the heading, and the names of the measurements.
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

#: Numbers of entries for the bar plots. A plot uses the first number for which several schedulers
#: have results.
BARS = (1000.0, 100.0)


def facts(server: str) -> str:
    """Return the software versions and the number of cores as one line of text.

    ``server`` is the name and version of the Redis server.
    """
    installed = versions()
    shared = ", ".join(f"{name} {installed[name]}" for name in TELLING if name in installed)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {shared}, {server}, {os.cpu_count()} cores"


def as_text(rows: Sequence[Row]) -> str:
    """Return rows as a table for a terminal."""
    table = cells(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def as_rst(findings: Mapping[str, Finding]) -> str:
    """Return all tables as an include file for the documentation."""
    parts = [f".. Written by ``{COMMAND}``; not edited by hand.\n"]
    for heading, names in SECTIONS:
        of_section = [findings[name] for name in names if name in findings]
        if not of_section:
            continue
        parts.append(f".. rubric:: {heading}\n")
        parts.append(csv_table([row for finding in of_section for row in finding.rows]))
        parts += images(list(chain.from_iterable(finding.series for finding in of_section)))
        remarks = list(chain.from_iterable(finding.remarks for finding in of_section))
        parts += [f"{remark}\n" for remark in [*quick_warning(of_section), *remarks]]
    environments = sorted({finding.facts for finding in findings.values()})
    parts += [f"Measured with {each}.\n" for each in environments]
    return "\n".join(parts)


def quick_warning(findings: Sequence[Finding]) -> list[str]:
    """Return a warning if some results are from a run with ``--quick``."""
    if not any(finding.quick for finding in findings):
        return []
    return [f"**Some results are from** ``{COMMAND} --quick``: **small sizes, one round.**"]


def csv_table(rows: Sequence[Row]) -> str:
    """Return rows as a reStructuredText table."""
    table = "\n".join("   " + ", ".join(map(quoted, line)) for line in cells(rows))
    return f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{table}\n"


def quoted(cell: str) -> str:
    """Return a quoted cell of a csv-table.

    A ``*`` is escaped, because it marks emphasis in reST. An empty cell becomes "", because a
    single ``-`` would start a list.
    """
    return '"{}"'.format("" if cell == NOTHING else cell.replace("*", "\\*"))


def images(series: Sequence[Series]) -> list[str]:
    """Return reStructuredText image directives for the plots of these series."""
    names = [name for name, _ in drawn(series)]
    return [f".. image:: _static/benchmarks/{name}.svg\n   :alt: {name}\n" for name in names]


def drawn(series: Sequence[Series]) -> Iterator[tuple[str, str]]:
    """Yield the name and the SVG code of each image."""
    for name, plot in PLOTS.items():
        of_plot = [each for each in series if each.plot == name and each.points]
        if of_plot:
            yield name, lines(plot, of_plot)
            yield from side_by_side(name, plot, of_plot)


def side_by_side(name: str, plot: Plot, series: Sequence[Series]) -> Iterator[tuple[str, str]]:
    """Yield a bar plot that compares all schedulers for one number of entries."""
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
    """Write the tables, plots and estimates of the documentation; return the written files."""
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
