"""Tests that each confirmation of RabbitMQ reaches its message, with a channel of py-amqp."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from typing import Any

import pytest
from amqp import Channel, spec
from amqp.exceptions import NotFound
from amqp.serialization import dumps

from redbeat.beat.pipes import AmqpPipe


class RabbitConnection:
    """Stands in for a connection to RabbitMQ: it answers what a channel of py-amqp sends.

    A test chooses when messages are confirmed, refused or break the channel.
    """

    confirm_publish = True
    is_closing = False
    client_properties: dict[str, Any]

    def __init__(self) -> None:
        self.client_properties = {}
        self.channels: dict[int, Any] = {}
        self.transport: Any = self
        self.incoming: deque[tuple[Any, bytes]] = deque()
        #: The bodies of all messages, and the number of the last one since the channel opened.
        self.published: list[str] = []
        self.tag = 0
        #: The timeout of each wait for a reply that never came.
        self.timeouts: list[float | None] = []

    def _get_free_channel_id(self) -> int:
        return 1

    def having_timeout(self, _timeout: float | None) -> Any:
        return nullcontext()

    def frame_writer(self, _type: int, _channel: int, method: Any, _args: Any, body: Any) -> None:
        if method == spec.Basic.Publish:
            self.published.append(body)
            self.tag += 1
        elif method == spec.Confirm.Select:
            self.answer(spec.Confirm.SelectOk)
        elif method == spec.Channel.Open:
            self.tag = 0
            self.answer(spec.Channel.OpenOk, "S", "")

    def answer(self, method: Any, arguments: str = "", *values: Any) -> None:
        """Add a method that the channel reads at its next wait."""
        self.incoming.append((method, bytes(4) + dumps(arguments, values)))

    def acknowledge(self, tag: int, multiple: bool = False) -> None:
        self.answer(spec.Basic.Ack, "Lb", tag, multiple)

    def refuse(self, tag: int, multiple: bool = False) -> None:
        self.answer(spec.Basic.Nack, "Lbb", tag, multiple, False)

    def close_channel(self) -> None:
        self.answer(spec.Channel.Close, "BsBB", 404, "NOT_FOUND - no exchange", 60, 40)

    def drain_events(self, timeout: float | None = None) -> None:
        if not self.incoming:
            self.timeouts.append(timeout)
            raise TimeoutError("timed out")
        self.channels[1].dispatch_method(*self.incoming.popleft(), None)


@pytest.fixture
def rabbit() -> RabbitConnection:
    return RabbitConnection()


@pytest.fixture
def pipe(rabbit: RabbitConnection) -> AmqpPipe:
    return AmqpPipe(Channel(rabbit))


def publish(pipe: AmqpPipe, *bodies: str, **options: Any) -> None:
    """Publish messages without waiting, as the beat does."""
    for body in bodies:
        with pipe:
            pipe.channel.basic_publish(body, routing_key="celery", **options)


def refused(results: list[Exception | None]) -> list[int]:
    """Return the positions of the messages with an error."""
    return [position for position, error in enumerate(results) if error is not None]


def test_messages_are_sent_at_once_and_confirmed_later(
    rabbit: RabbitConnection, pipe: AmqpPipe
) -> None:
    publish(pipe, "a", "b")
    assert rabbit.published == ["a", "b"]
    assert (pipe.size, rabbit.timeouts) == (2, [])
    rabbit.acknowledge(1)
    rabbit.acknowledge(2)
    assert pipe.results() == [None, None]
    assert pipe.size == 0
    assert pipe.results() == []


@pytest.mark.parametrize("refused_tag", [1, 2, 3])
def test_a_refused_message_has_an_error_and_no_other(
    rabbit: RabbitConnection, pipe: AmqpPipe, refused_tag: int
) -> None:
    publish(pipe, "a", "b", "c")
    for tag in (3, 1, 2):
        (rabbit.refuse if tag == refused_tag else rabbit.acknowledge)(tag)
    results = pipe.results()
    assert refused(results) == [refused_tag - 1]
    assert "basic.nack" in str(results[refused_tag - 1])


def test_one_confirmation_of_several_messages(rabbit: RabbitConnection, pipe: AmqpPipe) -> None:
    publish(pipe, "a", "b", "c", "d")
    rabbit.acknowledge(2, multiple=True)
    rabbit.refuse(4, multiple=True)
    assert refused(pipe.results()) == [2, 3]


def test_a_later_message_keeps_its_own_confirmation(
    rabbit: RabbitConnection, pipe: AmqpPipe
) -> None:
    publish(pipe, "a", "b")
    rabbit.acknowledge(2, multiple=True)
    assert refused(pipe.results()) == []
    publish(pipe, "c", "d")
    rabbit.refuse(4)
    rabbit.acknowledge(3)
    assert refused(pipe.results()) == [1]


def test_without_a_confirmation_in_time_a_message_has_an_error(
    rabbit: RabbitConnection, pipe: AmqpPipe
) -> None:
    publish(pipe, "a", confirm_timeout=3)
    publish(pipe, "b")
    rabbit.acknowledge(1)
    assert refused(pipe.results()) == [1]
    assert rabbit.timeouts == [3]


def test_a_closed_channel_fails_what_is_unconfirmed_and_reopens(
    rabbit: RabbitConnection, pipe: AmqpPipe
) -> None:
    publish(pipe, "a", "b", "c")
    rabbit.acknowledge(1)
    rabbit.close_channel()
    results = pipe.results()
    assert refused(results) == [1, 2]
    assert isinstance(results[1], NotFound)
    publish(pipe, "d")
    assert rabbit.tag == 1
    rabbit.acknowledge(1)
    assert pipe.results() == [None]


def test_a_channel_that_closed_between_two_messages(
    rabbit: RabbitConnection, pipe: AmqpPipe
) -> None:
    publish(pipe, "a")
    rabbit.close_channel()
    with pytest.raises(NotFound):
        rabbit.drain_events()
    publish(pipe, "b")
    rabbit.acknowledge(1)
    assert refused(pipe.results()) == [0]


def test_a_channel_that_closed_before_the_wait(rabbit: RabbitConnection, pipe: AmqpPipe) -> None:
    publish(pipe, "a")
    rabbit.close_channel()
    with pytest.raises(NotFound):
        rabbit.drain_events()
    assert refused(pipe.results()) == [0]
    assert rabbit.timeouts == []  # no confirmation can come


def test_a_message_outside_the_context_waits_for_its_own_confirmation(
    rabbit: RabbitConnection, pipe: AmqpPipe
) -> None:
    publish(pipe, "a")
    rabbit.acknowledge(1)
    rabbit.acknowledge(2)
    pipe.channel.basic_publish("b", routing_key="celery")
    assert not rabbit.incoming
    publish(pipe, "c")
    rabbit.refuse(3)
    assert refused(pipe.results()) == [1]
