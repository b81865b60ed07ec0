"""Convert the TLS options of Celery and of redis-py to arguments of redis-py."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Final

from celery.utils.serialization import strtobool
from redis.connection import SSLConnection

from redbeat.errors import ConfigurationError, did_you_mean
from redbeat.printing import get_logger

logger = get_logger("celery.beat")

#: The TLS options of the installed version of redis-py.
TLS_OPTIONS: Final = frozenset(
    name for name in signature(SSLConnection.__init__).parameters if name.startswith("ssl_")
)

CERT_REQS: Final = ("none", "optional", "required")


@dataclass(frozen=True, repr=False)
class Source:
    """A value that may be secret, the name of its setting, and whether this is the broker's."""

    setting: str
    value: Any
    inherited: bool = False


class KeyPassword:
    """A callable that returns the password of a private key.

    A program that prints the TLS options does not show the password.
    """

    def __init__(self, password: str | bytes) -> None:
        self._password = password

    def __call__(self) -> str | bytes:
        return self._password


def tls_options(layers: Iterable[Source]) -> dict[str, Any]:
    """Return redis-py's keyword arguments for a TLS connection.

    Each of the ``layers`` has a dict of options, and a later one overrides an earlier one. The
    certificate and the host name of the server are verified by default. A warning is logged if an
    option disables the verification of the server. Raises :exc:`ConfigurationError` for an unknown
    option, for an invalid value, and for a file that is missing or invalid.
    """
    merged: dict[str, Any] = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    origin: dict[str, str] = {}
    for layer in layers:
        for name, value in _known(layer):
            convert = _CONVERT.get(name)
            merged[name] = convert(value, f"{layer.setting}[{name!r}]") if convert else value
            origin[name] = layer.setting
    if merged["ssl_cert_reqs"] == "none":
        # Without certificate verification, the ssl module does not allow a host name check.
        merged["ssl_check_hostname"] = False
    _warn_if_unverified(merged, origin)
    _try_files(merged, origin)
    return {"ssl": True, **merged}


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
    with suppress(TypeError):
        if strtobool(value) in (True, False):
            return bool(strtobool(value))
    raise ConfigurationError(f"{where} is {value!r}, but must be True or False")


def _path(exists: Callable[[Path], bool], kind: str) -> Callable[[Any, str], str | None]:
    def convert(value: Any, where: str) -> str | None:
        if value is None:
            return None
        if not isinstance(value, (str, os.PathLike)) or not exists(Path(value)):
            raise ConfigurationError(f"{where} is {value!r}, but there is no such {kind}")
        return os.fspath(value)

    return convert


def _password(value: Any, where: str) -> KeyPassword | None:
    if value is None or isinstance(value, KeyPassword):
        return value
    if isinstance(value, (str, bytes)):
        return KeyPassword(value)
    raise ConfigurationError(f"{where} must be a string or bytes")


_file = _path(Path.is_file, "file")

_CONVERT: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "ssl_ca_certs": _file,
    "ssl_ca_path": _path(Path.is_dir, "directory"),
    "ssl_cert_reqs": _cert_reqs,
    "ssl_certfile": _file,
    "ssl_check_hostname": _boolean,
    "ssl_keyfile": _file,
    "ssl_password": _password,
}


def _warn_if_unverified(options: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    for name, unsafe in (("ssl_cert_reqs", "none"), ("ssl_check_hostname", False)):
        if options[name] == unsafe:
            what = "certificate" if name == "ssl_cert_reqs" else "host name"
            setting = origin.get(name) or origin["ssl_cert_reqs"]
            message = "The %s of the Redis server is not verified: %s[%r] is %r"
            logger.warning(message, what, setting, name, unsafe)
            return  # without certificate verification, Python does not check the host name either


def _try_files(options: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    """Load the certificates and the key, so that bad files are reported before any command."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authorities, certificate = options.get("ssl_ca_certs"), options.get("ssl_certfile")
    if authorities:
        with _usable("ssl_ca_certs", origin):
            context.load_verify_locations(cafile=authorities)
    if certificate:
        # Without a password argument, OpenSSL would prompt for a password in the terminal.
        password = options.get("ssl_password") or KeyPassword("")
        with _usable("ssl_certfile", origin):
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), password)
    elif options.get("ssl_keyfile"):
        raise ConfigurationError(
            f"{origin['ssl_keyfile']} has ssl_keyfile but no ssl_certfile: add ssl_certfile"
        )


@contextmanager
def _usable(name: str, origin: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(
            f"{origin[name]}[{name!r}] cannot be used: {error} (check ssl_ca_certs, ssl_certfile, "
            "ssl_keyfile and ssl_password)"
        ) from error
