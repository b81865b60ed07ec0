"""Tests of servers without some commands, as at cloud providers, with RESP2 and RESP3."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from tests.acceptance.processes import Project
from tests.docs.blocks import ROOT
from tests.scheduler.conftest import RecordingScheduler
from tests.security.scenario import overdue
from tests.servers import RedisServer
from tests.waiting import wait_until

#: Commands that cloud providers remove or rename.
MANAGED = ("CONFIG", "CLIENT", "INFO", "ACL", "MONITOR", "SHUTDOWN", "DEBUG", "KEYS", "FLUSHALL")


def server_without(*commands: str, to: str = "", password: str | None = None) -> RedisServer:
    """Return a server on which these commands are removed, or renamed if ``to`` is set."""
    rules = [("--rename-command", name, to and f"{to}-{name}") for name in commands]
    return RedisServer(*(word for rule in rules for word in rule), password=password)


@pytest.fixture(params=["", "secret"], ids=["disabled", "renamed"])
def managed(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """Yield a server with the restrictions of a cloud provider."""
    with server_without(*MANAGED, to=request.param) as server:
        yield server


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    """Return the version of the Redis protocol, RESP2 or RESP3."""
    version: int = request.param
    return version


def settings(server: RedisServer, protocol: int) -> dict[str, Any]:
    """Return the settings of an app that uses this protocol version."""
    return {
        "redbeat_redis_url": server.url,
        "redbeat_redis_options": {"protocol": protocol},
        "result_expires": None,
    }


def run_one(server: RedisServer, protocol: int, log: pytest.LogCaptureFixture) -> list[str]:
    """Run a beat that sends an entry saved by another program; return the beat's warnings."""
    beat_app, web = (Celery(name, broker="memory://", set_as_current=False) for name in "bw")
    for app in (beat_app, web):
        app.conf.update(settings(server, protocol))
    beat = RecordingScheduler(beat_app)
    beat.tick()
    overdue("dynamic", web).save()
    beat.tick()
    beat.close()
    assert "dynamic" in beat.names
    for app in (beat_app, web):
        assert app.redbeat_redis.connection_pool.connection_kwargs["protocol"] == protocol
        app.redbeat_redis.close()
    assert "Acquired lock" in log.text
    assert "Traceback" not in log.text
    return [record.getMessage() for record in log.records if record.levelname != "INFO"]


def test_one_warning_at_most(
    managed: RedisServer, protocol: int, log: pytest.LogCaptureFixture
) -> None:
    (line,) = run_one(managed, protocol, log)
    assert "Cannot tell whether Redis may evict keys" in line


def test_no_warning_if_info_is_available(protocol: int, log: pytest.LogCaptureFixture) -> None:
    with server_without("CONFIG", "CLIENT") as server:
        assert run_one(server, protocol, log) == []


@pytest.mark.long
def test_a_real_beat_notices_eviction_without_config(project: Project) -> None:
    limit = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    names = ("--rename-command", "CONFIG", "", "--rename-command", "CLIENT", "")
    with RedisServer(*limit, *names) as server:
        beat = project.beat(settings={"redbeat_redis_url": server.url})
        beat.wait_for("Redis may evict keys of the schedule")
        assert beat.stop() == 0
        lines = beat.output().splitlines()
        assert len([line for line in lines if "WARNING/" in line or "ERROR/" in line]) == 1
        with redis.Redis.from_url(server.url) as client, pytest.raises(redis.ResponseError):
            client.config_get("maxmemory")


def test_the_page_names_the_commands_that_the_tests_disable() -> None:
    page = (ROOT / "docs" / "deployment" / "managed.rst").read_text(encoding="utf-8")
    text = page.partition("servers of our own, on which")[2].partition("are disabled")[0]
    assert re.findall(r"``(\w+)``", text) == [*MANAGED]


@pytest.fixture
def shards_behind_one_address() -> Iterator[RedisServer]:
    """Yield a server with hash slots, to which clients connect as to a single server."""
    with RedisServer("--cluster-enabled", "yes") as server:
        with redis.Redis.from_url(server.url) as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"))
        yield server


def test_shards_behind_one_address_need_a_hash_tag(
    shards_behind_one_address: RedisServer, log: pytest.LogCaptureFixture
) -> None:
    address = settings(shards_behind_one_address, 2)
    for conf in (address, {**address, "redbeat_key_prefix": "{redbeat}:"}):
        app = Celery("b", broker="memory://", set_as_current=False)
        app.conf.update(conf)
        log.clear()
        beat = RecordingScheduler(app)
        beat.tick()
        beat.close()
        app.redbeat_redis.close()
        assert ("don't hash to the same slot" in log.text) == (conf is address)
    assert "Acquired lock" in log.text
