"""Metrics for Prometheus and health checks for Kubernetes.

``counters`` contains the counters of one beat, and ``health`` contains the health of the beat.
``snapshot`` reads the counters of all beats from Redis, and ``problems`` finds what is wrong.
``prometheus`` converts all of it to Prometheus metrics and serves these over HTTP. It needs
``prometheus_client``; :func:`prometheus_module` imports it on demand.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from redbeat.errors import ConfigurationError

#: The setting of a beat that serves metrics.
BEAT: Final = "redbeat_metrics_port"


def prometheus_module(feature: str) -> Any:
    """Return the module ``redbeat.metrics.prometheus``.

    Raises :exc:`ConfigurationError` without a package that ``feature`` needs.
    """
    try:
        return import_module("redbeat.metrics.prometheus")
    except ImportError as error:
        raise ConfigurationError(
            f"{feature} needs {error.name}, which is not installed: "
            "pip install 'celery-redbeat[metrics]'"
        ) from error
