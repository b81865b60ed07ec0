"""A connection of a pool, for those who write and read on it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ("borrowed", "connection_of")


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
