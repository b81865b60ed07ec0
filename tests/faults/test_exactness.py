"""One real beat sends a thousand runs a second: each instant once, on time, without drift.

The short form lasts 10 s. For measurements use the full form with 60 s and 60,000 runs::

    python -m pytest -n 0 -m "" --faults full tests/faults/test_exactness.py

At the end, the test prints the lateness: the time from the scheduled instant until a reader of the
queue has the message. The reader looks every 5 ms. A machine that cannot send 1,000 messages a
second takes longer; the assertions do not depend on this speed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.faults.beats import Beats
from tests.faults.conftest import Note
from tests.faults.entries import PREFIX, Schedule, meta_json, names
from tests.faults.ledger import Ledger, Message
from tests.faults.oracle import Report
from tests.faults.profile import Profile
from tests.faults.trial import Grid, settle
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ENTRIES = names(100)
EVERY = 0.1
#: Seconds between storing the entries and their first run.
AHEAD = 1.0
#: Maximum lateness of a run in seconds, even on a slow machine: older instants coalesce.
LATE = 5.0
ALL = json.dumps({"coalesce": "all", "catch_up_limit": 1000})
#: By name: the catch-up policy, and the seconds between the first runs of consecutive entries.
KINDS = {"latest": ("", 0.0), "all": (ALL, 0.0), "spread": ("", EVERY / len(ENTRIES))}


def lateness(report: Report) -> str:
    """Return percentiles of the lateness: the seconds from the scheduled instant to the queue."""
    late = sorted(report.delays.values())
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return ", ".join(
        f"{name} {late[math.ceil(share * len(late)) - 1] * 1000:.1f} ms"
        for name, share in shares.items()
    )


def ids(messages: Iterable[Message], until: float) -> Counter[str]:
    """Return how often each id was sent, for instants before ``until``."""
    return Counter(message.task_id for message in messages if (message.scheduled_at or 0) < until)


def begin(schedule: Schedule, policy: str, apart: float) -> list[Grid]:
    """Store the entries with a history, so that their first run is not a new entry's first run."""
    for name in ENTRIES if policy else ():
        schedule.client.hset(PREFIX + name, "policy", policy)
    first = round(schedule.now() + AHEAD, 3)
    if not apart:
        schedule.put(ENTRIES, EVERY, first, dict.fromkeys(ENTRIES, meta_json(first - EVERY)))
        return [Grid(ENTRIES, EVERY, first)]
    grids = [Grid([name], EVERY, first + n * apart) for n, name in enumerate(ENTRIES)]
    for grid in grids:
        schedule.put(
            grid.entries, EVERY, grid.first, {grid.entries[0]: meta_json(grid.first - EVERY)}
        )
    return grids


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_runs_a_second_are_exact(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    profile: Profile,
    note: Note,
    kind: str,
) -> None:
    """Setup: one beat, 100 entries every 0.1 s, all at the same instant or 1 ms apart. Fault: none.

    Invariant: each instant of an entry has exactly one message, with a unique id, and no message is
    early. The lateness does not grow from the first to the last instant. If the machine stalls for
    longer than 0.1 s, the instants during the stall coalesce. The run that replaces them counts
    each of them. With ``coalesce="all"``, each instant runs even after a stall.
    """
    beats.start_many(1)
    policy, apart = KINDS[kind]
    grids = begin(schedule, policy, apart)
    until = round(grids[-1].first + profile.pick(10.0, 60.0) - EVERY, 3)
    expected = len(ENTRIES) * profile.pick(100, 600)
    wait_until(lambda: schedule.now() >= until, 120.0)
    if policy:
        wait_until(lambda: len(ledger) >= expected, profile.pick(120.0, 900.0), "all the runs")
    report = settle(ledger, grids, until)
    note(f"{report}; {lateness(report)}")
    assert report.expected == expected
    assert report.dispatched + len(report.coalesced) == report.expected
    assert not report.lost
    assert not report.early
    assert not report.unknown
    sent = ids(ledger.messages, until + 0.000_5)
    assert set(sent.values()) == {1}
    assert len(sent) == report.dispatched
    assert not (report.coalesced if policy else report.late(LATE))
