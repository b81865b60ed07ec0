"""Compute the parameters of a Redis client from the settings: servers, TLS and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Final

from celery import Celery
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from redbeat.errors import ConfigurationError
from redbeat.printing import get_logger
from redbeat.settings import MISSING, find_setting

from .options import CLIENT_OPTIONS, REDBEAT_OPTIONS, check_options, inherited_options
from .tls import Source, tls_options
from .urls import MANY_SERVERS, SCHEMES, SOCKETS, Address, parse_url, safe_url, url_scheme

logger = get_logger("celery.beat")


@dataclass(frozen=True, repr=False)
class Endpoint:
    """The settings of the schedule's Redis: the URL, the TLS options and the client options.

    ``url`` may contain several URLs, separated by ``;``. ``url`` and ``options`` may contain
    passwords.
    """

    url: Source
    use_ssl: Source
    options: Source
    #: Whether the broker is a Redis server with a URL that RedBeat supports.
    broker_is_redis: bool

    @property
    def is_cluster(self) -> bool:
        """Whether the settings describe a Redis Cluster."""
        return bool(self.options.value.get("cluster")) or self._scheme == "redis-cluster"

    @property
    def is_plain(self) -> bool:
        """Whether the scheme of ``redbeat_redis_url`` turns TLS off for a single server."""
        own = not (self.url.inherited or self.is_cluster or self.options.value.get("ssl"))
        return own and self._scheme == "redis"

    @property
    def _scheme(self) -> str:
        return url_scheme(self.url.value)


def read_endpoint(app: Celery) -> Endpoint:
    """Return the connection settings of ``app``.

    Raises :exc:`ConfigurationError` for a value of the wrong type. The URL is validated later, when
    a client is built.
    """
    url = _source_of(app, "redbeat_redis_url", "broker_url")
    use_ssl = _source_of(app, "redbeat_redis_use_ssl", "broker_use_ssl")
    options = _source_of(app, "redbeat_redis_options", "broker_transport_options")
    if not isinstance(use_ssl.value, (bool, Mapping, type(None))):
        raise ConfigurationError(f"{use_ssl.setting} must be True, False or a dict of ssl_ options")
    broker = _with_text(Source("broker_url", app.conf.broker_url))
    return Endpoint(
        _with_text(url), use_ssl, _with_checks(options), url_scheme(broker.value) in SCHEMES
    )


def _source_of(app: Celery, setting: str, broker_setting: str) -> Source:
    """Return the value of ``setting``, or of ``broker_setting`` if ``setting`` is not set."""
    value = find_setting(app, setting)
    if value is None or value is MISSING:
        # This code reads the attribute of app.conf, because only the attribute includes a URL from
        # the environment.
        return Source(broker_setting, getattr(app.conf, broker_setting), inherited=True)
    return Source(setting, value)


def _with_text(url: Source) -> Source:
    value = "" if url.value is None else url.value
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        value = ";".join(value)
    if isinstance(value, str):
        return replace(url, value=value)
    raise ConfigurationError(f"{url.setting} must be a string, not of type {type(value).__name__}")


def _with_checks(source: Source) -> Source:
    options = {} if source.value is None else source.value
    if not isinstance(options, Mapping):
        what = f"must be a dict, not of type {type(options).__name__}"
        raise ConfigurationError(f"{source.setting} {what}")
    options = inherited_options(options) if source.inherited else options
    return replace(source, value=check_options(options, source.setting))


def encryption(endpoint: Endpoint, scheme: str, url: Source, options: Source) -> dict[str, Any]:
    """Return redis-py's TLS arguments for a URL of ``scheme``, or an empty dict if TLS is off.

    ``url`` has the TLS options of the URL, ``options`` those among the client options. Raises
    :exc:`ConfigurationError` if options contradict each other.
    """
    use_ssl = endpoint.use_ssl
    if not _wants_tls(endpoint, scheme, url, options):
        for stray in (url, options):
            names = sorted(stray.value.keys() - {"ssl"})
            if names:
                other = "" if endpoint.is_plain else " or set redbeat_redis_use_ssl"
                raise ConfigurationError(
                    f"{stray.setting} has TLS options ({', '.join(names)}), but TLS is off: use a "
                    f"rediss URL{other}"
                )
        return {}
    if not isinstance(use_ssl.value, Mapping):
        use_ssl = replace(use_ssl, value={})
    first = [use_ssl, url] if use_ssl.inherited else [url, use_ssl]
    return tls_options([*first, options])


def _wants_tls(endpoint: Endpoint, scheme: str, url: Source, options: Source) -> bool:
    use_ssl, own = bool(endpoint.use_ssl.value), not endpoint.use_ssl.inherited
    if scheme in SOCKETS:
        if use_ssl and own:
            raise ConfigurationError(
                f"redbeat_redis_use_ssl is set, but {url.setting} is a local socket, which has no "
                "TLS: remove one of these settings"
            )
        return False
    if scheme == "rediss" or options.value.get("ssl"):
        return True
    if endpoint.url.inherited:
        return use_ssl or bool(url.value)
    if own:
        return use_ssl and not endpoint.is_plain
    # broker_use_ssl applies only to Sentinel and cluster URLs, because these URLs usually name the
    # servers of the broker. A redis URL usually names a server that is not the broker.
    return use_ssl and scheme in MANY_SERVERS and endpoint.broker_is_redis


#: Timeouts in seconds to detect a dead server, because redis-py 5 to 7 have no default timeout.
SOCKET_DEFAULTS: Final[Mapping[str, Any]] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
}

_SCHEMES_OF_REDBEAT_2: Final = ("redis", "rediss", "unix", "redis-sentinel")
_REDIS_ARGUMENTS: Final = frozenset(signature(Redis.__init__).parameters)


@dataclass(frozen=True, repr=False)
class Parameters:
    """The parameters from which RedBeat builds a Redis client.

    ``kwargs`` are the arguments for redis-py. ``redbeat_options`` control how RedBeat builds the
    client.
    """

    endpoint: Endpoint
    addresses: list[Address]
    kwargs: dict[str, Any]
    redbeat_options: dict[str, Any]

    @property
    def node(self) -> Address:
        """The first address in the URL setting, which usually contains only one address."""
        return self.addresses[0]


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
    from_url, tls_from_url = _split(_url_options(addresses[0], url))
    layers = [from_url, options]
    if endpoint.options.inherited:
        layers.reverse()
    kwargs = {"decode_responses": True, **SOCKET_DEFAULTS, **layers[0], **layers[1]}
    _warn_about_database(endpoint, addresses, from_url.get("db"), kwargs.get("db") or 0)
    sources = Source(url.setting, tls_from_url), Source(endpoint.options.setting, tls)
    kwargs |= encryption(endpoint, addresses[0].scheme, *sources)
    return Parameters(endpoint, addresses, hide_credentials(kwargs), redbeat_options)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options without those of TLS, and those of TLS."""
    tls = {name: value for name, value in options.items() if name.split("_")[0] == "ssl"}
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


def _url_options(address: Address, url: Source) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: _parsed(name, text, url.setting) for name, text in address.options.items()
    }
    if url.inherited:
        known = {*_REDIS_ARGUMENTS, "virtual_host"}
        options = {name: options[name] for name in options if name in known}
    if "virtual_host" in options:
        options.setdefault("db", options.pop("virtual_host").strip("/"))
    if address.scheme not in SOCKETS and address.path.strip("/"):
        options.setdefault("db", address.path.replace("/", ""))
    for name in ("username", "password"):
        if getattr(address, name) is not None:
            options[name] = getattr(address, name)
    return check_options(options, url.setting)


def _parsed(name: str, text: str, setting: str) -> Any:
    parser: Any = URL_QUERY_ARGUMENT_PARSERS.get(name)
    try:
        return parser(text) if parser else text
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{setting} has an invalid value for the option {name}") from error


def _warn_about_database(
    endpoint: Endpoint, addresses: list[Address], in_url: int | None, now: int
) -> None:
    """Log a warning if RedBeat 2 used another database with the current settings."""
    scheme, option = addresses[0].scheme, endpoint.options.value.get("db") or 0
    if scheme not in _SCHEMES_OF_REDBEAT_2:
        return
    if scheme == "redis-sentinel":
        before = option
    elif in_url is None or len(addresses) > 1:  # RedBeat 2 parsed several URLs as one URL
        before = 0 if endpoint.options.inherited else option
    else:
        before = in_url
    if now != before:
        message = (
            "The schedule is in database %s; with the current %s and %s, RedBeat 2 used database %s"
        )
        logger.warning(message, now, endpoint.url.setting, endpoint.options.setting, before)
