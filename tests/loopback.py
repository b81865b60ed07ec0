"""A TCP server on the loopback interface, whose event loop runs in its own thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Self

SECONDS = 10.0
#: On exit, the server waits until the event loop has had no task for this number of iterations.
#: During these iterations, the transports close their sockets.
QUIET_TURNS = 5

T = TypeVar("T")


class LoopbackServer:
    """A context manager that serves connections on a free port, with TLS if ``tls`` is given.

    On exit, it ends all tasks and closes all transports, whatever the state of a connection.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        #: The port that clients connect to.
        self.port: int = self._listener.getsockname()[1]
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait_for(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wait_for(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, then close it. The server cancels this coroutine when it ends."""
        raise NotImplementedError

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the event loop and wait until it has run."""

        async def job() -> None:
            function()

        self._wait_for(job())

    def _wait_for(self, job: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(SECONDS)

    async def _listen(self) -> None:
        if self._tls is not None:
            # Do not log failed handshakes: some tests connect clients that refuse the certificate.
            self._loop.set_exception_handler(lambda _loop, _context: None)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # Do not use asyncio's server: it leaves a socket open if it ends during an accept.
        with suppress(OSError):
            raw, _ = self._listener.accept()
            raw.setblocking(False)
            task = self._loop.create_task(self._connect(raw))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, raw: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with suppress(OSError):
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, raw, ssl=self._tls
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            await self.serve(reader, writer)

    async def _end(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        quiet = 0
        while quiet < QUIET_TURNS:
            # Let each task begin: a task that is cancelled before it begins closes no connection.
            await asyncio.sleep(0)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            quiet = 0 if others else quiet + 1
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others)
