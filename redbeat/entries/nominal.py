"""The nominal instant of a run in the forms in which it is written.

It is in the headers and the task id of a message, in the stored runtime and in the history.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from redbeat.calendar.zones import EPOCH

from .occurrences import aware

__all__ = ("Nominal", "nominal")


class Nominal(NamedTuple):
    """An instant in UTC, in ISO 8601 and in UNIX seconds.

    ``text`` has six decimals of the seconds, ``short`` not the zeros at their end.
    """

    at: datetime
    iso: str
    text: str
    seconds: float
    short: str

    @classmethod
    def of(cls, at: datetime) -> Nominal:
        """Return the forms of an instant in UTC."""
        seconds = at.timestamp()
        text = f"{seconds:.6f}"
        return cls(at, at.isoformat(), text, seconds, text.rstrip("0").rstrip("."))


_last = Nominal.of(EPOCH)


def nominal(scheduled_at: datetime) -> Nominal:
    """Return the forms of an instant; a naive one is UTC.

    The last one is kept: it is asked for several times, and entries that are due together share it.
    """
    global _last  # noqa: PLW0603 - replaced as a whole, so that any thread may
    # In a zone of its own, an instant equals another one of the hour that its clock repeats.
    at, found = aware(scheduled_at), _last
    if found.at != at:
        found = _last = Nominal.of(at)
    return found
