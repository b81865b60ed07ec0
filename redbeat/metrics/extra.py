"""Imports the metrics server on demand, because the extra ``metrics`` may not be installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from celery import Celery

from redbeat.errors import ConfigurationError

if TYPE_CHECKING:
    from redbeat.config import RedBeatConfig
    from redbeat.metrics.counters import Counters
    from redbeat.metrics.server import Server
    from redbeat.storage.store import Store

    from .health import BeatHealth

#: The import names of the packages that the extra ``metrics`` installs.
EXTRA: Final = ("prometheus_client", "waitress")

BEAT: Final = "redbeat_metrics_port"


def check_installed(conf: RedBeatConfig) -> None:
    """Raise :exc:`ConfigurationError` if metrics are enabled and a required package is missing."""
    missing = [package for package in EXTRA if find_spec(package) is None]
    if conf.metrics_port is not None and missing:
        raise _missing(BEAT, missing[0])


def serve_beat(conf: RedBeatConfig, store: Store, health: BeatHealth, counters: Counters) -> Server:
    """Serve the metrics and the health checks of one beat on ``conf.metrics_port``.

    Raises :exc:`ConfigurationError` if the port is in use or a required package is missing.
    """
    server_module = _import_server(BEAT)
    server: Server = server_module.serve_beat(conf, store, health, counters)
    return server


def serve_exporter(app: Celery, host: str, port: int) -> Server:
    """Serve the metrics of all beats of a schedule, which the server reads from Redis.

    Raises :exc:`ConfigurationError` if the port is in use or a required package is missing.
    """
    server_module = _import_server("the exporter")
    server: Server = server_module.serve_exporter(app, host, port)
    return server


def _import_server(feature: str) -> Any:
    try:
        return import_module("redbeat.metrics.server")
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        raise _missing(feature, package) from error


def _missing(feature: str, package: str) -> ConfigurationError:
    return ConfigurationError(
        f"{feature} needs {package}, which is not installed: pip install 'celery-redbeat[metrics]'"
    )
