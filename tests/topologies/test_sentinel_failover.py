"""The master behind Sentinel is killed, replaced, or cut off while beats work."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from tests.faults.beats import Beats
from tests.faults.entries import Schedule
from tests.faults.ledger import Ledger
from tests.servers import RedisServer
from tests.topologies.conftest import beats_on, sentinel_settings
from tests.topologies.groups import SentinelGroup
from tests.topologies.trials import Trial, check, note
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def arguments() -> tuple[str, ...]:
    """Return arguments for both servers; tests may override this fixture."""
    return ()


@pytest.fixture
def group(arguments: tuple[str, ...]) -> Iterator[SentinelGroup]:
    """Run a group whose servers the test may kill."""
    with SentinelGroup(*arguments, service="mine", password="secret") as group:
        yield group


@pytest.fixture
def schedule(group: SentinelGroup) -> Iterator[Schedule]:
    """Return the schedule on the current master."""
    errors = (RedisConnectionError, RedisTimeoutError, ReadOnlyError)
    sentinel: Any = Sentinel
    with sentinel(group.addresses).master_for(
        group.service,
        password=group.password,
        decode_responses=True,
        socket_timeout=1.0,
        retry=Retry(ConstantBackoff(0.1), 200, supported_errors=errors),
        retry_on_error=list(errors),
    ) as client:
        yield Schedule(client)


@pytest.fixture
def beats(
    tmp_path: Path, broker: RedisServer, schedule: Schedule, group: SentinelGroup
) -> Iterator[Beats]:
    """Return beats with the settings in the manual."""
    with beats_on(tmp_path, broker, schedule, sentinel_settings(group)) as beats:
        yield beats


def test_the_master_is_killed(group: SentinelGroup, beats: Beats, ledger: Ledger) -> None:
    """Promotion takes a second of silence and an election; then the beat uses the new master."""
    beats.start_many(1)
    trial = Trial.begin(beats, ledger)
    master, killed_at = group.master(), time.monotonic()
    master.kill()
    group.wait_promoted(master)
    promoted = time.monotonic() - killed_at
    trial.wait_resumed()
    resumed = time.monotonic() - killed_at
    report = trial.end()
    note("killed: promoted after %.2f s, runs after %.2f s; %s", promoted, resumed, report)
    check(report)
    assert beats[0].is_alive


@pytest.mark.long
def test_the_master_is_killed_and_the_first_sentinel_is_frozen(
    group: SentinelGroup, beats: Beats, ledger: Ledger
) -> None:
    """The frozen Sentinel accepts connections and never replies; the others elect without it."""
    beats.start_leader_and_standby()
    trial = Trial.begin(beats, ledger)
    group.sentinels[0].pause()
    try:
        master = group.master()
        master.kill()
        group.wait_promoted(master)
        seconds = trial.wait_resumed()
        report = trial.end()
    finally:
        group.sentinels[0].resume()
    note("killed, with a frozen Sentinel: runs %.2f s after the promotion; %s", seconds, report)
    check(report)
    assert all(beat.is_alive for beat in (beats[0], beats[1]))


@pytest.mark.long
def test_the_master_is_replaced_as_planned(
    group: SentinelGroup, beats: Beats, ledger: Ledger
) -> None:
    """The old master stays up as a read-only replica."""
    beats.start_leader_and_standby()
    trial = Trial.begin(beats, ledger)
    master, asked_at = group.master(), time.monotonic()
    with group.client_of(group.sentinels[0]) as sentinel:
        wait_until(lambda: group.knows_replicas(sentinel), 15.0)
        sentinel.execute_command("SENTINEL", "FAILOVER", group.service)
    group.wait_promoted(master)
    trial.wait_resumed()
    resumed = time.monotonic() - asked_at
    wait_until(lambda: group.role_of(master) == "slave", 30.0, "a replica of the old master")
    trial.wait_resumed()
    report = trial.end()
    note("planned: runs after %.2f s; %s", resumed, report)
    check(report)


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2")]
)
def test_two_masters_at_once(group: SentinelGroup, beats: Beats, ledger: Ledger) -> None:
    """Master and leader are cut off together, and reconnected after another master was elected.

    The leader keeps its connection to the old master, which refuses writes because it has no
    replica. The new master also refuses writes until the old master is its replica. The beat waits
    in both cases.
    """
    beats.start_leader_and_standby()
    trial = Trial.begin(beats, ledger)
    master = group.master()
    master.pause()
    beats.signal(0, signal.SIGSTOP)
    group.wait_promoted(master)
    beats[1].wait_for("NOREPLICAS", 30.0)
    began = time.monotonic()
    master.resume()
    beats.signal(0, signal.SIGCONT)
    trial.wait_resumed(40.0)
    resumed = time.monotonic() - began
    assert group.role_of(master) == "slave"
    report = trial.end()
    note("split: runs %.2f s after the old master was back; %s", resumed, report)
    check(report)
    leaders = [number for number in (0, 1) if beats.leader() == number]
    assert len(leaders) == 1
    assert all(beat.is_alive for beat in (beats[0], beats[1]))
