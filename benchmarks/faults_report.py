"""Formats the results of the fault scenarios as a table for a terminal or the documentation."""

from __future__ import annotations

from collections.abc import Mapping

from .faultcases import Cell, Metrics
from .report import facts, quoted
from .sides import PEER_VERSION

__all__ = ("Table", "as_rst", "as_text", "lines")

COMMAND = "python -m benchmarks.faults"
NOTHING = "-"

#: Title of the scenario -> name of the compared scheduler -> cells.
Table = Mapping[str, Mapping[str, Metrics]]

NOTE = f"""\
Both sides run in turn on the same machine, with the same entries. The Redis of the schedule and the
broker are separate servers. A beat that exits is restarted after one second. "Process exits" are
unexpected exits, for example because of a lost connection or a lost lock; exits caused by the
SIGKILL or SIGTERM of the scenario do not count. ``redbeat_lock_timeout`` is 5 and
``beat_max_loop_interval`` is 1 on both sides, except with "default settings".

How messages are counted: an hourly entry must have exactly one message. Without a message, the run
is lost; more messages are duplicates. For entries that run every second, messages of this version
contain the nominal time of the run and the number of earlier runs that were coalesced into it.
Messages of {PEER_VERSION} do not contain these, so they are counted per entry and compared with
the number of seconds. A message within half a second of the last counted one is a duplicate, and
so are messages beyond the number of seconds. Missing messages are lost or coalesced; it is unknown
which. The intervals of {PEER_VERSION} start at the actual last run, so some of the missing messages
are drift, as in the calm case. Duplicates are distinguished by their task ids."""


def show(cell: Cell | None) -> str:
    """Return a cell as text."""
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
    """Return the table as an include file for the documentation.

    ``options`` are the command-line options of the run.
    """
    rows = "\n".join("   " + ", ".join(map(quoted, row)) for row in lines(table))
    command = f"{COMMAND} {options}".strip()
    return (
        f".. Written by ``{command}``; not edited by hand.\n\n"
        f"Measured with {facts(server)}, by ``{command}``.\n\n"
        f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{rows}\n\n"
        f"{NOTE}\n"
    )
