"""The numbers of the faults as a table, for a terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping

from .faultcases import Cell, Metrics
from .report import facts, quoted
from .sides import PEER_VERSION

__all__ = ("Table", "as_rst", "as_text", "lines")

COMMAND = "python -m benchmarks.faults"
NOTHING = "-"

#: What is done -> name of the side -> what was counted.
Table = Mapping[str, Mapping[str, Metrics]]

NOTE = f"""\
Both sides run on the same machine in turn, with the same entries; the Redis of the schedule and the
broker are servers of their own. A beat that ends is started again after one second. "Process exits"
are those that nobody asked for: because of a lost connection or a lost lock, say, and not because
of the SIGKILL or SIGTERM that was sent. ``redbeat_lock_timeout`` is 5 and
``beat_max_loop_interval`` 1 on both sides, except where it says "default settings".

How it is counted: an entry of an hour must have one message. With none it is lost, with more it is
doubled. The messages for an entry of a second tell in this version which occurrence they are of,
and how many earlier ones they stand for, which are coalesced. Those of {PEER_VERSION} do not, so
they are counted per entry, against the number of seconds: one within half a second of the last
that counted is doubled, and so are those beyond the number of seconds; what is missing to that
number is lost or coalesced, nobody can tell which. Its intervals start at the actual last run, so
a part of what is missing is drift, as in the calm case. Doubles are told apart by the ids of the
messages."""


def show(cell: Cell | None) -> str:
    """Return a cell as text."""
    if cell is None:
        return NOTHING
    if isinstance(cell, str):
        return cell
    return f"{cell:,.1f}" if isinstance(cell, float) else f"{cell:,}"


def lines(table: Table) -> list[tuple[str, str, str, str]]:
    """Return the table with its heading; what is done is named in its first line only."""
    found = [("fault", "counted", "3", PEER_VERSION)]
    for fault, sides in table.items():
        ours, peer = sides.get("ours", {}), sides.get("peer", {})
        title = fault
        for name in dict.fromkeys([*ours, *peer]):
            found.append((title, name, show(ours.get(name)), show(peer.get(name))))
            title = ""
    return found


def as_text(table: Table, server: str) -> str:
    """Return the table for a terminal; ``server`` names the Redis."""
    rows = lines(table)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*shown, "", facts(server)])


def as_rst(table: Table, server: str, options: str) -> str:
    """Return the table as an include of the documentation; ``options`` made it."""
    rows = "\n".join("   " + ", ".join(map(quoted, row)) for row in lines(table))
    command = f"{COMMAND} {options}".strip()
    return (
        f".. Written by ``{command}``; not edited by hand.\n\n"
        f"Measured with {facts(server)}, by ``{command}``.\n\n"
        f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{rows}\n\n"
        f"{NOTE}\n"
    )
