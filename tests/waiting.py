"""A function that waits until a condition holds, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.01


def wait_until(condition: Callable[[], T], deadline: float = 10.0, message: str = "") -> T:
    """Call ``condition`` until its result is true, and return that result.

    ``deadline`` is in seconds from now. After it, `AssertionError` is raised with ``message`` and
    the last result.
    """
    end = time.monotonic() + deadline
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{message or condition} not within {deadline} s: {result!r}")
        time.sleep(POLL_SECONDS)
    return result
