"""The servers that tests put in front of Redis leave no socket open, whenever they end."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.certificates import write_certificates
from tests.faults.proxy import Proxy
from tests.loopback import LoopbackServer
from tests.tls_server import TLSServer


class Callers:
    """Threads that connect again and again, and send invalid TLS, until the port is closed."""

    def __init__(self, port: int) -> None:
        self._first = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(port,)) for _ in range(3)]
        for thread in self._threads:
            thread.start()
        assert self._first.wait(10)

    def join(self) -> None:
        """Wait until every thread has ended because its connection was refused."""
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _call(self, port: int) -> None:
        with suppress(ConnectionError):
            while True:
                with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
                    self._first.set()
                    with suppress(OSError):
                        caller.sendall(b"PING\r\n")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_server_that_ends_while_clients_connect_leaves_nothing_open(
    tmp_path: Path, tls: bool
) -> None:
    files = write_certificates(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        target = upstream.getsockname()[1]
        make: Callable[[], LoopbackServer] = (
            (lambda: TLSServer(files, target)) if tls else (lambda: Proxy(target))
        )
        with warnings.catch_warnings(record=True) as left:
            warnings.simplefilter("always", ResourceWarning)
            for _ in range(5):
                with make() as server:
                    callers = Callers(server.port)
                callers.join()
            gc.collect()
    assert [str(warning.message) for warning in left] == []


def test_a_closed_port_refuses_connections_and_stays_reserved(closed_port: int) -> None:
    """Another test may choose a port for its own server at the same time."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", closed_port), timeout=10)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", closed_port))
