"""Tests of the counts that a beat stores in Redis, for each outcome of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.beat.upkeep import TIDY_INTERVAL
from redbeat.management.schedule import Schedule
from redbeat.metrics.counters import KINDS, LATENESS, split
from redbeat.metrics.counts import total_stats
from redbeat.storage.store import store_of
from tests.scheduler.clients import Wire
from tests.scheduler.conftest import STATS, Clock, RecordingScheduler, World, once
from tests.servers import RedisServer

HOUR = 3600


def counts(world: World) -> dict[str, int]:
    """Return the stored counts, in total and for each entry."""
    stats = world.client.hgetall(STATS)
    return {
        field: int(number)
        for field, number in stats.items()
        if field in KINDS or split(field) is not None
    }


def run(world: World, ticks: int = 1, **kwargs: Any) -> RecordingScheduler:
    """Return a leading scheduler after ``ticks`` ticks; one more tick stores all counts."""
    scheduler = world.scheduler(**kwargs)
    for _ in range(ticks + 1):
        scheduler.tick()
    return scheduler


def fail(message: str = "") -> None:
    """Raise an error, like a failing function of a user."""
    raise ValueError(message)


def test_dispatched_runs_are_counted(world: World) -> None:
    world.put_many(7)
    world.put("late", last_run_at=world.ago(60 + 3), score=world.now() - 3)
    run(world)
    found = counts(world)
    assert found == {"dispatched": 8, "dispatched late": 1} | {
        f"dispatched e{number}": 1 for number in range(7)
    }
    stats = world.client.hgetall(STATS)
    assert sum(int(stats.get(field, 0)) for field in LATENESS.fields) == 8
    assert 3e6 <= int(stats["lateness:sum"]) < 60e6
    assert sum(int(stats.get(field, 0)) for field in ("lateness:5", "lateness:10")) == 1


@pytest.mark.standalone
def test_a_beat_that_stops_after_its_last_run_has_counted_that(
    world: World, redis_url: str
) -> None:
    world.app.conf.broker_url = redis_url
    world.put("a")
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    scheduler.close()
    assert counts(world) == {"dispatched": 1, "dispatched a": 1}


def test_two_beats_add_up(world: World) -> None:
    world.put("a")
    run(world).close()
    world.client.zadd("redbeat::schedule", {"redbeat:a": 0})
    entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app)
    entry.trigger()
    run(world)
    assert counts(world) == {"dispatched": 2, "dispatched a": 2}


def test_a_triggered_run_is_not_late(world: World) -> None:
    RedBeatSchedulerEntry("a", "t", HOUR, app=world.app).save()
    Schedule(world.app)["a"].trigger()
    run(world)
    assert counts(world) == {"dispatched": 1, "dispatched a": 1}
    assert "lateness:sum" not in world.client.hgetall(STATS)


def test_failed_and_repeated_runs_are_counted(world: World) -> None:
    world.put("a")
    scheduler = world.scheduler()
    scheduler.before_send = once(fail)
    for _ in range(3):
        scheduler.tick()
    assert counts(world) == {"failed": 1, "failed a": 1, "retried": 1, "retried a": 1}
    world.client.zadd("redbeat::schedule", {"redbeat:a": 1})
    scheduler.tick()
    scheduler.tick()
    assert counts(world)["dispatched a"] == 1


def test_lost_runs_are_counted(world: World) -> None:
    world.app.conf.redbeat_delivery = "at_most_once"
    world.put("a")
    world.put("b")
    scheduler = world.scheduler()
    scheduler.before_send = lambda task: fail() if task == "tasks.a" else None
    for _ in range(3):
        scheduler.tick()
    assert counts(world) == {"failed": 1, "failed a": 1, "dispatched": 1, "dispatched b": 1}


def test_missed_runs_are_counted(world: World) -> None:
    world.put("a", last_run_at=world.ago(5.5 * 60))
    run(world)
    assert counts(world)["missed a"] == counts(world)["missed"] == 4


def test_runs_that_are_too_late_are_counted(world: World) -> None:
    entry = RedBeatSchedulerEntry("a", "t", HOUR, app=world.app, misfire_grace_time=1)
    entry.last_run_at = world.ago(2.5 * HOUR)
    entry.save()
    world.client.zadd("redbeat::schedule", {"redbeat:a": 0})
    run(world)
    assert counts(world) == {"missed": 2, "missed a": 2}


def test_skipped_runs_are_counted(world: World) -> None:
    world.put("a", last_run_at=world.ago(90))
    world.client.hset("redbeat:a", "policy", '{"overlap": "skip"}')
    world.put_running("a", world.now() + HOUR)
    run(world)
    assert counts(world) == {"skipped": 1, "skipped a": 1}


def test_quarantined_entries_are_counted(world: World) -> None:
    world.client.hset("redbeat:bad", "definition", "{")
    world.client.zadd("redbeat::schedule", {"redbeat:bad": 0})
    run(world)
    assert counts(world) == {"quarantined": 1, "quarantined bad": 1}


def test_a_name_of_any_kind(world: World) -> None:
    name = "two words\nand a line, \N{SNOWMAN} \N{PILE OF POO}"
    world.put(name)
    run(world)
    assert counts(world) == {"dispatched": 1, f"dispatched {name}": 1}


def test_too_many_entries(world: World) -> None:
    world.app.conf.redbeat_metrics_entries = 3
    world.put_many(4)
    scheduler = run(world)
    assert counts(world) == {"dispatched": 4}
    for gone in ("redbeat:e2", "redbeat:e3"):
        world.client.zrem("redbeat::schedule", gone)
        world.client.delete(gone)
    scheduler.tick()
    world.put("new")
    scheduler.tick()
    scheduler.tick()
    assert counts(world) == {"dispatched": 5, "dispatched new": 1}


def test_counting_takes_no_round_trip(world: World, clock: Clock) -> None:
    """An idle beat sends its counts at the first tick after a second."""
    scheduler = run(world, clock=clock)
    clock.advance(1.0)
    before = world.calls()
    scheduler.tick()
    assert world.calls() == before + 1
    recorded = int(world.client.hget(STATS, "round_trips"))
    clock.advance(1.0)
    scheduler.tick()
    assert int(world.client.hget(STATS, "round_trips")) == recorded + 1


def test_a_standby_writes_nothing(app: Celery, world: World) -> None:
    run(world)
    before = world.client.hgetall(STATS)
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.update(redbeat_redis_url=app.conf.redbeat_redis_url, result_expires=None)
    standby = run(world, 5, app=other)
    assert standby.lock is not None
    assert not standby.lock.leading
    assert world.client.hgetall(STATS) == before


def test_counts_of_a_lost_reply_are_added_once(world: World, wire: Wire) -> None:
    """Setup: five due entries. Fault: the reply of a script is lost. Invariant: counts are added
    once.
    """
    world.put_many(5)
    scheduler = world.scheduler()
    wire.lose(lambda: counts(world).get("dispatched"))
    for _ in range(4):
        scheduler.tick()
    assert wire.lost == 1
    assert len(scheduler.sent) == 5
    assert counts(world)["dispatched"] == 5


def test_a_key_that_holds_something_else(world: World) -> None:
    world.client.set(STATS, "mine")
    world.put("a")
    scheduler = run(world)
    assert scheduler.names == ["a"]
    assert world.client.get(STATS) == "mine"
    assert total_stats(store_of(world.app).parts) == {}


@pytest.fixture
def full(server: RedisServer) -> Iterator[World]:
    """Yield a world on a separate server whose memory the test can limit."""
    app = Celery("full", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=server.url, timezone="UTC")
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        world = World(app, client)
        yield world
        for scheduler in world.schedulers:
            scheduler.close()
        app.redbeat_redis.close()


def test_no_memory_for_counts(full: World) -> None:
    """An idle beat keeps its lock even if Redis has no memory for the counts."""
    scheduler = run(full)
    before = full.client.hgetall(STATS)
    full.client.config_set("maxmemory", "1")
    full.client.pexpire("redbeat::lock", 1000_000)
    scheduler.tick()
    scheduler.tick()
    assert full.client.pttl("redbeat::lock") > 1000_000, "the lock is not renewed"
    assert full.client.hgetall(STATS) == before
    full.client.config_set("maxmemory", "0")
    full.put("a")
    scheduler.tick()
    scheduler.tick()
    assert counts(full) == {"dispatched": 1, "dispatched a": 1}


def test_an_idle_beat_removes_counts_of_deleted_entries(world: World, clock: Clock) -> None:
    world.put("a")
    scheduler = run(world, clock=clock)
    RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app).delete()
    clock.advance(TIDY_INTERVAL - 1)
    scheduler.tick()
    assert "dispatched a" in counts(world)
    clock.advance(2)
    scheduler.tick()
    assert counts(world) == {"dispatched": 1}


def test_the_name_is_taken(world: World) -> None:
    with pytest.raises(ValueError, match="RedBeat uses itself"):
        RedBeatSchedulerEntry(":stats", "t", HOUR, app=world.app).save()
