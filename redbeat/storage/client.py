"""The Redis client of an app. RedBeat creates a Redis client if the user has not set a client."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Final

from celery import Celery

from redbeat.config import App, RedBeatConfig, ensure_conf, real_app
from redbeat.connection.retrying import RetryingConnection
from redbeat.connection.topology import RawClient, build, client_parameters

#: The attribute of the app that stores the Redis client.
#: Users may set this attribute to their own client.
REDBEAT_REDIS_KEY: Final = "redbeat_redis"
#: The attribute of the app that stores redis-py's ``Sentinel`` object, if Sentinel is used.
REDBEAT_SENTINEL_KEY: Final = "redbeat_sentinel"

# Two threads that call get_redis() at the same time must get the same client.
_creation_lock = RLock()


def get_redis(app: App | None = None) -> Any:
    """Return the Redis client of ``app`` (default: the current app).

    The first call of the function creates the client. The client decodes replies to ``str``, and
    retries failed commands for ``retry_period`` seconds. If the user has set ``app.redbeat_redis``,
    the function returns the client of the user unchanged. Raises :exc:`~redbeat.ConfigurationError`
    if the settings are invalid. No round trips.
    """
    app = real_app(app)
    with _creation_lock:
        client: Any = getattr(app, REDBEAT_REDIS_KEY, None)
        if client is None:
            client = _make_client(app)
            setattr(app, REDBEAT_REDIS_KEY, client)
    return client


_provider: Callable[[Celery], Any] = get_redis


def use_provider(provider: Callable[[Celery], Any]) -> None:
    """Set the function that :func:`client_of` calls to get the client of an app."""
    global _provider  # noqa: PLW0603 - one provider per process
    _provider = provider


def client_of(app: App | None = None) -> Any:
    """Return the Redis client that RedBeat uses for ``app``; see :func:`get_redis`.

    A program can replace ``redbeat.schedulers.get_redis`` to provide its own client. The first call
    of the function also logs the warnings about the settings, because Celery configures logging
    only after the app is created. Raises :exc:`~redbeat.ConfigurationError` if the settings are
    invalid, or if the program provides a cluster client but the key prefix has no hash tag.
    """
    app = real_app(app)
    conf = ensure_conf(app)
    conf.report()
    client = _provider(app)
    conf.adopt(client)
    return client


def build_client(config: RedBeatConfig) -> RawClient:
    """Return a new client for ``config``, without retries; see :func:`get_redis`."""
    return build(client_parameters(config.endpoint))


def unretried(client: Any) -> Any:
    """Return ``client`` without its automatic retries, for callers with their own retries."""
    return client.wrapped_connection if isinstance(client, RetryingConnection) else client


def _make_client(app: Celery) -> Any:
    config = ensure_conf(app)
    config.report()
    client = build_client(config)
    sentinel = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    if sentinel is not None:
        setattr(app, REDBEAT_SENTINEL_KEY, sentinel)
    period = config.redbeat_redis_options.get("retry_period")
    return RetryingConnection(period, client) if period else client
