"""Convert the TLS options of Celery and of redis-py to arguments of redis-py."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from typing import Any, Final

from redis.connection import SSLConnection

from redbeat.errors import ConfigurationError, did_you_mean
from redbeat.printing import get_logger

from .endpoint import Endpoint, Source
from .urls import MANY_SERVERS, SOCKETS

logger = get_logger("celery.beat")

#: The TLS options of the installed version of redis-py.
TLS_OPTIONS: Final = frozenset(
    name for name in signature(SSLConnection.__init__).parameters if name.startswith("ssl_")
)

CERT_REQS: Final = ("none", "optional", "required")


def encryption(endpoint: Endpoint, scheme: str, url: Source, options: Source) -> dict[str, Any]:
    """Return redis-py's TLS arguments for a URL of ``scheme``, or an empty dict if TLS is off.

    ``url`` has the TLS options of the URL, ``options`` those among the client options. Raises
    :exc:`ConfigurationError` if there are TLS options, but TLS is off.
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
    use_ssl = bool(endpoint.use_ssl.value)
    if scheme in SOCKETS:
        return False
    if scheme == "rediss" or options.value.get("ssl"):
        return True
    if endpoint.url.inherited:
        return use_ssl or bool(url.value)
    if not endpoint.use_ssl.inherited:
        return use_ssl and not endpoint.is_plain
    # broker_use_ssl applies only to Sentinel and cluster URLs, because these URLs usually name the
    # servers of the broker. A redis URL usually names a server that is not the broker.
    return use_ssl and scheme in MANY_SERVERS and endpoint.broker_is_redis


def tls_options(layers: Iterable[Source]) -> dict[str, Any]:
    """Return redis-py's keyword arguments for a TLS connection.

    Each of the ``layers`` has a dict of options, and a later one overrides an earlier one. The
    certificate and the host name of the server are verified by default. A warning is logged if an
    option disables the verification of the server. Raises :exc:`ConfigurationError` for an unknown
    option, for an invalid value, and for a file that is missing or invalid.
    """
    options: dict[str, Any] = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    origin: dict[str, str] = {}
    for layer in layers:
        for name, value in _known(layer):
            options[name] = value
            origin[name] = f"{layer.setting}[{name!r}]"
    for name, convert in _CONVERT.items():
        if name in origin:
            options[name] = convert(options[name], origin[name])
    if options["ssl_cert_reqs"] == "none":
        # Without certificate verification, the ssl module does not allow a host name check.
        options["ssl_check_hostname"] = False
    _warn_if_unverified(options, origin)
    _try_files(options, origin)
    return {"ssl": True, **options}


#: Lower-case parts of error messages that suggest a problem with TLS; see :func:`hint`.
_NO_ANSWER: Final = ("timeout connecting", "timed out", "wrong version number", "record layer")
_CLOSED: Final = ("closed by server", "reset by peer", "eof occurred", "certificate required")


def hint(error: Exception, client: Any) -> str:
    """Return a hint about a TLS problem that may have caused ``error``, "" if there is no hint.

    The hint is useful only before the first successful connection to a server.
    """
    message = str(error).lower()
    pool = getattr(client, "connection_pool", None)
    if issubclass(getattr(pool, "connection_class", object), SSLConnection):
        if any(sign in message for sign in _NO_ANSWER):
            return " (TLS is on: does the server use TLS at this port?)"
        if any(sign in message for sign in _CLOSED):
            return " (TLS is on: does the server require another client certificate?)"
    elif any(sign in message for sign in _CLOSED):
        return " (TLS is off: does the server require TLS at this port? For TLS, use a rediss URL)"
    return ""


def _known(layer: Source) -> Iterable[tuple[str, Any]]:
    for name, value in layer.value.items():
        full = name if name in TLS_OPTIONS else f"ssl_{name}"
        if full in TLS_OPTIONS:
            yield full, value
        elif not layer.inherited and name != "ssl":
            hint = did_you_mean(name, TLS_OPTIONS)
            raise ConfigurationError(f"{layer.setting}: unknown TLS option {name!r}; {hint}")


def _cert_reqs(value: Any, where: str) -> str:
    text = value
    with suppress(ValueError):
        text = ssl.VerifyMode(value).name  # such as CERT_NONE
    text = str(text).lower().removeprefix("cert_")  # redis-py also treats None as "none"
    if text not in CERT_REQS:
        raise ConfigurationError(f"{where} is {value!r}, but must be one of {', '.join(CERT_REQS)}")
    return text


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"{where} is {value!r}, but must be True or False")


def _password(value: Any, where: str) -> Callable[[], str | bytes] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        return lambda: value  # a program that prints the function does not show the password
    raise ConfigurationError(f"{where} must be a string or bytes")


_CONVERT: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "ssl_cert_reqs": _cert_reqs,
    "ssl_check_hostname": _boolean,
    "ssl_password": _password,
}


def _warn_if_unverified(options: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    if options["ssl_cert_reqs"] == "none":
        name, what = "ssl_cert_reqs", "certificate"
    elif not options["ssl_check_hostname"]:
        name, what = "ssl_check_hostname", "host name"
    else:
        return
    message = "The %s of the Redis server is not verified: %s is %r"
    logger.warning(message, what, origin[name], options[name])


def _try_files(options: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    """Load the certificates and the key, so that bad files are reported before any command."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Without a password argument, OpenSSL would prompt for a password in the terminal.
    password = options.get("ssl_password") or (lambda: "")
    pair: Any = options.get("ssl_certfile"), options.get("ssl_keyfile"), password
    loaders: dict[str, Callable[[Any], Any]] = {
        "ssl_ca_certs": context.load_verify_locations,
        "ssl_ca_path": os.listdir,  # OpenSSL ignores a directory that is missing
        "ssl_certfile": lambda _: context.load_cert_chain(*pair),
        "ssl_keyfile": lambda _: context.load_cert_chain(*pair),
    }
    for name, load in loaders.items():
        if options.get(name) is None:
            continue
        try:
            load(options[name])
        except (OSError, TypeError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigurationError(
                f"{origin[name]} is {options[name]!r}, which cannot be used: {error} (check "
                "ssl_ca_certs, ssl_ca_path, ssl_certfile, ssl_keyfile and ssl_password)"
            ) from error
