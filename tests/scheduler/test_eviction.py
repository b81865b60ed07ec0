"""The log message at startup if Redis may evict keys of the schedule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from redbeat import RedBeatKeyExpiryError
from tests.deployments import PREFIX
from tests.servers import RedisServer

from .conftest import World


@pytest.fixture(scope="module")
def evicting() -> Iterator[RedisServer]:
    """A server with a memory limit and an eviction policy that may evict any key."""
    with RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        yield server


@pytest.fixture
def full(evicting: RedisServer) -> Iterator[World]:
    """A schedule in the server that may evict keys."""
    app = Celery("full", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=evicting.url, redbeat_key_prefix=PREFIX, timezone="UTC")
    with redis.Redis.from_url(evicting.url, decode_responses=True) as client:
        client.flushall()
        client.config_set("maxmemory-policy", "allkeys-lru")
        world = World(app, client)
        yield world
        for scheduler in world.schedulers:
            scheduler.close()
    app.redbeat_redis.close()


def reported_levels(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the levels of the log messages about eviction."""
    return [record.levelname for record in log.records if "may evict" in record.getMessage()]


@pytest.mark.parametrize(
    ("mode", "levels"), [("ignore", []), ("warn", ["WARNING"]), ("error", ["ERROR"])]
)
def test_eviction_is_reported_once_and_the_beat_goes_on(
    full: World, log: pytest.LogCaptureFixture, mode: str, levels: list[str]
) -> None:
    full.app.conf.redbeat_key_expiry_check = mode
    full.put("a")
    scheduler = full.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert reported_levels(log) == levels


def test_raise_stops_the_beat(full: World) -> None:
    full.app.conf.redbeat_key_expiry_check = "raise"
    full.put("a")
    scheduler = full.scheduler()
    with pytest.raises(RedBeatKeyExpiryError, match=r"allkeys-lru.*redbeat_key_expiry_check"):
        scheduler.tick()
    assert scheduler.sent == []
    assert full.run_count("a") == 0


def test_error_is_the_default(full: World, log: pytest.LogCaptureFixture) -> None:
    full.scheduler().tick()
    assert reported_levels(log) == ["ERROR"]


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_harmless_policies_are_not_reported(
    full: World, log: pytest.LogCaptureFixture, policy: str
) -> None:
    full.client.config_set("maxmemory-policy", policy)
    full.scheduler().tick()
    assert reported_levels(log) == []


def test_a_server_without_a_memory_limit_is_not_reported(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    world.scheduler().tick()
    assert reported_levels(log) == []


def test_a_server_that_hides_its_policy_is_warned_about_once(
    log: pytest.LogCaptureFixture,
) -> None:
    app = Celery("managed", broker="memory://", set_as_current=False)
    with (
        RedisServer("--rename-command", "INFO", "", "--rename-command", "CONFIG", "") as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        app.conf.update(redbeat_redis_url=server.url, redbeat_key_prefix=PREFIX, timezone="UTC")
        world = World(app, client)
        world.put("a")
        scheduler = world.scheduler()
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert reported_levels(log) == ["WARNING"]
        scheduler.close()
        app.redbeat_redis.close()
