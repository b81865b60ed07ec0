"""Functions that parse the URLs of Redis servers, and mask the secrets in these URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from redis import connection

from redbeat.errors import ConfigurationError

#: The schemes of Unix sockets, which have no host and no TLS.
SOCKETS = ("unix", "redis+socket")

#: The schemes of topologies with several servers.
MANY_SERVERS = ("redis-sentinel", "sentinel", "redis-cluster")

#: The supported schemes. Celery uses the names ``sentinel`` and ``redis+socket``.
SCHEMES = ("redis", "rediss", *SOCKETS, *MANY_SERVERS)

REDIS_PORT, SENTINEL_PORT = 6379, 26379

MASK = "**"

# A semicolon separates URLs only if a scheme follows, because a password may contain a semicolon.
_ALTERNATIVES = re.compile(r";(?=[\w+.-]+://|$)")
# The last "@" ends the password, because an unquoted password may contain "@", "/", "#" or "?".
_USERINFO = (re.compile(r"[^?]*@"), re.compile(r"[^=]*@"))
_SECRET_OPTION = re.compile(r"([?&][^=&#]*(?:pass|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class Address:
    """A parsed URL, with a default host and port. ``path`` is the path of a socket.

    ``options`` are arguments of redis-py, such as ``db`` and ``password``.
    """

    scheme: str
    host: str
    port: int
    path: str | None
    options: Mapping[str, Any]


def safe_url(url: Any) -> str:
    """Return ``url`` (one or several URLs) with masked passwords. Never raises.

    User names stay visible, as in the logs of Celery. Secret query options such as ``token`` are
    masked like passwords.
    """
    if isinstance(url, (list, tuple)):
        url = ";".join(map(str, url))
    return ";".join(_masked(part) for part in _ALTERNATIVES.split(str(url or "")))


def url_scheme(url: str) -> str:
    """Return the scheme of the first URL in ``url``, in lower case, "" if there is no scheme.

    ``redis-sentinel`` without ``://`` is a complete URL, because the option ``sentinels`` contains
    the servers.
    """
    scheme, separator, _rest = url.partition("://")
    scheme = scheme.strip().lower()
    return scheme if separator or scheme == "redis-sentinel" else ""


def parse_url(url: str, setting: str) -> list[Address]:
    """Return the addresses in ``url``, which may contain several URLs separated by ``;``.

    Raises :exc:`ConfigurationError` for an unsupported scheme or a malformed URL. The error message
    contains ``setting``, the name of the setting.
    """
    parts = [part for part in _ALTERNATIVES.split(url.strip()) if part]
    return [_parse_one(part, setting) for part in parts]


def _masked(part: str) -> str:
    scheme, separator, rest = part.rpartition("://") if "://" in part else ("", "", part)
    if "://" in scheme:  # the password contains "://", so split at the first "://"
        scheme, separator, rest = part.partition("://")
    rest = _SECRET_OPTION.sub(rf"\g<1>{MASK}", rest)
    if rest.startswith("/"):
        return scheme + separator + rest
    return scheme + separator + _without_password(rest)


def _without_password(rest: str) -> str:
    end = max(match.end() if (match := rule.match(rest)) else 0 for rule in _USERINFO)
    if not end:
        return rest
    user, colon, _password = rest[: end - 1].partition(":")
    if re.search(r"[/?#@]", user):
        return f"{MASK}@{rest[end:]}"
    return f"{user}:{MASK}@{rest[end:]}" if colon else rest


def _parse_one(url: str, setting: str) -> Address:
    scheme = url_scheme(url)
    if scheme not in SCHEMES:
        raise ConfigurationError(_unsupported(url, scheme, setting))
    # redis-py does not know all supported schemes.
    known = f"{'unix' if scheme in SOCKETS else 'redis'}://{url.partition('://')[2]}"
    try:
        parts = urlsplit(known)
        is_malformed = parts.port == 0 or (_has_late_password(parts) and scheme not in SOCKETS)
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
    # redis-py ignores a path that is not a number. The name of kombu is "virtual_host".
    database = options.pop("virtual_host", "" if scheme in SOCKETS else parts.path).strip("/")
    if database:
        options.setdefault("db", database)
    options.pop("connection_class", None)
    default_port = SENTINEL_PORT if scheme.endswith("sentinel") else REDIS_PORT
    host, port = options.pop("host", "localhost"), options.pop("port", default_port)
    return Address(scheme, host, port, options.pop("path", None), options)


def _has_late_password(parts: SplitResult) -> bool:
    """Return whether an unquoted character of the password ended the address of a server."""
    return "@" in parts.path and "@" not in parts.netloc


def _unsupported(url: str, scheme: str, setting: str) -> str:
    printable = repr(safe_url(url)) if scheme else "a string without a scheme"
    hint = "" if setting == "redbeat_redis_url" else ": set redbeat_redis_url"
    return (
        f"{setting} is {printable}, which is not the URL of a Redis server{hint}; "
        f"valid schemes are {', '.join(SCHEMES)}"
    )
