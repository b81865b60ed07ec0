"""Imports the metrics server on demand, because the extra ``metrics`` may not be installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from redbeat.errors import ConfigurationError

#: The setting of a beat that serves metrics.
BEAT: Final = "redbeat_metrics_port"


def check_installed(feature: str) -> None:
    """Raise :exc:`ConfigurationError` without the package that ``feature`` needs."""
    if find_spec("prometheus_client") is None:
        raise ConfigurationError(
            f"{feature} needs prometheus_client, which is not installed: "
            "pip install 'celery-redbeat[metrics]'"
        )


def server_module(feature: str) -> Any:
    """Return the module ``redbeat.metrics.server``; raise the error of :func:`check_installed`."""
    check_installed(feature)
    return import_module("redbeat.metrics.server")
