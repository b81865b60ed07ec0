"""The settings of the schedule's Redis: the URL, the TLS options and the client options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from celery import Celery
from kombu.utils.imports import symbol_by_name
from redis.credentials import CredentialProvider

from redbeat.errors import ConfigurationError
from redbeat.settings import MISSING, find_setting

from .urls import SOCKETS, url_scheme, url_text


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

    @property
    def scheme(self) -> str:
        """The scheme of the URL, or of the first of several URLs."""
        return url_scheme(self.url.value)

    @property
    def is_cluster(self) -> bool:
        """Whether the settings describe a Redis Cluster."""
        return bool(self.options.value.get("cluster")) or self.scheme == "redis-cluster"

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted.

        ``broker_use_ssl`` turns TLS on only for the URL of the broker, because another URL usually
        names another server. ``redbeat_redis_use_ssl`` does so unless ``redbeat_redis_url`` is the
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
    """Return the connection settings of ``app``.

    Raises :exc:`ConfigurationError` for a value of the wrong type. The URL is validated later, when
    a client is built.
    """
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
    """Return the value of ``setting``, or of ``broker_setting`` if ``setting`` is not set."""
    value = find_setting(app, setting)
    if value is None or value is MISSING:
        # This code reads the attribute of app.conf, because only the attribute includes a URL from
        # the environment.
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


#: The options that control how RedBeat builds the client, and how a value is converted. The
#: conversion raises an error for a value that redis-py would refuse late, or not at all.
BUILDER_OPTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "cluster": bool,
    "master_name": _text,
    "retry_period": float,
    "sentinel_kwargs": dict,
    "sentinels": _nodes,
    "service_name": _text,
    "startup_nodes": _nodes,
}

#: The options that RedBeat passes to redis-py, and how a value is converted.
CLIENT_OPTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "credential_provider": _provider,
    "db": int,
    "password": _text,
    "socket_timeout": float,
    "username": _text,
}

#: The options that RedBeat itself uses.
REDBEAT_OPTIONS: Final = {**BUILDER_OPTIONS, **CLIENT_OPTIONS}


def check_options(options: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Convert the options that RedBeat itself uses, and return all ``options``.

    None means that an option is not set, except for ``socket_timeout``. redis-py validates the
    options that RedBeat does not use. Raises :exc:`ConfigurationError` for a value that cannot be
    converted. The error message contains ``setting`` and the name of the option.
    """
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"{setting} must be a dict, not of type {type(options).__name__}")
    checked = dict(options)
    for name in options.keys() & REDBEAT_OPTIONS.keys():
        value = checked[name]
        if value is None:
            if name != "socket_timeout":
                del checked[name]
            continue
        try:
            checked[name] = REDBEAT_OPTIONS[name](value)
        except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{setting}[{name!r}] cannot be used: {error}") from error
    return checked
