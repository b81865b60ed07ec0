"""Formats the results of the fault scenarios as a table for a terminal or the documentation."""

from __future__ import annotations

from collections.abc import Mapping

from .faultcases import Cell, Metrics
from .report import facts, quoted
from .sides import PEER_VERSION

__all__ = ("Table", "as_rst", "as_text", "lines")

COMMAND = "python -m benchmarks.faults"
NOTHING = "-"

#: Title of a scenario -> name of a compared scheduler -> cells of the table.
Table = Mapping[str, Mapping[str, Metrics]]

NOTE = f"""\
Both versions ran one after the other on the same machine, with the same entries, and with schedule
and broker on two Redis servers. A beat that exits is restarted after a second. "Process exits" are
those that nobody asked for, such as after a lost connection or a lost lock. Except with "default
settings", ``redbeat_lock_timeout`` is 5 and ``beat_max_loop_interval`` is 1.

An hourly entry must have one message: without one its run is lost, and each further one is a
duplicate. For entries that run every second it's harder. RedBeat 3's messages say for which time
they are, and how many missed runs they replace. Those of RedBeat {PEER_VERSION} don't, so the
messages of each entry are counted and compared with the seconds. One that comes within half a
second of the one before, or that is one too many, is a duplicate. Whether a missing one was lost
or coalesced isn't known. Since its intervals count from the actual run, they drift, and some are
missing even without faults."""


def show(cell: Cell | None) -> str:
    """Return the value of a cell as text."""
    if cell is None:
        return NOTHING
    if isinstance(cell, str):
        return cell
    return f"{cell:,.1f}" if isinstance(cell, float) else f"{cell:,}"


def lines(table: Table) -> list[tuple[str, str, str, str]]:
    """Return the heading and the lines of the table.

    Only the first line of each scenario contains the title of the scenario.
    """
    rows = [("fault", "counted", "3", PEER_VERSION)]
    for fault, sides in table.items():
        ours, peer = sides.get("ours", {}), sides.get("peer", {})
        title = fault
        for name in dict.fromkeys([*ours, *peer]):
            rows.append((title, name, show(ours.get(name)), show(peer.get(name))))
            title = ""
    return rows


def as_text(table: Table, server: str) -> str:
    """Return the table as text for a terminal; ``server`` is the name of the Redis server."""
    rows = lines(table)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines_of_text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines_of_text, "", facts(server)])


def as_rst(table: Table, server: str, options: str) -> str:
    """Return the table for the documentation.

    ``options`` are the command-line options with which the benchmark ran.
    """
    rows = "\n".join("   " + ", ".join(map(quoted, row)) for row in lines(table))
    command = f"{COMMAND} {options}".strip()
    return (
        f".. Written by ``{command}``; not edited by hand.\n\n"
        f"Measured with {facts(server)}, by ``{command}``.\n\n"
        f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{rows}\n\n"
        f"{NOTE}\n"
    )
