"""Entries with known instants, and the end of a trial, shared by the fault tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.faults.beats import HELD
from tests.faults.entries import Schedule
from tests.faults.ledger import Ledger
from tests.faults.oracle import Report, grid, judge
from tests.waiting import wait_until

__all__ = ("Grid", "settle")

#: Maximum seconds that a trial may last after its last fault, in addition to two holds.
PATIENCE = 40.0


@dataclass(frozen=True)
class Grid:
    """Entries that run every ``every`` seconds, first at ``first``."""

    entries: Sequence[str]
    every: float
    first: float

    @classmethod
    def begin(cls, schedule: Schedule, entries: Sequence[str], every: float, wait: float) -> Grid:
        """Store the entries, which first run ``wait`` seconds from now."""
        first = round(schedule.now() + wait, 3)
        schedule.put(entries, every, first)
        return cls(entries, every, first)

    def expected(self, until: float) -> dict[str, list[float]]:
        """Return the expected occurrences until ``until``."""
        return {entry: grid(self.first, self.every, until) for entry in self.entries}


def settle(ledger: Ledger, grids: Sequence[Grid], until: float) -> Report:
    """Wait until all expected occurrences before ``until`` are handled, and return the report.

    Times are UNIX seconds by the clock of Redis. After the deadline, the report lists the lost
    occurrences.
    """
    expected = {name: instants for one in grids for name, instants in one.expected(until).items()}
    needed, read = set(expected), 0

    def reached() -> bool:
        """Return whether each entry ran at or after its last expected instant."""
        nonlocal read
        fresh = ledger.since(read)
        read += len(fresh)
        for message in fresh:
            last = expected.get(message.entry, [0.0])[-1]
            if (message.scheduled_at or 0.0) > last - 0.001:
                needed.discard(message.entry)
        return not needed

    # After the deadline, the report explains the failure better than a timeout.
    with suppress(AssertionError):
        wait_until(reached, 2 * HELD + PATIENCE)
    return judge(expected, ledger.messages)
