"""Redis goes away and comes back: the beat waits, says so once, and catches up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from tests.deployments import PREFIX
from tests.servers import RedisServer

from .conftest import LOCK, RecordingScheduler, World, interval_json


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of the test's own, which keeps what it is told on disk."""
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def frail(server: RedisServer) -> Iterator[World]:
    """A schedule in that server."""
    app = Celery("frail", broker="memory://", set_as_current=False)
    app.conf.update(
        redbeat_redis_url=server.url,
        redbeat_key_prefix=PREFIX,
        timezone="UTC",
        result_expires=None,
    )
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        world = World(app, client)
        yield world
        for scheduler in world.schedulers:
            scheduler.close()
    app.redbeat_redis.close()


def tick_until_gone(scheduler: RecordingScheduler, ticks: int = 10) -> list[float]:
    """Tick while Redis is away; return the waits."""
    return [scheduler.tick() for _ in range(ticks)]


def lines(log: pytest.LogCaptureFixture, words: str) -> int:
    """Return how many log lines contain ``words``."""
    return sum(words in record.getMessage() for record in log.records)


def test_killed_and_restarted(
    server: RedisServer, frail: World, log: pytest.LogCaptureFixture
) -> None:
    ran = frail.ago(30)
    frail.put("a", interval_json(60), ran, score=ran.timestamp() + 60)
    scheduler = frail.scheduler()
    scheduler.tick()
    server.kill()
    waits = tick_until_gone(scheduler)
    assert all(0 < wait <= 2 for wait in waits)
    assert waits == sorted(waits)
    assert lines(log, "Redis is not available") == 1
    server.restart()
    frail.put_meta("a", frail.ago(90))
    frail.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}a": 0})
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert frail.run_count("a") == 1
    assert lines(log, "Redis is back") == 1


def test_runs_that_are_out_are_recorded_afterwards(server: RedisServer, frail: World) -> None:
    frail.put("a", interval_json(60), frail.ago(90), score=1)
    frail.put("b", interval_json(60), frail.ago(90), score=2)
    scheduler = frail.scheduler()
    scheduler.tick()
    scheduler.sent.clear()
    for name in "ab":
        frail.put_meta(name, frail.ago(90))
        frail.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}{name}": 1})

    def crash(task: str) -> None:
        if task == "tasks.b":
            server.kill()

    scheduler.before_send = crash
    scheduler.tick()
    tick_until_gone(scheduler, 3)
    assert scheduler.names == ["a", "b"]
    server.restart()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a", "b"]
    assert [frail.run_count(name) for name in "ab"] == [1, 1]
    assert not frail.is_claimed("a")


def test_redis_came_back_empty(frail: World, log: pytest.LogCaptureFixture) -> None:
    """A server without persistence; static entries return, without a burst."""
    frail.app.conf.beat_schedule = {
        name: {"task": "t", "schedule": 3600} for name in ("s1", "s2", "s3")
    }
    scheduler = frail.scheduler()
    scheduler.tick()
    frail.client.flushall()
    scheduler.tick()
    scheduler.tick()
    assert frail.client.smembers(f"{PREFIX}:statics") == {"s1", "s2", "s3"}
    assert scheduler.sent == []
    assert lines(log, "The schedule in Redis is empty") == 1


def test_away_from_the_start(server: RedisServer, frail: World) -> None:
    server.kill()
    scheduler = frail.scheduler()
    assert scheduler.tick() > 0
    server.restart()
    frail.put("a")
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_close_while_it_is_away(
    server: RedisServer, frail: World, log: pytest.LogCaptureFixture
) -> None:
    scheduler = frail.scheduler()
    scheduler.tick()
    server.kill()
    scheduler.close()
    assert lines(log, "Could not release the lock") == 1
    server.restart()


def test_read_only_replica(frail: World, log: pytest.LogCaptureFixture) -> None:
    """A failover: the server we are connected to becomes a replica, then a master again."""
    scheduler = frail.scheduler()
    scheduler.tick()
    frail.put("a")
    frail.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert tick_until_gone(scheduler, 3)
    assert scheduler.sent == []
    frail.client.execute_command("REPLICAOF", "NO", "ONE")
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert lines(log, "Redis is not available") == 1


def test_out_of_memory_claims_nothing_and_goes_on_later(frail: World) -> None:
    frail.app.conf.redbeat_lock_key = None
    frail.put("a", interval_json(60), frail.ago(90))
    scheduler = frail.scheduler()
    frail.client.config_set("maxmemory", "1mb")
    frail.client.config_set("maxmemory", "1")
    assert scheduler.tick() > 0
    assert scheduler.sent == []
    assert not frail.is_claimed("a")
    frail.client.config_set("maxmemory", "0")
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert frail.client.get(LOCK) is None


def test_a_command_that_is_forbidden_is_no_fault_of_the_entries(
    world: World, redis_url: str, log: pytest.LogCaptureFixture
) -> None:
    """Setup: a user without HMGET. Fault: an entry is due. Invariant: it is not set aside, and the
    reason is logged once.
    """
    world.client.execute_command(
        "ACL", "SETUSER", "poor", "on", ">p", "~*", "&*", "+@all", "-hmget"
    )
    try:
        world.put("a")
        world.app.conf.redbeat_redis_url = redis_url.replace("//", "//poor:p@")
        scheduler = world.scheduler()
        for _ in range(3):
            scheduler.tick()
        assert scheduler.sent == []
        assert world.client.hlen(f".{PREFIX}:quarantine") == 0
        assert log.text.count("trying again") == 1
    finally:
        world.client.execute_command("ACL", "DELUSER", "poor")


class OwnTick(RecordingScheduler):
    """Runs what its mapping holds."""

    def tick(self, **_kwargs: Any) -> float:
        """Go through the schedule."""
        for entry in self.schedule.values():
            self.maybe_due(entry, **self._maybe_due_kwargs)
        return 1.0


def test_an_own_tick_after_a_start_without_redis(server: RedisServer, frail: World) -> None:
    frail.app.conf.beat_schedule = {"a": {"task": "t", "schedule": 3600}}
    server.kill()
    scheduler = frail.scheduler_of(OwnTick)
    server.restart()
    scheduler.tick()
    assert frail.score("a") == pytest.approx(frail.now() + 3600, abs=30)
