"""Metrics for Prometheus and health checks for Kubernetes.

``counters`` and ``health`` belong to one beat. ``snapshot`` reads the counters of all beats from
Redis, and ``problems`` finds what is wrong. ``prometheus`` serves all of it over HTTP; it needs
``prometheus_client``, so :func:`prometheus_module` imports it on demand.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from redbeat.errors import ConfigurationError

#: The setting of a beat that serves metrics.
BEAT: Final = "redbeat_metrics_port"


def prometheus_module(feature: str) -> Any:
    """Raise :exc:`ConfigurationError` if a package is missing that ``feature`` needs."""
    try:
        return import_module("redbeat.metrics.prometheus")
    except ImportError as error:
        raise ConfigurationError(
            f"{feature} needs {error.name}, which is not installed: "
            "pip install 'celery-redbeat[metrics]'"
        ) from error
