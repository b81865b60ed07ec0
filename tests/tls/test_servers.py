"""Tests that the servers of these tests start although another program took a chosen port."""

from __future__ import annotations

import socket

import pytest

from tests import servers
from tests.certificates import CertificateFiles
from tests.servers import RedisServer, free_port


def test_a_server_whose_tls_port_was_taken_starts_on_another(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr(servers, "port_with_bus", lambda: next(ports))
        with RedisServer(tls=files) as server:
            assert server.tls_port != taken
            assert server.is_running
