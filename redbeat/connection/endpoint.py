"""The settings of the schedule's Redis: the URL, the TLS options and the client options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from celery import Celery
from kombu.utils.imports import symbol_by_name
from redis.cluster import ClusterNode
from redis.credentials import CredentialProvider

from redbeat.errors import ConfigurationError
from redbeat.settings import MISSING, find_setting, is_number

from .urls import SCHEMES, SOCKETS, url_scheme


@dataclass(frozen=True, repr=False)
class Source:
    """A value that may be secret, the name of its setting, and whether this is the broker's."""

    setting: str
    value: Any
    inherited: bool = False


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
    def scheme(self) -> str:
        """The scheme of the URL, or of the first of several URLs."""
        return url_scheme(self.url.value)

    @property
    def is_cluster(self) -> bool:
        """Whether the settings describe a Redis Cluster."""
        return bool(self.options.value.get("cluster")) or self.scheme == "redis-cluster"

    @property
    def is_plain(self) -> bool:
        """Whether the scheme of ``redbeat_redis_url`` turns TLS off for a single server."""
        own = not (self.url.inherited or self.is_cluster or self.options.value.get("ssl"))
        return self.scheme in SOCKETS or (own and self.scheme == "redis")


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
    if source.inherited:
        options = {name: options[name] for name in options if name in REDBEAT_OPTIONS}
    return replace(source, value=check_options(options, source.setting))


class Option(NamedTuple):
    """How RedBeat checks an option, because redis-py would refuse it late, or not at all.

    ``convert`` may raise an error for an invalid value, too.
    """

    requirement: str
    is_valid: Callable[[Any], Any]
    convert: Callable[[Any], Any] = lambda value: value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _provider(value: Any) -> CredentialProvider:
    provider = symbol_by_name(value)() if _is_text(value) else value  # type: ignore[no-untyped-call]
    if isinstance(provider, CredentialProvider):
        return provider
    raise TypeError(value)


def _node(value: Any) -> tuple[str, int]:
    fields = vars(value) if isinstance(value, ClusterNode) else value
    host, port = (fields["host"], fields["port"]) if isinstance(fields, Mapping) else fields
    if host and _is_text(host):
        return host, int(port)
    raise TypeError(value)


_NAME: Final = Option("must be a non-empty string", lambda value: _is_text(value) and value)
_NODES: Final = Option("must be a list of (host, port)", bool, lambda nodes: [*map(_node, nodes)])
_SECRET: Final = Option("must be a string or None", _is_text)

#: The options that RedBeat itself uses.
REDBEAT_OPTIONS: Final[Mapping[str, Option]] = {
    "cluster": Option("must be True or False", lambda value: value in (False, True), bool),
    "credential_provider": Option(
        "must be a redis.CredentialProvider, or the dotted name of a class that can be imported "
        "and called without arguments",
        bool,
        _provider,
    ),
    "db": Option(
        "must be the number of a database, at least 0",
        lambda value: str(value).strip().isdecimal(),
        int,
    ),
    "master_name": _NAME,
    "password": _SECRET,
    "retry_period": Option(
        "must be a number of seconds above 0, -1 for no limit, or None for no retry",
        lambda value: is_number(value) and (value >= 0 or value == -1),
    ),
    "sentinel_kwargs": Option("must be a dict", lambda value: isinstance(value, Mapping), dict),
    "sentinels": _NODES,
    "service_name": _NAME,
    "socket_timeout": Option(
        "must be a number of seconds above 0, or None for no limit",
        lambda value: value is None or (is_number(value) and value > 0),
    ),
    "startup_nodes": _NODES,
    "username": _SECRET,
}

#: The options in REDBEAT_OPTIONS that RedBeat passes to redis-py.
#: All other options in REDBEAT_OPTIONS only control how RedBeat builds the client.
CLIENT_OPTIONS: Final = ("credential_provider", "db", "password", "socket_timeout", "username")


def check_options(options: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Validate and convert the options that RedBeat itself uses, and return all ``options``.

    None means that an option is not set, except for ``socket_timeout``. redis-py validates the
    options that RedBeat does not use. Raises :exc:`ConfigurationError` for an invalid value. The
    error message contains ``setting`` and the name of the option, but not the value, because the
    value may be secret.
    """
    checked = dict(options)
    for name in options.keys() & REDBEAT_OPTIONS.keys():
        option, value = REDBEAT_OPTIONS[name], checked.pop(name)
        if value is None and name != "socket_timeout":
            continue
        try:
            if not option.is_valid(value):
                raise ValueError(option.requirement)
            checked[name] = option.convert(value)
        except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
            message = f"{setting}[{name!r}] {option.requirement}"
            raise ConfigurationError(message) from error
    return checked
