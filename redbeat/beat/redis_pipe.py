"""Publishes messages to a Redis broker in batches, on a separate connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from redbeat.connection.borrowing import connect, connection_like

#: Errors after which the results of sent commands are unknown, so the connection must be closed.
BROKEN: Final = (RedisError, OSError)

#: A command with its messages, and the positions of their results.
Batch = tuple[list[Any], list[int]]


class ClientStandIn:
    """A context manager that replaces the Redis client of a kombu channel.

    Subclasses collect some commands; all other commands, such as a lookup of bindings, are executed
    at once.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        with channel.conn_or_acquire() as client:
            self._client = client
        # Kombu's client adds it to keys.
        self._prefix = getattr(channel, "global_keyprefix", None) or ""

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
        self._connection = connection_like(self._client.connection_pool)
        #: The commands, and those among them that push to a queue, by its key.
        self._batches: list[Batch] = []
        self._queues: dict[str, Batch] = {}
        #: The commands in flight, the number of their results, and why they could not be sent.
        self._sent: tuple[list[Batch], int] = [], 0
        self._error: Exception | None = None
        #: The commands of the message that kombu collected last, as Redis gets them.
        self.made: list[list[Any]] = []

    def __enter__(self) -> None:
        self.made = []
        super().__enter__()

    def lpush(self, key: str, message: Any) -> None:
        """Collect a message of kombu."""
        self.made.append(["LPUSH", f"{self._prefix}{key}", message])
        self.push(self.made[-1])

    def push(self, command: list[Any]) -> None:
        """Collect a message, whose key has the prefix of the broker, for its queue."""
        name, key, message = command
        if key not in self._queues:
            self._queues[key] = [name, key], []
            self._batches.append(self._queues[key])
        self._collect(self._queues[key], message)

    def publish(self, topic: str, message: Any) -> None:
        self._batches.append((["PUBLISH", f"{self._prefix}{topic}"], []))
        self._collect(self._batches[-1], message)

    def _collect(self, batch: Batch, message: Any) -> None:
        command, positions = batch
        command.append(message)
        positions.append(self.size)
        self.size += 1
        self.nbytes += len(message)

    def flush(self) -> None:
        commands, self._sent = [command for command, _ in self._batches], (self._batches, self.size)
        self._batches, self._queues, self.size, self.nbytes = [], {}, 0, 0
        self._error = self._try(send, commands) if commands else None

    def results(self) -> list[Exception | None]:
        """Wait for the replies; return the error of each flushed operation, None for success.

        If the connection breaks, the commands without a reply are sent once more on a new
        connection. Takes one round trip, or two if the connection broke.
        """
        (batches, size), self._sent = self._sent, ([], 0)
        commands = [command for command, _ in batches]
        answers: list[Exception | None] = []
        error, self._error = self._error, None
        error = error or self._try(receive, len(commands), answers)
        if error is not None:
            rest = commands[len(answers) :]
            error = self._try(send, rest) or self._try(receive, len(rest), answers)
        answers += [error] * (len(commands) - len(answers))
        results: list[Exception | None] = [None] * size
        for (_, positions), answer in zip(batches, answers, strict=True):
            for position in positions:
                results[position] = answer
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
