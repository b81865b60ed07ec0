"""Tests of programs that provide their own Redis client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.servers import RedisServer
from tests.topologies.groups import NEVER_DOWN, SLOTS, ClusterNode, Sentinel
from tests.waiting import wait_until
from tests.wild.programs import Run, Wild

UNREACHABLE = "redis://127.0.0.1:1/0"

GIVEN = """
app.redbeat_redis = redis.Redis.from_url({url!r}, decode_responses=True)
"""


def test_a_client_set_on_the_app(wild: Wild, run: Run) -> None:
    program = wild.program(GIVEN.format(url=wild.url), redbeat_redis_url=UNREACHABLE)
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: wild.runs("job"))
        running.until(wild.messages)


RETRYING = """
from redbeat.schedulers import REDBEAT_REDIS_KEY, RetryingConnection

client = redis.Redis.from_url({url!r}, decode_responses=True)
setattr(app, REDBEAT_REDIS_KEY, RetryingConnection(5, client))
"""


def test_a_client_in_a_retrying_connection(wild: Wild, run: Run) -> None:
    program = wild.program(RETRYING.format(url=wild.url), redbeat_redis_url=UNREACHABLE)
    program.module.save("job")
    with run(program) as running:
        running.until(lambda: wild.runs("job"))
        running.until(wild.messages)
    program.module.client.close()


#: A fake client, as in the tests of many projects. The scheduler itself saves the entry.
FAKE = """
import fakeredis

app.redbeat_redis = fakeredis.FakeRedis(decode_responses=True)


class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        super().setup_schedule()
        save("job")
"""


def test_a_fake_client(wild: Wild, run: Run) -> None:
    with run(wild.program(FAKE, redbeat_redis_url=UNREACHABLE)) as running:
        running.until(lambda: len(wild.messages()) >= 2)
    assert wild.client.keys("*") == []


#: The program replaces `get_redis` with a function that uses database 2. It also replaces the
#: scheduler's entry class.
REPLACED = """
import redbeat.schedulers

client = redis.Redis.from_url({url!r}, decode_responses=True)


class Entry(RedBeatSchedulerEntry):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.options = {{**(self.options or {{}}), "headers": {{"x-class": "own"}}}}


redbeat.schedulers.get_redis = lambda app=None: client
redbeat.schedulers.RedBeatScheduler.Entry = Entry

app.conf.beat_schedule = {{"static": {{"task": "jobs.static", "schedule": 0.5}}}}
"""


def test_a_function_that_replaces_get_redis(wild: Wild, run: Run) -> None:
    url = wild.url.removesuffix("/0") + "/2"
    program = wild.program(REPLACED.format(url=url))
    module = program.module
    module.save("job", entry=module.Entry)
    with run(program) as running:
        running.until(wild.messages)
        running.until(lambda: wild.messages("jobs.static"))
        assert set(module.client.keys("redbeat:*")) == {
            "redbeat:job",
            "redbeat:static",
            "redbeat::schedule",
            "redbeat::statics",
            "redbeat::lock",
        }
        assert wild.client.keys("redbeat:*") == []
    assert wild.messages("jobs.static")[0].headers["x-class"] == "own"
    module.client.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterNode]:
    """Yield a cluster of one node, which applies the slot rules of larger clusters."""
    with ClusterNode() as node, redis.Redis.from_url(node.url, decode_responses=True) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield node


CLUSTER = """
from redis.cluster import RedisCluster


class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        self.app.redbeat_redis = RedisCluster.from_url({url!r}, decode_responses=True)
        super().setup_schedule()
        save("job")
"""


def test_a_cluster_client_that_setup_schedule_makes(
    wild: Wild, run: Run, cluster: ClusterNode
) -> None:
    with redis.Redis.from_url(cluster.url) as client:
        client.flushall()
    program = wild.program(CLUSTER.format(url=cluster.url), redbeat_redis_url=UNREACHABLE)
    with run(program) as running:
        running.until(lambda: len(wild.messages()) >= 2)


@pytest.fixture(scope="session")
def sentinel() -> Iterator[Sentinel]:
    """Yield a Sentinel with one master."""
    with RedisServer() as server, Sentinel(server, "master", down_after=NEVER_DOWN) as sentinel:
        yield sentinel


@pytest.mark.parametrize("url", ["redis-sentinel", "redis-sentinel://ignored:1/0"])
def test_a_sentinel(wild: Wild, run: Run, sentinel: Sentinel, url: str) -> None:
    options = {"sentinels": [("127.0.0.1", sentinel.port)], "socket_timeout": 5}
    program = wild.program(redbeat_redis_url=url, redbeat_redis_options=options)
    program.module.save("job")
    with run(program) as running:
        running.until(wild.messages)
