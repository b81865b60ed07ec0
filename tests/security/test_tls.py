"""A real beat over TLS, and what it says of servers that it must not trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.acceptance.processes import Process, Project
from tests.certificates import KEY_PASSWORD, CertificateFiles, write_certificates
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


def upstream(project: Project) -> int:
    """Return the plain port of the server."""
    port = urlsplit(project.url).port
    assert port
    return port


def beat(project: Project, port: int, use_ssl: Any, host: str = "localhost") -> Process:
    """Start a beat whose schedule is behind a TLS port."""
    settings = {"redbeat_redis_url": f"rediss://{host}:{port}/0", "redbeat_redis_use_ssl": use_ssl}
    return project.beat(settings=settings)


def unavailable(process: Process) -> str:
    """Wait for what the beat says about a server it cannot use; it goes on trying."""
    process.wait_for(UNAVAILABLE)
    (line,) = (line for line in process.said().splitlines() if UNAVAILABLE in line)
    assert process.popen.poll() is None
    assert process.stop() == 0
    assert "Traceback" not in process.said()
    return line


def next_name(project: Project) -> str:
    """Wait for the next message on the broker; return the name of its entry."""
    popped: Any = wait_until(lambda: project.client.blpop(["celery"], timeout=1), 30, "a message")
    return str(json.loads(popped[1])["headers"]["periodic_task_name"])


@pytest.mark.parametrize("key", ["key", pytest.param("encrypted_key", marks=pytest.mark.long)])
def test_own_authority_and_client_certificate(
    project: Project, files: CertificateFiles, key: str
) -> None:
    use_ssl = {
        "ssl_ca_certs": files.authority,
        "ssl_certfile": files.certificate,
        "ssl_keyfile": getattr(files, key),
        **({"ssl_password": KEY_PASSWORD} if key == "encrypted_key" else {}),
    }
    with TLSServer(files, upstream(project), client_authority=files.authority) as server:
        process = beat(project, server.port, use_ssl)
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
    assert "not verified" not in process.said()
    assert "ERROR" not in process.said()
    assert KEY_PASSWORD not in process.said()


@pytest.mark.long
def test_true_asks_the_authorities_of_the_system(project: Project, files: CertificateFiles) -> None:
    with TLSServer(files, upstream(project)) as server:
        trusting = beat(project, server.port, use_ssl=True)
        line = unavailable(trusting)
    assert "CERTIFICATE_VERIFY_FAILED" in line
    with TLSServer(files, upstream(project)) as server:
        env = {"SSL_CERT_FILE": files.authority}
        url = f"rediss://localhost:{server.port}/0"
        settings = {"redbeat_redis_url": url, "redbeat_redis_use_ssl": True}
        process = project.beat(settings=settings, env=env)
        process.wait_for("Acquired lock")


@pytest.mark.long
def test_another_authority(
    project: Project, files: CertificateFiles, expired: CertificateFiles
) -> None:
    with TLSServer(files, upstream(project)) as server:
        line = unavailable(beat(project, server.port, {"ssl_ca_certs": expired.authority}))
    assert "CERTIFICATE_VERIFY_FAILED" in line
    assert "unable to get local issuer certificate" in line
    assert f"localhost:{server.port}" in line


def test_another_host(project: Project, files: CertificateFiles) -> None:
    with TLSServer(files, upstream(project)) as server:
        trusted = {"ssl_ca_certs": files.authority}
        line = unavailable(beat(project, server.port, trusted, host="127.0.0.1"))
    assert "certificate is not valid for '127.0.0.1'" in line


@pytest.mark.long
def test_an_expired_certificate(project: Project, expired: CertificateFiles) -> None:
    with TLSServer(expired, upstream(project)) as server:
        line = unavailable(beat(project, server.port, {"ssl_ca_certs": expired.authority}))
    assert "certificate has expired" in line


@pytest.mark.long
def test_a_server_without_tls(project: Project, files: CertificateFiles) -> None:
    line = unavailable(beat(project, upstream(project), {"ssl_ca_certs": files.authority}))
    assert "Timeout connecting to server" in line
    assert "does the server speak TLS at this port?" in line


def test_no_client_certificate(project: Project, files: CertificateFiles) -> None:
    with TLSServer(files, upstream(project), client_authority=files.authority) as server:
        line = unavailable(beat(project, server.port, {"ssl_ca_certs": files.authority}))
    assert "client certificate" in line


@pytest.mark.long
def test_tls_off_for_a_server_that_wants_it(project: Project, files: CertificateFiles) -> None:
    with TLSServer(files, upstream(project)) as server:
        url = f"redis://localhost:{server.port}/0"
        line = unavailable(project.beat(settings={"redbeat_redis_url": url}))
    assert "use a rediss URL" in line


@pytest.mark.long
def test_verification_can_be_switched_off_and_each_start_says_so(
    project: Project, expired: CertificateFiles
) -> None:
    with TLSServer(expired, upstream(project)) as server:
        for _ in range(2):
            process = beat(project, server.port, {"ssl_cert_reqs": "none"}, host="127.0.0.1")
            process.wait_for("Acquired lock")
            assert process.stop() == 0
            said = process.said()
            assert said.count("The certificate of the Redis server is not verified") == 1
            assert "redbeat_redis_use_ssl['ssl_cert_reqs'] is 'none'" in said
