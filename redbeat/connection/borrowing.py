"""A connection of a pool, or like those of a pool, to write and read on by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError

__all__ = ("borrowed", "connect", "connection_like", "connection_of", "is_idle")


def connection_of(pool: Any, command: str) -> Any:
    """Return a connection of ``pool``, to send ``command`` on."""
    try:
        return pool.get_connection()
    except TypeError:  # redis-py before 5.3 wants to know the command
        return pool.get_connection(command)


@contextmanager
def borrowed(connection: Any, pool: Any, keep: bool = False) -> Iterator[None]:
    """Give the connection back, unless we ``keep`` it, and broken if the reply was not read."""
    try:
        yield
    except BaseException:
        connection.disconnect()
        pool.release(connection)
        raise
    if not keep:
        pool.release(connection)


def connection_like(pool: Any) -> Any:
    """Return a connection of our own, not connected yet, as ``pool`` makes them for itself."""
    return pool.connection_class(**pool.connection_kwargs)


def connect(connection: Any) -> None:
    """Connect a connection of our own, again where the server has closed it since.

    No round trip for one that is in order; nothing may be on its way. Raises what the client
    library raises for a server that cannot be reached.
    """
    connection.connect()
    if not is_idle(connection):
        connection.disconnect()
        connection.connect()


def is_idle(connection: Any) -> bool:
    """Whether a connection waits for a command: it is open, and nothing is left to be read."""
    try:
        return not connection.can_read()
    except (RedisError, OSError):
        return False
