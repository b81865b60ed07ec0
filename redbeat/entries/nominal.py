"""The nominal instant of a run in the forms in which it is written.

It is in the headers and the task id of a message, in the stored runtime and in the history.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from .occurrences import aware

__all__ = ("Nominal", "nominal")


class Nominal(NamedTuple):
    """An instant in ISO 8601, UTC, and in UNIX seconds.

    ``text`` has six decimals of the seconds, ``short`` not the zeros at their end.
    """

    iso: str
    text: str
    seconds: float
    short: str


@lru_cache(maxsize=64)
def nominal(scheduled_at: datetime) -> Nominal:
    """Return the forms of an instant, kept for entries that are due together; naive is UTC."""
    instant = aware(scheduled_at)
    seconds = instant.timestamp()
    text = f"{seconds:.6f}"
    return Nominal(instant.isoformat(), text, seconds, text.rstrip("0").rstrip("."))
