"""Convert the TLS options of Celery and of redis-py to arguments of redis-py."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import Any, Final

from redis.connection import SSLConnection

from redbeat.errors import ConfigurationError
from redbeat.printing import get_logger

from .endpoint import Source

logger = get_logger("celery.beat")

#: The TLS options of the installed version of redis-py.
TLS_OPTIONS: Final = frozenset(
    name for name in signature(SSLConnection.__init__).parameters if name.startswith("ssl_")
)

#: The options that name files, which OpenSSL reads at each connection.
FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


def tls_settings(use_ssl: Source) -> dict[str, Any]:
    """Return the options in a setting; their names may lack ``ssl_``, as for other brokers.

    An option that redis-py does not know is left out if it is the broker's.
    """
    given: Mapping[str, Any] = use_ssl.value if isinstance(use_ssl.value, Mapping) else {}
    named = {name if name.startswith("ssl") else f"ssl_{name}": given[name] for name in given}
    if use_ssl.inherited:
        return {name: value for name, value in named.items() if name in TLS_OPTIONS}
    return named


def with_tls(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return redis-py's arguments ``kwargs`` for a TLS connection.

    The certificate and the host name of the server are verified by default. A warning is logged if
    an option disables the verification of the server. Raises :exc:`ConfigurationError` for a file
    that is missing or invalid; redis-py checks the other values.
    """
    options = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **kwargs, "ssl": True}
    options["ssl_cert_reqs"] = _cert_reqs(options["ssl_cert_reqs"])
    password = options.get("ssl_password")
    if password is not None:
        # A program that prints the options shows the function instead of the password.
        options["ssl_password"] = lambda: password
    message = "The %s of the Redis server is not verified: %s is %r"
    if options["ssl_cert_reqs"] == "none":
        logger.warning(message, "certificate", "ssl_cert_reqs", "none")
        # Without certificate verification, the ssl module does not allow a host name check.
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
    """Load the certificates and the key, so that bad files are reported before any command."""
    authorities, authorities_path, certificate, key = map(options.get, FILES)
    # Without a password argument, OpenSSL would prompt for a password in the terminal.
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
