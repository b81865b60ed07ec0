"""What a piece of work takes: seconds, and round trips to Redis.

A part of the package, and imported by ``workload.py``, which is a script in no package.
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

#: What a measurement found, metric -> number.
Metrics = dict[str, float]


@dataclass(frozen=True)
class Cost:
    """What a piece of work took: seconds, and round trips to Redis."""

    seconds: float
    round_trips: int


class Meter:
    """Measures pieces of work; one for a process.

    It counts what is written to Redis sockets: a command, a script or a pipeline is one.
    """

    #: Sees what is measured, and nothing of its preparation.
    profile: ClassVar[cProfile.Profile | None] = None

    def __init__(self) -> None:
        self._round_trips = 0
        connection: Any = redis.connection.AbstractConnection
        send = connection.send_packed_command

        def counted(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._round_trips += 1
            return send(this, *args, **kwargs)

        connection.send_packed_command = counted

    def cost(self, work: Callable[[], Any]) -> Cost:
        """Do the work and return what it took."""
        before, started = self._round_trips, time.perf_counter()
        if self.profile is None:
            work()
        else:
            self.profile.runcall(work)
        return Cost(time.perf_counter() - started, self._round_trips - before)


def median(costs: list[Cost]) -> Cost:
    """Return the medians of several pieces of work."""
    seconds = statistics.median(each.seconds for each in costs)
    return Cost(seconds, statistics.median_high(each.round_trips for each in costs))
