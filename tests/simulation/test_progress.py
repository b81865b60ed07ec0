"""Tests that a beat which reads an entry again and again without progress is found."""

from __future__ import annotations

import json
from typing import Any

from tests.simulation.progress import FIRST_READS, MOST_READS, SECOND, Progress

READS = FIRST_READS + MOST_READS + 1


class Loop:
    """A process that reads the entry ``poll`` at intervals, in microseconds."""

    def __init__(self, reader: str = "beat-1") -> None:
        self.reader, self.now = reader, 0
        self.stored = {b"definition": b'{"name": "poll"}', b"meta": b"0"}
        self.state: dict[str, Any] = {"m": ["", "", ""], "hold": 0, "at": 0}
        self.found: list[tuple[str, str]] = []
        self.progress = Progress(
            lambda _name: dict(self.stored), lambda *pair: self.found.append(pair)
        )

    def read(self, changing: str, interval: int = 1000) -> list[tuple[str, str]]:
        """Read often; each read changes a part of what beats keep. Return what was found."""
        for number in range(3 * READS):
            self.now += interval
            self.state[changing] = number
            self.stored[b"beat_state"] = json.dumps(self.state).encode()
            self.progress.replied(self.reader, b'$4\r\n{"name": "poll"}\r\n', self.now)
        return self.found


def test_reads_that_change_nothing_but_the_hold_are_found_once() -> None:
    assert Loop().read("hold") == [("beat-1", "poll")]


def test_reads_after_which_the_last_run_is_another_are_progress() -> None:
    assert Loop().read("at") == []


def test_rare_reads_are_no_loop() -> None:
    assert Loop().read("hold", interval=SECOND // MOST_READS) == []


def test_reads_of_applications_are_not_counted() -> None:
    assert Loop("web-1").read("hold") == []
