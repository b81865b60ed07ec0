"""The connection settings of the schedule's Redis, checked, and as arguments of redis-py."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Final

from celery import Celery
from kombu.utils.imports import symbol_by_name
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, SSLConnection, to_bool
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider

from redbeat.errors import ConfigurationError
from redbeat.printing import get_logger
from redbeat.settings import MISSING, find_setting

from .urls import SCHEMES, SOCKETS, Address, parse_url, url_scheme, url_text

logger = get_logger("celery.beat")


@dataclass(frozen=True, repr=False)
class Source:
    """A value that may be secret, its setting, and whether that is the broker's."""

    setting: str
    value: Any
    inherited: bool = False


@dataclass(frozen=True, repr=False)
class Endpoint:
    """The URL, the TLS options and the client options of the schedule's Redis.

    ``url`` may be several URLs, separated by ``;``. It and ``options`` may contain passwords.
    """

    url: Source
    use_ssl: Source
    options: Source

    @property
    def scheme(self) -> str:
        """The scheme of the first URL."""
        return url_scheme(self.url.value)

    @property
    def is_cluster(self) -> bool:
        return bool(self.options.value.get("cluster")) or self.scheme == "redis-cluster"

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted.

        ``broker_use_ssl`` turns on TLS only for the broker's URL, because another URL usually names
        another server. ``redbeat_redis_use_ssl`` turns it on unless ``redbeat_redis_url`` is the
        ``redis`` URL of a single server.
        """
        if self.scheme in SOCKETS:
            return False
        if self.scheme == "rediss" or self.options.value.get("ssl"):
            return True
        if self.url.inherited:
            return bool(self.use_ssl.value)
        is_plain = self.scheme == "redis" and not self.is_cluster
        return bool(self.use_ssl.value) and not self.use_ssl.inherited and not is_plain


def read_endpoint(app: Celery) -> Endpoint:
    """Read the connection settings of ``app``; a URL is checked only when a client is built."""
    url = _source_of(app, "redbeat_redis_url", "broker_url")
    use_ssl = _source_of(app, "redbeat_redis_use_ssl", "broker_use_ssl")
    options = _source_of(app, "redbeat_redis_options", "broker_transport_options")
    if not isinstance(use_ssl.value, (bool, Mapping, type(None))):
        raise ConfigurationError(f"{use_ssl.setting} must be True, False or a dict of ssl_ options")
    checked = check_options(options.value or {}, options.setting)
    if options.inherited:
        checked = {name: checked[name] for name in checked if name in REDBEAT_OPTIONS}
    return Endpoint(
        replace(url, value=url_text(url.value)), use_ssl, replace(options, value=checked)
    )


def _source_of(app: Celery, setting: str, broker_setting: str) -> Source:
    value = find_setting(app, setting)
    if value is None or value is MISSING:
        # Only the attribute of app.conf includes a URL from the environment.
        return Source(broker_setting, getattr(app.conf, broker_setting), inherited=True)
    return Source(setting, value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError("it must be a string")


def _provider(value: Any) -> CredentialProvider:
    if isinstance(value, str):
        value = symbol_by_name(value)()  # type: ignore[no-untyped-call]
    if isinstance(value, CredentialProvider):
        return value
    raise TypeError("it must be a redis.CredentialProvider, or the dotted name of such a class")


def _nodes(value: Any) -> list[tuple[str, int]]:
    """Convert a list of ``(host, port)``, or of dicts with these keys."""
    pairs = [(node["host"], node["port"]) if isinstance(node, Mapping) else node for node in value]
    return [(str(host), int(port)) for host, port in pairs]


#: The options for building the client, and how their values are converted. A conversion fails for a
#: value that redis-py would refuse late, or not at all.
BUILDER_OPTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "cluster": bool,
    "master_name": _text,
    "retry_period": float,
    "sentinel_kwargs": dict,
    "sentinels": _nodes,
    "service_name": _text,
    "startup_nodes": _nodes,
}

#: The options for redis-py, and how their values are converted.
CLIENT_OPTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "credential_provider": _provider,
    "db": int,
    "password": _text,
    "socket_timeout": float,
    "username": _text,
}

REDBEAT_OPTIONS: Final = {**BUILDER_OPTIONS, **CLIENT_OPTIONS}

#: How text is read, as in the query of a URL: values from the environment are text.
TEXT_OPTIONS: Final[Mapping[str, Any]] = {
    **URL_QUERY_ARGUMENT_PARSERS,
    "cluster": to_bool,
    "ssl": to_bool,
}


def check_options(options: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Return all ``options``, with those that RedBeat knows converted.

    None means "not set", except for ``socket_timeout``. redis-py checks the other options. Raises
    :exc:`ConfigurationError`, which names ``setting`` and the option.
    """
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"{setting} must be a dict, not of type {type(options).__name__}")
    checked = dict(options)
    for name, value in options.items():
        if value is None:
            if name in REDBEAT_OPTIONS and name != "socket_timeout":
                del checked[name]
            continue
        try:
            if isinstance(value, str) and name in TEXT_OPTIONS:
                checked[name] = TEXT_OPTIONS[name](value)
            if name in REDBEAT_OPTIONS:
                checked[name] = REDBEAT_OPTIONS[name](checked[name])
        except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{setting}[{name!r}] cannot be used: {error}") from error
    return checked


# -- arguments of redis-py -------------------------------------------------------------------------

#: In seconds, to detect a dead server: redis-py 5 to 7 have no default timeout.
SOCKET_DEFAULTS: Final[Mapping[str, Any]] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
}


@dataclass(frozen=True, repr=False)
class Parameters:
    """What a Redis client is built from.

    ``node`` is the first address in the URL setting, ``hosts`` are all of them. ``kwargs`` are for
    redis-py, without the options that only RedBeat uses.
    """

    endpoint: Endpoint
    node: Address
    hosts: list[tuple[str, int]]
    kwargs: dict[str, Any]


def client_parameters(endpoint: Endpoint) -> Parameters:
    """Return the client parameters that result from all settings of ``endpoint``.

    RedBeat's own settings override the URL. The URL overrides what is inherited from the broker,
    and that overrides the defaults. Raises :exc:`ConfigurationError` if a setting is invalid. No
    round trips.
    """
    url = endpoint.url
    addresses = parse_url(url.value, url.setting)
    if not addresses:
        raise ConfigurationError(
            "Neither redbeat_redis_url nor broker_url is set: set redbeat_redis_url to the URL of "
            f"the Redis that stores the schedule; valid schemes are {', '.join(SCHEMES)}"
        )
    given = endpoint.options.value
    options = {name: given[name] for name in given if name not in BUILDER_OPTIONS}
    from_url = check_options(addresses[0].options, url.setting)
    tls = tls_settings(endpoint.use_ssl) if endpoint.uses_tls else {}
    inherited: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for source, values in ((endpoint.use_ssl, tls), (endpoint.options, options)):
        (inherited if source.inherited else own).update(values)
    kwargs = {"decode_responses": True, **SOCKET_DEFAULTS, **inherited, **from_url, **own}
    database = kwargs.get("db", 0)
    if database != from_url.get("db", database):
        message = "The schedule is in database %s of %s; RedBeat 2 used database %s of %s"
        logger.warning(message, database, endpoint.options.setting, from_url["db"], url.setting)
    stray = sorted(name for name in map(str, kwargs) if name.startswith("ssl_"))
    if endpoint.uses_tls:
        kwargs = with_tls(kwargs)
    elif stray:
        raise ConfigurationError(
            f"{url.setting} or {endpoint.options.setting} has TLS options ({', '.join(stray)}), "
            "but TLS is off: use a rediss URL"
        )
    hosts = [(one.host, one.port) for one in addresses]
    return Parameters(endpoint, addresses[0], hosts, hide_credentials(kwargs))


def hide_credentials(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``kwargs`` with a credential provider instead of a user name and a password.

    The ``repr`` of redis-py's clients and pools shows passwords, but not what a credential provider
    contains. One that is in ``kwargs`` is kept.
    """
    hidden = dict(kwargs)
    username, password = hidden.pop("username", None), hidden.pop("password", None)
    if (username or password) and hidden.get("credential_provider") is None:
        provider = UsernamePasswordCredentialProvider(username, password)
        hidden["credential_provider"] = provider
    return hidden


# -- TLS -------------------------------------------------------------------------------------------

TLS_OPTIONS: Final = frozenset(
    name for name in signature(SSLConnection.__init__).parameters if name.startswith("ssl_")
)

#: OpenSSL reads these files at each connection.
FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


def tls_settings(use_ssl: Source) -> dict[str, Any]:
    """Return the options in a setting; their names may lack ``ssl_``, as for other brokers.

    Those of the broker that redis-py doesn't know are left out.
    """
    given: Mapping[str, Any] = use_ssl.value if isinstance(use_ssl.value, Mapping) else {}
    named = {name if name.startswith("ssl") else f"ssl_{name}": given[name] for name in given}
    if use_ssl.inherited:
        return {name: value for name, value in named.items() if name in TLS_OPTIONS}
    return named


def with_tls(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return redis-py's arguments ``kwargs`` for a TLS connection.

    By default, the server's certificate and host name are verified; a warning is logged if an
    option turns that off. Raises :exc:`ConfigurationError` for a file that is missing or invalid;
    redis-py checks the other values.
    """
    options = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **kwargs, "ssl": True}
    options["ssl_cert_reqs"] = _cert_reqs(options["ssl_cert_reqs"])
    password = options.get("ssl_password")
    if password is not None:
        # Whoever prints the options sees a function, not the password.
        options["ssl_password"] = lambda: password
    message = "The %s of the Redis server is not verified: %s is %r"
    if options["ssl_cert_reqs"] == "none":
        logger.warning(message, "certificate", "ssl_cert_reqs", "none")
        # The ssl module allows no host name check without a verified certificate.
        options["ssl_check_hostname"] = False
    elif not options["ssl_check_hostname"]:
        logger.warning(message, "host name", "ssl_check_hostname", False)
    _try_files(options)
    return options


def _cert_reqs(value: Any) -> str:
    with suppress(ValueError):
        value = ssl.VerifyMode(value).name  # such as CERT_NONE
    return str(value).lower().removeprefix("cert_")  # redis-py also treats None as "none"


def _try_files(options: Mapping[str, Any]) -> None:
    """Load certificates and key, so that bad files are reported before any command."""
    authorities, authorities_path, certificate, key = map(options.get, FILES)
    # Without a password argument, OpenSSL would prompt for one in the terminal.
    password = options.get("ssl_password") or (lambda: "")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authorities or authorities_path:
            context.load_verify_locations(authorities, authorities_path)
        if certificate or key:
            context.load_cert_chain(certificate, key, password)  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError) as error:  # ssl.SSLError is an OSError
        named = ", ".join(f"{name}={options[name]!r}" for name in FILES if options.get(name))
        raise ConfigurationError(
            f"The files for TLS cannot be used: {error} (check {named} and ssl_password)"
        ) from error
