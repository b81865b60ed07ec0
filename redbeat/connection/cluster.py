"""Connects to a Redis Cluster at the first use, finds nodes, and translates errors of servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final

from redis import exceptions
from redis.cluster import RedisCluster

# From redis-py's error message for keys in different slots, which no retry can fix.
_CROSS_SLOT: Final = "same key slot"

# Redis before 7 quotes the cause in the middle of the error message of a script.
_REFUSED: Final = re.compile(r"(^|\s)-?(READONLY|NOREPLICAS) ")

# Looking for these attributes of other clients must not connect a LateCluster.
_OTHER_CLIENTS_ATTRIBUTES: Final = frozenset({"connection_pool", "wrapped_connection"})


class LateCluster(RedisCluster):
    """A cluster client that connects at its first use instead of in its constructor.

    So a beat can start while the cluster is down: each command tries to connect until one succeeds.
    Cluster errors of redis-py that aren't a ``RedisError`` become ``ConnectionError`` or
    ``TryAgainError``, so that the command is retried.
    """

    def __init__(self, **arguments: Any) -> None:
        self._connect_lock = RLock()
        # None while the client connects and once it has connected.
        self._pending: dict[str, Any] | None = arguments

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__")
            or name in _OTHER_CLIENTS_ATTRIBUTES
            or "_pending" not in self.__dict__
        ):
            raise AttributeError(name)
        with self._connect_lock:
            if self._pending is not None:
                self._connect(self._pending)
            if name not in self.__dict__:
                raise AttributeError(name)
            return self.__dict__[name]

    def _connect(self, arguments: dict[str, Any]) -> None:
        self._pending = None
        try:
            with server_errors():
                super().__init__(**arguments)
        except BaseException:
            self._pending = arguments
            raise

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        with server_errors():
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self.__dict__.get("_pending", ()) is None:
            super().close()


@contextmanager
def server_errors() -> Iterator[None]:
    """Convert errors after which a retry can succeed into errors that say so.

    Some of redis-py's cluster errors aren't a ``RedisError``. The error of a server that refuses
    writes becomes a ``ReadOnlyError``: of a replica, or of a master with too few replicas
    (``NOREPLICAS``).
    """
    try:
        yield
    except exceptions.RedisClusterException as error:
        if _CROSS_SLOT in str(error):
            raise exceptions.ClusterCrossSlotError(str(error)) from error
        raise exceptions.ConnectionError(str(error)) from error
    except exceptions.ClusterError as error:
        if type(error) is not exceptions.ClusterError:
            raise
        # While a slot moves, nodes may redirect a command to each other.
        raise exceptions.TryAgainError(str(error)) from error
    except exceptions.ResponseError as error:
        if _REFUSED.search(str(error)):
            raise exceptions.ReadOnlyError(str(error)) from error
        raise


def is_cluster(client: Any) -> bool:
    return isinstance(getattr(client, "wrapped_connection", client), RedisCluster)


def node_of(client: Any, key: str) -> Any:
    """Return the client of the cluster node that stores ``key``; ``client`` itself for one server.

    No round trip, except that a cluster client reads the list of nodes at its first use.
    """
    if not is_cluster(client):
        return client
    with server_errors():
        return client.get_redis_connection(client.get_node_from_key(key))


@contextmanager
def refreshing(client: Any) -> Iterator[None]:
    """After an error, reload a cluster client's slot table: slots may have moved."""
    try:
        yield
    except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.MovedError):
        # A client that hasn't connected yet loads the table when it does.
        if "nodes_manager" in vars(client):
            with server_errors():
                client.nodes_manager.initialize()
        raise
