"""Formats results as text for a terminal, and as tables and plots for the documentation."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path

from .growth import DUE, PEERS_DUE, PEERS_IDLE, STORED
from .pages import put
from .plots import Plot, bars, lines
from .rows import NOTHING, Finding, Row, Series, cells
from .scaling import arithmetic
from .sides import PEER_VERSION, TELLING, versions

__all__ = ("as_rst", "as_text", "facts", "write_docs")

COMMAND = "python -m benchmarks"

#: Maps the name of a scheduler to the heading of its column, if the heading is not the name.
HEADINGS = {PEER_VERSION: f"RedBeat {PEER_VERSION}", "PersistentScheduler": "Celery's own"}


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page with the results.

    Attributes:
        heading: the heading.
        names: the names of the measurements.
        has: a function that returns whether the section includes a row.
        side_by_side: true if each scheduler has a column, false if each row names its comparison.
    """

    heading: str
    names: tuple[str, ...]
    has: Callable[[Row], bool]
    side_by_side: bool = True


def is_against_release(row: Row) -> bool:
    """Return whether a row compares RedBeat 3 with RedBeat 2.4.2."""
    return row.against.startswith(PEER_VERSION)


def is_any(_row: Row) -> bool:
    """Return True."""
    return True


SECTIONS = (
    Section("Compared with other schedulers", ("peers",), is_any),
    Section(
        "Compared with RedBeat 2.4.2",
        ("entry", "network", "beat", "regular", "startup", "save", "idle", "memory", "import"),
        is_against_release,
    ),
    Section(
        "On your scale",
        ("growth", "idle", "beat", "two-beats", "far-broker", "lateness", "regular", "burst"),
        lambda row: not is_against_release(row),
        side_by_side=False,
    ),
    Section("Time to compute a next run, compared with Celery", ("crontab",), is_any),
)

PLOTS = {
    DUE: Plot("Scheduler time per due entry", "entries due at once", "time per entry"),
    STORED: Plot("Time of a tick without due entries", "entries stored", "time of a tick"),
    PEERS_DUE: Plot("Time per due entry, without publishing", "entries due", "time per entry"),
    PEERS_IDLE: Plot("Time of a tick without due entries", "entries stored", "time of a tick"),
}

#: Numbers of entries for the bar plots.
#: A bar plot uses the first number in ``BARS`` for which several schedulers have results.
BARS = (1000.0, 100.0)


def facts(server: str) -> str:
    """Return the software versions and the number of CPU cores as one line of text.

    ``server`` is the name and version of the Redis server.
    """
    installed = versions()
    shared = ", ".join(f"{name} {installed[name]}" for name in TELLING if name in installed)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {shared}, {server}, {os.cpu_count()} cores"


def as_text(rows: Sequence[Row]) -> str:
    """Return result rows as a text table for a terminal."""
    table = cells(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def as_rst(findings: Mapping[str, Finding]) -> str:
    """Return all result tables, for the documentation."""
    parts = [f".. Written by ``{COMMAND}``; not edited by hand.\n"]
    remarks = quick_warning(list(findings.values()))
    for section in SECTIONS:
        of_section = [findings[name] for name in section.names if name in findings]
        rows = [row for finding in of_section for row in finding.rows if section.has(row)]
        plots = images(list(chain.from_iterable(finding.series for finding in of_section)))
        if rows or plots:
            parts.append(f".. rubric:: {section.heading}\n")
        if rows:
            lines = columns(rows) if section.side_by_side else [line[:4] for line in cells(rows)]
            parts.append(csv_table(lines))
        parts += plots
        remarks += chain.from_iterable(finding.remarks for finding in of_section)
    parts += [f"* {remark}\n" for remark in dict.fromkeys(remarks)]
    environments = sorted({finding.facts for finding in findings.values()})
    parts += [f"Measured with {each}.\n" for each in environments]
    return "\n".join(parts)


def columns(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return a table with a line for each measurement and a column for each scheduler."""
    names = list(dict.fromkeys(row.against.partition(",")[0] for row in rows))
    found: dict[str, dict[str, str]] = {}
    for what, ours, base, against, *_ in cells(rows)[1:]:
        name, _, detail = against.partition(", ")
        line = found.setdefault(what, {"": ours})
        line[name] = f"{base} ({detail})" if detail else base
    table = [("measurement", "RedBeat 3", *(HEADINGS.get(name, name) for name in names))]
    for what, line in found.items():
        table.append((what, *(line.get(name, NOTHING) for name in ("", *names))))
    return table


def targets(findings: Mapping[str, Finding]) -> str:
    """Return a CSV table, with a heading, of the rows that have a target."""
    rows = [row for finding in findings.values() for row in finding.rows if row.target]
    file = StringIO()
    csv.writer(file, lineterminator="\n").writerows(cells(rows))
    return file.getvalue()


def quick_warning(findings: Sequence[Finding]) -> list[str]:
    """Return a warning if some results are from a run with ``--quick``."""
    if not any(finding.quick for finding in findings):
        return []
    return [f"**Some results are from** ``{COMMAND} --quick``: **small sizes, one round.**"]


def csv_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a reStructuredText table."""
    table = "\n".join("   " + ", ".join(map(quoted, line)) for line in lines)
    return f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{table}\n"


def quoted(cell: str) -> str:
    """Return the text of a cell in quotes, for the reStructuredText directive ``csv-table``.

    A ``*`` is escaped, because ``*`` marks emphasis in reStructuredText. The text ``-`` of an empty
    cell is omitted, because a single ``-`` would start a list.
    """
    return '"{}"'.format("" if cell == NOTHING else cell.replace("*", "\\*"))


def images(series: Sequence[Series]) -> list[str]:
    """Return the reStructuredText directives that show the plots of ``series``."""
    names = [name for name, _ in drawn(series)]
    return [f".. image:: _static/benchmarks/{name}.svg\n   :alt: {name}\n" for name in names]


def drawn(series: Sequence[Series]) -> Iterator[tuple[str, str]]:
    """Yield the name and the SVG code of each plot."""
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
    """Write the tables, plots and estimates of the documentation; return the written files.

    The table of targets is written to the directory ``benchmarks`` next to ``docs``.
    """
    directory = docs / "_static" / "benchmarks"
    directory.mkdir(parents=True, exist_ok=True)
    goals = docs.parent / "benchmarks" / "targets.csv"
    goals.parent.mkdir(exist_ok=True)
    page = docs / "scale.rst"
    put(page, "benchmarks-results", as_rst(findings))
    put(page, "scale-results", arithmetic(findings))
    goals.write_text(targets(findings), encoding="utf-8")
    written = [page, goals]
    for name, image in drawn(list(chain.from_iterable(f.series for f in findings.values()))):
        written.append(directory / f"{name}.svg")
        written[-1].write_text(image, encoding="utf-8")
    return written
