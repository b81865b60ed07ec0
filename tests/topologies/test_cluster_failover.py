"""The slot of the schedule moves, or its master is killed, while beats work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.beats import Beats
from tests.faults.entries import Schedule
from tests.faults.ledger import Ledger
from tests.servers import RedisServer
from tests.topologies.conftest import beats_on, cluster_settings
from tests.topologies.groups import ClusterGroup
from tests.topologies.trials import Trial, check, note
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(90)]

PREFIX = "{redbeat}:"


@pytest.fixture(scope="module")
def group() -> Iterator[ClusterGroup]:
    """Run three masters with a replica each; killed servers are restarted after the test."""
    with ClusterGroup() as group:
        yield group


@pytest.fixture
def schedule(group: ClusterGroup) -> Iterator[Schedule]:
    """Return the schedule in the empty cluster."""
    client = group.client()
    client.flushall()
    yield Schedule(client, PREFIX)
    client.close()


@pytest.fixture
def beats(
    tmp_path: Path, broker: RedisServer, schedule: Schedule, group: ClusterGroup
) -> Iterator[Beats]:
    """Return beats in the cluster."""
    with beats_on(tmp_path, broker, schedule, cluster_settings(group)) as beats:
        yield beats


def test_the_slot_moves(group: ClusterGroup, beats: Beats, ledger: Ledger) -> None:
    """The slot moves twice, a few keys at a time, while leader and standby work."""
    beats.start_leader_and_standby()
    trial = Trial.begin(beats, ledger)
    waits = []
    for _ in range(2):
        owner = group.owner(PREFIX)
        target = next(node for node in group.masters() if node is not owner)
        group.begin_move(PREFIX, target)
        while group.move_keys(PREFIX, target, 5):
            trial.go_on(0.1)
        group.end_move(PREFIX, target)
        waits.append(trial.wait_resumed())
    report = trial.end()
    note("moved: runs after %s s; %s", waits, report)
    check(report)
    assert max(waits) < 5.0
    assert report.same_id == 0
    for beat in (beats[0], beats[1]):
        assert beat.is_alive
        assert "CROSSSLOT" not in beat.output()
        assert "quarantine" not in beat.output()


def test_the_master_of_the_slot_is_killed(
    group: ClusterGroup, beats: Beats, ledger: Ledger
) -> None:
    """The replica of the killed master is promoted, and the beats use it."""
    beats.start_leader_and_standby()
    trial = Trial.begin(beats, ledger)
    master, killed_at = group.owner(PREFIX), time.monotonic()
    master.kill()
    group.wait_promoted(PREFIX, master)
    promoted = time.monotonic() - killed_at
    trial.wait_resumed()
    resumed = time.monotonic() - killed_at
    report = trial.end()
    note("killed: promoted after %.2f s, runs after %.2f s; %s", promoted, resumed, report)
    master.restart()
    check(report)
    for beat in (beats[0], beats[1]):
        assert beat.is_alive
        assert "Traceback" not in beat.output()
        assert "CROSSSLOT" not in beat.output()


def test_a_beat_starts_before_the_cluster(
    group: ClusterGroup, beats: Beats, ledger: Ledger
) -> None:
    """The beat waits for the cluster as it waits for a single Redis."""
    for node in group.nodes:
        node.pause()
    try:
        beats.start()
        beats[0].wait_for("Redis is not available")
    finally:
        for node in group.nodes:
            node.resume()
    wait_until(group.is_ready, 30.0)
    trial = Trial.begin(beats, ledger)
    check(trial.end())
    assert "Traceback" not in beats[0].output()
