"""Most ticks of an idle beat only keep its lock and look for a due entry, or look at the lock."""

from __future__ import annotations

import pytest
from celery import Celery

from .conftest import BEATS, LOCK, QUARANTINE, STATICS, STATS, Clock, RecordingScheduler, World


@pytest.fixture
def idle(world: World, clock: Clock) -> RecordingScheduler:
    """A beat after a whole request; an entry is due later."""
    world.put("later", score=world.now() + 900)
    beat = world.scheduler_of(RecordingScheduler, clock)
    clock.advance(2)
    beat.tick()
    assert not beat.tick() < 1
    return beat


def calls(world: World) -> dict[str, int]:
    """Return how often each command ran since the last call."""
    stats = world.client.info("commandstats")
    world.client.config_resetstat()
    ignored = ("cmdstat_info", "cmdstat_config", "cmdstat_config|resetstat", "cmdstat_time")
    return {
        name.removeprefix("cmdstat_"): found["calls"]
        for name, found in stats.items()
        if name not in ignored
    }


def assert_few(found: dict[str, int], *names: str) -> None:
    """Assert that Redis carried out at most these commands, each once, perhaps in a script."""
    assert found.keys() <= {"evalsha", *names}
    assert set(found.values()) == {1}


def token_of(beat: RecordingScheduler) -> str:
    """Return the lock token of a beat."""
    assert beat.lock is not None
    return beat.lock.token


def test_an_idle_tick_only_keeps_the_lock(
    world: World, clock: Clock, idle: RecordingScheduler
) -> None:
    """The other commands run once a second, and the lock is renewed each time."""
    world.client.pexpire(LOCK, 5000)
    calls(world)
    idle.tick()
    assert_few(calls(world), "get", "pexpire", "zcard", "zrange", "zrangebyscore")
    assert world.client.pttl(LOCK) > 5000
    clock.advance(1)
    idle.tick()
    assert {"zadd", "hincrby", "scard", "hlen"} <= calls(world).keys()


def test_an_idle_tick_without_a_lock(app: Celery, world: World, clock: Clock) -> None:
    app.conf.redbeat_lock_key = None
    world.put("later", score=world.now() + 900)
    beat = world.scheduler_of(RecordingScheduler, clock)
    beat.tick()
    beat.tick()
    calls(world)
    beat.tick()
    assert_few(calls(world), "zadd", "zcard", "zrange", "zrangebyscore")
    world.put("new")
    beat.tick()
    assert [sent.name for sent in beat.sent] == ["new"]
    assert calls(world)["evalsha"] <= 3  # look, hold and record


def test_what_becomes_due_is_looked_at_in_the_same_round_trip(
    world: World, idle: RecordingScheduler
) -> None:
    world.put("new")
    calls(world)
    idle.tick()
    assert [sent.name for sent in idle.sent] == ["new"]
    assert calls(world)["evalsha"] <= 3  # look, hold and record


def test_lost_data_are_seen_at_the_next_tick(
    world: World, idle: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    world.put("later-2", score=world.now() + 900)
    idle.tick()
    world.client.flushall()
    idle.tick()
    assert "all 2 entries are gone" in log.text


def test_presence_counts_and_other_sets_are_seen_after_a_second(
    world: World, clock: Clock, idle: RecordingScheduler
) -> None:
    """Nothing that another program changes stays unseen for more than a second."""
    world.client.delete(BEATS)
    world.client.hdel(STATS, "last_tick")
    world.client.sadd(STATICS, "other")
    world.client.hset(QUARANTINE, "redbeat:other", "{}")
    idle.tick()
    assert not world.client.exists(BEATS)
    assert world.client.hget(STATS, "last_tick") is None
    clock.advance(1)
    idle.tick()
    assert world.client.zcard(BEATS) == 1
    assert world.client.hget(STATS, "last_tick") is not None


@pytest.fixture
def standby(world: World, clock: Clock, idle: RecordingScheduler) -> RecordingScheduler:
    """A beat that stands by, after a whole request."""
    beat = world.scheduler_of(RecordingScheduler, clock)
    beat.tick()
    assert world.client.get(LOCK) == token_of(idle)
    return beat


def test_a_standby_only_looks_at_the_lock(
    world: World, clock: Clock, standby: RecordingScheduler
) -> None:
    """Every few seconds, it stores its presence."""
    calls(world)
    standby.tick()
    assert_few(calls(world), "get", "pttl", "zadd")
    clock.advance(1)
    world.client.delete(BEATS)
    standby.tick()
    assert world.client.zcard(BEATS) == 1


@pytest.mark.parametrize("free", [True, False])
def test_a_standby_takes_a_free_lock_at_the_next_tick(
    world: World, idle: RecordingScheduler, standby: RecordingScheduler, free: bool
) -> None:
    world.put("new")
    if free:
        idle.close()
    else:
        world.client.set(LOCK, "other", px=60_000)
    standby.tick()
    assert [sent.name for sent in standby.sent] == (["new"] if free else [])
    assert world.client.get(LOCK) == (token_of(standby) if free else "other")


def test_a_lock_that_becomes_another_type_is_seen_at_the_next_tick(
    world: World, standby: RecordingScheduler
) -> None:
    world.client.delete(LOCK)
    world.client.lpush(LOCK, "x")
    standby.tick()
    assert not standby.sent
    problem = standby.beat.health.ready()
    assert "lock" in str(problem)
