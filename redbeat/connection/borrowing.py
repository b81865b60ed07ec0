"""Single connections, for code that writes commands and reads replies itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError

__all__ = ("borrowed", "connect", "connection_like", "connection_of", "is_idle")


def connection_of(pool: Any, command: str) -> Any:
    """Take a connection for ``command`` from ``pool`` and return it."""
    try:
        return pool.get_connection()
    except TypeError:  # redis-py before 5.3 requires the name of the command
        return pool.get_connection(command)


@contextmanager
def borrowed(connection: Any, pool: Any, keep: bool = False) -> Iterator[None]:
    """Release ``connection`` to ``pool`` after the block; with ``keep`` only after an error.

    After an error the connection is closed first, because a reply may be unread.
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
    """Return a new, unconnected connection with the options of ``pool``, outside the pool."""
    return pool.connection_class(**pool.connection_kwargs)


def connect(connection: Any) -> None:
    """Connect ``connection``, and reconnect if the server has closed the connection.

    There is no round trip if the connection is open. No reply may be pending. Raises the errors of
    redis-py if the server cannot be reached.
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
