"""Tests of a beat over TLS, and of its errors about servers that it must not trust."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.acceptance.processes import Project
from tests.certificates import KEY_PASSWORD, CertificateFiles, write_certificates
from tests.scheduler.conftest import RecordingScheduler
from tests.security.certificates import write_expired
from tests.tls_server import TLSServer
from tests.waiting import wait_until

TASK = "tests.acceptance.project.note"
UNAVAILABLE = "Redis is not available, trying again"


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return write_certificates(tmp_path)


@pytest.fixture
def expired(tmp_path: Path) -> CertificateFiles:
    return write_expired(tmp_path)


@pytest.fixture
def plain_port(redis_url: str) -> int:
    """Return the port of the server without TLS."""
    port = urlsplit(redis_url).port
    assert port
    return port


def settings(port: int, use_ssl: Any, host: str = "localhost") -> dict[str, Any]:
    """Return the settings of a schedule behind a TLS port."""
    url = f"rediss://{host}:{port}/0"
    return {"redbeat_redis_url": url, "redbeat_redis_use_ssl": use_ssl}


class Beat:
    """A scheduler that ticks once in this process.

    ``output`` is its log. ``led`` is true if it acquired the lock.
    """

    def __init__(self, log: pytest.LogCaptureFixture, **settings: Any) -> None:
        app = Celery("tls", broker="memory://", set_as_current=False)
        app.conf.update(settings)
        log.clear()
        scheduler = RecordingScheduler(app)
        scheduler.tick()
        scheduler.close()
        app.redbeat_redis.close()
        self.output = log.text
        self.led = "Acquired lock" in self.output

    def unavailable(self) -> str:
        """Return the logged error about the server; a real beat would retry."""
        (line,) = (line for line in self.output.splitlines() if UNAVAILABLE in line)
        assert "Traceback" not in self.output
        return line


def next_name(project: Project) -> str:
    """Wait for the next message in the broker; return the name of its entry."""
    popped: Any = wait_until(lambda: project.client.blpop(["celery"], timeout=1), 30, "a message")
    return str(json.loads(popped[1])["headers"]["periodic_task_name"])


@pytest.mark.long
def test_a_real_beat_with_own_authority_and_client_certificate(
    project: Project, plain_port: int, files: CertificateFiles
) -> None:
    use_ssl = {
        "ssl_ca_certs": files.authority,
        "ssl_certfile": files.certificate,
        "ssl_keyfile": files.encrypted_key,
        "ssl_password": KEY_PASSWORD,
    }
    with TLSServer(files, plain_port, client_authority=files.authority) as server:
        process = project.beat(settings=settings(server.port, use_ssl))
        process.wait_for("Acquired lock")
        web = Celery("web", broker="memory://", set_as_current=False)
        url = f"rediss://localhost:{server.port}/0"
        web.conf.update(redbeat_redis_url=url, redbeat_redis_use_ssl=use_ssl)
        RedBeatSchedulerEntry("over-tls", TASK, 3600, app=web).save().reschedule()
        entry = RedBeatSchedulerEntry("at-once", TASK, 0.5, app=web).save()
        assert next_name(project) == "at-once"
        entry.delete()
        web.redbeat_redis.close()
        assert process.stop() == 0
        assert server.accepted >= 2
    assert "not verified" not in process.output()
    assert "ERROR" not in process.output()
    assert KEY_PASSWORD not in process.output()


def test_a_key_without_a_password(
    plain_port: int, files: CertificateFiles, log: pytest.LogCaptureFixture
) -> None:
    use_ssl = {
        "ssl_ca_certs": files.authority,
        "ssl_certfile": files.certificate,
        "ssl_keyfile": files.key,
    }
    with TLSServer(files, plain_port, client_authority=files.authority) as server:
        assert Beat(log, **settings(server.port, use_ssl)).led


def test_true_verifies_with_the_authorities_of_the_system(
    plain_port: int,
    files: CertificateFiles,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TLSServer(files, plain_port) as server:
        given = settings(server.port, use_ssl=True)
        assert "CERTIFICATE_VERIFY_FAILED" in Beat(log, **given).unavailable()
        monkeypatch.setenv("SSL_CERT_FILE", files.authority)
        assert Beat(log, **given).led


def test_a_certificate_of_another_authority_is_refused(
    plain_port: int,
    files: CertificateFiles,
    expired: CertificateFiles,
    log: pytest.LogCaptureFixture,
) -> None:
    with TLSServer(files, plain_port) as server:
        given = settings(server.port, {"ssl_ca_certs": expired.authority})
        line = Beat(log, **given).unavailable()
    assert "CERTIFICATE_VERIFY_FAILED" in line
    assert "unable to get local issuer certificate" in line
    assert f"localhost:{server.port}" in line


def test_a_certificate_for_another_host_is_refused(
    plain_port: int, files: CertificateFiles, log: pytest.LogCaptureFixture
) -> None:
    with TLSServer(files, plain_port) as server:
        given = settings(server.port, {"ssl_ca_certs": files.authority}, host="127.0.0.1")
        line = Beat(log, **given).unavailable()
    assert "certificate is not valid for '127.0.0.1'" in line


def test_an_expired_certificate_is_refused(
    plain_port: int, expired: CertificateFiles, log: pytest.LogCaptureFixture
) -> None:
    with TLSServer(expired, plain_port) as server:
        given = settings(server.port, {"ssl_ca_certs": expired.authority})
        line = Beat(log, **given).unavailable()
    assert "certificate has expired" in line


def test_a_server_without_tls_is_an_error(
    plain_port: int, files: CertificateFiles, log: pytest.LogCaptureFixture
) -> None:
    given = settings(plain_port, {"ssl_ca_certs": files.authority})
    given["redbeat_redis_options"] = {"socket_timeout": 0.2, "socket_connect_timeout": 0.2}
    line = Beat(log, **given).unavailable()
    assert "Timeout connecting to server" in line


def test_a_missing_client_certificate_is_an_error(
    plain_port: int, files: CertificateFiles, log: pytest.LogCaptureFixture
) -> None:
    with TLSServer(files, plain_port, client_authority=files.authority) as server:
        given = settings(server.port, {"ssl_ca_certs": files.authority})
        line = Beat(log, **given).unavailable()
    assert re.search("certificate required|EOF occurred|reset by peer|closed by server", line)


def test_plain_connections_to_a_tls_port_are_an_error(
    plain_port: int, files: CertificateFiles, log: pytest.LogCaptureFixture
) -> None:
    with TLSServer(files, plain_port) as server:
        url = f"redis://localhost:{server.port}/0"
        line = Beat(log, redbeat_redis_url=url).unavailable()
    assert re.search("closed by server|reset by peer", line)


def test_verification_can_be_switched_off_which_each_start_logs(
    plain_port: int, expired: CertificateFiles, log: pytest.LogCaptureFixture
) -> None:
    with TLSServer(expired, plain_port) as server:
        for _ in range(2):
            given = settings(server.port, {"ssl_cert_reqs": "none"}, host="127.0.0.1")
            beat = Beat(log, **given)
            assert beat.led
            told = "The certificate of the Redis server is not verified"
            assert beat.output.count(told) == 1
            assert "ssl_cert_reqs is 'none'" in beat.output
