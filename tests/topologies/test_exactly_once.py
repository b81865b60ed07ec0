"""Tests a Redis broker with a schedule behind Sentinel or in a cluster."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError
from redbeat.schedulers import RedBeatScheduler
from tests.scheduler.test_exactly_once import before_publish
from tests.servers import RedisServer
from tests.topologies.conftest import Site, open_site
from tests.topologies.groups import SentinelGroup


def save(app: Any, name: str) -> RedBeatSchedulerEntry:
    """Save an entry that is due now."""
    ran_at: Any = datetime.now(timezone.utc) - timedelta(hours=2)
    return RedBeatSchedulerEntry(name, f"tasks.{name}", 3600, app=app, last_run_at=ran_at).save()


def names(client: Any) -> list[str]:
    """Return the names of the entries that have a message in the queue."""
    texts = reversed(client.lrange("celery", 0, -1))
    return [json.loads(text)["headers"]["periodic_task_name"] for text in texts]


@pytest.mark.parametrize("database", [0, 2])
def test_behind_sentinel(
    request: pytest.FixtureRequest, sentinel_group: SentinelGroup, database: int
) -> None:
    """Invariant: a message and its record are one step, and a deleted entry is not sent."""
    for site in open_site(request, "sentinel"):
        hosts = [f"127.0.0.1:{port}" for _, port in sentinel_group.addresses]
        password = sentinel_group.password
        app = site.app(
            redbeat_delivery="exactly_once",
            broker_url=";".join(f"sentinel://:{password}@{host}/{database}" for host in hosts),
            broker_transport_options={
                "master_name": sentinel_group.service,
                "sentinel_kwargs": {"password": sentinel_group.sentinel_password},
            },
        )
        save(app, "a")
        gone = save(app, "b")
        scheduler = RedBeatScheduler(app)
        with before_publish(gone.delete):
            scheduler.tick()
        scheduler.close()
        master = sentinel_group.master()
        with redis.Redis(
            port=master.port, password=master.password, db=database, decode_responses=True
        ) as client:
            assert names(client) == ["a"]


def test_a_schedule_in_a_cluster(
    cluster: Site, broker: RedisServer, log: pytest.LogCaptureFixture
) -> None:
    app = cluster.app(broker_url=broker.url)
    for name in "ab":
        save(app, name)
    scheduler = RedBeatScheduler(app)
    scheduler.tick()
    save(app, "c")
    scheduler.tick()
    scheduler.close()
    with redis.Redis.from_url(broker.url, decode_responses=True) as client:
        assert sorted(names(client)) == ["a", "b", "c"]
    logged = [text for text in log.messages if "at least once" in text]
    assert logged == ["beat: Runs are sent at least once: the schedule is in a Redis Cluster"]
    app.conf.redbeat_delivery = "exactly_once"
    del app.redbeat_conf
    with pytest.raises(ConfigurationError, match="the schedule is in a Redis Cluster"):
        RedBeatScheduler(app)
