"""Imports the metrics server on demand, because the extra ``metrics`` may not be installed."""

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
