"""Fixtures with RabbitMQ as the broker and the schedule in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.faults.beats import Beats
from tests.faults.entries import Schedule
from tests.rabbitmq.server import RabbitServer

#: Timeout of one test in seconds; RabbitMQ may need half a minute to start.
TIMEOUT = 300

CONFIRMS = {"broker_transport_options": {"confirm_publish": True}}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the timeout of the tests in this directory."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def one_rabbit() -> Iterator[RabbitServer]:
    """Run one RabbitMQ for all tests, because it starts slowly."""
    with RabbitServer() as server:
        yield server


@pytest.fixture
def rabbit(one_rabbit: RabbitServer) -> RabbitServer:
    """Return a RabbitMQ without messages; a test that kills or freezes it must restart it."""
    one_rabbit.clear()
    return one_rabbit


@pytest.fixture
def schedule(redis_client: redis.Redis) -> Schedule:
    """Return the schedule, which is read and written with raw commands."""
    return Schedule(redis_client)


@pytest.fixture
def beats(
    tmp_path: Path, redis_url: str, rabbit: RabbitServer, schedule: Schedule
) -> Iterator[Beats]:
    """Return beats with publisher confirms, none of them started; they end with the test."""
    beats = Beats(tmp_path, redis_url, rabbit.url, schedule, CONFIRMS)
    yield beats
    beats.end()
