"""Tests that run the configurations of the manual with the test's hosts and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.web.auth import IN_ALL, PER_CLIENT
from redbeat.web.pages import MAX_SEARCH
from redbeat.web.site import LIMITS
from tests.certificates import KEY_PASSWORD, CertificateFiles, write_certificates
from tests.deployments import USER, acl_rules
from tests.pages import PAGES, configurations
from tests.scheduler.conftest import RecordingScheduler
from tests.security.test_managed import MANAGED, server_without
from tests.servers import RedisServer
from tests.tls_server import TLSServer
from tests.waiting import wait_until

Configured: TypeAlias = Callable[..., list[dict[str, Any]]]

TASK = "reports.daily"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CertificateFiles:
    """Return certificates of an authority that the system trusts during the test."""
    files = write_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", files.authority)
    monkeypatch.setenv("BEAT_KEY_PASSWORD", KEY_PASSWORD)
    return files


def names_at(front: TLSServer, files: CertificateFiles) -> dict[str, str]:
    """Return the host and file names of the manual, mapped to those of the test."""
    return {
        "redis.example.com:6380": f"localhost:{front.port}",
        "/etc/ssl/redis-ca.pem": files.authority,
        "/etc/ssl/beat.pem": files.certificate,
        "/etc/ssl/beat.key": files.encrypted_key,
    }


def run(settings: dict[str, Any]) -> None:
    """Save an entry and run a beat until it sends the entry's task."""
    apps = [Celery("page", broker="memory://", set_as_current=False) for _ in range(2)]
    for app in apps:
        app.conf.update(settings, timezone="UTC", result_expires=None)
    RedBeatSchedulerEntry("a", TASK, 0.1, app=apps[0]).save()
    scheduler = RecordingScheduler(apps[1])
    wait_until(lambda: scheduler.tick() is not None and scheduler.sent)
    scheduler.close()
    for app in apps:
        app.redbeat_redis.close()


@pytest.fixture
def with_user() -> Iterator[RedisServer]:
    """Yield a server with the user of the manual."""
    with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", USER, *acl_rules())
        yield server


def test_the_tls_page(
    redis_url: str, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    port = redis.Redis.from_url(redis_url).connection_pool.connection_kwargs["port"]
    with TLSServer(files, port) as front:
        found = configurations("tls.rst", names_at(front, files))
        single = [one for one in found if one["redbeat_redis_url"].startswith("rediss:")]
        assert (len(single), len(found)) == (3, 5), "tests/tls has the others"
        for settings in single:
            run(settings)
        assert front.accepted >= 6
    assert caplog.text.count("certificate of the Redis server is not verified") == 2


def test_the_acl_page(with_user: RedisServer, files: CertificateFiles) -> None:
    secrets = {"redbeat-password": "PASSWORD"}
    with TLSServer(files, with_user.port) as front:
        names = names_at(front, files)
        found = configurations("acl.rst", names, read_secret=secrets.__getitem__)
        assert len(found) == 2
        for settings in found:
            run(settings)


def test_the_page_on_managed_servers(files: CertificateFiles) -> None:
    with (
        server_without(*MANAGED, password="PASSWORD") as server,
        TLSServer(files, server.port) as front,
    ):
        found = configurations("managed.rst", names_at(front, files))
        assert len(found) == 3
        for settings in found:
            run(settings)


def test_the_security_page(with_user: RedisServer, files: CertificateFiles) -> None:
    with TLSServer(files, with_user.port) as front:
        (settings,) = configurations("security.rst", names_at(front, files))
        run(settings)
        app = Celery("page", broker="memory://", set_as_current=False)
        app.conf.update(settings)
        with pytest.raises(InvalidEntryError, match="redbeat_task_allowlist"):
            RedBeatSchedulerEntry("b", "os.system", 60, app=app).save()


def test_the_limits_of_the_dashboard_are_those_of_the_code() -> None:
    page = (PAGES / "security.rst").read_text(encoding="utf-8")
    header, body = LIMITS["max_request_header_size"] >> 10, LIMITS["max_request_body_size"] >> 20
    assert f"     - {header} KiB and {body} MiB\n" in page
    assert f"     - {LIMITS['channel_timeout']} seconds from the first byte" in page
    assert f"     - {LIMITS['connection_limit']} in all; more clients wait\n" in page
    wrong = f"{PER_CLIENT.amount} a minute from one client, {IN_ALL.amount} a minute from all"
    assert wrong in page
    assert f"   * - search texts\n     - {MAX_SEARCH} characters\n" in page
