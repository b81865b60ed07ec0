"""Publishes messages to a Redis broker in batches, on a separate connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from redbeat.connection.borrowing import connect, connection_like

#: Errors after which the results of sent commands are unknown, so the connection must be closed.
BROKEN: Final = (RedisError, OSError)


class ClientStandIn:
    """A context manager that replaces the Redis client of a kombu channel.

    Subclasses collect some commands; all other commands, such as a lookup of bindings, are executed
    at once.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        with channel.conn_or_acquire() as client:
            self._client = client
        # Use the pipeline class of kombu's client, because it adds the configured prefix to keys.
        self._commands = client.pipeline(transaction=False)

    def __enter__(self) -> None:
        self.channel.conn_or_acquire = self._acquire

    def __exit__(self, *exc_info: object) -> None:
        del self.channel.conn_or_acquire

    @contextmanager
    def _acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class RedisPipe(ClientStandIn):
    """Collects the messages of a Redis channel, and sends them together in one round trip.

    All messages for one queue are in one command, so the queue gets either all messages, in order,
    or no message. The pipe has its own connection, because kombu closes all connections of its pool
    after a failed publish.
    """

    shares_errors = False

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        self.nbytes = 0
        self.size = 0
        self._connection = connection_like(self._commands.connection_pool)
        #: Maps each queue to its messages and to their positions in the list of operations.
        self._queues: dict[str, tuple[list[Any], list[int]]] = {}
        #: For each command, the positions of the results of the command in the list of results.
        self._positions: list[list[int]] = []
        #: The same for the commands in flight, the number of their results, and why they could not
        #: be sent.
        self._sent: tuple[list[Any], list[list[int]], int] = [], [], 0
        self._error: Exception | None = None
        self._prefix = getattr(channel, "global_keyprefix", None) or ""
        #: The commands of the message that kombu collected last, as Redis gets them.
        self.made: list[list[Any]] = []

    def __enter__(self) -> None:
        self.made = []
        super().__enter__()

    def lpush(self, key: str, message: Any) -> None:
        """Collect a message of kombu."""
        self.made.append(["LPUSH", f"{self._prefix}{key}", message])
        self._collect(key, message)

    def push(self, command: list[Any]) -> None:
        """Collect a rendered message, whose key has the prefix of the broker."""
        _, key, message = command
        self._collect(key[len(self._prefix) :], message)

    def _collect(self, key: str, message: Any) -> None:
        messages, positions = self._queues.setdefault(key, ([], []))
        messages.append(message)
        self._count(positions, message)

    def publish(self, topic: str, message: Any) -> None:
        self._commands.publish(topic, message)
        self._positions.append([])
        self._count(self._positions[-1], message)

    def _count(self, positions: list[int], message: Any) -> None:
        positions.append(self.size)
        self.size += 1
        self.nbytes += len(message)

    def flush(self) -> None:
        for key, (messages, positions) in self._queues.items():
            self._commands.lpush(key, *messages)
            self._positions.append(positions)
        commands = [args for args, _ in self._commands.command_stack]
        self._commands.reset()
        self._sent = commands, self._positions, self.size
        self._queues, self._positions, self.size, self.nbytes = {}, [], 0, 0
        self._error = self._try(send, commands) if commands else None

    def results(self) -> list[Exception | None]:
        """Wait for the replies; return the error of each flushed operation, None for success.

        If the connection breaks, the commands without a reply are sent once more on a new
        connection. Takes one round trip, or two if the connection broke.
        """
        (commands, positions, size), self._sent = self._sent, ([], [], 0)
        answers: list[Exception | None] = []
        error, self._error = self._error, None
        error = error or self._try(receive, len(commands), answers)
        if error is not None:
            rest = commands[len(answers) :]
            error = self._try(send, rest) or self._try(receive, len(rest), answers)
        answers += [error] * (len(commands) - len(answers))
        results: list[Exception | None] = [None] * size
        for places, answer in zip(positions, answers, strict=True):
            for place in places:
                results[place] = answer
        return results

    def close(self) -> None:
        self._connection.disconnect()

    def _try(self, step: Callable[..., None], *args: Any) -> Exception | None:
        """Call ``step`` with the connection; return None, or the error that broke the connection.

        After any error this method closes the connection, because a later command could otherwise
        receive the reply to an earlier command.
        """
        try:
            step(self._connection, *args)
        except BROKEN as error:
            self.close()
            return error
        except BaseException:
            self.close()
            raise
        return None


def send(connection: Any, commands: list[Any]) -> None:
    """Send commands without waiting for replies.

    Takes one round trip if the connection is not open, else none.
    """
    connect(connection)
    # Send all commands in one write, because the server would process several writes separately.
    connection.send_packed_command([b"".join(connection.pack_commands(commands))])


def receive(connection: Any, count: int, answers: list[Exception | None]) -> None:
    """Read ``count`` replies; append the error of each reply to ``answers``, None for success."""
    for _ in range(count):
        try:
            connection.read_response()
            answers.append(None)
        except ResponseError as error:
            answers.append(error)
