"""TLS in front of a plain Redis server, for servers that were built without it."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType

from tests.unit.certificates import CertificateFiles

__all__ = ("TLSFront",)


class TLSFront:
    """Listens on a loopback port and passes what it decrypts to a Redis server and back."""

    def __init__(self, files: CertificateFiles, upstream_port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> TLSFront:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _address = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        upstream = ("127.0.0.1", self._upstream_port)
        with (
            suppress(OSError),  # a client that refuses the certificate ends the handshake
            plain,
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(upstream) as server,
        ):
            # Redis speaks when spoken to, so the two directions take turns.
            while request := client.recv(65536):
                server.sendall(request)
                client.sendall(server.recv(65536))
