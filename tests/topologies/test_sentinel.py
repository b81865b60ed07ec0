"""The notations for Sentinel addresses."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from celery import Celery
from redis.exceptions import ReadOnlyError

from redbeat import RedBeatSchedulerEntry
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
