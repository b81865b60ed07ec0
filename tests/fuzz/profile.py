"""The number of cases in the fuzz tests: some hundred fixed cases, or 50,000 random cases.

The short test run tries a third of the fixed cases. To try the random cases, run
``REDBEAT_FUZZ=full python -m pytest -n 0 --timeout 0 tests/fuzz``.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

from tests.samples import examples

__all__ = ("FULL", "cases")

FULL = os.environ.get("REDBEAT_FUZZ") == "full"


def cases(normal: int, full: int) -> Any:
    """Return the settings of a test that tries ``normal`` cases, or ``full`` random cases."""
    return settings(
        examples(normal),
        max_examples=full if FULL else examples(normal).max_examples,
        derandomize=not FULL,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
