"""Imports the metrics server on demand, because it needs the package ``prometheus_client``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from redbeat.errors import ConfigurationError

if TYPE_CHECKING:
    from redbeat.config import RedBeatConfig
    from redbeat.metrics.counters import Counters
    from redbeat.metrics.server import Server
    from redbeat.storage.store import Store

    from .health import BeatHealth

__all__ = ("serve_beat", "serve_exporter")


def serve_beat(conf: RedBeatConfig, store: Store, health: BeatHealth, counters: Counters) -> Server:
    """Serve the metrics and the health checks of one beat on ``conf.metrics_port``.

    Raises :exc:`ConfigurationError` if the port is in use or ``prometheus_client`` is missing.
    """
    server_module = _import_server("redbeat_metrics_port needs prometheus_client")
    server: Server = server_module.serve_beat(conf, store, health, counters)
    return server


def serve_exporter(app: Any, host: str, port: int) -> Server:
    """Serve the metrics in Redis, of all beats of a schedule.

    Raises :exc:`ConfigurationError` if the port is in use or ``prometheus_client`` is missing.
    """
    server_module = _import_server("the exporter needs prometheus_client")
    server: Server = server_module.serve_exporter(app, host, port)
    return server


def _import_server(reason: str) -> Any:
    try:
        return import_module("redbeat.metrics.server")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise ConfigurationError(
            f"{reason}, which is not installed: pip install 'celery-redbeat[metrics]'"
        ) from error
