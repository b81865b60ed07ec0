"""Messages on the wire together: written one after the other, and waited for together.

What a producer publishes in the context of a pipe is on its way after :meth:`Pipe.leave`, and has
an outcome after :meth:`Pipe.answers`. Nothing above this module knows what kind of broker it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Protocol

from redis.exceptions import RedisError, ResponseError

from redbeat.connection.borrowing import connect, connection_like

__all__ = ("AmqpPipe", "Pipe", "RedisPipe", "pipe_of")

#: What breaks a connection to Redis, so that nobody knows what became of the rest.
BROKEN: Final = (RedisError, OSError)

#: Times that what a broken connection left without an answer is sent again.
REPEATS: Final = 1


class ChannelClosedError(Exception):
    """What was on its way on a channel was not confirmed, because of one of the messages."""


class Pipe(Protocol):
    """Messages that one channel has collected, and those of them that are on their way."""

    channel: Any

    #: Whether an error on the channel may be about a message that was published before.
    shares_errors: bool

    @property
    def size(self) -> int:
        """How many operations of the broker were collected since :meth:`leave`."""

    @property
    def nbytes(self) -> int:
        """How many bytes they take, as far as this process has to keep them."""

    def __enter__(self) -> None:
        """From now on publishing on the channel does not wait for the broker."""

    def __exit__(self, *exc_info: object) -> None:
        """It waits again."""

    def leave(self) -> None:
        """Send what was collected, and wait for nothing; nothing else may be on its way.

        Raises nothing of its own: :meth:`answers` tells what went wrong.
        """

    def answers(self) -> list[Exception | None]:
        """Wait for the broker; return for each operation that left why it failed, else None.

        Raises nothing of its own; afterwards nothing is on its way.
        """

    def close(self) -> None:
        """Let go of what belongs to the pipe; the channel stays as it is."""


def pipe_of(channel: Any) -> Pipe | None:
    """Return a pipe for a channel of kombu, None for a transport that has no use for one.

    No network traffic. Redis in all its forms has; so has RabbitMQ where it confirms what is
    published. Where it does not, nothing is waited for anyhow.
    """
    if hasattr(channel, "conn_or_acquire"):
        return RedisPipe(channel)
    confirms = getattr(channel, "basic_publish_confirm", None)
    # By equality: a bound method is made anew at each look.
    if confirms is not None and channel.basic_publish == confirms and not channel._confirm_selected:
        return AmqpPipe(channel)
    return None


@dataclass(slots=True)
class Flight:
    """Commands that were sent together, and for each the places of what it does."""

    commands: list[Any]
    places: list[list[int]]
    size: int
    #: Why they could not be sent.
    error: Exception | None = None

    def outcomes(self, answers: list[Exception | None]) -> list[Exception | None]:
        """Return for each operation what its command was answered."""
        outcomes: list[Exception | None] = [None] * self.size
        for places, answer in zip(self.places, answers, strict=True):
            if answer is not None:
                for place in places:
                    outcomes[place] = answer
        return outcomes


class RedisPipe:
    """Commands of a Redis channel, sent in one write: one round trip for all of them.

    Messages for one queue are one command: it gets all of them, in their order, or none. They have
    a connection of their own, as kombu closes those of its pool when a publish of its own fails.
    """

    shares_errors = False

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.nbytes = 0
        self.size = 0
        with channel.conn_or_acquire() as client:
            self._client = client
        # Of kombu's own kind, which puts its prefix before the keys.
        self._commands = client.pipeline(transaction=False)
        self._connection = connection_like(self._commands.connection_pool)
        #: The messages for each queue, and their places among the operations.
        self._queues: dict[str, tuple[list[Any], list[int]]] = {}
        #: The places of what each of the commands does.
        self._places: list[list[int]] = []
        self._flight: Flight | None = None

    def __enter__(self) -> None:
        self.channel.conn_or_acquire = self._acquire

    def __exit__(self, *exc_info: object) -> None:
        del self.channel.conn_or_acquire

    @contextmanager
    def _acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self

    def __getattr__(self, name: str) -> Any:
        """What is no message, such as a look at the bindings of an exchange, is done at once."""
        return getattr(self._client, name)

    def lpush(self, key: str, message: Any) -> None:
        messages, places = self._queues.setdefault(key, ([], []))
        messages.append(message)
        self._collected(places, message)

    def publish(self, topic: str, message: Any) -> None:
        self._commands.publish(topic, message)
        self._places.append([])
        self._collected(self._places[-1], message)

    def _collected(self, places: list[int], message: Any) -> None:
        places.append(self.size)
        self.size += 1
        self.nbytes += len(message)

    def leave(self) -> None:
        for key, (messages, places) in self._queues.items():
            self._commands.lpush(key, *messages)
            self._places.append(places)
        commands = [args for args, _ in self._commands.command_stack]
        self._commands.reset()
        self._flight = flight = Flight(commands, self._places, self.size)
        self._queues, self._places, self.size, self.nbytes = {}, [], 0, 0
        if commands:
            flight.error = self._write(commands)

    def answers(self) -> list[Exception | None]:
        """As :meth:`Pipe.answers`. One round trip, and another when the connection was broken."""
        flight, self._flight = self._flight, None
        if flight is None:
            return []
        answers: list[Exception | None] = []
        error = flight.error or self._read(len(flight.commands), answers)
        for _ in range(REPEATS):
            rest = flight.commands[len(answers) :]
            if error is not None:
                error = self._write(rest) or self._read(len(rest), answers)
        answers += [error] * (len(flight.commands) - len(answers))
        return flight.outcomes(answers)

    def close(self) -> None:
        self._connection.disconnect()

    def _write(self, commands: list[Any]) -> Exception | None:
        """Send commands; return what broke the connection."""
        connection = self._connection
        try:
            connect(connection)
            connection.send_packed_command(connection.pack_commands(commands))
        except BROKEN as error:
            connection.disconnect()
            return error
        except BaseException:
            connection.disconnect()
            raise
        return None

    def _read(self, count: int, answers: list[Exception | None]) -> Exception | None:
        """Note answers as they come; return what broke the connection."""
        connection = self._connection
        try:
            for _ in range(count):
                try:
                    connection.read_response()
                    answers.append(None)
                except ResponseError as error:
                    answers.append(error)
        except BROKEN as error:
            connection.disconnect()
            return error
        except BaseException:
            connection.disconnect()
            raise
        return None


class AmqpPipe:
    """Messages of a RabbitMQ channel that are sent at once, and confirmed by and by."""

    nbytes = 0
    shares_errors = True

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._tag = 0
        self._waiting: dict[int, int] = {}
        self._outcomes: list[Exception | None] = []
        #: How many of these had left by :meth:`leave`.
        self._left = 0
        self._timeout: float | None = None
        channel.events["basic_ack"].add(self._acknowledged)
        channel.events["basic_nack"].add(self._refused)

    @property
    def size(self) -> int:
        return len(self._outcomes) - self._left

    def __enter__(self) -> None:
        self.channel.basic_publish = self._publish

    def __exit__(self, *exc_info: object) -> None:
        self.channel.basic_publish = self._counted

    def _select(self) -> None:
        """Ask for confirmations. A round trip the first time, and after the channel was closed.

        It then opened itself again, and numbers its messages from one.
        """
        if self.channel._confirm_selected:
            return
        self._give_up(ChannelClosedError("RabbitMQ closed the channel"))
        self._tag = 0
        self.channel.confirm_select()
        self.channel._confirm_selected = True

    def _counted(self, *args: Any, **kwargs: Any) -> Any:
        """Publish outside the pipe: the broker numbers these messages too."""
        # It takes the next confirmation for its own.
        self._drain(len(self._outcomes))
        self._select()
        self._tag += 1
        return self.channel.basic_publish_confirm(*args, **kwargs)

    def _publish(self, *args: Any, **kwargs: Any) -> Any:
        confirm, timeout = kwargs.pop("confirm_timeout", None), kwargs.get("timeout")
        self._timeout = confirm or timeout or self._timeout
        self._select()
        result = self.channel._basic_publish(*args, **kwargs)
        self._tag += 1
        self._waiting[self._tag] = len(self._outcomes)
        self._outcomes.append(None)
        return result

    def _acknowledged(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, None)

    def _refused(self, tag: int, multiple: bool, *_requeue: Any) -> None:
        self._settle(tag, multiple, RuntimeError("RabbitMQ refused the message (basic.nack)"))

    def _settle(self, tag: int, multiple: bool, error: Exception | None) -> None:
        # They wait in the order of their numbers.
        tags = list(takewhile(lambda one: one <= tag, self._waiting)) if multiple else [tag]
        for one in tags:
            place = self._waiting.pop(one, None)
            if place is not None:
                self._outcomes[place] = error

    def leave(self) -> None:
        """They are on their way already."""
        self._left = len(self._outcomes)

    def answers(self) -> list[Exception | None]:
        left, self._left = self._left, 0
        self._drain(left)
        outcomes, self._outcomes = self._outcomes[:left], self._outcomes[left:]
        self._waiting = {tag: place - left for tag, place in self._waiting.items()}
        if not self._outcomes:
            self._timeout = None
        return outcomes

    def close(self) -> None:
        """Nothing is the pipe's own."""

    def _drain(self, count: int) -> None:
        """Wait until the first operations have an outcome."""
        try:
            while next(iter(self._waiting.values()), count) < count:
                if self.channel.connection is None or not self.channel._confirm_selected:
                    raise ChannelClosedError("RabbitMQ closed the channel")
                self.channel.connection.drain_events(timeout=self._timeout)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """No confirmation will come any more."""
        for place in self._waiting.values():
            self._outcomes[place] = error
        self._waiting.clear()
