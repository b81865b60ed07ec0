"""The Redis of the schedule, the broker, or both are down for some time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
import redis

from tests.faults.beats import Beats
from tests.faults.conftest import BOTH_BROKERS, Note
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.oracle import Report
from tests.faults.profile import Profile
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

ENTRIES = names(20)
AHEAD = 0.5


@pytest.fixture
def durable() -> bool:
    """Return True: the test is about the beat, so the servers must not lose confirmed writes."""
    return True


def outage(servers: Sequence[RedisServer], seconds: float) -> None:
    """Kill the servers, and restart them after some seconds."""
    for server in servers:
        server.kill()
    # The outage lasts this long.
    time.sleep(seconds)
    for server in servers:
        server.restart()


def seconds_to_dispatch(ledger: Ledger, deadline: float = 60.0) -> float:
    """Return the seconds until a new message arrives."""
    started, before = time.monotonic(), len(ledger)
    wait_until(lambda: len(ledger) > before, deadline, "a message after the outage")
    return time.monotonic() - started


def check(report: Report, beats: Beats) -> None:
    """Assert that each occurrence ran or was coalesced, with one id, and that the beat is alive."""
    assert beats[0].is_alive
    assert not report.lost
    assert not report.unknown
    assert not report.early
    assert report.other_id == 0


def run_on(schedule: Schedule, seconds: float) -> float:
    """Let the beat work for some seconds, and return the time of Redis afterwards."""
    until = schedule.now() + seconds
    wait_until(lambda: schedule.now() >= until, 60.0)
    return until


@pytest.mark.long
@BOTH_BROKERS
def test_the_schedule_is_away_again_and_again(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    profile: Profile,
    note: Note,
) -> None:
    """Setup: one beat, 20 entries every second, a Redis that keeps confirmed writes.

    Fault: this Redis is killed at random moments and restarted after up to two seconds, repeatedly.
    It may be the broker too.

    Invariant: the beat sends again within 2 s after an outage (short profile: 5 s). Each occurrence
    is sent exactly once or coalesced, because the beat stays alive and knows what it has sent.
    """
    beats.start_many(1)
    one = Grid.begin(schedule, ENTRIES, 1.0, AHEAD)
    wait_until(lambda: len(ledger) >= len(ENTRIES), 60.0, "the first runs")
    chance, waits = random.Random(6), []
    for _ in range(profile.pick(3, 30)):
        run_on(schedule, chance.uniform(0.5, 2.0))
        outage([schedule_redis], chance.uniform(0.1, 2.0))
        waits.append(seconds_to_dispatch(ledger))
    report = settle(ledger, [one], run_on(schedule, 2.0))
    note(f"{report}; back after {max(waits):.2f} s at most")
    check(report, beats)
    assert report.same_id == 0
    assert max(waits) <= profile.pick(5.0, 2.0)


@pytest.mark.parametrize(
    "away", ["broker", pytest.param("broker and schedule", marks=pytest.mark.long)]
)
def test_the_broker_is_away(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    broker_redis: RedisServer,
    profile: Profile,
    note: Note,
    away: str,
) -> None:
    """Setup: one beat, 20 entries every second, servers that keep confirmed writes.

    Fault: the broker, or broker and schedule together, are killed and restarted a minute later
    (short profile: 0.7 s).

    Invariant: the beat sends again within 2 s after the outage (short profile: 5 s). No occurrence
    is lost. An occurrence that was being published when the broker died may have a second message
    with the same id.
    """
    servers = [broker_redis] if away == "broker" else [broker_redis, schedule_redis]
    beats.start_many(1)
    one = Grid.begin(schedule, ENTRIES, 1.0, AHEAD)
    wait_until(lambda: len(ledger) >= 2 * len(ENTRIES), 60.0, "the first runs")
    outage(servers, profile.pick(0.7, 60.0))
    waited = seconds_to_dispatch(ledger)
    report = settle(ledger, [one], run_on(schedule, profile.pick(1.0, 2.0)))
    note(f"{report}; back after {waited:.2f} s")
    check(report, beats)
    assert report.same_id <= 1
    assert waited <= profile.pick(5.0, 2.0)


@pytest.mark.long
def test_the_broker_is_out_of_memory(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    broker_redis: RedisServer,
    profile: Profile,
    note: Note,
) -> None:
    """Setup: one beat, 20 entries every second.

    Fault: the broker is out of memory and refuses messages for 20 s (short profile: 3 s).

    Invariant: the beat sends again within 2 s after the fault (short profile: 5 s). No occurrence
    is lost or sent twice. The log has one line about the outage and no traceback.
    """
    beats.start_many(1)
    one = Grid.begin(schedule, ENTRIES, 1.0, AHEAD)
    wait_until(lambda: len(ledger) >= 2 * len(ENTRIES), 60.0, "the first runs")
    admin = redis.Redis.from_url(broker_redis.url)
    admin.config_set("maxmemory", "1")
    run_on(schedule, profile.pick(3.0, 20.0))
    admin.config_set("maxmemory", "0")
    waited = seconds_to_dispatch(ledger)
    report = settle(ledger, [one], run_on(schedule, 2.0))
    note(f"{report}; back after {waited:.2f} s")
    check(report, beats)
    assert report.same_id == 0
    assert waited <= profile.pick(5.0, 2.0)
    assert beats[0].output().count("The broker is not available") == 1
    assert beats[0].output().count("The broker is back") == 1
    assert "Traceback" not in beats[0].output()
