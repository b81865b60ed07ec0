"""Measures the duration and the round trips of an operation.

The script ``workload.py`` imports this module without the package, so this module has no relative
imports.
"""

from __future__ import annotations

import cProfile
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import redis.connection

__all__ = ("Cost", "Meter", "Metrics", "median")

#: The result of a measurement: metric -> number.
Metrics = dict[str, float]


@dataclass(frozen=True)
class Cost:
    """The cost of an operation: its duration in seconds, and its round trips to Redis."""

    seconds: float
    round_trips: int


class Meter:
    """A meter for the duration and the round trips of operations.

    Create only one meter per process, because a meter patches redis-py. A round trip is one write
    to a Redis socket: a command, a script or a pipeline.
    """

    #: An optional profiler of the measured operations, but not of their preparation.
    profile: ClassVar[cProfile.Profile | None] = None

    def __init__(self) -> None:
        self._round_trips = 0
        connection: Any = redis.connection.AbstractConnection
        send = connection.send_packed_command

        def counting_send(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._round_trips += 1
            return send(this, *args, **kwargs)

        connection.send_packed_command = counting_send

    def cost(self, work: Callable[[], Any]) -> Cost:
        """Run the operation and return its cost."""
        before, started = self._round_trips, time.perf_counter()
        if self.profile is None:
            work()
        else:
            self.profile.runcall(work)
        return Cost(time.perf_counter() - started, self._round_trips - before)


def median(costs: list[Cost]) -> Cost:
    """Return the median cost of several operations."""
    seconds = statistics.median(each.seconds for each in costs)
    return Cost(seconds, statistics.median_high(each.round_trips for each in costs))
