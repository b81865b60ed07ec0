"""One tick sends and records each due entry once, and what it costs, also when it's idle."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from celery import Celery

from redbeat.beat.beat import LONGEST_WAIT
from tests.deployments import PREFIX

from .clients import CountingRedis
from .conftest import (
    BEATS,
    LOCK,
    QUARANTINE,
    SCHEDULE,
    STATICS,
    STATS,
    Clock,
    RecordingScheduler,
    World,
    interval_json,
)

PARKED = -1.0


def leading(world: World) -> RecordingScheduler:
    """Return a scheduler after its first ticks. Its clock never advances."""
    scheduler = world.scheduler(clock=Clock())
    for _ in range(2):  # the second one notes how many entries there are
        scheduler.tick()
    return scheduler


class TestRunning:
    def test_the_next_run_keeps_the_phase_and_missed_runs_coalesce(self, world: World) -> None:
        ran = world.ago(605)
        world.put("a", interval_json(60), ran)
        scheduler = leading(world)
        assert [m.scheduled_at for m in scheduler.sent] == [ran + timedelta(seconds=600)]
        assert world.score("a") == pytest.approx(ran.timestamp() + 660, abs=1e-5)

    def test_an_entry_due_at_this_moment_runs(self, world: World) -> None:
        """An entry whose score is too early runs at the time of its schedule."""
        world.put("a", interval_json(60), world.ago(60))
        world.put("b", interval_json(60), world.ago(55), score=world.now())
        assert leading(world).names == ["a"]
        assert world.score("b") == world.later(5)

    def test_many_ticks_of_a_short_interval_run_every_slot(self, world: World) -> None:
        world.put("a", interval_json(0.05), world.ago(0.05))
        scheduler = world.scheduler()
        while len(scheduler.sent) < 5:
            assert scheduler.tick() <= 0.06
        slots = [m.scheduled_at for m in scheduler.sent]
        steps = [(b - a) / timedelta(seconds=0.05) for a, b in pairwise(slots)]
        assert all(step == round(step) >= 1 for step in steps), steps
        assert len({m.id for m in scheduler.sent}) == len(slots)


class TestScores:
    def test_a_wrong_score_is_corrected(self, world: World) -> None:
        ran = world.ago(10)
        world.put("a", interval_json(60), ran)
        scheduler = leading(world)
        assert scheduler.sent == []
        assert world.score("a") == pytest.approx(ran.timestamp() + 60, abs=1e-5)
        assert world.run_count("a") == 0

    def test_a_finished_entry_is_parked_after_its_last_run(self, world: World) -> None:
        start = int(world.now()) - 100
        rule = {"__type__": "rrule", "freq": 6, "dtstart": start, "count": 2, "interval": 50}
        world.put("a", rule)
        scheduler = leading(world)
        assert scheduler.names == ["a"]
        assert world.score("a") == PARKED
        scheduler.tick()
        assert len(scheduler.sent) == 1

    def test_a_parked_entry_is_never_loaded(self, world: World) -> None:
        world.put("a", score=PARKED)
        scheduler = leading(world)
        assert scheduler.sent == []
        assert world.score("a") == PARKED


class TestWaiting:
    def test_the_wait_lasts_until_the_next_entry(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(58), score=world.now() + 2)
        assert 1.5 < world.scheduler().tick() <= 2

    def test_the_wait_lasts_a_few_seconds_at_most(self, world: World) -> None:
        assert world.scheduler().tick() == LONGEST_WAIT

    def test_parked_entries_shorten_no_wait(self, world: World) -> None:
        world.put("a", score=PARKED)
        assert world.scheduler().tick() == LONGEST_WAIT

    def test_the_wait_is_limited_by_max_interval(self, world: World) -> None:
        assert world.scheduler(max_interval=2).tick() == 2

    def test_a_short_lock_is_renewed_in_time(self, world: World) -> None:
        assert world.scheduler(lock_timeout=3).tick() == 1


class TestRoundTrips:
    @pytest.mark.parametrize(
        ("due", "limit"),
        [
            (0, 1),
            (1, 3),
            (500, 21),
            (501, 23),
        ],  # tests override how runs are sent: each is held first
    )
    def test_a_tick_takes_two_round_trips_per_50_due_entries(
        self,
        world: World,
        counting: CountingRedis,
        due: int,
        limit: int,
    ) -> None:
        scheduler = leading(world)
        world.put_many(due)
        trips, calls = counting.trips, world.calls()
        scheduler.tick()
        assert len(scheduler.sent) == due
        assert counting.trips - trips <= limit
        assert world.calls() - calls <= limit

    def test_an_idle_tick_takes_one_round_trip(self, world: World, counting: CountingRedis) -> None:
        scheduler = leading(world)
        world.put_many(3000, score=world.now() + 1000)
        trips = counting.trips
        scheduler.tick()
        assert counting.trips - trips == 1

    def test_the_backend_cleanup_entry_of_celery_is_stored(self, world: World) -> None:
        world.app.conf.result_expires = 3600
        leading(world)
        assert world.client.zrange(SCHEDULE, 0, -1) == [f"{PREFIX}celery.backend_cleanup"]

    def test_making_a_lazy_scheduler_costs_nothing(
        self, world: World, counting: CountingRedis
    ) -> None:
        world.app.conf.beat_schedule = {"a": {"task": "t", "schedule": 10}}
        world.scheduler(lazy=True)
        assert counting.trips == 0


class TestClosing:
    def test_close_before_any_tick(self, world: World, counting: CountingRedis) -> None:
        world.scheduler().close()
        assert counting.trips == 0

    def test_close_during_a_tick_waits_for_its_end(self, world: World) -> None:
        world.put("a")
        world.put("b")
        scheduler = world.scheduler()
        scheduler.before_send = lambda _task: scheduler.close()
        scheduler.tick()
        assert sorted(scheduler.names) == ["a", "b"]
        assert world.run_count("a") == world.run_count("b") == 1
        scheduler.close()
        assert world.client.get(f"{PREFIX}:lock") is None

    def test_a_closed_scheduler_can_tick_again(self, world: World) -> None:
        scheduler = leading(world)
        scheduler.close()
        world.put("a")
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]


# -- idle ticks ------------------------------------------------------------------------------------


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
