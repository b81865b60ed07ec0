"""Clients that count what Redis answers, or lose it, whatever way it was asked."""

from __future__ import annotations

from typing import Any

import redis

__all__ = ("CountingRedis", "LossyRedis", "counting_client", "lossy_client")


class WatchedConnection(redis.Connection):
    """A connection that tells its client of each reply."""

    watcher: Any = None

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read the reply, then have the watcher know."""
        reply = super().read_response(*args, **options)
        self.watcher.received(self)
        return reply


class CountingRedis(redis.Redis):
    """Counts the replies, each of them one round trip."""

    trips = 0

    def received(self, _connection: redis.Connection) -> None:
        """Count."""
        self.trips += 1


class LossyRedis(redis.Redis):
    """Loses replies: the command is done, and the caller hears of a broken connection."""

    losses = 0

    def lose(self, replies: int) -> None:
        """Lose the next replies."""
        self.losses = replies

    def received(self, connection: redis.Connection) -> None:
        """Maybe forget the reply."""
        if self.losses:
            self.losses -= 1
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise redis.ConnectionError("connection reset")


def counting_client(url: str) -> CountingRedis:
    """Return a client of that kind; nobody shares its connections."""
    client = CountingRedis(connection_pool=_pool(url))
    _watch(client)
    return client


def lossy_client(url: str) -> LossyRedis:
    """Return a client of that kind; nobody shares its connections."""
    client = LossyRedis(connection_pool=_pool(url))
    _watch(client)
    return client


def _pool(url: str) -> redis.ConnectionPool:
    kind = type("Watched", (WatchedConnection,), {})
    return redis.ConnectionPool.from_url(url, decode_responses=True, connection_class=kind)


def _watch(client: Any) -> None:
    client.connection_pool.connection_class.watcher = client
