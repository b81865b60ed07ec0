"""Tests of migrating slots and of cluster client errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ClusterCrossSlotError, RedisError

from redbeat import RedBeatSchedulerEntry
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.metrics.counts import counts_of
from redbeat.storage.rows import Change, Look, Reply, Request, new_mark
from redbeat.storage.store import Store
from tests.scheduler.conftest import RecordingScheduler
from tests.topologies.conftest import Site, app_client, cluster_settings
from tests.topologies.groups import ClusterGroup, ClusterNode
from tests.topologies.test_conformance import put
from tests.waiting import wait_until

PREFIX = "{redbeat}:"


@pytest.fixture
def target(cluster_group: ClusterGroup, cluster: Site) -> ClusterNode:
    """Return a node that does not own the slot of the schedule."""
    del cluster  # This fixture empties the slot before it moves.
    owner = cluster_group.owner(PREFIX)
    return next(node for node in cluster_group.masters() if node is not owner)


def filled(site: Site) -> Store:
    """Return a store with all keys that the scripts use, and with three due entries."""
    store = site.store(redbeat_lock_key=None)
    put(store, "a", "b", "c", "bad")
    site.client.zadd(store.keys.schedule, {store.keys.entry("bad"): -1})
    site.client.hset(store.keys.quarantine, store.keys.entry("bad"), "{}")
    site.client.sadd(store.keys.statics, "a")
    look(store)
    return store


def look(store: Store, *changes: Change) -> Reply:
    request = Request("t", None, changes, Look(), counts={"dispatched": 1}, counts_id=new_mark())
    return store.turn(request)


SCRIPTS: dict[str, Callable[[Store], Any]] = {
    "look": look,
    "change": lambda store: look(store, Change(store.keys.entry("a"), delete=True)),
    "inbox": lambda store: store.say(store.keys.entry("a"), '["trigger"]', kind="trigger"),
    "read": lambda store: store.read([store.keys.entry("a")]),
    "page": lambda store: store.page(),
    "count": lambda store: counts_of(store, None, -1, 60),
}


@pytest.mark.long
@pytest.mark.parametrize("moved", ["entries", "all but entries"])
def test_no_script_runs_on_half_a_slot(
    cluster_group: ClusterGroup, cluster: Site, target: ClusterNode, moved: str
) -> None:
    """Scripts must not treat an entry as deleted because its key is on the other node."""
    store = filled(cluster)
    keys = store.keys
    entries = [keys.entry(name) for name in ("a", "b", "c", "bad")]
    others = [keys.schedule, keys.statics, keys.quarantine, keys.beats, keys.stats]
    assert cluster.client.exists(*entries, *others) == len(entries) + len(others)
    cluster_group.begin_move(PREFIX, target)
    cluster_group.move_these(entries if moved == "entries" else others, target)
    for script in SCRIPTS.values():
        with pytest.raises(RedisError):
            script(store)
    while cluster_group.move_keys(PREFIX, target):
        pass
    cluster_group.end_move(PREFIX, target)
    rows = look(store).rows
    assert sorted(row.key for row in rows) == entries[:3]
    assert all(row.definition for row in rows)
    assert set(store.quarantined()) == {keys.entry("bad")}
    assert store.static_names() == {"a"}


def test_a_beat_follows_a_moved_slot_at_once(
    cluster_group: ClusterGroup, cluster: Site, target: ClusterNode
) -> None:
    store = cluster.store()
    put(store, "a")
    look(store)
    cluster_group.move(PREFIX, target)
    assert len(look(store).rows) == 1


def test_a_save_waits_for_a_migrating_slot(
    cluster_group: ClusterGroup, cluster: Site, target: ClusterNode
) -> None:
    """The save succeeds with ``retry_period``; without it, redis-py's error is raised."""
    cluster_group.begin_move(PREFIX, target)
    entry = RedBeatSchedulerEntry("a", "t", 60.0, app=cluster.app())
    with pytest.raises(RedisError):
        entry.save()
    options = cluster_settings(cluster_group, retry_period=30)["redbeat_redis_options"]
    patient = cluster.app(redbeat_redis_options=options)
    saving = threading.Thread(target=RedBeatSchedulerEntry("a", "t", 60.0, app=patient).save)
    saving.start()
    cluster_group.end_move(PREFIX, target)
    saving.join(30)
    assert cluster.client.hget("{redbeat}:a", "definition")


def test_a_cluster_client_of_the_user(cluster_group: ClusterGroup, cluster: Site) -> None:
    app = cluster.app(redbeat_redis_url="redis://nowhere")
    app.redbeat_redis = cluster_group.client()
    scheduler = RecordingScheduler(app)
    cluster.schedulers.append(scheduler)
    put(cluster.store(), "a")
    wait_until(lambda: scheduler.tick() is not None and scheduler.sent)
    assert scheduler.names == ["a"]


def test_a_cluster_client_that_setup_schedule_sets(
    cluster_group: ClusterGroup, cluster: Site
) -> None:
    class ClusterScheduler(RecordingScheduler):
        def setup_schedule(self) -> None:
            self.app.redbeat_redis = cluster_group.client()
            super().setup_schedule()

    app = cluster.app(redbeat_redis_url="redis://nowhere", redbeat_redis_options=None)
    assert ensure_conf(app).key_prefix == "redbeat:"
    scheduler = ClusterScheduler(app)
    cluster.schedulers.append(scheduler)
    assert scheduler.lock_key == "{redbeat}::lock"
    put(cluster.store(), "a")
    wait_until(lambda: scheduler.tick() is not None and scheduler.sent)
    assert scheduler.names == ["a"]
    untagged = cluster.app(redbeat_redis_url="redis://nowhere", redbeat_key_prefix="mine:")
    ensure_conf(untagged)
    with pytest.raises(ConfigurationError, match="redbeat_key_prefix is 'mine:'"):
        ClusterScheduler(untagged)


@pytest.mark.long
def test_no_error_of_the_client_of_the_user_ends_a_beat(cluster: Site) -> None:
    """If no node is reachable, redis-py raises an error that is not a RedisError."""
    with ClusterGroup(replicas=False) as group:
        app = cluster.app()
        app.redbeat_redis = group.client()
        scheduler = RecordingScheduler(app)
        assert scheduler.tick() > 0
    assert 0 < scheduler.tick() <= 2
    assert not scheduler.wakeup.listen()
    with pytest.raises(RedisError):
        RedBeatSchedulerEntry("a", "t", 60.0, app=app).save()


def test_one_reachable_node_is_enough_to_start(cluster_group: ClusterGroup, cluster: Site) -> None:
    for options in (
        {"startup_nodes": [cluster_group.addresses[2]]},
        {"startup_nodes": [("127.0.0.1", 1), cluster_group.addresses[1]]},
    ):
        settings = {"redbeat_redis_url": "redis-cluster://", "redbeat_redis_options": options}
        assert app_client(cluster.app(**settings)).set("k", "ä")


def test_cluster_as_an_option_of_the_broker(cluster_group: ClusterGroup, cluster: Site) -> None:
    options = {"cluster": True, "startup_nodes": cluster_group.addresses, "retry_period": 1}
    app = cluster.app(
        redbeat_redis_url=None,
        redbeat_redis_options=None,
        broker_url=f"redis://127.0.0.1:{cluster_group.nodes[0].port}/0",
        broker_transport_options=options,
    )
    RedBeatSchedulerEntry("a", "t", 60.0, app=app).save()
    assert cluster.client.hget("{redbeat}:a", "definition")


def test_a_cross_slot_error_does_not_count_as_an_outage(cluster: Site) -> None:
    client = app_client(cluster.app())
    with pytest.raises(ClusterCrossSlotError):
        client.execute_command("EVAL", "return 1", 2, "a", "b")


def test_the_error_about_a_prefix_without_a_hash_tag_names_a_fix(cluster: Site) -> None:
    with pytest.raises(ConfigurationError, match=r"'\{mine\}:'"):
        RedBeatConfig(cluster.app(redbeat_key_prefix="mine:"))
    RedBeatConfig(cluster.app(redbeat_key_prefix="{mine}:"))
