"""A schedule with shards on a cluster of three masters: beats come and die, a node is killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import redis

from redbeat.storage.keys import Layout
from tests.faults.beats import PID_IN_TOKEN, Beats
from tests.faults.entries import Schedule
from tests.faults.ledger import Ledger
from tests.servers import RedisServer
from tests.topologies.conftest import beats_on, cluster_settings
from tests.topologies.groups import ClusterGroup, ClusterNode
from tests.topologies.trials import EVERY, Trial, check, note
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

SHARDS: Final = 16
LAYOUT: Final = Layout("{redbeat}:", SHARDS)
#: The usual time in which a standby takes over from a dead leader, and reserve for a busy machine.
TAKEOVER, SLACK = 25.0, 10.0

#: While a node is away, each entry of the other nodes is sent at least once in this many seconds.
PERIOD = 2.0


class ShardedSchedule(Schedule):
    """Reads and writes a schedule with shards by raw commands, in the documented format."""

    def put(
        self,
        entries: Iterable[str],
        every: float,
        score: float = 0.0,
        meta: Mapping[str, str] | None = None,
    ) -> None:
        """Store each entry in the shard of its name."""
        for name in entries:
            shard = Schedule(self.client, LAYOUT.prefixes[LAYOUT.shard_of(name)])
            shard.put([name], every, score, meta)

    def holders(self) -> list[int]:
        """Return the process id of the beat that holds the lock of each shard, 0 for no beat."""
        tokens = [self.client.get(f"{prefix}:lock") or "" for prefix in LAYOUT.prefixes]
        found = [PID_IN_TOKEN.fullmatch(token) for token in tokens]
        return [int(match[1]) if match else 0 for match in found]


@pytest.fixture(scope="module")
def group() -> Iterator[ClusterGroup]:
    """Run three masters without replicas, which keep their data when they are killed."""
    persistent = ("--appendonly", "yes", "--appendfsync", "always")
    coverage = ("--cluster-require-full-coverage", "no")
    with ClusterGroup(*persistent, *coverage, replicas=False) as group:
        yield group


@pytest.fixture
def schedule(group: ClusterGroup) -> Iterator[ShardedSchedule]:
    """Return the schedule in the empty cluster."""
    client = group.client()
    client.flushall()
    yield ShardedSchedule(client, LAYOUT.prefixes[0])
    client.close()


@pytest.fixture
def beats(
    tmp_path: Path, broker: RedisServer, schedule: Schedule, group: ClusterGroup
) -> Iterator[Beats]:
    """Return beats with the default lock timeout, whose locks do not expire during a test."""
    settings = {
        **cluster_settings(group),
        "redbeat_shards": SHARDS,
        "redbeat_lock_timeout": 1500,
    }
    with beats_on(tmp_path, broker, schedule, settings) as beats:
        yield beats


def wait_shares(schedule: ShardedSchedule, beats: Beats, seconds: float = 30.0) -> list[int]:
    """Wait until the living beats have all shards, in numbers that differ by at most one.

    Returns these numbers.
    """
    every = [beats[number] for number in range(len(beats))]
    alive = {beat.popen.pid for beat in every if beat.is_alive}
    shares: list[int] = []

    def is_even() -> bool:
        counts = Counter(schedule.holders())
        shares[:] = sorted(counts.values())
        return counts.keys() == alive and shares[-1] - shares[0] <= 1

    wait_until(is_even, seconds, f"{len(alive)} beats with as many shards each")
    return shares


@pytest.mark.parametrize("victim", ["leader", "other"])
def test_a_beat_comes_and_a_beat_is_killed(
    beats: Beats, schedule: ShardedSchedule, ledger: Ledger, victim: str
) -> None:
    """The leader is the beat that holds the lock of the first shard."""
    beats.start_many(2)
    assert wait_shares(schedule, beats) == [8, 8]
    trial = Trial.begin(beats, ledger)
    beats.start_many(1)
    came = time.monotonic()
    assert wait_shares(schedule, beats) == [5, 5, 6]
    came = time.monotonic() - came
    trial.go_on(3)
    leader = beats.wait_leader()
    number = leader if victim == "leader" else (leader + 1) % 3
    killed = time.monotonic()
    beats.kill(number)
    assert wait_shares(schedule, beats, TAKEOVER + SLACK) == [8, 8]
    took = time.monotonic() - killed
    report = trial.end()
    note("%s: shares even %.1f s after a start; takeover %.1f s; %s", victim, came, took, report)
    check(report)
    # Only the shards of the dead beat waited.
    on_time = [delay for delay in report.delays.values() if delay < 1.0]
    assert len(on_time) > 0.5 * len(report.delays)


#: What happens to a node -> how it comes back, and how late runs on the other masters may be. A
#: beat waits for a frozen node until the timeout, once for all shards of the node.
FAULTS: Final = {
    "kill": (ClusterNode.kill, ClusterNode.restart, 0.5),
    "pause": (ClusterNode.pause, ClusterNode.resume, 3.0),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("first", [True, False])
def test_a_node_fails(
    beats: Beats,
    schedule: ShardedSchedule,
    ledger: Ledger,
    group: ClusterGroup,
    first: bool,
    fault: str,
) -> None:
    """The shards on the other masters go on in time, and nothing is lost.

    ``first`` is whether the node has the first shard, with the list of beats.
    """
    end, resume, late = FAULTS[fault]
    beats.start_many(2)
    wait_shares(schedule, beats)
    trial = Trial.begin(beats, ledger)
    owners: list[ClusterNode] = [group.owner(prefix) for prefix in LAYOUT.prefixes]
    node = owners[0] if first else next(one for one in owners if one is not owners[0])
    killed_at = time.time()
    end(node)
    trial.go_on(12)
    resume(node)
    back_at = time.time()

    def is_back() -> bool:
        try:
            return 0 not in schedule.holders()
        except redis.RedisError:
            return False

    wait_until(is_back, 60.0, "the shards of the killed node")
    trial.wait_resumed(30.0)
    trial.go_on(3)
    report = trial.end()
    others = {
        occurrence: delay
        for occurrence, delay in report.delays.items()
        if owners[LAYOUT.shard_of(occurrence.entry)] is not node
        and killed_at + EVERY < occurrence.instant < back_at
    }
    note(
        "%s: %d runs of others, latest %.2f s; %s", fault, len(others), max(others.values()), report
    )
    check(report)
    names = {occurrence.entry for occurrence in others}
    for period in range(1, int((back_at - killed_at) // PERIOD)):
        start = killed_at + period * PERIOD
        ran = {each.entry for each in others if start <= each.instant < start + PERIOD}
        assert ran == names, f"not sent in {PERIOD} s: {names - ran}"
    assert sum(delay < late for delay in others.values()) > 0.9 * len(others)
    wait_shares(schedule, beats, TAKEOVER + SLACK)
