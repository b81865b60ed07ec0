"""Compute the arguments of redis-py for the schedule's Redis: servers, TLS and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from redbeat.errors import ConfigurationError
from redbeat.printing import get_logger

from .endpoint import CLIENT_OPTIONS, REDBEAT_OPTIONS, Endpoint, Source, check_options
from .tls import encryption
from .urls import MANY_SERVERS, SCHEMES, Address, parse_url, safe_url

logger = get_logger("celery.beat")

#: Timeouts in seconds to detect a dead server, because redis-py 5 to 7 have no default timeout.
SOCKET_DEFAULTS: Final[Mapping[str, Any]] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
}

_REDIS_ARGUMENTS: Final = frozenset(signature(Redis.__init__).parameters)


@dataclass(frozen=True, repr=False)
class Parameters:
    """The parameters from which RedBeat builds a Redis client.

    ``node`` is the first address in the URL setting, ``hosts`` are those of all. ``kwargs`` are the
    arguments for redis-py. ``redbeat_options`` control how RedBeat builds the client.
    """

    endpoint: Endpoint
    node: Address
    hosts: list[tuple[str, int]]
    kwargs: dict[str, Any]
    redbeat_options: dict[str, Any]


def client_parameters(endpoint: Endpoint) -> Parameters:
    """Return the client parameters that result from all settings of ``endpoint``.

    An option in ``redbeat_redis_options`` overrides the URL. The URL overrides options inherited
    from the broker. Options inherited from the broker override the defaults. Raises
    :exc:`ConfigurationError` if a setting is invalid. No round trips.
    """
    addresses, url = _addresses(endpoint.url), endpoint.url
    options, tls = _split(endpoint.options.value)
    builder_options = options.keys() & (REDBEAT_OPTIONS.keys() - set(CLIENT_OPTIONS))
    redbeat_options = {name: options.pop(name) for name in builder_options}
    from_url, tls_from_url = _split(check_options(addresses[0].options, url.setting))
    if url.inherited:  # the URL may have options of the broker
        from_url = {name: from_url[name] for name in from_url if name in _REDIS_ARGUMENTS}
    layers = [from_url, options]
    if endpoint.options.inherited:
        layers.reverse()
    kwargs = {"decode_responses": True, **SOCKET_DEFAULTS, **layers[0], **layers[1]}
    database = kwargs.get("db", 0)
    if database != from_url.get("db", database):
        message = "The schedule is in database %s of %s; RedBeat 2 used database %s of %s"
        logger.warning(
            message, database, endpoint.options.setting, from_url["db"], endpoint.url.setting
        )
    sources = Source(url.setting, tls_from_url), Source(endpoint.options.setting, tls)
    kwargs |= encryption(endpoint, addresses[0].scheme, *sources)
    hosts = [(one.host, one.port) for one in addresses]
    return Parameters(endpoint, addresses[0], hosts, hide_credentials(kwargs), redbeat_options)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options without those of TLS, and those of TLS."""
    tls = {name: value for name, value in options.items() if str(name).split("_")[0] == "ssl"}
    return {name: value for name, value in options.items() if name not in tls}, tls


def hide_credentials(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``kwargs`` with a credential provider instead of a user name and a password.

    The ``repr`` of redis-py's clients and pools shows passwords, but not the contents of a
    credential provider. A credential provider in ``kwargs`` is kept.
    """
    hidden = dict(kwargs)
    username, password = hidden.pop("username", None), hidden.pop("password", None)
    if (username or password) and hidden.get("credential_provider") is None:
        provider = UsernamePasswordCredentialProvider(username, password)
        hidden["credential_provider"] = provider
    return hidden


def with_retry(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return redis-py arguments with one immediate retry after a connection error.

    The retry replaces a pooled connection that the server closed because it was idle. Arguments
    with a retry of their own stay as they are.
    """
    if kwargs.keys() & {"retry", "retry_on_error"}:
        return dict(kwargs)
    retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
    # redis-py 5 retries a command only if ``retry`` and ``retry_on_error`` are both set.
    return {**kwargs, "retry": retry, "retry_on_error": [RedisConnectionError]}


def _addresses(url: Source) -> list[Address]:
    addresses = parse_url(url.value, url.setting)
    if not addresses:
        raise ConfigurationError(
            "Neither redbeat_redis_url nor broker_url is set: set redbeat_redis_url to the URL of "
            f"the Redis that stores the schedule; valid schemes are {', '.join(SCHEMES)}"
        )
    if len(addresses) > 1 and addresses[0].scheme not in MANY_SERVERS:
        logger.warning(
            "%s names several servers (%s), but a schedule is on one server. RedBeat uses the "
            "first server; set redbeat_redis_url to the URL of one server",
            *(url.setting, safe_url(url.value)),
        )
    return addresses
