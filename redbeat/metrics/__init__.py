"""Metrics for Prometheus and health checks for Kubernetes.

``counters`` contains the counters of one beat, and ``health`` contains the health of the beat.
``snapshot`` reads the counters of all beats from Redis. ``families`` converts counters, health and
snapshots to Prometheus metrics, and ``server`` serves the metrics over HTTP. The modules
``families`` and ``server`` need ``prometheus_client``; :func:`server_module` imports these two
modules on demand.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from redbeat.errors import ConfigurationError

#: The setting of a beat that serves metrics.
BEAT: Final = "redbeat_metrics_port"


def server_module(feature: str) -> Any:
    """Return the module ``redbeat.metrics.server``.

    Raises :exc:`ConfigurationError` without a package that ``feature`` needs.
    """
    try:
        return import_module("redbeat.metrics.server")
    except ImportError as error:
        raise ConfigurationError(
            f"{feature} needs {error.name}, which is not installed: "
            "pip install 'celery-redbeat[metrics]'"
        ) from error
