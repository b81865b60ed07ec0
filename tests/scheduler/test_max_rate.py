"""``redbeat_max_rate`` limits the rate of late runs. Runs on time are sent before late runs."""

from __future__ import annotations

import pytest

from tests.deployments import PREFIX
from tests.waiting import wait_until

from .clients import CountingRedis
from .conftest import SCHEDULE, Clock, RecordingScheduler, World


def late(world: World, count: int) -> None:
    """Store entries that have been due for a minute."""
    world.put_many(count, score=world.now() - 60)


def on_time(world: World, name: str) -> None:
    """Store 30 entries, which become due one after the other within 30 ms."""
    keys = [world.put(f"{name}{number}", score=-1) for number in range(30)]
    now = world.now()
    world.client.zadd(SCHEDULE, {key: now + number / 1000 for number, key in enumerate(keys)})
    wait_until(lambda: world.now() > now + 0.03)


def paced(world: World, clock: Clock, rate: float | None) -> RecordingScheduler:
    """Return a beat that sends at most ``rate`` late runs per second."""
    world.app.conf.redbeat_max_rate = rate
    return world.scheduler_of(RecordingScheduler, clock)


def test_late_runs_are_sent_at_the_rate(world: World, clock: Clock) -> None:
    late(world, 35)
    scheduler = paced(world, clock, 10)
    counts, waits = [], []
    for _ in range(4):
        waits.append(scheduler.tick())
        counts.append(len(scheduler.sent))
        clock.advance(1)
    assert counts == [10, 20, 30, 35]
    assert waits == [pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1), 5]
    assert len(set(scheduler.names)) == 35


def test_runs_on_time_go_first_and_have_no_limit(world: World, clock: Clock) -> None:
    scheduler = paced(world, clock, 5)
    scheduler.tick()
    late(world, 20)
    on_time(world, "now")
    scheduler.tick()
    assert scheduler.names[:30] == [f"now{number}" for number in range(30)]
    assert len(scheduler.sent) == 35
    on_time(world, "more")
    scheduler.tick()
    assert scheduler.names[35:] == [f"more{number}" for number in range(30)]


def test_a_rate_below_one_per_second(world: World, clock: Clock) -> None:
    late(world, 3)
    scheduler = paced(world, clock, 0.1)
    assert scheduler.tick() == 5, "the longest wait"
    assert len(scheduler.sent) == 1
    clock.advance(9)
    assert scheduler.tick() == pytest.approx(1, abs=0.1)
    assert len(scheduler.sent) == 1
    clock.advance(1.001)
    scheduler.tick()
    assert len(scheduler.sent) == 2


def test_the_wait_ends_at_the_next_run_on_time(world: World, clock: Clock) -> None:
    late(world, 3)
    world.put("soon", score=world.now() + 3)
    scheduler = paced(world, clock, 0.1)
    assert 1 < scheduler.tick() <= 3


def test_a_large_backlog_costs_few_round_trips(
    world: World, clock: Clock, counting: CountingRedis
) -> None:
    late(world, 3000)
    scheduler = paced(world, clock, 100)
    scheduler.tick()
    for second in range(2, 5):
        clock.advance(1)
        before = counting.trips
        scheduler.tick()
        assert len(scheduler.sent) == second * 100
        assert counting.trips - before <= 5
    assert world.client.zcount(SCHEDULE, 0, world.now()) == 2600


def test_many_runs_on_time_do_not_free_the_late_ones(world: World, clock: Clock) -> None:
    """The runs on time take more than half of a batch, and the rate still holds."""
    late(world, 900)
    now = world.now()
    world.client.zadd(SCHEDULE, {f"{PREFIX}e{number}": now for number in range(60)})
    scheduler = paced(world, clock, 5)
    scheduler.tick()
    on_time = {f"e{number}" for number in range(60)}
    assert on_time <= set(scheduler.names)
    assert len(scheduler.sent) == 65
