"""The Redis of the schedule runs out of memory."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import redis

from tests.faults.beats import HELD, LOCK_TIMEOUT, Beat, Beats
from tests.faults.conftest import Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.profile import Profile
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

AHEAD = 6.0
HOUR = 3600.0
NOEVICTION = ("--maxmemory-policy", "noeviction")
#: Memory limits in bytes: less than any server uses, and no limit.
NONE, ANY = 1, 0
#: Maximum number of entries that a beat has looked at: the current batch and the next one.
IN_HAND = 2 * 500
AWAY, BACK = "beat: Redis takes no writes", "beat: Redis is back"
KINDS = {"lock": {}, "free": {"redbeat_lock_key": None}}


@dataclass
class Side:
    """A beat with a separate schedule; the names of its entries begin with ``stem``."""

    stem: str
    schedule: Schedule
    beat: Beat

    def sent(self, ledger: Ledger) -> int:
        """Return how many messages this beat sent."""
        return sum(message.sender == self.beat.popen.pid for message in ledger.messages)

    def has_sent(self, ledger: Ledger, count: int) -> bool:
        """Return whether the beat has sent ``count`` messages."""
        return self.sent(ledger) >= count

    def has_recorded(self, until: float) -> bool:
        """Return whether no entry is due before ``until``."""
        return not self.schedule.due_before(until)

    def memory(self, limit: int) -> None:
        """Set the memory limit of the beat's Redis, in bytes."""
        self.schedule.client.config_set("maxmemory", limit)


@pytest.fixture
def sides(beats: Beats, ledger: Ledger) -> Iterator[list[Side]]:
    """Run a beat with a lock and a beat without a lock, which share one broker."""
    assert not len(ledger)
    with RedisServer(*NOEVICTION) as one, RedisServer(*NOEVICTION) as other:
        made = []
        for server, (stem, settings) in zip((one, other), KINDS.items(), strict=True):
            number = beats.start(schedule_url=server.url, settings=settings)
            client = redis.Redis.from_url(server.url, decode_responses=True)
            made.append(Side(stem, Schedule(client), beats[number]))
        for number in range(len(made)):
            beats.wait_started(number)
        yield made
        beats.end()
        for side in made:
            side.schedule.client.close()


def begin(sides: Sequence[Side], count: int, every: float) -> list[Grid]:
    """Store entries for each beat, first due when both beats have had time to find them."""
    return [Grid.begin(side.schedule, names(count, side.stem), every, AHEAD) for side in sides]


def wait_sent(sides: Sequence[Side], ledger: Ledger, counts: Sequence[int], what: str) -> float:
    """Wait until each beat has sent its number of messages; return how many seconds this took."""
    started = time.monotonic()
    for side, count in zip(sides, counts, strict=True):
        wait_until(partial(side.has_sent, ledger, count), 60.0, what)
    return time.monotonic() - started


def run_on(schedule: Schedule, seconds: float) -> float:
    """Let the beats work for some seconds, and return the time of Redis afterwards."""
    until = schedule.now() + seconds
    wait_until(lambda: schedule.now() >= until, seconds + 60.0)
    return until


def without_memory(
    sides: Sequence[Side], ledger: Ledger, seconds: float
) -> tuple[list[int], float]:
    """Limit the memory for some seconds.

    Return how many messages each beat sent in that time, and the seconds until both sent again.
    """
    for side in sides:
        side.memory(NONE)
    out = [side.sent(ledger) for side in sides]
    run_on(sides[0].schedule, seconds)
    sent = [side.sent(ledger) for side in sides]
    for side in sides:
        side.memory(ANY)
    waited = wait_sent(sides, ledger, [count + 1 for count in sent], "at work with memory again")
    return [count - before for count, before in zip(sent, out, strict=True)], waited


def check(ledger: Ledger, grids: Sequence[Grid], until: float) -> str:
    """Assert that no run is lost, early or sent twice, and return the report."""
    report = settle(ledger, grids, until)
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert (report.other_id, report.same_id) == (0, 0)
    return str(report)


def check_log(side: Side, times: int = 1) -> None:
    """Assert that the beat is alive and logged each fault once."""
    assert side.beat.is_alive
    output = side.beat.output()
    assert (output.count(AWAY), output.count(BACK)) == (times, times), side.stem
    # Redis 6.2 begins the error with the code OOM; newer servers put it where redis-py removes it.
    assert "'maxmemory'" in output


def durations(profile: Profile) -> list[float]:
    """Return the seconds of each fault: longer than a lock; in full runs also others."""
    longer = LOCK_TIMEOUT + 2.0
    chance = random.Random(8)
    return profile.pick(
        [longer], [longer, HELD + 2.0, *(chance.uniform(1.5, 12.0) for _ in range(10))]
    )


def test_memory_is_full_for_a_while(
    beats: Beats, sides: list[Side], ledger: Ledger, profile: Profile, note: Note
) -> None:
    """Setup: a beat with a lock and a beat without, each with 50 entries every second.

    Fault: memory is full for longer than a lock, starting in the middle of a batch. In the full
    profile, this is repeated.

    Invariant: during the fault, a beat sends at most the rest of its current batch. It stays alive,
    logs the fault once, and sends again within 2 s after the fault (short profile: 5 s). Each run
    is sent exactly once or coalesced, and is recorded once.
    """
    grids, most, longest = begin(sides, 50, 1.0), 0, 0.0
    for seconds in durations(profile):
        begun = [side.sent(ledger) // 50 * 50 + 105 for side in sides]
        wait_sent(sides, ledger, begun, "in the middle of a batch")
        sent, waited = without_memory(sides, ledger, seconds)
        most, longest = max(most, *sent), max(longest, waited)
    until = run_on(sides[0].schedule, 2.0)
    note(f"{check(ledger, grids, until)}; {most} sent without, back after {longest:.2f} s")
    assert most <= 50
    assert longest <= profile.pick(5.0, 2.0)
    for number, (side, grid) in enumerate(zip(sides, grids, strict=True)):
        check_log(side, len(durations(profile)))
        # A beat that stops normally has recorded all its runs.
        assert beats.terminate(number) == 0
        recorded = sum(side.schedule.run_counts(grid.entries).values())
        wait_until(partial(side.has_sent, ledger, recorded))
        assert side.sent(ledger) == recorded


def test_memory_is_full_while_many_are_due(
    sides: list[Side], ledger: Ledger, profile: Profile, note: Note
) -> None:
    """Setup: a beat with a lock and a beat without, each with 1,200 hourly entries due at the same
    time.

    Fault: memory is full for longer than a lock, starting after the first runs were sent.

    Invariant: during the fault, a beat sends only entries that it has looked at: its current batch
    and the next one. It stays alive, logs the fault once, and sends again within 2 s after the
    fault (short profile: 5 s). Each entry runs once, and each run is recorded once.
    """
    grids = begin(sides, 1200, HOUR)
    wait_until(lambda: len(ledger) >= 10, 60.0, "the first runs")
    sent, waited = without_memory(sides, ledger, LOCK_TIMEOUT + 2.0)
    report = check(ledger, grids, max(grid.first for grid in grids))
    note(f"{report}; {sent} sent without, back after {waited:.2f} s")
    assert max(sent) <= IN_HAND
    assert waited <= profile.pick(5.0, 2.0)
    for side, grid in zip(sides, grids, strict=True):
        half = grid.first + HOUR / 2
        wait_until(partial(side.has_recorded, half), 60.0, "all recorded")
        assert set(side.schedule.run_counts(grid.entries).values()) == {1}
        check_log(side)
