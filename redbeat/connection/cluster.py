"""What is special about a Redis Cluster: where a key is, and what its client raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final

from redis.cluster import RedisCluster
from redis.exceptions import (
    ClusterCrossSlotError,
    ClusterError,
    MovedError,
    RedisClusterException,
    TimeoutError,  # noqa: A004 - redis-py's is not the built-in one
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

__all__ = ("LateCluster", "cluster_errors", "is_cluster", "node_of", "refreshing")

# What redis-py says about keys that waiting does not bring together.
_CROSS_SLOT: Final = "same key slot"

# What other kinds of clients have, and is asked for to tell them apart.
_FOREIGN: Final = frozenset({"connection_pool", "wrapped_connection"})


class LateCluster(RedisCluster):
    """A client that asks the cluster for its nodes at the first use, and again until one answers.

    So a beat can start while the cluster is away. Commands raise redis-py's ``ConnectionError`` or
    ``TryAgainError`` where redis-py raises what is no ``RedisError``, so that they are retried.

    ``arguments`` are redis-py's; ``understood`` is entered around the making of the client.
    """

    def __init__(self, understood: Any, **arguments: Any) -> None:
        self._making = RLock()
        self._late: tuple[Any, dict[str, Any]] | None = (understood, arguments)
        self._connecting = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _FOREIGN or "_late" not in self.__dict__:
            raise AttributeError(name)
        with self._making:
            if not self._connecting and self._late is not None:
                self._connect(*self._late)
            if name not in self.__dict__:
                raise AttributeError(name)
            return self.__dict__[name]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def _connect(self, understood: Any, arguments: dict[str, Any]) -> None:
        self._connecting = True
        try:
            with understood():
                super().__init__(**arguments)
            self._late = None
        finally:
            self._connecting = False

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send a command to the node it belongs to, as redis-py does."""
        with cluster_errors():
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close all connections; nothing happens when there are none yet."""
        if self.__dict__.get("_late", ()) is None:
            super().close()


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Raise as a ``RedisError`` what redis-py raises as something else, for want of a node."""
    try:
        yield
    except RedisClusterException as error:
        if _CROSS_SLOT in str(error):
            raise ClusterCrossSlotError(str(error)) from error
        raise RedisConnectionError(str(error)) from error
    except ClusterError as error:
        if type(error) is not ClusterError:
            raise
        # It was sent from node to node, because its slot is on its way.
        raise TryAgainError(str(error)) from error


def is_cluster(client: Any) -> bool:
    """Whether ``client``, or what it wraps, is one of a Redis Cluster. No round trip."""
    return isinstance(getattr(client, "wrapped_connection", client), RedisCluster)


def node_of(client: Any, key: str) -> Any:
    """Return the client of the node that has ``key`` where this is a cluster, else ``client``.

    The first use of a cluster client asks for its nodes, else there is no round trip.
    """
    if not is_cluster(client):
        return client
    with cluster_errors():
        return client.get_redis_connection(client.get_node_from_key(key))


@contextmanager
def refreshing(client: Any) -> Iterator[None]:
    """Have a cluster client find out where the slots are now, when that may be why it failed."""
    try:
        yield
    except (RedisConnectionError, TimeoutError, MovedError):
        # Without them yet, it asks for the nodes by itself.
        if is_cluster(client) and "nodes_manager" in vars(client):
            with cluster_errors():
                client.nodes_manager.initialize()
        raise
