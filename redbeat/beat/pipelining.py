"""Messages on the wire together: written one after the other, and waited for together.

What a producer publishes in the context of a pipe is on its way when :meth:`Pipe.deliver` returns,
with an outcome for each. Nothing above this module knows what
kind of broker it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, Final, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redbeat.connection.borrowing import borrowed, connection_of

__all__ = ("AmqpPipe", "Pipe", "RedisPipe", "pipe_of")

#: What breaks a connection to Redis, so that nobody knows what became of the rest.
BROKEN: Final = (RedisConnectionError, RedisTimeoutError, OSError)

#: Times that what a broken connection left without an answer is sent again.
REPEATS: Final = 1


class ChannelClosedError(Exception):
    """What was on its way on a channel was not confirmed, because of one of the messages."""


class Pipe(Protocol):
    """Messages that one channel has collected."""

    channel: Any

    #: Whether an error on the channel may be about a message that was published before.
    shares_errors: bool

    @property
    def size(self) -> int:
        """How many operations of the broker wait for :meth:`deliver`."""

    @property
    def nbytes(self) -> int:
        """How many bytes they take, as far as this process has to keep them."""

    def __enter__(self) -> None:
        """From now on publishing on the channel does not wait for the broker."""

    def __exit__(self, *exc_info: object) -> None:
        """It waits again."""

    def deliver(self) -> list[Exception | None]:
        """Wait for the broker; return for each operation why it failed, None where it did not.

        Raises nothing of its own; afterwards nothing is collected.
        """


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


class RedisPipe:
    """Commands of a Redis channel, sent in one write: one round trip for all of them."""

    shares_errors = False

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.nbytes = 0
        with channel.conn_or_acquire() as client:
            self._client = client
        # Of kombu's own kind, which puts its prefix before the keys.
        self._commands = client.pipeline(transaction=False)
        self._pool = self._commands.connection_pool

    @property
    def size(self) -> int:
        return len(self._commands.command_stack)

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
        self._commands.lpush(key, message)
        self.nbytes += len(message)

    def publish(self, topic: str, message: Any) -> None:
        self._commands.publish(topic, message)
        self.nbytes += len(message)

    def deliver(self) -> list[Exception | None]:
        """As :meth:`Pipe.deliver`. One round trip, and another when the connection was broken."""
        commands = [args for args, _ in self._commands.command_stack]
        self._commands.reset()
        self.nbytes = 0
        outcomes: list[Exception | None] = []
        for _ in range(1 + REPEATS):
            try:
                self._execute(commands[len(outcomes) :], outcomes)
                break
            except BROKEN as error:
                broken = error
        else:
            outcomes += [broken] * (len(commands) - len(outcomes))
        return outcomes

    def _execute(self, commands: Sequence[Any], outcomes: list[Exception | None]) -> None:
        """Send commands, and note the answers as they come."""
        if not commands:
            return
        connection = connection_of(self._pool, commands[0][0])
        with borrowed(connection, self._pool):
            connection.send_packed_command(connection.pack_commands(commands))
            for _ in commands:
                try:
                    connection.read_response()
                    outcomes.append(None)
                except ResponseError as error:
                    outcomes.append(error)


class AmqpPipe:
    """Messages of a RabbitMQ channel that are sent at once, and confirmed by and by."""

    nbytes = 0
    shares_errors = True

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._tag = 0
        self._waiting: dict[int, int] = {}
        self._outcomes: list[Exception | None] = []
        self._timeout: float | None = None
        channel.events["basic_ack"].add(self._acknowledged)
        channel.events["basic_nack"].add(self._refused)

    @property
    def size(self) -> int:
        return len(self._outcomes)

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
        self._drain()
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

    def deliver(self) -> list[Exception | None]:
        self._drain()
        outcomes, self._outcomes, self._timeout = self._outcomes, [], None
        return outcomes

    def _drain(self) -> None:
        try:
            while self._waiting:
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
