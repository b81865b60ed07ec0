"""Tests that Sentinel and Cluster work and fail over with TLS.

Clients without a valid certificate are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redbeat import RedBeatSchedulerEntry
from redbeat.config import ensure_conf, get_redis
from tests.certificates import CertificateFiles
from tests.pages import configurations
from tests.scheduler.conftest import RecordingScheduler
from tests.security.certificates import write_expired
from tests.security.test_deployment_pages import run
from tests.tls.conftest import Place
from tests.waiting import wait_until

MakeApp: TypeAlias = Callable[[dict[str, Any]], Celery]


@pytest.fixture
def make_app() -> Iterator[MakeApp]:
    """Return a function that creates an app with settings; its client is closed after the test."""
    apps = []

    def make(settings: dict[str, Any]) -> Celery:
        app = Celery("tls", broker="memory://", set_as_current=False)
        app.conf.update(settings, timezone="UTC", result_expires=None)
        apps.append(app)
        return app

    yield make
    for app in apps:
        if getattr(app, "redbeat_redis", None) is not None:
            app.redbeat_redis.close()
        app.close()


def change(settings: dict[str, Any], **tls: Any) -> dict[str, Any]:
    """Return the settings with changed TLS options, for servers and Sentinels."""
    options = dict(settings["redbeat_redis_options"])
    if "sentinel_kwargs" in options:
        options["sentinel_kwargs"] = {**options["sentinel_kwargs"], **tls}
    use_ssl = {**settings["redbeat_redis_use_ssl"], **tls}
    return {**settings, "redbeat_redis_use_ssl": use_ssl, "redbeat_redis_options": options}


def refusal(app: Celery) -> str:
    """Return the error of an app that cannot use Redis."""
    with pytest.raises((RedisConnectionError, RedisTimeoutError)) as caught:
        get_redis(app).ping()
    return str(caught.value)


def test_strangers_are_refused(
    place: Place, make_app: MakeApp, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients with another authority, without a client certificate or without TLS are refused.

    Verification is off only on request.
    """
    stranger = write_expired(tmp_path)
    output = refusal(make_app(change(place.settings, ssl_ca_certs=stranger.authority)))
    assert "certificate verify failed" in output
    refusal(make_app(change(place.settings, ssl_certfile=None, ssl_keyfile=None)))
    refusal(make_app({**place.settings, "redbeat_redis_use_ssl": False}))
    caplog.set_level(logging.WARNING)
    app = make_app(change(place.settings, ssl_ca_certs=stranger.authority, ssl_cert_reqs="none"))
    assert get_redis(app).ping()
    assert "certificate of the Redis server is not verified" in caplog.text


def settings_on_page(scheme: str, hosts: dict[str, str], files: CertificateFiles) -> Any:
    """Return the only configuration in the page with URLs of this scheme."""
    replace = {
        "/etc/ssl/redis-ca.pem": files.authority,
        "/etc/ssl/beat.pem": files.certificate,
        "/etc/ssl/beat.key": files.key,
        **hosts,
    }
    found = configurations("tls.rst", replace)
    (settings,) = [one for one in found if one["redbeat_redis_url"] == f"{scheme}://"]
    return settings


def written(place: Place, name: str, port: int) -> dict[str, str]:
    """Map the group's addresses in the manual to the addresses in the test."""
    return {
        f'"{name}-{number}.example.com", {port}': f'"{host}", {own}'
        for number, (host, own) in enumerate(place.group.addresses, 1)
    }


def test_the_sentinel_configuration_of_the_manual_works(
    sentinels: Place, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEAT_KEY_PASSWORD", "of another block")
    run(settings_on_page("redis-sentinel", written(sentinels, "sentinel", 26379), files))


def test_the_cluster_configuration_of_the_manual_works(
    cluster: Place, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEAT_KEY_PASSWORD", "of another block")
    run(settings_on_page("redis-cluster", written(cluster, "redis", 6379), files))


def ran_once_more(beat: RecordingScheduler) -> None:
    """Run ticks until one more message is sent."""
    count = len(beat.sent)
    wait_until(lambda: beat.tick() is not None and len(beat.sent) > count, 60)


def fail(place: Place, app: Celery) -> None:
    """Kill the master that stores the schedule, and wait for another master.

    The killed server is not restarted, so only the last tests may use this function.
    """
    group, prefix = place.group, ensure_conf(app).key_prefix
    if hasattr(group, "owner"):
        old = group.owner(prefix)
        old.kill()
        group.wait_promoted(prefix, old)
    else:
        old = group.master()
        old.kill()
        group.wait_promoted(old)


def test_a_beat_runs_and_follows_a_failover(
    place: Place, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(place.settings)
    RedBeatSchedulerEntry("a", "t", 0.2, app=app).save()
    beat = RecordingScheduler(make_app(place.settings))
    ran_once_more(beat)
    assert place.ports_in_use() <= {server.service_port for server in place.servers}
    fail(place, app)
    ran_once_more(beat)
    wait_until(lambda: saved(app, "b"), 30)
    beat.close()
    assert "not verified" not in caplog.text


def saved(app: Celery, name: str) -> bool:
    """Save an entry; return False if this fails now."""
    try:
        RedBeatSchedulerEntry(name, "t", 60, app=app).save()
    except RedisError:
        return False
    return True
