"""Publish many messages without waiting for each: to Redis together, to RabbitMQ one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from redbeat.connection.topology import connection_like

#: The commands that send a message, and those that only accompany it.
MESSAGES: Final = frozenset({"LPUSH", "PUBLISH"})
CAPTURED: Final = MESSAGES | {"EXPIRE", "PEXPIRE"}

#: Errors that leave the results of sent commands unknown, so the connection must be closed.
BROKEN: Final = (RedisError, OSError)

Command = list[Any]

#: A command with its messages, and the positions of their results.
Batch = tuple[Command, list[int]]


class Capture:
    """A context that captures the commands of the messages on kombu's Redis channel.

    All other commands, such as a lookup of bindings, are executed at once.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        with channel.conn_or_acquire() as client:
            self._client = client
        # Kombu's client adds it to keys.
        self._prefix = getattr(channel, "global_keyprefix", None) or ""
        #: The captured commands, ready for ``Change.push``.
        self.commands: list[Command] = []
        #: Whether a message was sent after all, because other commands came with it.
        self.executed = False

    def __enter__(self) -> None:
        self.channel.conn_or_acquire = self._acquire

    def __exit__(self, *exc_info: object) -> None:
        del self.channel.conn_or_acquire

    @contextmanager
    def _acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send(self) -> None:
        """Send what was captured. It already has the broker's key prefix."""
        client: Any = Redis(connection_pool=self._client.connection_pool)
        for command in self.commands:
            client.execute_command(*command)

    def lpush(self, key: Any, *messages: Any) -> int:
        self.commands.append(["LPUSH", f"{self._prefix}{key}", *messages])
        return 1

    def publish(self, topic: Any, message: Any) -> int:
        self.commands.append(["PUBLISH", f"{self._prefix}{topic}", message])
        return 1

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        pipeline = self._client.pipeline(*args, **kwargs)
        pipeline.execute = partial(self._execute, pipeline, pipeline.execute)
        return pipeline

    def _execute(self, pipeline: Any, execute: Callable[..., Any], **options: Any) -> Any:
        """Capture the commands if all are in :data:`CAPTURED`, otherwise execute all of them."""
        commands = [command for command, _ in pipeline.command_stack]
        names = {command[0] for command in commands}
        if not names <= CAPTURED:
            self.executed |= not names.isdisjoint(MESSAGES)
            return execute(**options)
        pipeline.command_stack.clear()
        for command in commands:  # as Redis gets them
            parts = [part if isinstance(part, (str, bytes)) else str(part) for part in command]
            self.commands.append(parts)
        return [1] * len(commands)


class RedisPipe(Capture):
    """Captures message after message on a Redis channel, and sends them in one round trip.

    All messages for one queue are in one command, so the queue gets them all, in order, or none.
    The pipe has its own connection, because kombu closes all connections of its pool after a failed
    publish.
    """

    shares_errors = False

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        self.size = self.nbytes = 0
        self._connection = connection_like(self._client.connection_pool)
        #: The commands, and the last of each kind for each key.
        self._batches: list[Batch] = []
        self._last: dict[tuple[str, str], Batch] = {}

    def __enter__(self) -> None:
        self.commands = []
        super().__enter__()

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__()
        for command in self.commands:
            self.push(command)

    def push(self, command: Command) -> None:
        """Collect a command whose key already has the broker's prefix."""
        name, key, *messages = command
        if name != "LPUSH" or (name, key) not in self._last:
            self._last[name, key] = [name, key], []
            self._batches.append(self._last[name, key])
        batch, positions = self._last[name, key]
        batch += messages
        positions.append(self.size)
        self.size += 1
        self.nbytes += sum(map(len, messages))

    def results(self) -> list[Exception | None]:
        """Send what was collected; return the error of each command, None for success.

        If the connection breaks, commands without a reply are sent once more on a new one. One
        round trip, or two if the connection broke.
        """
        commands = [command for command, _ in self._batches]
        answers: list[Exception | None] = []
        error = self._send(commands, answers)
        if error is not None:
            error = self._send(commands[len(answers) :], answers)
        answers += [error] * (len(commands) - len(answers))
        results: list[Exception | None] = [None] * self.size
        for (_, positions), answer in zip(self._batches, answers, strict=True):
            for position in positions:
                results[position] = answer
        self._batches, self._last, self.size, self.nbytes = [], {}, 0, 0
        return results

    def _send(self, commands: list[Command], answers: list[Exception | None]) -> Exception | None:
        """Send commands, and append the error of each reply to ``answers``, None for success.

        Returns the error that broke the connection. After any error the connection is closed:
        a later command could otherwise get the reply to an earlier one.
        """
        connection = self._connection
        if not commands:
            return None
        try:
            connect(connection)
            # In one write: the server would process several ones separately.
            connection.send_packed_command([b"".join(connection.pack_commands(commands))])
            for _ in commands:
                try:
                    connection.read_response()
                    answers.append(None)
                except ResponseError as error:
                    answers.append(error)
        except BROKEN as error:
            self.close()
            return error
        except BaseException:
            self.close()
            raise
        return None

    def close(self) -> None:
        self._connection.disconnect()


def connect(connection: Any) -> None:
    """Open ``connection`` if it isn't open, or if the server has closed it.

    No reply may be pending. Raises redis-py's errors if the server can't be reached. No round trip
    if the connection is open.
    """
    connection.connect()
    if not is_idle(connection):
        connection.disconnect()
        connection.connect()


def is_idle(connection: Any) -> bool:
    """Whether the connection is open and has no unread reply."""
    try:
        return not connection.can_read()
    except BROKEN:
        return False


# -- RabbitMQ -------------------------------------------------------------------------------------


class ChannelClosedError(Exception):
    """RabbitMQ closed the channel while messages were unconfirmed."""


class AmqpPipe:
    """Sends messages on a RabbitMQ channel, and collects their confirmations later."""

    nbytes = 0
    shares_errors = True

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._tag = 0
        self._unconfirmed: dict[int, int] = {}
        self._results: list[Exception | None] = []
        self._timeout: float | None = None
        channel.events["basic_ack"].add(self._acknowledged)
        channel.events["basic_nack"].add(self._refused)

    @property
    def size(self) -> int:
        """How many messages' results :meth:`results` hasn't returned."""
        return len(self._results)

    def __enter__(self) -> None:
        self.channel.basic_publish = self._publish

    def __exit__(self, *exc_info: object) -> None:
        self.channel.basic_publish = self._publish_and_wait

    def _enable_confirms(self) -> None:
        """Turn publisher confirms on if they are off.

        After py-amqp has reopened a closed channel, they are off again and message numbers start at
        1. One round trip at the first call and after RabbitMQ closed the channel, else none.
        """
        if self.channel._confirm_selected:
            return
        self._fail_unconfirmed(ChannelClosedError("RabbitMQ closed the channel"))
        self._tag = 0
        self.channel.confirm_select()
        self.channel._confirm_selected = True

    def _publish_and_wait(self, *args: Any, **kwargs: Any) -> Any:
        # py-amqp takes the next confirmation for that of the message it publishes, so all earlier
        # ones must be in. RabbitMQ numbers all messages on the channel, so each publish must
        # increase ``_tag``.
        self._drain()
        self._enable_confirms()
        self._tag += 1
        return self.channel.basic_publish_confirm(*args, **kwargs)

    def _publish(self, *args: Any, **kwargs: Any) -> Any:
        confirm, timeout = kwargs.pop("confirm_timeout", None), kwargs.get("timeout")
        self._timeout = confirm or timeout or self._timeout
        self._enable_confirms()
        result = self.channel._basic_publish(*args, **kwargs)
        self._tag += 1
        self._unconfirmed[self._tag] = len(self._results)
        self._results.append(None)
        return result

    def _acknowledged(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, None)

    def _refused(self, tag: int, multiple: bool, *_requeue: Any) -> None:
        self._settle(tag, multiple, RuntimeError("RabbitMQ refused the message (basic.nack)"))

    def _settle(self, tag: int, multiple: bool, error: Exception | None) -> None:
        # ``takewhile`` is enough: unconfirmed tags are in ascending order.
        tags = list(takewhile(lambda one: one <= tag, self._unconfirmed)) if multiple else [tag]
        for one in tags:
            position = self._unconfirmed.pop(one, None)
            if position is not None:
                self._results[position] = error

    def results(self) -> list[Exception | None]:
        """Wait for the confirmations; return each message's error, None for success."""
        self._drain()
        results, self._results, self._timeout = self._results, [], None
        return results

    def close(self) -> None:
        """Nothing to free."""

    def _drain(self) -> None:
        try:
            while self._unconfirmed:
                if self.channel.connection is None or not self.channel._confirm_selected:
                    raise ChannelClosedError("RabbitMQ closed the channel")
                self.channel.connection.drain_events(timeout=self._timeout)
        except Exception as error:
            self._fail_unconfirmed(error)

    def _fail_unconfirmed(self, error: Exception) -> None:
        for position in self._unconfirmed.values():
            self._results[position] = error
        self._unconfirmed.clear()
