"""The notations for Sentinel addresses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import ReadOnlyError

from redbeat import ConfigurationError, RedBeatScheduler, RedBeatSchedulerEntry
from tests.topologies.conftest import Site, app_client, open_site, sentinel_settings
from tests.topologies.groups import SentinelGroup


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Return an empty schedule behind Sentinel."""
    yield from open_site(request, "sentinel")


def save(site: Site, **settings: object) -> None:
    """Save an entry with these settings, and assert that the master stores it."""
    nothing = {"redbeat_redis_url": None, "redbeat_redis_options": None}
    app = site.app(**{**nothing, **settings})
    RedBeatSchedulerEntry("a", "t", 60.0, app=app).save()
    assert site.client.hget("redbeat:a", "definition")
    assert app.redbeat_sentinel is app_client(app).connection_pool.sentinel_manager


@pytest.mark.parametrize("silent", [0, 1])
def test_urls_in_celerys_notation(site: Site, sentinel_group: SentinelGroup, silent: int) -> None:
    """The URLs need ``master_name``; an unreachable Sentinel is skipped."""
    hosts = [f"127.0.0.1:{port}" for _, port in sentinel_group.addresses]
    hosts[:silent] = ["127.0.0.1:1"] * silent
    save(
        site,
        broker_url=";".join(f"sentinel://:{sentinel_group.password}@{host}/0" for host in hosts),
        broker_transport_options={
            "master_name": sentinel_group.service,
            "sentinel_kwargs": {"password": sentinel_group.sentinel_password},
        },
    )


def test_the_configuration_of_the_manual_for_the_broker(
    site: Site, sentinel_group: SentinelGroup
) -> None:
    settings = sentinel_settings(sentinel_group, retry_period=5)
    save(
        site,
        broker_url=settings["redbeat_redis_url"],
        broker_transport_options=settings["redbeat_redis_options"],
    )


#: The names of the settings of the broker and of the result backend in Celery 3, and today.
OLD = ("BROKER_URL", "BROKER_TRANSPORT_OPTIONS")
OLD_RESULTS = ("CELERY_RESULT_BACKEND", "CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS")
NEW = ("broker_url", "broker_transport_options")
NEW_RESULTS = ("result_backend", "result_backend_transport_options")


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery calls it
@pytest.mark.parametrize(
    ("scheme", "broker", "results"),
    [("redis-sentinel", OLD, OLD_RESULTS), ("sentinel", NEW, NEW_RESULTS)],
)
def test_the_first_notation_of_the_manual_is_translated(
    site: Site,
    sentinel_group: SentinelGroup,
    scheme: str,
    broker: tuple[str, str],
    results: tuple[str, str],
) -> None:
    """The printed settings work when they replace the given ones, with both passwords."""
    options = {
        "sentinels": sentinel_group.addresses,
        "password": sentinel_group.password,
        "db": 0,
        "service_name": sentinel_group.service,
        "socket_timeout": 5.0,
        "sentinel_kwargs": {"password": sentinel_group.sentinel_password},
    }
    url = f"{scheme}://redis-sentinel:26379"
    given = dict(zip((*broker, *results), (f"{url}/0", options, f"{url}/1", options), strict=True))
    old = Celery("old", set_as_current=False)
    old.config_from_object(given)
    with pytest.raises(ConfigurationError) as caught:
        RedBeatScheduler(old, lazy=True)
    _, _, code = str(caught.value).partition(":\n")
    passwords = {
        "<password of the Sentinels>": str(sentinel_group.sentinel_password),
        "<password>": str(sentinel_group.password),
    }
    for place, password in passwords.items():
        assert password not in str(caught.value)
        code = code.replace(place, password)
    printed: dict[str, Any] = {}
    exec(code, {}, printed)
    assert printed.keys() == given.keys()
    app = Celery("new", set_as_current=False)
    app.config_from_object(printed)
    RedBeatSchedulerEntry("a", "t", 60.0, app=app).save()
    scheduler = RedBeatScheduler(app)
    scheduler.apply_async(RedBeatSchedulerEntry("a", "t", 60.0, app=app))
    scheduler.close()
    assert site.client.llen("celery") == 1
    app.backend.store_result("id", 1, "SUCCESS")
    assert site.client.info("keyspace")["db1"]["keys"] == 1
    app_client(app).close()
    app.close()


def test_another_database(site: Site, sentinel_group: SentinelGroup) -> None:
    app = site.app(**sentinel_settings(sentinel_group, db=3))
    RedBeatSchedulerEntry("a", "t", 60.0, app=app).save()
    assert not site.client.exists("redbeat:a")
    assert site.client.info("keyspace")["db3"]["keys"] >= 2


def test_a_beat_leaves_a_replica_for_the_master(site: Site, sentinel_group: SentinelGroup) -> None:
    """Before Redis 7, a script that a replica refuses does not raise ReadOnlyError."""
    replica = next(one for one in sentinel_group.servers if one is not sentinel_group.master())
    app = site.app(redbeat_redis_url=replica.url, redbeat_redis_options={"socket_timeout": 1.0})
    client = app_client(app)
    assert client.ping()
    with pytest.raises(ReadOnlyError):
        RedBeatSchedulerEntry("a", "t", 60.0, app=app).save()
    with sentinel_group.client_of(replica) as other:
        before = other.info("stats")["total_connections_received"]
        assert client.ping()
        assert other.info("stats")["total_connections_received"] == before + 1


@pytest.mark.parametrize(
    "given", [pytest.param({}, marks=pytest.mark.long), {"socket_timeout": 0.2}]
)
def test_silent_sentinels_are_skipped(given: dict[str, float]) -> None:
    """Two of three Sentinels accept connections and never reply; each costs one timeout."""
    with SentinelGroup(service="mine") as group:
        settings = sentinel_settings(group, sentinel_kwargs=given)
        for sentinel in group.sentinels[:2]:
            sentinel.pause()
        app = Celery("silent", broker="memory://", set_as_current=False)
        app.conf.update(settings)
        client = app_client(app)
        began = time.monotonic()
        assert client.ping()
        assert time.monotonic() - began < 2 * given.get("socket_timeout", 1.0) + 1.0
        client.close()
