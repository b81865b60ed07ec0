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
RedBeat 3 and RedBeat 2 run one after the other on the same machine, with the same entries. The
schedule and the broker are on separate Redis servers. A beat that exits is restarted after one
second. "Process exits" counts unexpected exits of beats, for example after a lost connection or a
lost lock; exits after a SIGKILL or SIGTERM of the scenario do not count. Except with "default
settings", ``redbeat_lock_timeout`` is 5 and ``beat_max_loop_interval`` is 1 for both versions.

How messages are counted: an hourly entry must have exactly one message. The run of an hourly entry
without a message is lost, and each message of an hourly entry after the first is a duplicate. For
entries that run every second, messages of RedBeat 3 contain the nominal time of the run and the
number of earlier runs that were coalesced into the run. Messages of RedBeat {PEER_VERSION} contain
no nominal time, so the number of messages per entry is compared with the number of seconds. A
message of RedBeat 2 is a duplicate if it arrives within half a second of the last counted message,
or if the entry already has a message for each second. For a missing message of RedBeat 2, it is
unknown whether the run was lost or coalesced. RedBeat {PEER_VERSION} starts each interval at the
actual time of the last run, so the runs drift, and some messages are missing even without faults.
Duplicates with the task id of an earlier message and duplicates with another task id are counted
separately."""


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
