"""A TCP proxy on the loopback interface whose network can be made bad while it is in use."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.faults.links import Link, Weather, abort

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("Proxy",)

START_SECONDS = 10.0


class Proxy:
    """Forwards connections to a port of this machine; a context manager.

    Every control has taken effect when it returns, for open connections too. Chance comes from
    ``random.Random(seed)``. A client whose connection the target refuses is reset.
    """

    def __init__(self, target_port: int, seed: int = 0) -> None:
        self.port = 0
        self._target = target_port
        self._weather = Weather(random.Random(seed))
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.AbstractServer | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    @property
    def url(self) -> str:
        """The URL of database 0 of a Redis behind the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many connections are open, dead ones included."""
        return len(self._links)

    @property
    def struck(self) -> int:
        """How many connections were reset by chance or in place of a reply, so far."""
        return self._weather.struck

    # -- controls ------------------------------------------------------------------------------

    def delay(self, mean: float, jitter: float = 0.0) -> None:
        """Let each chunk travel ``mean`` plus or minus ``jitter`` seconds, one way, in order."""
        self._set(mean=mean, jitter=jitter)

    def cut(self) -> None:
        """Reset all open connections."""

        def reset_all() -> None:
            for link in self._links:
                link.reset()

        self._call(reset_all)

    def refuse(self, on: bool = True) -> None:
        """Reset new connections, or accept them again."""
        self._set(refusing=on)

    def black_hole(self, keep: bool = False) -> None:
        """Deliver nothing any more, without FIN or RST; new connections are accepted.

        Without ``keep`` the connections of this time stay dead after :meth:`heal`: what they were
        given is gone. With ``keep`` it is held back and delivered then.
        """

        def begin() -> None:
            if keep:
                self._weather.flowing.clear()
                return
            self._weather.swallowing_all = True
            for link in self._links:
                link.dead = True

        self._call(begin)

    def heal(self) -> None:
        """End the black hole. Connections that are dead stay so."""

        def end() -> None:
            self._weather.swallowing_all = False
            self._weather.flowing.set()

        self._call(end)

    def swallow_replies(self, count: int, matching: bytes = b"") -> None:
        """Deliver the next ``count`` requests, but reset their connections instead of replying.

        Only chunks of bytes to the server that contain ``matching`` count as requests.
        """
        self._set(swallows=count, matching=matching)

    def reset_rate(self, probability: float) -> None:
        """Let each chunk to the server reset its connection with a probability.

        In half of the cases the server still gets the chunk.
        """
        self._set(reset_rate=probability)

    # -- inside --------------------------------------------------------------------------------

    def _set(self, **changes: Any) -> None:
        def change() -> None:
            for name, value in changes.items():
                setattr(self._weather, name, value)

        self._call(change)

    def _call(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the event loop and wait until it has run."""

        async def job() -> None:
            function()

        asyncio.run_coroutine_threadsafe(job(), self._loop).result(START_SECONDS)

    async def _start(self) -> None:
        self._weather.flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        # What is just being accepted becomes a link in the next turn.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for link in self._links:
                link.reset()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(others)
        # One more turn: aborted transports close their sockets in it.
        await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather.refusing:
            abort(writer)
            return
        link = Link(self._weather, reader, writer)
        task = self._loop.create_task(link.run(self._target))
        self._links.add(link)
        self._tasks.add(task)

        def forget(done: asyncio.Task[None]) -> None:
            self._links.discard(link)
            self._tasks.discard(done)

        task.add_done_callback(forget)
