"""Functions for code that sends commands on a single Redis connection, without a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError


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
