"""Redis carries out the next turn while the beat works on the replies to the one before."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import redis

from redbeat.storage.reading import BATCH
from redbeat.storage.scripts import Script
from tests.deployments import PREFIX
from tests.scheduler.clients import Wire
from tests.scheduler.conftest import LOCK, Clock, RecordingScheduler, World

MANY = 3 * BATCH + 10


@pytest.fixture
def scheduler(world: World, clock: Clock) -> RecordingScheduler:
    """A leading scheduler with several batches of due entries. Its clock never advances."""
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    world.put_many(MANY)
    return scheduler


def each_once(*schedulers: RecordingScheduler) -> bool:
    """Return whether every entry was sent exactly once."""
    sent = Counter(name for scheduler in schedulers for name in scheduler.names)
    return len(sent) == MANY and set(sent.values()) == {1}


def unrecorded(world: World) -> int:
    """Return the number of entries without a recorded run."""
    return sum(world.run_count(name.split(":", 1)[1]) == 0 for name in entry_keys(world))


def entry_keys(world: World) -> list[str]:
    """Return the keys of all entries except the ones that Celery adds."""
    return [key for key in world.client.zrange(f"{PREFIX}:schedule", 0, -1) if "celery." not in key]


@pytest.mark.long
def test_a_stopping_beat_puts_back_what_it_holds(
    world: World, scheduler: RecordingScheduler
) -> None:
    """Setup: a beat has several turns of runs to send.

    Fault: it is stopped amid a later turn.

    Invariant: the next leader sends the remaining runs.
    """

    def stop() -> None:
        raise SystemExit

    scheduler.before_send = lambda _task: stop() if len(scheduler.sent) == BATCH + 7 else None
    with pytest.raises(SystemExit):
        scheduler.tick()
    scheduler.close()
    assert world.client.get(LOCK) is None
    assert unrecorded(world) == MANY - BATCH - 7
    heir = world.scheduler(clock=Clock())
    heir.tick()
    assert each_once(scheduler, heir)
    assert unrecorded(world) == 0


@pytest.mark.long
@pytest.mark.standalone
def test_a_connection_that_breaks_during_a_request_loses_nothing(
    world: World, wire: Wire, scheduler: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    """Setup: a request to Redis is in flight.

    Fault: the connection of the request breaks.

    Invariant: every run is sent exactly once.
    """
    wire.lose(lambda: world.is_held("e0"))
    for _ in range(3):
        scheduler.tick()
    assert wire.lost == 1
    assert "trying again" in log.text
    for key in entry_keys(world):
        name = key.split(":", 1)[1]
        if world.is_held(name):  # the reply to the turn that holds it was lost
            world.end_hold(name)
    for _ in range(3):
        scheduler.tick()
    assert each_once(scheduler)
    assert unrecorded(world) == 0


def test_a_script_that_redis_forgot_is_sent_again(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        script = Script("one", "return ARGV[1]", "0" * 40)
        assert script.begin(client, [], ["hello"])() == b"hello"
        assert client.ping()


def test_nothing_runs_in_another_thread(scheduler: RecordingScheduler) -> None:
    scheduler.before_send = lambda _task: None
    before = threading.active_count()
    scheduler.tick()
    assert threading.active_count() == before
