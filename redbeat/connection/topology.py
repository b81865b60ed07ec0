"""Build a Redis client for each topology: single server, Unix socket, Sentinel and Cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any, Final, TypeAlias

import redis
from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode, RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from redbeat.errors import ConfigurationError

from .borrowing import connection_like
from .celery_notation import DEFAULT_SERVICE, SENTINEL_PORT
from .cluster import LateCluster, server_errors
from .parameters import SOCKET_DEFAULTS, Parameters, hide_credentials, with_retry
from .tls import TLS_OPTIONS, Source, tls_options
from .urls import SOCKETS


class SentinelClient(Redis):
    """A client of one Sentinel server; the client keeps its last error for error messages."""

    #: The error of the last command, "" if the last command succeeded.
    last_error = ""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return the reply."""
        self.last_error = ""
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except RedisError as error:
            self.last_error = f"{type(error).__name__}: {error}"
            raise

    def problem(self) -> str:
        """Return why the server names no master."""
        terms = self.connection_pool.connection_kwargs
        reason = self.last_error or "knows no running master of this name"
        return f"{terms['host']}:{terms['port']} ({reason})"


class Sentinels(Sentinel):
    """A ``Sentinel`` of redis-py with an error message that lists the problem of each server."""

    def __init__(self, hosts: Sequence[tuple[str, int]], **arguments: Any) -> None:
        super().__init__(hosts, **arguments)  # type: ignore[no-untyped-call]
        self.sentinels: list[Any] = [
            SentinelClient(host=host, port=port, **self.sentinel_kwargs) for host, port in hosts
        ]

    def discover_master(self, service_name: str) -> Any:
        """Return the address of the master; raise ``MasterNotFoundError`` if no master is found."""
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as error:
            problems = ", ".join(client.problem() for client in self.sentinels)
            message = f"no Sentinel knows a running master {service_name!r}: {problems}"
            raise MasterNotFoundError(message) from error


class MasterClient(Redis):
    """A client that closes its idle connections when its server refuses writes.

    After a failover, the next command of the client opens a new connection. DNS or Sentinel directs
    a new connection to the new master. The client does not repeat a refused command.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return the reply."""
        try:
            with server_errors():
                return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ReadOnlyError:
            self.connection_pool.disconnect(inuse_connections=False)
            raise


RawClient: TypeAlias = "Redis | RedisCluster"

#: How many times a cluster client reloads its node list and repeats a command if a node is down.
CLUSTER_RETRIES: Final = 2
# In redis-py 5, the argument "retry" applies to each node instead of the whole cluster.
_RETRY_IS_FOR_CLUSTER: Final = int(redis.__version__.split(".")[0]) >= 6

#: Timeouts in seconds for each Sentinel server.
#: The timeouts are short, because the client waits for each Sentinel server that is down.
SENTINEL_DEFAULTS: Final = dict(SOCKET_DEFAULTS, socket_timeout=1.0, socket_connect_timeout=1.0)

REDIS_PORT: Final = 6379

_UNKNOWN_ARGUMENT: Final = re.compile(r"unexpected keyword argument '(\w+)'")
_SENTINEL_ARGUMENTS: Final = frozenset(signature(Sentinel.__init__).parameters)
_CLUSTER_ARGUMENTS: Final = frozenset(signature(RedisCluster.__init__).parameters)


def build(parameters: Parameters) -> RawClient:
    """Return a client for ``parameters``. No round trips.

    Raises :exc:`ConfigurationError` for options that redis-py does not know. A cluster client
    raises :exc:`ConfigurationError` at its first use if the server is not part of a cluster.
    """
    scheme, endpoint = parameters.node.scheme, parameters.endpoint
    if not parameters.redbeat_options.get("cluster"):
        return _BUILDERS[scheme](parameters)
    if scheme not in _CLUSTER_SCHEMES:
        raise ConfigurationError(
            f"{endpoint.options.setting}['cluster'] is set, but {endpoint.url.setting} is a "
            f"{scheme} URL: for a cluster use one of {', '.join(_CLUSTER_SCHEMES)}"
        )
    return _cluster(parameters)


def _single(parameters: Parameters) -> Redis:
    host, port = _hosts(parameters, REDIS_PORT)[0]
    return _master(parameters, host=host, port=port)


def _socket(parameters: Parameters) -> Redis:
    path = parameters.node.path
    if not path.strip("/"):
        raise ConfigurationError(
            f"{parameters.endpoint.url.setting} has no socket path; use unix:///path/to/redis.sock"
        )
    return _master(parameters, unix_socket_path=path)


def _master(parameters: Parameters, **address: Any) -> Redis:
    with _config_errors(parameters):
        client = MasterClient(**{**address, **with_retry(parameters.kwargs)})
        connection_like(client.connection_pool)  # redis-py validates the arguments
    return client


def _hosts(parameters: Parameters, port: int) -> list[tuple[str, int]]:
    return [(node.host or "localhost", node.port or port) for node in parameters.addresses]


def _sentinel(parameters: Parameters) -> Redis:
    options, kwargs = parameters.redbeat_options, with_retry(parameters.kwargs)
    if parameters.node.scheme == "redis-sentinel" and "sentinels" not in options:
        raise ConfigurationError(
            f"{parameters.endpoint.options.setting} has no 'sentinels': set redbeat_redis_options "
            "to {'sentinels': [(host, port), ...], 'service_name': ...}"
        )
    service = options.get("service_name") or options.get("master_name") or DEFAULT_SERVICE
    for_sentinel = {name: kwargs.pop(name) for name in _SENTINEL_ARGUMENTS & kwargs.keys()}
    sentinel_kwargs = _sentinel_kwargs(parameters)
    hosts = options.get("sentinels") or _hosts(parameters, SENTINEL_PORT)
    with _config_errors(parameters):
        sentinel: Any = Sentinels(hosts, sentinel_kwargs=sentinel_kwargs, **for_sentinel)
        client: Redis = sentinel.master_for(service, redis_class=MasterClient, **kwargs)
        connection_like(client.connection_pool)
    return client


def _sentinel_kwargs(parameters: Parameters) -> dict[str, Any]:
    kwargs = dict(parameters.redbeat_options.get("sentinel_kwargs", {}))
    if kwargs.get("ssl"):
        setting = f"{parameters.endpoint.options.setting}['sentinel_kwargs']"
        tls = {name: kwargs.pop(name) for name in TLS_OPTIONS & kwargs.keys()}
        kwargs |= tls_options([Source(setting, tls)])
    # Retry only once, because by default redis-py tries an unreachable Sentinel four times, and
    # pauses between the attempts.
    return {**SENTINEL_DEFAULTS, **with_retry(hide_credentials(kwargs))}


def _cluster(parameters: Parameters) -> RedisCluster:
    kwargs = _cluster_kwargs(parameters)
    hosts = parameters.redbeat_options.get("startup_nodes") or _hosts(parameters, REDIS_PORT)
    nodes = [ClusterNode(*host) for host in hosts]  # type: ignore[no-untyped-call]
    return LateCluster(partial(_cluster_config_errors, parameters), startup_nodes=nodes, **kwargs)


def _cluster_kwargs(parameters: Parameters) -> dict[str, Any]:
    kwargs, endpoint = dict(parameters.kwargs), parameters.endpoint
    if kwargs.pop("db", 0):
        raise ConfigurationError(
            f"{endpoint.url.setting} or {endpoint.options.setting} names a database, but a cluster "
            "has only database 0: remove the database"
        )
    if _RETRY_IS_FOR_CLUSTER and not kwargs.keys() & {"retry", "retry_on_error"}:
        kwargs["retry"] = Retry(NoBackoff(), CLUSTER_RETRIES)
    # A schedule without shards uses only one slot, so it works even if other slots are unavailable.
    kwargs.setdefault("require_full_coverage", False)
    node_kwargs = {name: kwargs[name] for name in kwargs if name not in _CLUSTER_ARGUMENTS}
    with _config_errors(parameters):
        connection_like(Redis(**node_kwargs).connection_pool)
    # For the nodes of a cluster, redis-py silently ignores unknown options, even options that
    # enable the verification of certificates.
    dropped = sorted(node_kwargs.keys() - set(REDIS_ALLOWED_KEYS))
    if dropped:
        raise ConfigurationError(
            f"redis-py {redis.__version__} does not support {', '.join(dropped)} for the nodes of "
            f"a cluster: upgrade redis-py, or change {endpoint.options.setting}"
        )
    return kwargs


@contextmanager
def _cluster_config_errors(parameters: Parameters) -> Iterator[None]:
    try:
        with _config_errors(parameters):
            yield
    except RedisClusterException as error:
        if "not enabled" in str(error):
            raise ConfigurationError(
                f"{parameters.endpoint.url.setting} is not a cluster: use a redis URL, and remove "
                f"'cluster' from {parameters.endpoint.options.setting}"
            ) from error
        raise RedisConnectionError(str(error)) from error


@contextmanager
def _config_errors(parameters: Parameters) -> Iterator[None]:
    """Translate redis-py's errors about invalid arguments into ``ConfigurationError``."""
    try:
        yield
    except RedisConnectionError as error:
        if isinstance(error.__cause__, (OSError, RedisError)) or "protocol" not in str(error):
            raise
        raise ConfigurationError(f"{parameters.endpoint.options.setting}: {error}") from error
    except (TypeError, ValueError, RedisError) as error:
        unknown = _UNKNOWN_ARGUMENT.search(str(error))
        what = f"{unknown[1]!r} is not an option of redis-py" if unknown else str(error)
        in_url = unknown and unknown[1] in parameters.node.options
        setting = parameters.endpoint.url.setting if in_url else parameters.endpoint.options.setting
        raise ConfigurationError(f"{setting}: {what}") from error


_BUILDERS: Final[Mapping[str, Callable[[Parameters], RawClient]]] = {
    **dict.fromkeys(("redis", "rediss"), _single),
    **dict.fromkeys(SOCKETS, _socket),
    **dict.fromkeys(("redis-sentinel", "sentinel"), _sentinel),
    "redis-cluster": _cluster,
}

_CLUSTER_SCHEMES: Final = ("redis", "rediss", "redis-cluster")
