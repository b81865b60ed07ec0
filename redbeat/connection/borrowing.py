"""Functions that send commands without the methods of a client, some on a single connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import RedisError

from .cluster import server_errors
from .retrying import RetryingConnection


def replies_to(client: Any, commands: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the replies to commands, as bytes, or the error in their place. One round trip.

    Retries all commands, if ``client`` retries commands.
    """
    commands = list(commands)

    def execute() -> list[Any]:
        pipe = client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command, **{NEVER_DECODE: True})
        with server_errors():
            replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    if isinstance(client, RetryingConnection):
        return client.call(f"pipeline of {len(commands)} commands", execute)
    return execute()


def connection_of(pool: Any, command: str) -> Any:
    """Return a connection from ``pool`` on which the caller will send ``command``."""
    try:
        return pool.get_connection()
    except TypeError:  # redis-py before 5.3 requires the name of the command
        return pool.get_connection(command)


@contextmanager
def borrowed(connection: Any, pool: Any, keep: bool = False) -> Iterator[None]:
    """Return ``connection`` to ``pool`` at the end of a ``with`` block.

    If ``keep`` is true, the connection returns to the pool only after an error. After an error, the
    connection is closed, because it may have an unread reply.
    """
    try:
        yield
    except BaseException:
        connection.disconnect()
        pool.release(connection)
        raise
    if not keep:
        pool.release(connection)


def connection_like(pool: Any) -> Any:
    """Return a new, unopened connection that has the options of ``pool`` but is not in ``pool``."""
    return pool.connection_class(**pool.connection_kwargs)


def connect(connection: Any) -> None:
    """Open ``connection`` if it is not open, or if the server has closed it.

    The connection must have no pending reply. Raises redis-py's errors if the server cannot be
    reached. Takes no round trip if the connection is open.
    """
    connection.connect()
    if not is_idle(connection):
        connection.disconnect()
        connection.connect()


def is_idle(connection: Any) -> bool:
    """Return whether the connection is open and has no unread reply."""
    try:
        return not connection.can_read()
    except (RedisError, OSError):
        return False
