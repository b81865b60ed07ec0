"""Fixtures that every test may use: a real Redis server, and a Celery app that knows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.servers import RedisServer, free_port

#: Tests that need what few machines have: RabbitMQ, Chromium.
ONLY_WHEN_NAMED = [Path(__file__).parent / name for name in ("rabbitmq", "browser")]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests that need what few machines have, unless the command line names them."""
    if collection_path not in ONLY_WHEN_NAMED:
        return None
    start = config.invocation_params.dir
    paths = [(start / arg.partition("::")[0]).resolve() for arg in config.args]
    return None if any(path.is_relative_to(collection_path) for path in paths) else True


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for the whole run. A test that kills or freezes one starts its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of an empty Redis: the shared server, flushed before the test."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.script_flush()
    return redis_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client for looking at what is stored; it answers with text."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """A Celery app that is nobody's default: broker in memory, schedule in the empty Redis."""
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, timezone="UTC", enable_utc=True)
    yield app
    app.close()


@pytest.fixture
def unused_port() -> int:
    """A loopback port that nobody listens on."""
    return free_port()
