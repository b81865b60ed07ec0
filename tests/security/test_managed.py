"""Servers that lack commands, as managed offerings do, and both protocols of Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from tests.acceptance.processes import Process, Project
from tests.security.scenario import overdue
from tests.servers import RedisServer
from tests.waiting import wait_until

#: What cloud providers take away or rename.
MANAGED = ("CONFIG", "CLIENT", "INFO", "ACL", "MONITOR", "SHUTDOWN", "DEBUG", "KEYS", "FLUSHALL")


def without(*commands: str, to: str = "", password: str | None = None) -> RedisServer:
    """Return a server that lacks commands, or has them under another name."""
    rules = [("--rename-command", name, to and f"{to}-{name}") for name in commands]
    return RedisServer(*(word for rule in rules for word in rule), password=password)


@pytest.fixture(
    params=["", pytest.param("secret", marks=pytest.mark.long)], ids=["disabled", "renamed"]
)
def managed(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server as a managed offering has it."""
    with without(*MANAGED, to=request.param) as server:
        yield server


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.long)], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    """A version of the protocol of Redis."""
    version: int = request.param
    return version


def settings(server: RedisServer, protocol: int) -> dict[str, Any]:
    """Return the settings of an app that speaks this protocol."""
    return {
        "redbeat_redis_url": server.url,
        "redbeat_redis_options": {"protocol": protocol},
        "task_ignore_result": True,
    }


def run_one(project: Project, server: RedisServer, protocol: int) -> Process:
    """Start a beat, save an entry from another program, wait for its message, stop the beat."""
    mine = settings(server, protocol)
    mine.pop("task_ignore_result")
    beat = project.beat(settings=mine)
    beat.wait_for("Acquired lock")
    web = Celery("web", broker="memory://", set_as_current=False)
    web.conf.update(mine)
    overdue("dynamic", web).save()
    popped: Any = wait_until(lambda: project.client.blpop(["celery"], timeout=1), 30, "a message")
    assert json.loads(popped[1])["headers"]["periodic_task_name"] == "dynamic"
    assert web.redbeat_redis.connection_pool.connection_kwargs["protocol"] == protocol
    web.redbeat_redis.close()
    assert beat.stop() == 0
    return beat


def complaints(process: Process) -> list[str]:
    """Return the lines that a beat logged as warnings or worse."""
    return [line for line in process.said().splitlines() if "WARNING/" in line or "ERROR/" in line]


def test_one_warning_at_most(project: Project, managed: RedisServer, protocol: int) -> None:
    beat = run_one(project, managed, protocol)
    (line,) = complaints(beat)
    assert "Cannot tell whether Redis may evict keys" in line
    assert "Traceback" not in beat.said()


@pytest.mark.long
def test_no_warning_where_info_is_left(project: Project, protocol: int) -> None:
    with without("CONFIG", "CLIENT") as server:
        assert complaints(run_one(project, server, protocol)) == []


def test_eviction_is_noticed_without_config(project: Project) -> None:
    limit = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    names = ("--rename-command", "CONFIG", "", "--rename-command", "CLIENT", "")
    with RedisServer(*limit, *names) as server:
        (line,) = complaints(run_one(project, server, 2))
        assert "Redis may evict keys of the schedule" in line
        with redis.Redis.from_url(server.url) as client, pytest.raises(redis.ResponseError):
            client.config_get("maxmemory")
