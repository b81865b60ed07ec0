"""A TCP proxy on the loopback interface with network conditions that change during use."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from tests.faults.links import Conditions, Link, abort
from tests.loopback import LoopbackServer

__all__ = ("Proxy",)


class Proxy(LoopbackServer):
    """Forwards connections to a port of this machine; a context manager.

    Every change is in effect when its method returns, for open connections too. Random choices come
    from ``random.Random(seed)``. If the target refuses a connection, the proxy resets the client.
    """

    def __init__(self, target_port: int, seed: int = 0) -> None:
        super().__init__()
        self._target = target_port
        self._weather = Conditions(random.Random(seed))
        self._weather.flowing.set()
        self._links: set[Link] = set()

    @property
    def url(self) -> str:
        """Return the URL of database 0 of the Redis behind the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def connections(self) -> int:
        """Return how many connections are open; dead connections also count."""
        return len(self._links)

    @property
    def struck(self) -> int:
        """Return how many connections the proxy has reset, at random or instead of a reply."""
        return self._weather.struck

    # -- controls ------------------------------------------------------------------------------

    def delay(self, mean: float, jitter: float = 0.0) -> None:
        """Delay each chunk in each direction by ``mean`` plus or minus ``jitter`` seconds.

        The chunks stay in order.
        """
        self._set(mean=mean, jitter=jitter)

    def cut(self) -> None:
        """Reset all open connections."""

        def reset_all() -> None:
            for link in self._links:
                link.reset()

        self.call(reset_all)

    def refuse(self, on: bool = True) -> None:
        """Reset new connections, or accept them again."""
        self._set(refusing=on)

    def lead_to(self, port: int) -> None:
        """Forward new connections to another port, as after a failover to another server."""
        self._target = port

    def black_hole(self, keep: bool = False) -> None:
        """Deliver no more bytes, without FIN or RST; the proxy still accepts new connections.

        Without ``keep``, all bytes are lost and the connections stay dead after :meth:`heal`. With
        ``keep``, the proxy stores the bytes and delivers them after :meth:`heal`.
        """

        def begin() -> None:
            if keep:
                self._weather.flowing.clear()
                return
            self._weather.swallowing_all = True
            for link in self._links:
                link.dead = True

        self.call(begin)

    def heal(self) -> None:
        """End the black hole; dead connections stay dead."""

        def end() -> None:
            self._weather.swallowing_all = False
            self._weather.flowing.set()

        self.call(end)

    def swallow_replies(self, count: int, matching: bytes = b"") -> None:
        """Deliver the next ``count`` requests, but reset their connections instead of replying.

        Only chunks to the server that contain ``matching`` count as requests.
        """
        self._set(swallows=count, matching=matching)

    def before_request(self, action: Callable[[], object], matching: bytes = b"") -> None:
        """Call ``action`` before the next chunk that contains ``matching`` reaches the server.

        The chunk waits until ``action`` returns.
        """
        self._set(before=(action, matching))

    def reset_rate(self, probability: float) -> None:
        """Reset the connection of a chunk to the server with this probability.

        In half of the cases the server still receives the chunk.
        """
        self._set(reset_rate=probability)

    # -- internals ---------------------------------------------------------------------------------

    def _set(self, **changes: Any) -> None:
        def change() -> None:
            for name, value in changes.items():
                setattr(self._weather, name, value)

        self.call(change)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather.refusing:
            abort(writer)
            return
        link = Link(self._weather, reader, writer)
        self._links.add(link)
        try:
            await link.run(self._target)
        finally:
            self._links.discard(link)
