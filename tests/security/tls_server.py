"""TLS in front of a plain Redis server, both directions at once, as subscriptions need."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from types import TracebackType

from tests.unit.certificates import CertificateFiles

__all__ = ("TLSServer",)

#: Turns of the event loop in which a transport that was aborted closes its socket.
CLOSING_ROUNDS = 5


class TLSServer:
    """Decrypts what comes to a loopback port; a context manager.

    With ``client_authority``, the path of a file, only clients that show a certificate of that
    authority are let in.
    """

    port: int

    def __init__(
        self, files: CertificateFiles, upstream_port: int, client_authority: str | None = None
    ) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        if client_authority is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_authority)
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        #: Connections whose handshake succeeded.
        self.accepted = 0

    def __enter__(self) -> TLSServer:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        self._server = listening.result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        # Clients that refuse the certificate are no news.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    async def _stop(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            await asyncio.gather(_copy(reader, to_server), _copy(server, writer))
        finally:
            writer.transport.abort()
            to_server.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
