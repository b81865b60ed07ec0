"""What an operation costs Redis: round trips, commands and bytes, as the server counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from .clients import CountingRedis

__all__ = ("Cost", "Meter")

#: Commands of the meter itself, and those that a client sends when it connects.
OWN = frozenset({"info", "config|resetstat", "config", "hello", "client|setinfo", "client"})
WAYS = ("input", "output")


@dataclass(frozen=True)
class Cost:
    """The requests to a server.

    ``trips`` are replies that the client waited for; ``calls`` maps commands, including those in
    scripts, to how often the server ran them; ``sent`` and ``received`` are bytes from the client's
    point of view.
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
    """Reads the counters of a server on its own connection.

    ``client`` does the work; nobody else may use the server at the same time.
    """

    def __init__(self, url: str, client: CountingRedis) -> None:
        self._watched = client
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self._silence = (0, 0)
        for _ in range(2):  # the first call connects
            silence = self._bytes(lambda: None)
        self._silence = silence

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def cost(self, work: Callable[[], Any]) -> Cost:
        """Run ``work``, and return what it cost."""
        self._client.config_resetstat()
        trips = self._watched.trips
        sent, received = self._bytes(work)
        return Cost(self._watched.trips - trips, self._calls(), sent, received)

    def _calls(self) -> Counter[str]:
        stats = self._client.info("commandstats").items()
        called = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats}
        return Counter({name: calls for name, calls in called.items() if name not in OWN})

    def _bytes(self, work: Callable[[], Any]) -> tuple[int, int]:
        """Return the bytes sent and received, without those of the meter."""
        before = self._client.info("stats")
        work()
        after = self._client.info("stats")
        names = [f"total_net_{way}_bytes" for way in WAYS]
        sent, received = (after[name] - before[name] for name in names)
        return sent - self._silence[0], received - self._silence[1]
