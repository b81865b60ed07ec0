"""Real Redis servers for the tests, which can crash, freeze and restart."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from examples.embedded import EmbeddedRedis, free_port
from tests.certificates import CertificateFiles

__all__ = ("RedisServer", "closed_port", "free_port", "port_with_bus")

#: The bus port of a cluster node is its port plus this number.
BUS: Final = 10000
HIGHEST_PORT: Final = 65535


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a loopback port that refuses connections.

    Until the context ends, no other process gets this port for a server or a connection.
    """
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def port_with_bus() -> int:
    """Return a free port whose cluster bus port is also free."""
    while True:
        port = free_port()
        if port + BUS > HIGHEST_PORT:
            port -= BUS
        with socket.socket() as data, socket.socket() as bus, suppress(OSError):
            data.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS))
            return port


class RedisServer(EmbeddedRedis):
    """A Redis server that a test may kill, freeze and restart.

    With ``tls``, the server has a second port for clients with a certificate of the same authority.
    It also uses TLS when it connects to other servers. This needs a Redis that is built with TLS.
    """

    is_paused = False

    def __init__(
        self, *arguments: str, password: str | None = None, tls: CertificateFiles | None = None
    ) -> None:
        super().__init__(*arguments, password=password)
        self.tls = tls
        self.tls_port = 0

    @property
    def service_port(self) -> int:
        """The port to which apps and other servers connect: the TLS port if there is one."""
        return self.tls_port or self.port

    def tls_directives(self) -> list[tuple[str, str]]:
        """Return the configuration directives that enable TLS, or an empty list without TLS."""
        if self.tls is None:
            return []
        return [
            ("tls-port", str(self.tls_port)),
            ("tls-cert-file", self.tls.certificate),
            ("tls-key-file", self.tls.key),
            ("tls-ca-cert-file", self.tls.authority),
            ("tls-replication", "yes"),
        ]

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.tls_port = port_with_bus() if self.tls else 0

    def _command(self) -> list[str]:
        directives = [f"--{name} {value}".split() for name, value in self.tls_directives()]
        return [*super()._command(), *(word for words in directives for word in words)]

    def kill(self) -> None:
        """Kill the server, like a crash. :meth:`restart` reuses its port and directory."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start the server again on the same port, with the data saved in its directory.

        A server that is still running is first shut down without saving.
        """
        self._end(signal.SIGTERM)
        if not self._launch():
            raise RuntimeError(f"the Redis server did not start again:\n{self._log()}")

    def pause(self) -> None:
        """Freeze the server: its connections stay open, but no command gets a reply."""
        self.is_paused = True
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a server that :meth:`pause` froze."""
        self.is_paused = False
        self._running().send_signal(signal.SIGCONT)
