"""Measures the cost of an operation: round trips, Redis commands and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from .clients import CountingRedis

__all__ = ("Cost", "Meter")

#: Commands that are not counted: the meter and newly connected clients send them.
OWN = frozenset({"info", "config|resetstat", "config", "hello", "client|setinfo", "client"})
WAYS = ("input", "output")


@dataclass(frozen=True)
class Cost:
    """The cost of an operation on a server.

    ``trips`` is the number of replies to the client. ``calls`` counts each command that the server
    ran, including commands in scripts. ``sent`` and ``received`` are the bytes that the client sent
    and received.
    """

    trips: int
    calls: Counter[str]
    sent: int
    received: int

    @property
    def commands(self) -> int:
        """The number of commands that the server ran."""
        return self.calls.total()


class Meter:
    """Reads the counters of a server on a separate connection.

    ``client`` is measured. No other client may use the server at the same time.
    """

    def __init__(self, url: str, client: CountingRedis) -> None:
        self._watched = client
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self._silence = (0, 0)
        for _ in range(2):  # the first call also connects, which takes more bytes
            silence = self._bytes(lambda: None)
        self._silence = silence

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def cost(self, work: Callable[[], Any]) -> Cost:
        """Run ``work``, and return its cost."""
        self._client.config_resetstat()
        trips = self._watched.trips
        sent, received = self._bytes(work)
        return Cost(self._watched.trips - trips, self._calls(), sent, received)

    def _calls(self) -> Counter[str]:
        stats = self._client.info("commandstats").items()
        called = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats}
        return Counter({name: calls for name, calls in called.items() if name not in OWN})

    def _bytes(self, work: Callable[[], Any]) -> tuple[int, int]:
        """Run ``work``, and return the bytes sent and received, without the meter's bytes."""
        before = self._client.info("stats")
        work()
        after = self._client.info("stats")
        names = [f"total_net_{way}_bytes" for way in WAYS]
        sent, received = (after[name] - before[name] for name in names)
        return sent - self._silence[0], received - self._silence[1]
