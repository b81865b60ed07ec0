"""Tests that a single Redis, Sentinel and a cluster behave the same."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Any

import pytest
import redis
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.lock import BeatLock
from redbeat.beat.wakeup import DUE, LOCK, WakeUp
from redbeat.connection.topology import node_of
from redbeat.management.find import outside
from redbeat.metrics.beats import active_beats, current_leader
from redbeat.metrics.problems import server_of
from redbeat.storage import words
from redbeat.storage.rows import Change, Look, Reply, Request, Row, digest_of
from redbeat.storage.scripts import overlaps
from redbeat.storage.store import Store
from tests.scheduler.conftest import RecordingScheduler
from tests.topologies.conftest import Site, app_client
from tests.waiting import wait_until


def definition(name: str) -> str:
    schedule = {"__type__": "interval", "every": 60.0, "relative": False}
    return json.dumps({"name": name, "task": f"tasks.{name}", "schedule": schedule})


def put(store: Store, *names: str, score: float = 0.0) -> None:
    """Store entries; those with the score 0 are due now."""
    texts = {name: {"definition": definition(name), "meta": "{}"} for name in names}
    new = [Change(store.keys.entry(name), set=texts[name], add=score) for name in names]
    answers = store.turn(Request("a program", None, new)).answers
    assert [answer.word for answer in answers] == [words.DONE] * len(names)


# Tests of the client


@pytest.mark.long
def test_one_client_for_the_life_of_an_app(site: Site) -> None:
    app = site.app()
    assert app_client(app) is app_client(app)
    assert app_client(app).set("k", "ä")
    assert app_client(app).get("k") == "ä"


def test_options_inherited_from_the_broker(site: Site) -> None:
    url, options = site.settings["redbeat_redis_url"], site.settings.get("redbeat_redis_options")
    settings = {
        "redbeat_redis_url": None,
        "redbeat_redis_options": None,
        "broker_url": url,
        "broker_transport_options": {**(options or {}), "visibility_timeout": 3600},
    }
    store = site.store(**settings)
    put(store, "a")
    assert site.store().read([store.keys.entry("a")]).rows[0].definition == definition("a")


def test_the_default_prefix(site: Site) -> None:
    assert site.prefix == ("{redbeat}:" if site.kind == "cluster" else "redbeat:")


# Tests of the store


def look(store: Store, *changes: Change) -> Reply:
    return store.turn(Request("a beat", None, changes, Look()))


def taken(row: Row) -> Change:
    """Return a change of a row, after which the entry is due in the far future."""
    texts = {words.META: '{"total_run_count": 1}'}
    return Change(row.key, expect=digest_of(row), set=texts, add=4e9)


def test_one_of_two_beats_changes_what_both_looked_at(site: Site) -> None:
    first, second = site.store(), site.store()
    put(first, "a", "b", "c")
    rows = look(first).rows
    changes = [taken(row) for row in look(second).rows]
    assert [answer.word for answer in look(first, taken(rows[0])).answers] == [words.DONE]
    reply = look(second, *changes)
    assert [answer.word for answer in reply.answers] == [words.DIFFERS, words.DONE, words.DONE]
    assert not reply.rows
    assert reply.members == 3


def lose_next_turn(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Lose the reply to the next turn: Redis executes it, the caller gets a connection error."""
    read = AbstractConnection.read_response
    lost: list[object] = []

    def lossy(self: Any, *args: Any, **kwargs: Any) -> Any:
        reply = read(self, *args, **kwargs)
        if not lost and isinstance(reply, list) and reply and b'"standing"' in bytes_of(reply[0]):
            lost.append(reply)
            self.disconnect()
            raise RedisConnectionError("the answer got lost")
        return reply

    monkeypatch.setattr(AbstractConnection, "read_response", lossy)
    return lost


def bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def test_a_turn_is_never_sent_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = site.store()
    put(store, "a")
    (row,) = look(store).rows
    node = node_of(store.client, store.keys.schedule)
    before = node.info("commandstats")["cmdstat_evalsha"]["calls"]
    lost = lose_next_turn(monkeypatch)
    with pytest.raises(RedisConnectionError):
        look(Store(store.client, store.keys), taken(row))
    assert lost
    assert node.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    assert site.client.hget(row.key, "meta") == '{"total_run_count": 1}'


def test_a_lost_reply_loses_and_doubles_no_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = site.scheduler()
    wait_until(lambda: scheduler.tick() is not None and leads(scheduler))
    put(site.store(), "a")
    lost = lose_next_turn(monkeypatch)
    wait_until(lambda: scheduler.tick() is not None and scheduler.sent)
    assert lost
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_two_requests_overlap(site: Site) -> None:
    store = site.store()
    put(store, "a")
    assert overlaps(store.client, store.keys.schedule)
    reply = store.begin_turn(Request("a beat", None, look=Look()))
    assert store.read([store.keys.entry("a")]).rows[0].definition == definition("a")
    assert [row.key for row in reply().rows] == [store.keys.entry("a")]


def test_a_flushed_script_cache_is_invisible(site: Site) -> None:
    store = site.store()
    put(store, "a")
    look(store)
    site.client.script_flush()
    assert len(look(store).rows) == 1


def test_entries_are_ranked(site: Site) -> None:
    store = site.store()
    put(store, "a", "b", score=5.0)
    assert store.rank(store.keys.entry("b")) == 1


def test_a_member_that_names_a_key_of_another_program(site: Site) -> None:
    """The key may be in another slot. The other entries still run, and the key does not change."""
    store = site.store()
    put(store, "a")
    foreign = definition("theirs")
    site.client.hset("theirs", "definition", foreign)
    site.client.zadd(store.keys.schedule, {"theirs": 1, "nothing": 1})
    found = {row.key: row.definition for row in look(store).rows}
    assert found == {store.keys.entry("a"): definition("a"), "theirs": None, "nothing": None}
    removed = look(store, Change("theirs", delete=True), Change("nothing", delete=True))
    assert [row.key for row in removed.rows] == [store.keys.entry("a")]
    assert site.client.hgetall("theirs") == {"definition": foreign}


def test_a_beat_puts_a_lost_set_back(site: Site) -> None:
    store, app = site.store(), site.app()
    saved = [RedBeatSchedulerEntry(f"e{number}", "t", 3600, app=app).save() for number in range(50)]
    entries = {entry.key for entry in saved}
    scheduler, stats = site.scheduler(), store.keys.stats
    wait_until(lambda: scheduler.tick() is not None and site.client.hget(stats, "members"))
    site.client.delete(store.keys.schedule)
    assert set(chain.from_iterable(outside(store))) == entries
    wait_until(lambda: scheduler.tick() is not None and members(site, store) == entries)


def members(site: Site, store: Store) -> set[str]:
    return set(site.client.zrange(store.keys.schedule, 0, -1))


def test_the_eviction_policy_is_that_of_the_node(site: Site) -> None:
    store = site.store()
    node = node_of(store.client, store.keys.schedule)
    node.config_set("maxmemory", 1 << 30)
    node.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert "with the policy allkeys-lru" in server_of(store)["eviction"]
    finally:
        node.config_set("maxmemory-policy", "noeviction")
        node.config_set("maxmemory", 0)


# Tests of the lock


def test_the_lock(site: Site) -> None:
    store, key = site.store(), f"{site.prefix}:lock"
    mine, other = BeatLock(store, key, 30.0), BeatLock(site.store(), key, 30.0)
    assert mine.acquire(blocking=False)
    assert not other.acquire(blocking=False)
    assert mine.extend(60.0)
    assert mine.owned()
    assert not other.release()
    assert mine.release()
    assert other.acquire(blocking=False)


def test_a_published_message_ends_the_wait(site: Site) -> None:
    store = site.store()
    wakeup = WakeUp(store.client, store.keys.wakeup)
    if site.kind == "sentinel" and redis.__version__ == "5.0.0":
        assert not wakeup.listen(), "this redis-py cannot do that, and the beat asks instead"
        return
    assert wakeup.listen()
    put(store, "a")
    assert wakeup.wait(30.0, DUE, lambda: False)
    assert store.acquire_lock(f"{site.prefix}:lock", "token", 30.0)
    assert store.release_lock(f"{site.prefix}:lock", "token")
    assert wakeup.wait(30.0, LOCK, lambda: False)
    wakeup.close()


# Tests of the scheduler


def test_static_and_dynamic_entries_run(site: Site) -> None:
    scheduler = site.scheduler(beat_schedule={"static": {"task": "t", "schedule": 1.0}})
    scheduler.tick()
    last = datetime.now(timezone.utc) - timedelta(hours=2)
    RedBeatSchedulerEntry("dynamic", "t", 3600, app=site.app(), last_run_at=last).save()
    wait_until(lambda: scheduler.tick() is not None and len(scheduler.sent) >= 2)
    assert set(scheduler.names) == {"dynamic", "static"}
    assert site.store().static_names() == {"static"}
    gone = site.scheduler(beat_schedule={})
    scheduler.close()
    wait_until(lambda: gone.tick() is not None and not site.store().static_names())
    assert set(gone.get_schedule()) == {"dynamic"}


def leads(scheduler: RecordingScheduler) -> bool:
    return bool(scheduler.lock and scheduler.lock.leading)


def test_one_beat_leads_and_the_other_stands_by(site: Site) -> None:
    leader, standby = site.scheduler(), site.scheduler()
    leader.tick()
    standby.tick()
    put(site.store(), "a")
    leader_token = current_leader(site.app())
    assert leader_token is not None
    assert leader.lock is not None
    assert leader_token.token == leader.lock.token
    wait_until(lambda: standby.tick() + leader.tick() >= 0 and leader.sent)
    leader.close()
    put(site.store(), "b")
    wait_until(lambda: standby.tick() is not None and standby.sent)
    assert (leader.names, standby.names) == (["a"], ["b"])


def test_beats_without_a_lock_share_the_work(site: Site) -> None:
    beats = [site.scheduler(redbeat_lock_key=None) for _ in range(2)]
    for beat in beats:
        beat.tick()
    assert len(active_beats(site.app(redbeat_lock_key=None))) == 2
    put(site.store(), *(f"e{number}" for number in range(60)))

    def ran() -> int:
        for beat in beats:
            beat.tick()
        return sum(len(beat.sent) for beat in beats)

    wait_until(lambda: ran() >= 60)
    assert sorted(beats[0].names + beats[1].names) == sorted(f"e{n}" for n in range(60))
