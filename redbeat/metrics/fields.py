"""The fields of the hash ``.<prefix>:stats``: what is counted, and in which steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

__all__ = (
    "KINDS",
    "LAST_TICK",
    "LATENESS",
    "LEADER",
    "MICROSECONDS",
    "ROUND_TRIPS",
    "TICK",
    "Steps",
    "entry_field",
    "split",
)

#: What is counted of entries: in all, and by entry as ``<kind> <name>``.
KINDS: Final = ("dispatched", "failed", "retried", "missed", "skipped", "quarantined")

ROUND_TRIPS: Final = "round_trips"

#: Written by ``claim.lua``: UNIX seconds of the last turn; since when who leads.
LAST_TICK: Final = "last_tick"
LEADER: Final = "leader"

#: In a second: sums of seconds are whole numbers in Redis.
MICROSECONDS: Final = 1_000_000


class Steps:
    """The steps of a histogram, seconds: a field for each, and one for the sum in microseconds.

    A value is counted in one of them; Prometheus adds them up.
    """

    def __init__(self, name: str, *bounds: float) -> None:
        self.bounds = bounds
        self.texts = (*map(str, bounds), "+Inf")
        self.fields = tuple(f"{name}:{text}" for text in self.texts)
        self.sum = f"{name}:sum"

    def field(self, seconds: float) -> str:
        """Return the field in which a value is counted."""
        return self.fields[bisect_left(self.bounds, seconds)]

    def counts(self, values: Iterable[float]) -> dict[str, int]:
        """Return how many values are in each step, for those that have any."""
        ordered = sorted(values)
        up_to = [bisect_right(ordered, bound) for bound in self.bounds]
        spans = zip(self.fields, pairwise((0, *up_to, len(ordered))), strict=True)
        return {field: end - begin for field, (begin, end) in spans if end > begin}


LATENESS: Final = Steps("lateness", 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5, 10, 30, 60, 300)
TICK: Final = Steps("tick", 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5)


def entry_field(kind: str, name: str) -> str:
    """Return the field in which something is counted of one entry."""
    return f"{kind} {name}"


def split(field: str) -> tuple[str, str] | None:
    """Return kind and name of the field of an entry, None for any other."""
    kind, blank, name = field.partition(" ")
    return (kind, name) if blank and kind in KINDS else None
