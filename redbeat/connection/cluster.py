"""Redis Cluster: a client that connects late, the node of a key, and translated errors."""

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

# Part of redis-py's message for keys in different slots. A retry does not help then.
_CROSS_SLOT: Final = "same key slot"

# Attributes that tell other clients from a cluster client. A lookup must not open a connection.
_OTHER_CLIENTS_ATTRIBUTES: Final = frozenset({"connection_pool", "wrapped_connection"})


class LateCluster(RedisCluster):
    """A cluster client that connects at its first use instead of in its constructor.

    A beat can therefore start while the cluster is down; each use tries to connect until one
    succeeds. Commands raise redis-py's ``ConnectionError`` or ``TryAgainError`` for some errors
    that are no ``RedisError`` in redis-py, so that they are retried.

    ``arguments`` are those of redis-py's ``RedisCluster``. ``translate_errors`` returns a context
    manager that is entered while the client connects.
    """

    def __init__(self, translate_errors: Any, **arguments: Any) -> None:
        self._connect_lock = RLock()
        # The arguments of _connect(), None after the client has connected.
        self._pending: tuple[Any, dict[str, Any]] | None = (translate_errors, arguments)
        self._connecting = False

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__")
            or name in _OTHER_CLIENTS_ATTRIBUTES
            or "_pending" not in self.__dict__
        ):
            raise AttributeError(name)
        with self._connect_lock:
            if not self._connecting and self._pending is not None:
                self._connect(*self._pending)
            if name not in self.__dict__:
                raise AttributeError(name)
            return self.__dict__[name]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def _connect(self, translate_errors: Any, arguments: dict[str, Any]) -> None:
        self._connecting = True
        try:
            with translate_errors():
                super().__init__(**arguments)
            self._pending = None
        finally:
            self._connecting = False

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send a command to the node that has its key, and return the reply."""
        with cluster_errors():
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close all connections, if the client has connected."""
        if self.__dict__.get("_pending", ()) is None:
            super().close()


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Translate redis-py's cluster errors that are no ``RedisError`` into one."""
    try:
        yield
    except RedisClusterException as error:
        if _CROSS_SLOT in str(error):
            raise ClusterCrossSlotError(str(error)) from error
        raise RedisConnectionError(str(error)) from error
    except ClusterError as error:
        if type(error) is not ClusterError:
            raise
        # The cluster is moving the slot, so each node redirected the command to another node.
        raise TryAgainError(str(error)) from error


def is_cluster(client: Any) -> bool:
    """Return whether ``client``, or the client that it wraps, is a cluster client.

    No round trip.
    """
    return isinstance(getattr(client, "wrapped_connection", client), RedisCluster)


def node_of(client: Any, key: str) -> Any:
    """Return the client of the cluster node that has ``key``; ``client`` if it is no cluster.

    No round trip, except that the first use of a cluster client reads the list of nodes.
    """
    if not is_cluster(client):
        return client
    with cluster_errors():
        return client.get_redis_connection(client.get_node_from_key(key))


@contextmanager
def refreshing(client: Any) -> Iterator[None]:
    """Reload the slots of a cluster client after an error that moved slots may explain.

    The error is raised again.
    """
    try:
        yield
    except (RedisConnectionError, TimeoutError, MovedError):
        # A client that has not connected yet will load the slots when it connects.
        if is_cluster(client) and "nodes_manager" in vars(client):
            with cluster_errors():
                client.nodes_manager.initialize()
        raise
