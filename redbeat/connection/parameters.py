"""The parameters of a client: one merge of defaults, URL and options for all topologies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

from celery.utils.log import get_logger
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from redbeat.errors import ConfigurationError

from .encryption import encryption
from .endpoint import Endpoint
from .options import CLIENT_OPTIONS, OWN_OPTIONS, check_options
from .urls import MANY_SERVERS, SCHEMES, SOCKETS, Address, parse_url, safe_url

__all__ = (
    "SOCKET_DEFAULTS",
    "Parameters",
    "client_parameters",
    "hide_credentials",
    "stale_connection_retry",
)

logger = get_logger("celery.beat")

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
