"""The load before and after a failover, and the report, shared by the failover tests."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from tests.faults.beats import Beats
from tests.faults.entries import names
from tests.faults.ledger import Ledger
from tests.faults.oracle import Report
from tests.faults.trial import Grid, settle
from tests.waiting import wait_until

__all__ = ("RESUMED_WITHIN", "Trial", "check", "note")

#: Logs measurements; ``--log-cli-level=INFO`` shows them.
note = logging.getLogger("tests.topologies").info

ENTRIES: Final = names(50)
EVERY: Final = 0.5
AHEAD: Final = 1.0
#: Maximum seconds from a failure to the next run, with the settings of the groups.
RESUMED_WITHIN: Final = 10.0


@dataclass
class Trial:
    """50 entries that run every half second before, during and after a failure."""

    beats: Beats
    ledger: Ledger
    grid: Grid

    @classmethod
    def begin(cls, beats: Beats, ledger: Ledger) -> Trial:
        """Store the entries, and wait until each of them has run twice."""
        grid = Grid.begin(beats.schedule, ENTRIES, EVERY, AHEAD)
        wait_until(lambda: len(ledger) >= 2 * len(ENTRIES), 60.0, "the first runs")
        return cls(beats, ledger, grid)

    def wait_resumed(self, deadline: float = RESUMED_WITHIN) -> float:
        """Wait for a message of an occurrence after the call; return how many seconds this took."""
        started, read, now = time.monotonic(), len(self.ledger), time.time()

        def resumed() -> bool:
            return any((one.scheduled_at or 0) > now for one in self.ledger.since(read))

        wait_until(resumed, deadline, "a run after the failure")
        return time.monotonic() - started

    def go_on(self, seconds: float = 1.0) -> float:
        """Let the beats work for some seconds, and return the time afterwards."""
        until = time.time() + seconds
        wait_until(lambda: time.time() >= until, seconds + 10.0)
        return until

    def end(self) -> Report:
        """Return the report on all runs that are due within a second from now."""
        return settle(self.ledger, [self.grid], self.go_on())


def check(report: Report) -> None:
    """Assert that each occurrence ran or was coalesced, and none has two ids."""
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.other_id == 0
