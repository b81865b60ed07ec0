"""The store in a Redis Cluster, also while it moves the keys of a schedule, and with replicas."""

from __future__ import annotations

import pytest
import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from redbeat.storage import words
from redbeat.storage.keys import Keys
from redbeat.storage.rows import Change, Look, Request, digest_of, new_mark
from redbeat.storage.store import Store
from tests.deployments import cluster

pytestmark = [pytest.mark.long, pytest.mark.standalone]


def test_a_schedule_lives_in_a_cluster() -> None:
    keys = Keys("{redbeat}:")
    key = keys.entry("a")
    lock = (keys.prefix + ":lock", 5000, "")
    with cluster() as deployment, RedisCluster.from_url(deployment.url) as client:
        store = Store(client, keys)
        save = Change(key, new_mark(), set={"definition": "{}"}, add=1)
        reply = store.turn(Request("t", lock, [save], Look(), counts_id="1", in_hand=True))
        assert reply.standing == words.NEW_LEADER
        (row,) = store.turn(Request("t", lock, look=Look(), in_hand=True)).rows
        change = Change(key, new_mark(), expect=digest_of(row), set={"beat_state": "{}"}, score=-1)
        push = Change(key, new_mark(), set={"definition": "{}"}, push=[["LPUSH", "q", "m"]])
        reply = store.turn(Request("t", lock, [change, push], Look(), in_hand=True))
        assert [answer.word for answer in reply.answers] == [words.DONE, words.ELSEWHERE]
        assert store.say(key, '"x"', kind=words.TRIGGER) == words.DONE
        assert [row.key for row in store.turn(Request("t", lock, look=Look())).rows] == [key]

        slot = client.keyslot(key)
        owner = client.nodes_manager.get_node_from_slot(slot)
        other = next(node for node in client.get_primaries() if node != owner)
        ids = {
            node.name: node.redis_connection.execute_command("CLUSTER MYID").decode()
            for node in (owner, other)
        }
        setslot = "CLUSTER SETSLOT", slot
        other.redis_connection.execute_command(*setslot, "IMPORTING", ids[owner.name])
        owner.redis_connection.execute_command(*setslot, "MIGRATING", ids[other.name])
        with pytest.raises(RedisError):
            store.turn(Request("t", lock, [change], Look()))
        owner.redis_connection.execute_command(*setslot, "STABLE")
        other.redis_connection.execute_command(*setslot, "STABLE")
        assert store.turn(Request("t", lock, [change], Look())).answers[0].word == words.DIFFERS


@pytest.mark.parametrize(("replicas", "warns"), [(0, False), (1, True)])
def test_a_turn_with_changes_waits_for_replicas(
    redis_url: str, caplog: pytest.LogCaptureFixture, replicas: int, warns: bool
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        store = Store(client, Keys("redbeat:"), replicas)
        key = "redbeat:a"
        store.turn(Request("t", None, look=Look()))
        assert not caplog.records
        store.turn(Request("t", None, [Change(key, set={"definition": "{}"}, add=1)]))
        assert any("replicas" in record.message for record in caplog.records) == warns
        assert [row.key for row in store.turn(Request("t", None, look=Look())).rows] == [key]
