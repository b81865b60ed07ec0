"""Where the schedule's Redis is, as the settings say it: ours, or else the broker's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery

from redbeat.errors import ConfigurationError
from redbeat.settings import MISSING, find_setting

from .options import check_options, inherited_options
from .urls import SCHEMES, url_scheme

__all__ = ("Endpoint", "read_endpoint")


@dataclass(frozen=True, repr=False)
class Endpoint:
    """The URL, TLS options and client options, and whether each is inherited from the broker.

    ``url`` holds alternatives separated by ``;`` and may hold a password, as ``options`` may.
    """

    url: str
    use_ssl: Any
    options: dict[str, Any]
    url_inherited: bool
    ssl_inherited: bool
    options_inherited: bool
    #: Whether the broker is one that could hold the schedule.
    broker_is_redis: bool

    @property
    def url_setting(self) -> str:
        """The name of the setting that the URL comes from, for messages."""
        return "broker_url" if self.url_inherited else "redbeat_redis_url"

    @property
    def ssl_setting(self) -> str:
        """The name of the setting that the TLS options come from, for messages."""
        return "broker_use_ssl" if self.ssl_inherited else "redbeat_redis_use_ssl"

    @property
    def options_setting(self) -> str:
        """The name of the setting that the client's options come from, for messages."""
        return "broker_transport_options" if self.options_inherited else "redbeat_redis_options"

    @property
    def is_cluster(self) -> bool:
        """Whether a client for it would be one of a Redis Cluster."""
        return bool(self.options.get("cluster")) or url_scheme(self.url) == "redis-cluster"


def read_endpoint(app: Celery) -> Endpoint:
    """Read the settings of ``app``; the URL is checked when a client is built from it.

    Raises :exc:`ConfigurationError` for values of a wrong type.
    """
    url, url_inherited = _own_or_broker(app, "redbeat_redis_url", "broker_url")
    use_ssl, ssl_inherited = _own_or_broker(app, "redbeat_redis_use_ssl", "broker_use_ssl")
    options, options_inherited = _own_or_broker(
        app, "redbeat_redis_options", "broker_transport_options"
    )
    setting = "broker_transport_options" if options_inherited else "redbeat_redis_options"
    return Endpoint(
        url=_url_text(url, "broker_url" if url_inherited else "redbeat_redis_url"),
        use_ssl=_check_use_ssl(
            use_ssl, "broker_use_ssl" if ssl_inherited else "redbeat_redis_use_ssl"
        ),
        options=_check_options(options, setting, options_inherited),
        url_inherited=url_inherited,
        ssl_inherited=ssl_inherited,
        options_inherited=options_inherited,
        broker_is_redis=url_scheme(_url_text(app.conf.broker_url, "broker_url")) in SCHEMES,
    )


def _own_or_broker(app: Celery, own: str, broker: str) -> tuple[Any, bool]:
    value = find_setting(app, own)
    if value is None or value is MISSING:
        # Celery's own attribute: for the URL it asks the environment too.
        return getattr(app.conf, broker), True
    return value, False


def _url_text(url: Any, setting: str) -> str:
    if isinstance(url, (list, tuple)) and all(isinstance(part, str) for part in url):
        return ";".join(url)
    if url is None or isinstance(url, str):
        return url or ""
    raise ConfigurationError(f"{setting} must be a text, not a {type(url).__name__}")


def _check_use_ssl(use_ssl: Any, setting: str) -> Any:
    if isinstance(use_ssl, (bool, Mapping, type(None))):
        return use_ssl
    raise ConfigurationError(f"{setting} must be True, False or a dict of ssl_ options")


def _check_options(options: Any, setting: str, inherited: bool) -> dict[str, Any]:
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"{setting} must be a dict, not a {type(options).__name__}")
    return check_options(inherited_options(options) if inherited else options, setting)
