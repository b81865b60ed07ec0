"""One group of servers of each kind for the whole test run, and a schedule on any of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from celery import Celery

from redbeat.config import ensure_conf, get_redis, unretried
from redbeat.entry import store_of
from redbeat.storage.store import Store
from tests.faults.beats import Beats
from tests.faults.entries import Schedule
from tests.faults.ledger import Ledger
from tests.samples import long
from tests.scheduler.conftest import RecordingScheduler
from tests.servers import RedisServer
from tests.topologies.groups import NEVER_DOWN, ClusterGroup, SentinelGroup

logger = logging.getLogger("tests.topologies")


@pytest.fixture(scope="session")
def sentinel_group() -> Iterator[SentinelGroup]:
    """Run a Sentinel group in which all servers stay up."""
    with SentinelGroup(
        service="mine",
        password="master-secret",
        sentinel_password="sentinel-secret",
        down_after=NEVER_DOWN,
    ) as group:
        yield group


@pytest.fixture(scope="session")
def cluster_group() -> Iterator[ClusterGroup]:
    """Run a cluster of three masters that stay up."""
    with ClusterGroup(replicas=False) as group:
        yield group


def sentinel_settings(group: SentinelGroup, **options: Any) -> dict[str, Any]:
    """Return the settings for a schedule behind Sentinel, as in the manual."""
    given: dict[str, Any] = {
        "sentinels": group.addresses,
        "service_name": group.service,
        "db": 0,
        "socket_timeout": 1.0,
        **options,
    }
    if group.password:
        given["password"] = group.password
    if group.sentinel_password:
        given["sentinel_kwargs"] = {"password": group.sentinel_password}
    return {
        "redbeat_redis_url": "redis-sentinel://redis-sentinel:26379/0",
        "redbeat_redis_options": given,
    }


def cluster_settings(group: ClusterGroup, **options: Any) -> dict[str, Any]:
    """Return the settings for a schedule in a cluster."""
    return {
        "redbeat_redis_url": group.url,
        "redbeat_redis_options": {
            "startup_nodes": group.addresses,
            "socket_timeout": 1.0,
            **options,
        },
    }


@dataclass
class Site:
    """A schedule in one kind of Redis; ``client`` inspects it, and ``settings`` connect to it."""

    kind: str
    settings: dict[str, Any]
    client: Any
    apps: list[Celery] = field(default_factory=list)
    schedulers: list[RecordingScheduler] = field(default_factory=list)

    def app(self, **settings: Any) -> Celery:
        """Return a new app that uses this schedule."""
        app = Celery("topologies", broker="memory://", set_as_current=False)
        app.conf.update({**self.settings, **settings}, timezone="UTC", result_expires=None)
        self.apps.append(app)
        return app

    def scheduler(self, **settings: Any) -> RecordingScheduler:
        """Return a new beat for this schedule."""
        scheduler = RecordingScheduler(self.app(**settings))
        self.schedulers.append(scheduler)
        return scheduler

    def store(self, **settings: Any) -> Store:
        """Return a new store with a separate client, as in a beat."""
        app = self.app(**settings)
        return store_of(app, unretried(app_client(app)))

    @property
    def prefix(self) -> str:
        """Return the prefix of all keys."""
        return ensure_conf(self.app()).key_prefix

    def close(self) -> None:
        """Close all objects that were created for the test."""
        for scheduler in self.schedulers:
            scheduler.close()
        for app in self.apps:
            if getattr(app, "redbeat_redis", None) is not None:
                app.redbeat_redis.close()
            app.close()


def app_client(app: Celery) -> Any:
    """Return the client of an app."""
    return get_redis(app)


def plain_site(request: pytest.FixtureRequest) -> Site:
    """Return the site on a single, emptied server."""
    server: RedisServer = request.getfixturevalue("redis_server")
    client = redis.Redis.from_url(server.url, decode_responses=True)
    return Site("plain", {"redbeat_redis_url": server.url}, client)


def sentinel_site(request: pytest.FixtureRequest) -> Site:
    """Return the site on the master behind Sentinel."""
    group: SentinelGroup = request.getfixturevalue("sentinel_group")
    return Site("sentinel", sentinel_settings(group), group.client_of(group.master()))


def cluster_site(request: pytest.FixtureRequest) -> Site:
    """Return the site in the cluster."""
    group: ClusterGroup = request.getfixturevalue("cluster_group")
    return Site("cluster", cluster_settings(group), group.client())


MAKERS: Final = {"plain": plain_site, "sentinel": sentinel_site, "cluster": cluster_site}


def open_site(request: pytest.FixtureRequest, kind: str) -> Iterator[Site]:
    """Yield an empty schedule in a kind of Redis; afterwards close all objects created for it."""
    site = MAKERS[kind](request)
    site.client.flushall()
    site.client.script_flush()
    yield site
    site.close()
    site.client.close()


@pytest.fixture(params=[long("plain"), "sentinel", "cluster"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Return an empty schedule in each kind of Redis.

    The short run omits the single server, which other tests use.
    """
    yield from open_site(request, request.param)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture the log from level INFO on; the log also appears in the report of a failure."""
    caplog.set_level("INFO")
    return caplog


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Return an empty schedule in the cluster."""
    yield from open_site(request, "cluster")


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    """Run the Redis of the broker, which does not fail in these tests."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def ledger(broker: RedisServer) -> Iterator[Ledger]:
    """Collect all messages that reach the broker in a ledger."""
    with Ledger(broker.url) as ledger:
        yield ledger


@contextmanager
def beats_on(
    directory: Path, broker: RedisServer, schedule: Schedule, settings: dict[str, Any]
) -> Iterator[Beats]:
    """Return beats on a schedule; their logs are printed if the test fails."""
    url = settings["redbeat_redis_url"]
    beats = Beats(directory, url, broker.url, schedule, settings)
    try:
        yield beats
    finally:
        logger.info("%s", beats.log_tails())
        beats.end()
