"""Messages on their way to a broker that is Redis, on a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from redbeat.connection.borrowing import connect, connection_like

__all__ = ("ClientStandIn", "RedisPipe")

#: What breaks a connection to Redis, so that nobody knows what became of the rest.
BROKEN: Final = (RedisError, OSError)

#: Times that what a broken connection left without an answer is sent again.
REPEATS: Final = 1


@dataclass(slots=True)
class SentCommands:
    """Commands that were sent together, and for each the places of what it does."""

    commands: list[Any]
    places: list[list[int]]
    size: int
    #: Why they could not be sent.
    error: Exception | None = None

    def results(self, answers: list[Exception | None]) -> list[Exception | None]:
        """Return for each operation what its command was answered."""
        results: list[Exception | None] = [None] * self.size
        for places, response in zip(self.places, answers, strict=True):
            if response is not None:
                for place in places:
                    results[place] = response
        return results


class ClientStandIn:
    """Takes the place of the client of a Redis channel of kombu while it is entered.

    What it does not collect itself, such as a look at the bindings of an exchange, is done at once.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        with channel.conn_or_acquire() as client:
            self._client = client
        # Of kombu's own kind, which puts its prefix before the keys.
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
    """Commands of a Redis channel, sent in one write: one round trip for all of them.

    Messages for one queue are one command: it gets all of them, in their order, or none. They have
    a connection of their own, as kombu closes those of its pool when a publish of its own fails.
    """

    shares_errors = False

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        self.nbytes = 0
        self.size = 0
        self._connection = connection_like(self._commands.connection_pool)
        #: The messages for each queue, and their places among the operations.
        self._queues: dict[str, tuple[list[Any], list[int]]] = {}
        #: The places of what each of the commands does.
        self._places: list[list[int]] = []
        self._in_flight: SentCommands | None = None

    def lpush(self, key: str, message: Any) -> None:
        messages, places = self._queues.setdefault(key, ([], []))
        messages.append(message)
        self._count(places, message)

    def publish(self, topic: str, message: Any) -> None:
        self._commands.publish(topic, message)
        self._places.append([])
        self._count(self._places[-1], message)

    def _count(self, places: list[int], message: Any) -> None:
        places.append(self.size)
        self.size += 1
        self.nbytes += len(message)

    def flush(self) -> None:
        for key, (messages, places) in self._queues.items():
            self._commands.lpush(key, *messages)
            self._places.append(places)
        commands = [args for args, _ in self._commands.command_stack]
        self._commands.reset()
        self._in_flight = sent = SentCommands(commands, self._places, self.size)
        self._queues, self._places, self.size, self.nbytes = {}, [], 0, 0
        if commands:
            sent.error = self._try(send, commands)

    def results(self) -> list[Exception | None]:
        """As :meth:`Pipe.answers`. One round trip, and another when the connection was broken."""
        sent, self._in_flight = self._in_flight, None
        if sent is None:
            return []
        answers: list[Exception | None] = []
        error = sent.error or self._try(receive, len(sent.commands), answers)
        for _ in range(REPEATS):
            rest = sent.commands[len(answers) :]
            if error is not None:
                error = self._try(send, rest) or self._try(receive, len(rest), answers)
        answers += [error] * (len(sent.commands) - len(answers))
        return sent.results(answers)

    def close(self) -> None:
        self._connection.disconnect()

    def _try(self, step: Callable[..., None], *args: Any) -> Exception | None:
        """Do a step on the connection; return what broke that, which is closed then."""
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
    """Write commands; no round trip but for connecting."""
    connect(connection)
    # In one piece: the server would begin with what it has, and look for the rest each time.
    connection.send_packed_command([b"".join(connection.pack_commands(commands))])


def receive(connection: Any, count: int, answers: list[Exception | None]) -> None:
    """Note so many answers as they come: why a command was refused, or None."""
    for _ in range(count):
        try:
            connection.read_response()
            answers.append(None)
        except ResponseError as error:
            answers.append(error)
