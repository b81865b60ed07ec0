"""The parameters of a client: which Redis, encrypted or not, and the options for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

from celery import Celery
from celery.utils.log import get_logger
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from redbeat.errors import ConfigurationError
from redbeat.settings import MISSING, find_setting

from .options import CLIENT_OPTIONS, OWN_OPTIONS, check_options, inherited_options
from .tls import Layer, tls_options
from .urls import MANY_SERVERS, SCHEMES, SOCKETS, Address, parse_url, safe_url, url_scheme

__all__ = (
    "SOCKET_DEFAULTS",
    "Endpoint",
    "Parameters",
    "client_parameters",
    "encryption",
    "hide_credentials",
    "read_endpoint",
    "stale_connection_retry",
)

logger = get_logger("celery.beat")


@dataclass(frozen=True, repr=False)
class Endpoint:
    """The URL, TLS options and client options, and whether each is inherited from the broker.

    ``url`` holds alternatives separated by ``;`` and may hold a password, as ``options`` may.
    """

    url: str
    use_ssl: Any
    options: dict[str, Any]
    url_inherited: bool
    ssl_inherited: bool
    options_inherited: bool
    #: Whether the broker is one that could hold the schedule.
    broker_is_redis: bool

    @property
    def url_setting(self) -> str:
        """The name of the setting that the URL comes from, for messages."""
        return "broker_url" if self.url_inherited else "redbeat_redis_url"

    @property
    def ssl_setting(self) -> str:
        """The name of the setting that the TLS options come from, for messages."""
        return "broker_use_ssl" if self.ssl_inherited else "redbeat_redis_use_ssl"

    @property
    def options_setting(self) -> str:
        """The name of the setting that the client's options come from, for messages."""
        return "broker_transport_options" if self.options_inherited else "redbeat_redis_options"

    @property
    def is_cluster(self) -> bool:
        """Whether a client for it would be one of a Redis Cluster."""
        return bool(self.options.get("cluster")) or url_scheme(self.url) == "redis-cluster"


def read_endpoint(app: Celery) -> Endpoint:
    """Read the settings of ``app``; the URL is checked when a client is built from it.

    Raises :exc:`ConfigurationError` for values of a wrong type.
    """
    url, url_inherited = _own_or_broker(app, "redbeat_redis_url", "broker_url")
    use_ssl, ssl_inherited = _own_or_broker(app, "redbeat_redis_use_ssl", "broker_use_ssl")
    options, options_inherited = _own_or_broker(
        app, "redbeat_redis_options", "broker_transport_options"
    )
    setting = "broker_transport_options" if options_inherited else "redbeat_redis_options"
    return Endpoint(
        url=_url_text(url, "broker_url" if url_inherited else "redbeat_redis_url"),
        use_ssl=_check_use_ssl(
            use_ssl, "broker_use_ssl" if ssl_inherited else "redbeat_redis_use_ssl"
        ),
        options=_check_options(options, setting, options_inherited),
        url_inherited=url_inherited,
        ssl_inherited=ssl_inherited,
        options_inherited=options_inherited,
        broker_is_redis=url_scheme(_url_text(app.conf.broker_url, "broker_url")) in SCHEMES,
    )


def _own_or_broker(app: Celery, own: str, broker: str) -> tuple[Any, bool]:
    value = find_setting(app, own)
    if value is None or value is MISSING:
        # Celery's own attribute: for the URL it asks the environment too.
        return getattr(app.conf, broker), True
    return value, False


def _url_text(url: Any, setting: str) -> str:
    if isinstance(url, (list, tuple)) and all(isinstance(part, str) for part in url):
        return ";".join(url)
    if url is None or isinstance(url, str):
        return url or ""
    raise ConfigurationError(f"{setting} must be a text, not a {type(url).__name__}")


def _check_use_ssl(use_ssl: Any, setting: str) -> Any:
    if isinstance(use_ssl, (bool, Mapping, type(None))):
        return use_ssl
    raise ConfigurationError(f"{setting} must be True, False or a dict of ssl_ options")


def _check_options(options: Any, setting: str, inherited: bool) -> dict[str, Any]:
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"{setting} must be a dict, not a {type(options).__name__}")
    return check_options(inherited_options(options) if inherited else options, setting)


def encryption(
    endpoint: Endpoint, scheme: str, from_url: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Return redis-py's TLS arguments for a URL of ``scheme``, none if the connection is plain.

    ``from_url`` and ``options`` are the TLS options in the URL and in the client's options. Raises
    :exc:`ConfigurationError` for options that contradict each other.
    """
    if not _wants_tls(endpoint, scheme, from_url, options):
        _refuse_stray_tls(endpoint, from_url, options)
        return {}
    return tls_options(_tls_layers(endpoint, from_url, options))


def _tls_layers(
    endpoint: Endpoint, from_url: dict[str, Any], options: dict[str, Any]
) -> list[Layer]:
    settings = endpoint.use_ssl if isinstance(endpoint.use_ssl, Mapping) else {}
    use_ssl = Layer(endpoint.ssl_setting, settings, strict=not endpoint.ssl_inherited)
    url = Layer(endpoint.url_setting, from_url)
    first = [use_ssl, url] if endpoint.ssl_inherited else [url, use_ssl]
    return [*first, Layer(endpoint.options_setting, options)]


def _wants_tls(
    endpoint: Endpoint, scheme: str, from_url: dict[str, Any], options: dict[str, Any]
) -> bool:
    asked = bool(endpoint.use_ssl)
    if scheme in SOCKETS:
        if asked and not endpoint.ssl_inherited:
            raise ConfigurationError(
                f"redbeat_redis_use_ssl is set, but {endpoint.url_setting} is a local socket, "
                "which has no TLS: unset one of them"
            )
        return False
    if scheme == "rediss" or options.get("ssl"):
        return True
    if endpoint.url_inherited:
        return asked or bool(from_url)
    if not endpoint.ssl_inherited:
        return asked
    # These URLs are another way to name the broker's own servers; a redis URL is another server.
    return asked and scheme in MANY_SERVERS and endpoint.broker_is_redis


def _refuse_stray_tls(
    endpoint: Endpoint, from_url: dict[str, Any], options: dict[str, Any]
) -> None:
    for setting, stray in ((endpoint.url_setting, from_url), (endpoint.options_setting, options)):
        names = sorted(stray.keys() - {"ssl"})
        if names:
            raise ConfigurationError(
                f"{setting} has TLS options ({', '.join(names)}), but TLS is off: use a rediss URL "
                "or set redbeat_redis_use_ssl"
            )


#: Seconds, so that a dead server is noticed; redis-py 5 to 7 would wait for ever.
SOCKET_DEFAULTS: Final[Mapping[str, Any]] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
}

_SCHEMES_OF_REDBEAT_2: Final = ("redis", "rediss", "unix", "redis-sentinel")
_REDIS_ARGUMENTS: Final = frozenset(signature(Redis.__init__).parameters)


@dataclass(frozen=True, repr=False)
class Parameters:
    """What a builder needs: ``kwargs`` are redis-py's, ``own`` are our options."""

    scheme: str
    addresses: list[Address]
    kwargs: dict[str, Any]
    own: dict[str, Any]
    #: The names of the settings, for messages.
    url_setting: str
    options_setting: str

    @property
    def node(self) -> Address:
        """The first, mostly the only, address of the URL."""
        return self.addresses[0]


def client_parameters(endpoint: Endpoint) -> Parameters:
    """Merge the settings of ``endpoint``: an explicit option beats the URL beats the default.

    Options inherited from the broker come between URL and default. Raises
    :exc:`ConfigurationError`. No round trips.
    """
    addresses = _addresses(endpoint)
    options = dict(endpoint.options)
    own = {name: options.pop(name) for name in OWN_OPTIONS if _steers(name) and name in options}
    from_url = _url_options(addresses[0], endpoint)
    _warn_about_database(endpoint, addresses, from_url, options)
    layers = [from_url, options]
    if endpoint.options_inherited:
        layers.reverse()
    kwargs: dict[str, Any] = {"decode_responses": True, **SOCKET_DEFAULTS}
    kwargs |= _without_tls(layers[0]) | _without_tls(layers[1])
    if not kwargs.keys() & {"retry", "retry_on_error"}:
        kwargs |= stale_connection_retry()
    kwargs |= encryption(endpoint, addresses[0].scheme, _only_tls(from_url), _only_tls(options))
    return Parameters(
        scheme=addresses[0].scheme,
        addresses=addresses,
        kwargs=hide_credentials(kwargs),
        own=own,
        url_setting=endpoint.url_setting,
        options_setting=endpoint.options_setting,
    )


def hide_credentials(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``kwargs`` with user name and password as a credential provider.

    redis-py prints its arguments in the ``repr`` of clients and pools, but not what a provider
    holds. A provider of the user's own wins.
    """
    hidden = dict(kwargs)
    username, password = hidden.pop("username", None), hidden.pop("password", None)
    if (username or password) and hidden.get("credential_provider") is None:
        provider = UsernamePasswordCredentialProvider(username, password)
        hidden["credential_provider"] = provider
    return hidden


def _steers(name: str) -> bool:
    return name not in CLIENT_OPTIONS


def _only_tls(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name.split("_")[0] == "ssl"}


def _without_tls(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name.split("_")[0] != "ssl"}


def stale_connection_retry() -> dict[str, Any]:
    """Send once more, at once, what met a connection that the server had closed long ago."""
    retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
    # redis-py 5 asks for both before it sends a command again.
    return {"retry": retry, "retry_on_error": [RedisConnectionError]}


def _addresses(endpoint: Endpoint) -> list[Address]:
    addresses = parse_url(endpoint.url, endpoint.url_setting)
    if not addresses:
        raise ConfigurationError(
            "Neither redbeat_redis_url nor broker_url is set: set redbeat_redis_url to the Redis "
            f"that holds the schedule; valid schemes are {', '.join(SCHEMES)}"
        )
    if len(addresses) > 1 and addresses[0].scheme not in MANY_SERVERS:
        logger.warning(
            "%s names several servers (%s), but a schedule is on one: the first is used. Set "
            "redbeat_redis_url to that one",
            *(endpoint.url_setting, safe_url(endpoint.url)),
        )
    return addresses


def _url_options(address: Address, endpoint: Endpoint) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: _parsed(name, text, endpoint.url_setting) for name, text in address.options.items()
    }
    if endpoint.url_inherited:
        options = {name: options[name] for name in options if _is_for_redis(name)}
    if "virtual_host" in options:
        options.setdefault("db", options.pop("virtual_host").strip("/"))
    if address.scheme not in SOCKETS and address.path.strip("/"):
        options.setdefault("db", address.path.replace("/", ""))
    for name in ("username", "password"):
        if getattr(address, name) is not None:
            options[name] = getattr(address, name)
    return check_options(options, endpoint.url_setting)


def _is_for_redis(name: str) -> bool:
    return name in _REDIS_ARGUMENTS or name == "virtual_host"


def _parsed(name: str, text: str, setting: str) -> Any:
    parser: Any = URL_QUERY_ARGUMENT_PARSERS.get(name)
    try:
        return parser(text) if parser else text
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{setting} has an option {name} that is not valid") from error


def _warn_about_database(
    endpoint: Endpoint,
    addresses: list[Address],
    from_url: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Log where the schedule is if RedBeat 2, with the same settings, put it elsewhere."""
    scheme = addresses[0].scheme
    if scheme not in _SCHEMES_OF_REDBEAT_2:
        return
    option, url = options.get("db"), from_url.get("db")
    first, second = (url, option) if endpoint.options_inherited else (option, url)
    now = (second if first is None else first) or 0
    if len(addresses) > 1:  # the path of the whole text is no number
        url = None
    if scheme == "redis-sentinel":
        before = option or 0
    else:
        before = (0 if endpoint.options_inherited else option or 0) if url is None else url
    if now != before:
        message = "The schedule is in database %s; RedBeat 2 read %s and %s as database %s"
        logger.warning(message, now, endpoint.url_setting, endpoint.options_setting, before)
