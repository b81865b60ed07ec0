"""What a piece of work costs Redis: round trips, commands and bytes, as the server counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from .clients import CountingRedis

__all__ = ("Cost", "Meter")

#: What the meter itself asks; and what a client says when it connects.
OWN = frozenset({"info", "config|resetstat", "config", "hello", "client|setinfo", "client"})
WAYS = ("input", "output")


@dataclass(frozen=True)
class Cost:
    """What was asked of a server.

    ``trips`` are replies that the client waited for; ``calls`` the commands that the server ran,
    those in scripts included, by name; ``sent`` and ``received`` are bytes, seen from the client.
    """

    trips: int
    calls: Counter[str]
    sent: int
    received: int

    @property
    def commands(self) -> int:
        """How many commands the server ran."""
        return self.calls.total()


class Meter:
    """Reads the counters of a server, on a connection of its own.

    ``client`` is the one that does the work; nobody else may use the server meanwhile.
    """

    def __init__(self, url: str, client: CountingRedis) -> None:
        self._watched = client
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self._silence = (0, 0)
        for _ in range(2):  # the first one connects
            silence = self._bytes(lambda: None)
        self._silence = silence

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def cost(self, work: Callable[[], Any]) -> Cost:
        """Do the work, and return what it cost."""
        self._client.config_resetstat()
        trips = self._watched.trips
        sent, received = self._bytes(work)
        return Cost(self._watched.trips - trips, self._calls(), sent, received)

    def _calls(self) -> Counter[str]:
        stats = self._client.info("commandstats").items()
        called = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats}
        return Counter({name: calls for name, calls in called.items() if name not in OWN})

    def _bytes(self, work: Callable[[], Any]) -> tuple[int, int]:
        """Return the bytes sent and received, without those of asking for them."""
        before = self._client.info("stats")
        work()
        after = self._client.info("stats")
        names = [f"total_net_{way}_bytes" for way in WAYS]
        sent, received = (after[name] - before[name] for name in names)
        return sent - self._silence[0], received - self._silence[1]
