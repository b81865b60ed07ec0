"""Tests that each later confirmation from RabbitMQ is assigned to its entry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from redbeat.schedulers import RedBeatScheduler
from tests.rabbitmq.conftest import CONFIRMS
from tests.rabbitmq.ledger import drain
from tests.rabbitmq.server import RabbitServer
from tests.scheduler.conftest import Clock, World

COUNT = 200
NAMES = [f"e{number}" for number in range(COUNT)]


@pytest.fixture
def world(rabbit: RabbitServer, redis_url: str, redis_client: redis.Redis) -> Iterator[World]:
    """Return a schedule that sends its messages to RabbitMQ."""
    app = Celery("tests", broker=rabbit.url, set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, timezone="UTC", **CONFIRMS)
    world = World(app, redis_client)
    yield world
    for scheduler in world.schedulers:
        scheduler.close()
    app.close()


def names(rabbit: RabbitServer) -> list[str]:
    """Remove the messages from the queue, and return the names of their entries."""
    return [message.entry for message in drain(rabbit.url)]


@pytest.mark.parametrize("window", [1, 30, 1000])
def test_all_are_confirmed(world: World, rabbit: RabbitServer, window: int) -> None:
    world.app.conf.redbeat_publish_window = window
    world.put_many(COUNT)
    world.scheduler_of(RedBeatScheduler).tick()
    assert sorted(names(rabbit)) == sorted(NAMES)
    assert {world.run_count(name) for name in NAMES} == {1}


def test_a_message_that_breaks_the_channel_delays_no_other(
    world: World, rabbit: RabbitServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Setup: RabbitMQ closes the channel for a message to an exchange that does not exist.

    Invariant: all other messages are sent and recorded once; this message is retried separately.
    """
    world.put_many(20, score=world.now() - 20)
    world.put("bad", score=world.now() - 30, options={"exchange": "missing", "routing_key": "x"})
    world.put_many(30, score=world.now() - 10)
    # The clock does not advance, so all messages are in one window.
    scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
    for _ in range(5):
        scheduler.tick()
    sent = names(rabbit)
    assert sorted(set(sent)) == sorted(f"e{number}" for number in range(30))
    assert {world.run_count(f"e{number}") for number in range(30)} == {1}
    assert world.run_count("bad") == 0
    assert "Could not send redbeat:bad, attempt 1" in caplog.text


def test_a_triggered_run_among_others(world: World, rabbit: RabbitServer) -> None:
    """A message that is confirmed separately does not consume another message's confirmation."""
    world.put_many(20, score=world.now() - 20)
    scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
    entry = RedBeatScheduler.Entry.from_key("redbeat:e7", app=world.app)
    entry.trigger()
    scheduler.tick()
    sent = names(rabbit)
    assert sorted(set(sent)) == sorted(f"e{number}" for number in range(20))
    assert sent.count("e7") == 2
    assert {world.run_count(f"e{number}") for number in range(20)} == {1}
