"""The leader fails while 5,000 entries are due."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.beats import HELD, LOCK_TIMEOUT, Beats
from tests.faults.conftest import BOTH_BROKERS, Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.trial import Grid, settle
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ENTRIES = names(5000)
HOUR = 3600.0
#: Seconds from the start of storing until the entries are due, enough to store all of them.
AHEAD = 2.0

Fault = Callable[[Beats], None]


def terminate(beats: Beats) -> None:
    """Stop the leader with SIGTERM."""
    assert beats.terminate(0) == 0


def kill(beats: Beats) -> None:
    """Kill the leader with SIGKILL."""
    beats.kill(0)


def freeze(seconds: float) -> Fault:
    """Return a fault that stops the leader with SIGSTOP for some seconds."""

    def fault(beats: Beats) -> None:
        beats.signal(0, signal.SIGSTOP)
        # The leader stays stopped for this time.
        time.sleep(seconds)
        beats.signal(0, signal.SIGCONT)

    return fault


#: Maximum number of published but unrecorded runs when the leader fails with a separate broker: two
#: groups of 50.
MOST = 100

FAULTS = {
    "SIGTERM": (terminate, 1),
    "SIGKILL": (kill, MOST),
    "SIGSTOP for less than the lock": (freeze(0.4 * LOCK_TIMEOUT), MOST),
    "SIGSTOP for more than the lock": (freeze(LOCK_TIMEOUT + 2.0), MOST),
    "SIGSTOP for more than a hold": (freeze(HELD + 2.0), MOST),
}


@BOTH_BROKERS
@pytest.mark.parametrize("kind", FAULTS)
def test_the_leader_fails_while_5000_entries_are_due(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    note: Note,
    one_server: bool,
    kind: str,
    seed: int,
) -> None:
    """Setup: a leader and a standby; 5,000 hourly entries, due at the same instant.

    Fault: after a random number of messages, the leader is terminated, killed or stopped. A stopped
    leader continues before or after its lock and what it held have expired.

    Invariant: each entry is dispatched once. With a separate broker, a run may have a second
    message with the same id: at most 1 after SIGTERM, otherwise at most 100. With broker and
    schedule on one server, no run has a second message. Each run is recorded once: Redis refuses
    the writes of a stale leader.
    """
    fault, bound = FAULTS[kind]
    beats.start_leader_and_standby()
    one = Grid.begin(schedule, ENTRIES, HOUR, AHEAD)
    k = random.Random(f"{kind} {seed}").randrange(100, 4000)
    wait_until(lambda: len(ledger) >= k, 60.0, f"{k} messages")
    fault(beats)
    struck_at = len(ledger)
    wait_until(lambda: not schedule.due_before(one.first + HOUR / 2), 90.0, "all runs recorded")
    report = settle(ledger, [one], one.first)
    note(f"k={k}, {struck_at} out after the fault: {report}")
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.other_id == 0
    assert report.same_id <= (0 if one_server else bound)
    assert set(schedule.run_counts(ENTRIES).values()) == {1}
    if kind != "SIGTERM":
        assert beats[1].is_alive
    if kind.startswith("SIGSTOP"):
        assert beats[0].is_alive
