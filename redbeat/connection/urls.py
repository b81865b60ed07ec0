"""Parses the URLs of Redis servers, and masks the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis import connection

from redbeat.errors import ConfigurationError

#: Unix sockets, which have no host and no TLS.
SOCKETS = ("unix", "redis+socket")

#: ``sentinel`` and ``redis+socket`` are Celery's names.
SCHEMES = ("redis", "rediss", *SOCKETS, "redis-sentinel", "sentinel", "redis-cluster")

REDIS_PORT, SENTINEL_PORT = 6379, 26379

#: Each transport's timeout options. Without one, a broker that doesn't answer would block forever.
BROKER_TIMEOUTS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout"),
}

MASK = "**"

# A semicolon separates URLs only before a scheme, because a password may contain one.
_ALTERNATIVES = re.compile(r";(?=[\w+.-]+://|$)")
_SCHEME_AND_REST = re.compile(r"([\w+.-]+://)?(.*)", re.DOTALL)
# The last "@" ends the password, because an unquoted one may contain "@", "/", "#" or "?".
_PASSWORD = re.compile(r"^([^:]*:).*@", re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&][^=&#]*(?:pass|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class Address:
    """A parsed URL, with a default host and port. ``path`` is that of a socket.

    ``options`` are arguments of redis-py, such as ``db`` and ``password``.
    """

    scheme: str
    host: str
    port: int
    path: str | None
    options: Mapping[str, Any]


def safe_url(url: Any) -> str:
    """Return ``url`` (one or several URLs) with masked passwords. Never raises.

    User names stay visible, as in Celery's logs. Secret query options, such as ``token``, are
    masked, too.
    """
    return ";".join(_masked(part) for part in _ALTERNATIVES.split(url_text(url)))


def url_text(url: Any) -> str:
    return ";".join(map(str, url)) if isinstance(url, (list, tuple)) else str(url or "")


def url_scheme(url: str) -> str:
    """Return the scheme of the first URL in ``url``, in lower case, or "".

    ``redis-sentinel`` without ``://`` is complete, because the option ``sentinels`` has the
    servers.
    """
    scheme, separator, _rest = url.partition("://")
    scheme = scheme.strip().lower()
    return scheme if separator or scheme == "redis-sentinel" else ""


def parse_url(url: str, setting: str) -> list[Address]:
    """Return the addresses in ``url``, which may be several URLs separated by ``;``.

    Raises :exc:`ConfigurationError`, which names the ``setting``.
    """
    parts = [part for part in _ALTERNATIVES.split(url.strip()) if part]
    return [_parse_one(part, setting) for part in parts]


def _masked(part: str) -> str:
    scheme, rest = _SCHEME_AND_REST.findall(part)[0]
    without_password = _PASSWORD.sub(rf"\g<1>{MASK}@", rest)
    return str(scheme + _SECRET_OPTION.sub(rf"\g<1>{MASK}", without_password))


def _parse_one(url: str, setting: str) -> Address:
    scheme = url_scheme(url)
    if scheme not in SCHEMES:
        printable = repr(safe_url(url)) if scheme else "a string without a scheme"
        raise ConfigurationError(
            f"{setting} is {printable}, which is not the URL of a Redis server; valid schemes of "
            f"redbeat_redis_url are {', '.join(SCHEMES)}"
        )
    # redis-py doesn't know all schemes.
    known = f"{'unix' if scheme in SOCKETS else 'redis'}://{url.partition('://')[2]}"
    try:
        parts = urlsplit(known)
        # An unquoted character of the password may have ended the server's address.
        is_cut = "@" in parts.path and "@" not in parts.netloc and scheme not in SOCKETS
        is_malformed = parts.port == 0 or is_cut
    except ValueError:  # its message may contain parts of the password
        is_malformed = True
    if is_malformed:
        raise ConfigurationError(
            f"{setting} is malformed: {safe_url(url)!r}; a port is a number from 1 to 65535; quote "
            "special characters of the user name and the password, such as '/' as %2F and '@' as "
            "%40"
        )
    try:
        options: dict[str, Any] = connection.parse_url(known)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigurationError(f"{setting}: {error}") from error
    # redis-py ignores a path that isn't a number. kombu calls it "virtual_host".
    database = options.pop("virtual_host", "" if scheme in SOCKETS else parts.path).strip("/")
    if database:
        options.setdefault("db", database)
    options.pop("connection_class", None)
    default_port = SENTINEL_PORT if scheme.endswith("sentinel") else REDIS_PORT
    host, port = options.pop("host", "localhost"), options.pop("port", default_port)
    return Address(scheme, host, port, options.pop("path", None), options)
