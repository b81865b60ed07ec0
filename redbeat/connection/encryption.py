"""Whether the connection is encrypted, and by which of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redbeat.errors import ConfigurationError

from .endpoint import Endpoint
from .tls import Layer, tls_options
from .urls import MANY_SERVERS, SOCKETS

__all__ = ("encryption",)


def encryption(
    endpoint: Endpoint, scheme: str, from_url: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Return redis-py's TLS arguments for a URL of ``scheme``, none if the connection is plain.

    ``from_url`` and ``options`` are the TLS options in the URL and in the client's options. Raises
    :exc:`ConfigurationError` for options that contradict each other.
    """
    if not _wants_tls(endpoint, scheme, from_url, options):
        _refuse_stray_tls(endpoint, from_url, options)
        return {}
    return tls_options(_tls_layers(endpoint, from_url, options))


def _tls_layers(
    endpoint: Endpoint, from_url: dict[str, Any], options: dict[str, Any]
) -> list[Layer]:
    settings = endpoint.use_ssl if isinstance(endpoint.use_ssl, Mapping) else {}
    use_ssl = Layer(endpoint.ssl_setting, settings, strict=not endpoint.ssl_inherited)
    url = Layer(endpoint.url_setting, from_url)
    first = [use_ssl, url] if endpoint.ssl_inherited else [url, use_ssl]
    return [*first, Layer(endpoint.options_setting, options)]


def _wants_tls(
    endpoint: Endpoint, scheme: str, from_url: dict[str, Any], options: dict[str, Any]
) -> bool:
    asked = bool(endpoint.use_ssl)
    if scheme in SOCKETS:
        if asked and not endpoint.ssl_inherited:
            raise ConfigurationError(
                f"redbeat_redis_use_ssl is set, but {endpoint.url_setting} is a local socket, "
                "which has no TLS: unset one of them"
            )
        return False
    if scheme == "rediss" or options.get("ssl"):
        return True
    if endpoint.url_inherited:
        return asked or bool(from_url)
    if not endpoint.ssl_inherited:
        return asked
    # These URLs are another way to name the broker's own servers; a redis URL is another server.
    return asked and scheme in MANY_SERVERS and endpoint.broker_is_redis


def _refuse_stray_tls(
    endpoint: Endpoint, from_url: dict[str, Any], options: dict[str, Any]
) -> None:
    for setting, stray in ((endpoint.url_setting, from_url), (endpoint.options_setting, options)):
        names = sorted(stray.keys() - {"ssl"})
        if names:
            raise ConfigurationError(
                f"{setting} has TLS options ({', '.join(names)}), but TLS is off: use a rediss URL "
                "or set redbeat_redis_use_ssl"
            )
