"""The publisher sends messages to a Redis broker while other messages are in flight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.beat.loading import Attempt
from redbeat.beat.publisher import Publisher
from tests.servers import RedisServer
from tests.waiting import wait_until


class Sender:
    """A publisher with a producer of an app and a client of the broker."""

    def __init__(self, server: RedisServer, window: int) -> None:
        self.app = Celery(broker=server.url, set_as_current=False)
        self.broker: Any = redis.Redis.from_url(server.url)
        self.connection: Any = self.app.connection_for_write()
        self.outbox = Publisher(window, time.monotonic)
        self.producer = self.new_producer()

    def new_producer(self) -> Any:
        """Return a producer with its own channel."""
        return self.app.amqp.Producer(self.connection.clone())

    def publish(self, *names: str, queue: str = "celery", producer: Any = None) -> None:
        """Publish one message for each name."""
        anything: Any = None
        entries: tuple[Any, ...] = names
        for name in entries:
            producer = producer or self.producer
            with self.outbox.publishing(producer):
                self.app.send_task(name, producer=producer, queue=queue)
                self.outbox.add(Attempt(name, anything, "", 0.0))

    def count(self) -> int:
        """Return the number of messages in the queue ``celery`` of the broker."""
        return int(self.broker.llen("celery"))


def names(attempts: list[Attempt]) -> str:
    return "".join(str(attempt.entry) for attempt in attempts)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def sender(server: RedisServer) -> Iterator[Sender]:
    sender = Sender(server, window=10)
    # With the first message, kombu declares the queue and queries its bindings.
    sender.publish("0")
    assert names(sender.outbox.deliver()) == "0"
    sender.broker.flushall()
    yield sender
    sender.outbox.close()
    sender.connection.release()


def test_publishing_does_not_wait_for_replies(sender: Sender) -> None:
    sender.publish("a", "b")
    assert sender.count() == 0
    assert sender.outbox.advance() == []
    wait_until(lambda: sender.count() == 2)
    sender.publish("c")
    assert names(sender.outbox.advance()) == "ab"
    assert names(sender.outbox.deliver()) == "c"
    assert sender.outbox.deliver() == []
    assert sender.count() == 3


def test_all_are_delivered_in_their_order(sender: Sender) -> None:
    sender.publish("a")
    sender.outbox.advance()
    sender.publish("b", "c")
    assert names(sender.outbox.deliver()) == "abc"
    assert sender.count() == 3


def test_half_of_the_window_may_be_in_flight(sender: Sender) -> None:
    long_ago = -1.0
    sender.publish(*"abcd")
    assert not sender.outbox.should_flush(long_ago)
    sender.publish("e")
    assert sender.outbox.should_flush(long_ago)
    sender.outbox.advance()
    assert not sender.outbox.should_flush(long_ago)
    sender.publish(*"fghij")
    assert sender.outbox.should_flush(long_ago)


def test_an_error_affects_its_own_message_only(sender: Sender) -> None:
    sender.publish("0", queue="crooked")
    sender.outbox.deliver()
    sender.broker.set("crooked", "no list")
    sender.publish("a")
    sender.publish("b", queue="crooked")
    sender.publish("c")
    sender.outbox.advance()
    sender.publish("d")
    messages = sender.outbox.deliver()
    assert names(messages) == "abcd"
    assert [message.entry for message in messages if message.error] == ["b"]
    assert "WRONGTYPE" in str(messages[1].error)


def test_the_broker_dies_while_messages_are_in_flight(sender: Sender, server: RedisServer) -> None:
    """Setup: two messages are in flight, and a third is not written yet.

    Fault: the broker dies.

    Invariant: all three messages get an error.
    """
    server.pause()
    sender.publish("a", "b")
    sender.outbox.advance()
    sender.publish("c")
    server.kill()
    messages = sender.outbox.deliver()
    assert names(messages) == "abc"
    assert all(message.error for message in messages)


def test_messages_of_another_channel_are_delivered_too(sender: Sender) -> None:
    sender.publish("a")
    sender.outbox.advance()
    sender.publish("b", producer=sender.new_producer())
    assert names(sender.outbox.deliver()) == "ab"
    assert sender.count() == 2
