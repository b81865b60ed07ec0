"""A beat stops in time, also if Redis or the broker does not answer."""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults.beats import Beats
from tests.faults.conftest import BOTH_BROKERS
from tests.faults.entries import Schedule, names
from tests.faults.ledger import Ledger
from tests.faults.trial import Grid
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

#: Docker kills a process ten seconds after the stop signal.
LONGEST = 9.5
#: A second signal ends a beat at once.
AT_ONCE = 4.0

ENDS = "beat: Ends, because Redis or the broker does not answer"


def stopped(beats: Beats, signals: int) -> float:
    """Send stop signals to the first beat, and return the seconds until it has ended."""
    started = time.monotonic()
    for number in range(signals):
        if number:  # signals that come at once are one
            wait_until(lambda: time.monotonic() > started + 0.5, 5.0)
        beats.signal(0, signal.SIGTERM)
    assert beats[0].popen.wait(60) == 0
    return time.monotonic() - started


@BOTH_BROKERS
@pytest.mark.parametrize("frozen", ["schedule", "broker", "both"])
@pytest.mark.parametrize(("signals", "longest"), [(1, LONGEST), (2, AT_ONCE)])
def test_a_stop_ends_in_time(
    beats: Beats,
    schedule: Schedule,
    ledger: Ledger,
    schedule_redis: RedisServer,
    broker_redis: RedisServer,
    frozen: str,
    signals: int,
    longest: float,
) -> None:
    """Setup: a beat sends 20 runs a second.

    Fault: Redis, the broker or both stop to answer, and then the beat gets a stop signal, or two.

    Invariant: the process ends in time with code 0, and says which runs were not recorded.
    """
    beats.start(settings={"redbeat_lock_timeout": 60})  # with the usual timeouts of the broker
    Grid.begin(schedule, names(20), 1.0, 1.0)
    wait_until(lambda: len(ledger) >= 40, 60.0, "the first runs")
    servers = {"schedule": [schedule_redis], "broker": [broker_redis]}
    for server in {*servers.get(frozen, [schedule_redis, broker_redis])}:
        server.pause()
    frozen_at = time.monotonic()
    wait_until(lambda: time.monotonic() > frozen_at + 1.5, 5.0)  # the next runs are on their way
    assert stopped(beats, signals) < longest
    if signals > 1:  # on a slow machine it has no time to say so
        return
    assert ENDS in beats[0].output()
    if frozen == "broker" and schedule_redis is not broker_redis:
        assert f"20 runs not recorded: {names(20)[0]}, " in beats[0].output()


@pytest.mark.parametrize("frozen", ["schedule", "broker", "both"])
def test_a_start_ends_in_time(
    beats: Beats, schedule_redis: RedisServer, broker_redis: RedisServer, frozen: str
) -> None:
    """Setup: none.

    Fault: Redis, the broker or both do not answer when a beat starts, and it gets a stop signal.

    Invariant: the process ends in time with code 0.
    """
    servers = {"schedule": [schedule_redis], "broker": [broker_redis]}
    for server in servers.get(frozen, [schedule_redis, broker_redis]):
        server.pause()
    beats.start(settings={"beat_schedule": {"a": {"task": "t", "schedule": 1}}})
    beats.wait_started(0)
    assert stopped(beats, 1) < LONGEST


def test_a_stop_without_a_fault_records_what_was_sent(
    beats: Beats, schedule: Schedule, ledger: Ledger
) -> None:
    """Setup: a beat sends 20 runs a second.

    Fault: none, but a stop signal.

    Invariant: the process ends at once, and nothing remains unrecorded.
    """
    beats.start()
    Grid.begin(schedule, names(20), 1.0, 1.0)
    wait_until(lambda: len(ledger) >= 40, 60.0, "the first runs")
    assert stopped(beats, 1) < AT_ONCE
    assert ENDS not in beats[0].output()
    assert "Could not record" not in beats[0].output()
