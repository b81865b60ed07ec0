"""Builds the Redis client for the settings: a server, a Unix socket, Sentinel or Cluster.

Its errors say whether a retry can succeed, whatever the topology.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from threading import RLock
from typing import Any, Final

import redis
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from redbeat.errors import ConfigurationError

from .endpoint import SOCKET_DEFAULTS, Parameters, hide_credentials, with_tls
from .urls import SOCKETS

DEFAULT_SERVICE: Final = "master"

#: How often a cluster client reloads its nodes and repeats a command if one is down.
CLUSTER_RETRIES: Final = 2
# In redis-py 5, the argument "retry" applies to each node instead of the whole cluster.
_RETRY_IS_FOR_CLUSTER: Final = int(redis.__version__.split(".")[0]) >= 6

#: In seconds, and short, because the client waits for each Sentinel that is down.
SENTINEL_DEFAULTS: Final = dict(SOCKET_DEFAULTS, socket_timeout=1.0, socket_connect_timeout=1.0)

_SENTINEL_ARGUMENTS: Final = frozenset(signature(Sentinel.__init__).parameters)
_CLUSTER_ARGUMENTS: Final = frozenset(signature(RedisCluster.__init__).parameters)


def with_retry(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return redis-py arguments with one immediate retry after a connection error.

    That replaces a pooled connection that the server closed because it was idle. Arguments with a
    retry of their own stay as they are.
    """
    if kwargs.keys() & {"retry", "retry_on_error"}:
        return dict(kwargs)
    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    # redis-py 5 retries a command only if ``retry`` and ``retry_on_error`` are both set.
    return {**kwargs, "retry": retry, "retry_on_error": [exceptions.ConnectionError]}


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


class MasterClient(Redis):
    """A client that closes its idle connections when its server refuses writes.

    After a failover, its next command opens a new connection, which DNS or Sentinel directs to the
    new master. The refused command isn't repeated.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            with server_errors():
                return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except exceptions.ReadOnlyError:
            self.connection_pool.disconnect(inuse_connections=False)
            raise


def build(parameters: Parameters) -> Redis | RedisCluster:
    """Return a client for ``parameters``. No round trips.

    Raises :exc:`ConfigurationError` for options that redis-py doesn't know or accept.
    """
    endpoint = parameters.endpoint
    has_sentinels = parameters.node.scheme in ("redis-sentinel", "sentinel")
    of_topology = _cluster if endpoint.is_cluster else _sentinel if has_sentinels else _server
    try:
        return of_topology(parameters)
    except (TypeError, ValueError, exceptions.RedisError) as error:
        sources = endpoint.url, endpoint.options, endpoint.use_ssl
        settings = " or ".join(source.setting for source in sources)
        raise ConfigurationError(f"{settings}: {error}") from error


def _server(parameters: Parameters) -> Redis:
    node = parameters.node
    address: dict[str, Any] = {"host": node.host, "port": node.port}
    if node.scheme in SOCKETS:
        address = {"unix_socket_path": node.path or ""}
    client = MasterClient(**{**address, **with_retry(parameters.kwargs)})
    connection_like(client.connection_pool)  # redis-py validates the arguments
    return client


def _sentinel(parameters: Parameters) -> Redis:
    options, kwargs = parameters.endpoint.options.value, with_retry(parameters.kwargs)
    service = options.get("service_name") or options.get("master_name") or DEFAULT_SERVICE
    for_sentinel = {name: kwargs.pop(name) for name in _SENTINEL_ARGUMENTS & kwargs.keys()}
    own = options.get("sentinel_kwargs", {})
    if own.get("ssl"):
        own = with_tls(own)
    # Only one retry: redis-py tries an unreachable Sentinel four times by default, with pauses.
    sentinel: Any = TellingSentinel(
        options.get("sentinels") or parameters.hosts,
        sentinel_kwargs={**SENTINEL_DEFAULTS, **with_retry(hide_credentials(own))},
        **for_sentinel,
    )
    client: Redis = sentinel.master_for(service, redis_class=MasterClient, **kwargs)
    connection_like(client.connection_pool)
    return client


class TellingSentinel(Sentinel):
    """Names the cause at each Sentinel if none of them could be asked for the master.

    redis-py 8 shows the clients with all their options, and only the types of their errors.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._causes: dict[str, str] = {}
        client: Any
        for client in self.sentinels:
            client.sentinel_masters = partial(self._masters, client, client.sentinel_masters)

    def discover_master(self, service_name: str) -> Any:
        self._causes.clear()
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as error:
            if not self._causes:
                raise
            causes = "; ".join(f"{host}: {cause}" for host, cause in self._causes.items())
            raise MasterNotFoundError(f"No master found for {service_name!r}: {causes}") from error

    def _masters(self, client: Redis, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            address = client.get_connection_kwargs()
            self._causes[f"{address['host']}:{address['port']}"] = str(error)
            raise


def _cluster(parameters: Parameters) -> RedisCluster:
    kwargs, endpoint = dict(parameters.kwargs), parameters.endpoint
    if parameters.node.scheme in SOCKETS or kwargs.pop("db", 0):
        raise ConfigurationError(
            f"{endpoint.url.setting} or {endpoint.options.setting} names a socket or a database, "
            "but a cluster has only database 0, and no socket: remove it, or the option 'cluster'"
        )
    if _RETRY_IS_FOR_CLUSTER and not kwargs.keys() & {"retry", "retry_on_error"}:
        kwargs["retry"] = Retry(NoBackoff(), CLUSTER_RETRIES)
    # Without shards, a schedule uses one slot, so it works even if other slots are unavailable.
    kwargs.setdefault("require_full_coverage", False)
    node_kwargs = {name: kwargs[name] for name in kwargs if name not in _CLUSTER_ARGUMENTS}
    connection_like(Redis(**node_kwargs).connection_pool)
    # For a cluster's nodes, redis-py silently ignores unknown options, even those that turn on the
    # verification of certificates.
    dropped = sorted(node_kwargs.keys() - set(REDIS_ALLOWED_KEYS))
    if dropped:
        raise ConfigurationError(
            f"redis-py {redis.__version__} does not support {', '.join(dropped)} for the nodes of "
            f"a cluster: upgrade redis-py, or change {endpoint.options.setting}"
        )
    hosts = endpoint.options.value.get("startup_nodes") or parameters.hosts
    nodes = [ClusterNode(*host) for host in hosts]  # type: ignore[no-untyped-call]
    return LateCluster(startup_nodes=nodes, **kwargs)


def connection_like(pool: Any) -> Any:
    """Return a new, unopened connection with the options of ``pool``, but not in it."""
    return pool.connection_class(**pool.connection_kwargs)
