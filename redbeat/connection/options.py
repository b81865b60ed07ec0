"""Validate the options in ``redbeat_redis_options`` that RedBeat itself uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from kombu.utils.imports import symbol_by_name
from redis.cluster import ClusterNode
from redis.credentials import CredentialProvider

from redbeat.errors import ConfigurationError
from redbeat.settings import is_number


def _retry_period(value: Any) -> float | None:
    if is_number(value) and (value >= 0 or value == -1):
        return float(value) or None
    raise ValueError("must be a number of seconds above 0, -1 for no limit, or None for no retry")


def _valid(
    accepts: Callable[[Any], Any], convert: Callable[[Any], Any], requirement: str
) -> Callable[[Any], Any]:
    """Return a function that converts accepted values, and raises ValueError for other values."""

    def checked(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(requirement)
        return convert(value)

    return checked


_text = _valid(lambda value: isinstance(value, str) and value, str, "must be a non-empty string")
_secret = _valid(lambda value: isinstance(value, str), str, "must be a string or None")


def _database(value: Any) -> int:
    text = str(value).strip()
    if not isinstance(value, bool) and text.isascii() and text.isdigit():
        return int(text)
    raise ValueError("must be the number of a database, at least 0")


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if is_number(value) and value > 0:
        return float(value)
    raise ValueError("must be a number of seconds above 0, or None for no limit")


def _provider(value: Any) -> CredentialProvider:
    if isinstance(value, str):
        try:
            value = symbol_by_name(value)()  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError, TypeError, ValueError) as error:
            raise ValueError("names a class that cannot be imported or instantiated") from error
    if isinstance(value, CredentialProvider):
        return value
    raise ValueError("must be a redis.CredentialProvider, or the dotted name of its class")


def _node(value: Any) -> tuple[str, int]:
    if isinstance(value, ClusterNode):
        return str(value.host), int(value.port)
    if isinstance(value, Mapping):
        value = (value.get("host"), value.get("port"))
    host, port = value
    if not isinstance(host, str) or not host:
        raise TypeError(value)
    return host, int(port)


def _nodes(value: Any) -> list[tuple[str, int]]:
    with suppress(TypeError, ValueError):
        if nodes := [_node(node) for node in value]:
            return nodes
    raise ValueError("must be a list of (host, port)")


#: The options that RedBeat itself uses, each with a function that validates and converts its value.
REDBEAT_OPTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "cluster": _valid(lambda value: value in (False, True), bool, "must be True or False"),
    "credential_provider": _provider,
    "db": _database,
    "master_name": _text,
    "password": _secret,
    "retry_period": _retry_period,
    "sentinel_kwargs": _valid(lambda value: isinstance(value, Mapping), dict, "must be a dict"),
    "sentinels": _nodes,
    "service_name": _text,
    "socket_timeout": _seconds,
    "startup_nodes": _nodes,
    "username": _secret,
}

#: The options in REDBEAT_OPTIONS that RedBeat passes to redis-py.
#: All other options in REDBEAT_OPTIONS only control how RedBeat builds the client.
CLIENT_OPTIONS: Final = ("credential_provider", "db", "password", "socket_timeout", "username")


# Options for which the value None means "not set", so that None does not override the URL.
_UNSET_IF_NONE: Final = frozenset(REDBEAT_OPTIONS) - {"socket_timeout"}


def inherited_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the broker that RedBeat also uses for the schedule."""
    return {name: value for name, value in options.items() if name in REDBEAT_OPTIONS}


def check_options(options: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Validate and convert the options that RedBeat itself uses, and return all ``options``.

    redis-py validates the options that RedBeat does not use. Raises :exc:`ConfigurationError` for
    an invalid value. The error message contains ``setting`` and the name of the option, but not the
    value, because the value may be secret.
    """
    return {
        name: _checked(name, value, setting)
        for name, value in options.items()
        if value is not None or name not in _UNSET_IF_NONE
    }


def _checked(name: Any, value: Any, setting: str) -> Any:
    if not isinstance(name, str):
        raise ConfigurationError(f"{setting} has an option name that is not a string: {name!r}")
    try:
        return REDBEAT_OPTIONS[name](value) if name in REDBEAT_OPTIONS else value
    except ValueError as error:
        raise ConfigurationError(f"{setting}[{name!r}] {error}") from error.__cause__
