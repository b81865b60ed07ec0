"""A TLS server that forwards bytes to and from a plain Redis server."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from tests.certificates import CertificateFiles
from tests.loopback import LoopbackServer


class TLSServer(LoopbackServer):
    """A context manager that decrypts connections and forwards them to ``upstream_port``.

    ``client_authority`` is the path of an authority's certificate. With it, the server accepts only
    clients that have a certificate of this authority.
    """

    def __init__(
        self, files: CertificateFiles, upstream_port: int, client_authority: str | None = None
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        if client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client_authority)
        super().__init__(context)
        self._upstream_port = upstream_port
        #: How many connections completed the handshake.
        self.accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            try:
                await asyncio.gather(_copy(reader, to_server), _copy(server, writer))
            finally:
                to_server.transport.abort()
        finally:
            writer.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
