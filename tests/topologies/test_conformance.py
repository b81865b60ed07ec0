"""Tests that a single Redis, Sentinel and a cluster behave the same."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.lock import BeatLock, active_beats, current_leader
from redbeat.beat.wakeup import DUE, LOCK, WakeUp
from redbeat.connection.cluster import node_of
from redbeat.errors import DecodeError
from redbeat.management.find import sweeps
from redbeat.storage.reading import BATCH
from redbeat.storage.records import RAN, ClaimRequest, Completion, Counted
from redbeat.storage.store import Store
from tests.samples import long
from tests.scheduler.conftest import RecordingScheduler
from tests.topologies.conftest import Site, app_client
from tests.waiting import wait_until

#: The number of values that `claim.lua` returns.
FIELDS_OF_TURN = 14


def definition(name: str) -> str:
    schedule = {"__type__": "interval", "every": 60.0, "relative": False}
    return json.dumps({"name": name, "task": f"tasks.{name}", "schedule": schedule})


def put(store: Store, *names: str, score: float | None = None) -> None:
    for name in names:
        saved = store.save(store.keys.entry(name), definition(name), meta="{}", score=score)
        assert saved[0] == 1


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
    assert site.store().load(store.keys.entry("a"))[0] == definition("a")


def test_the_default_prefix(site: Site) -> None:
    assert site.prefix == ("{redbeat}:" if site.kind == "cluster" else "redbeat:")


# Tests of the store


def test_claims_are_disjoint_and_completed(site: Site) -> None:
    first, second = site.store(), site.store()
    put(first, "a", "b", "c")
    claims = [first.claim("one", 2, 30).claims, second.claim("two", 500, 30).claims]
    assert [len(some) for some in claims] == [2, 1]
    done = [Completion(claim.key, "one", RAN, 4e9, "{}", "{}") for claim in claims[0]]
    turn = first.claim("three", 500, 30, done)
    assert [result.code for result in turn.results] == [1, 1]
    assert not turn.claims
    assert turn.members == 3


def test_claims_of_a_lost_reply_are_handed_out_again(site: Site) -> None:
    store = site.store()
    put(store, "a", "b")
    store.claim("one", 1, 30)
    again = store.claim("one", 500, 30, reply_lost=True)
    assert len(again.claims) == 1


def lose_next_turn(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Lose the reply to the next claim: Redis executes it, the caller gets a connection error."""
    read = AbstractConnection.read_response
    lost: list[object] = []

    def lossy(self: Any, *args: Any, **kwargs: Any) -> Any:
        reply = read(self, *args, **kwargs)
        if not lost and isinstance(reply, list) and len(reply) == FIELDS_OF_TURN:
            lost.append(reply)
            self.disconnect()
            raise RedisConnectionError("the answer got lost")
        return reply

    monkeypatch.setattr(AbstractConnection, "read_response", lossy)
    return lost


def test_a_claim_is_never_sent_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = site.store()
    put(store, "a")
    store.claim("zero", 0, 30)
    node = node_of(store.client, store.keys.schedule)
    before = node.info("commandstats")["cmdstat_evalsha"]["calls"]
    lost = lose_next_turn(monkeypatch)
    with pytest.raises(RedisConnectionError):
        store.claim("one", 500, 30)
    assert lost
    assert node.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    assert site.client.hget(store.keys.entry("a"), "claim").startswith('["one ')


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
    assert store.claim("zero", 0, 30).members == 1
    assert store.overlaps
    answer = store.begin_claim(ClaimRequest("one", 500, 30))
    assert store.load(store.keys.entry("a"))[0] == definition("a")
    assert [claim.key for claim in answer().claims] == [store.keys.entry("a")]


def test_a_flushed_script_cache_is_invisible(site: Site) -> None:
    store = site.store()
    put(store, "a")
    store.claim("one", 0, 30)
    site.client.script_flush()
    assert len(store.claim("two", 500, 30).claims) == 1


def test_entries_are_loaded_ranked_and_deleted(site: Site) -> None:
    store = site.store()
    put(store, "a", "b", score=5.0)
    assert store.rank(store.keys.entry("b")) == 1
    assert [key for key, _ in store.due(store.time())] == [
        store.keys.entry("a"),
        store.keys.entry("b"),
    ]
    assert store.delete(store.keys.entry("a"))
    assert not store.delete(store.keys.entry("a"))
    site.client.set(store.keys.entry("no-hash"), "text")
    with pytest.raises(DecodeError):
        store.load(store.keys.entry("no-hash"))


def test_quarantine(site: Site) -> None:
    store = site.store()
    put(store, "a")
    key = store.keys.entry("a")
    (claim,) = store.claim("one", 500, 30).claims
    assert store.park([(claim.key, "one", "{}")]) == [key]
    assert store.quarantined() == {key: "{}"}
    assert store.review([(key, "another digest")]) == [key]
    assert store.quarantined() == {}


def test_members_without_a_hash_are_removed(site: Site) -> None:
    store = site.store()
    site.client.zadd(store.keys.schedule, {store.keys.entry("gone"): 1})
    assert store.claim("one", 500, 30).claims[0].definition is None
    assert store.forget([store.keys.entry("gone")]) == [store.keys.entry("gone")]


def test_a_member_that_names_a_key_of_another_program(site: Site) -> None:
    """The key may be in another slot. The other entries still run, and the key does not change."""
    store = site.store()
    put(store, "a")
    foreign = definition("theirs")
    site.client.hset("theirs", "definition", foreign)
    site.client.zadd(store.keys.schedule, {"theirs": 1, "nothing": 1})
    claims = {claim.key: claim.definition for claim in store.claim("one", 500, 30).claims}
    assert claims == {store.keys.entry("a"): definition("a"), "theirs": None, "nothing": None}
    assert set(store.forget(["theirs", "nothing"])) == {"theirs", "nothing"}
    assert site.client.hgetall("theirs") == {"definition": foreign}


def test_the_sweep_puts_a_lost_set_back(site: Site) -> None:
    store = site.store()
    put(store, *(f"e{number}" for number in range(50)))
    entries = {store.keys.entry(f"e{number}") for number in range(50)}
    claims = [claim.put_back(1.0) for claim in store.claim("one-1", 500, 30).claims]
    store.claim("one-2", 0, 30, completions=claims, counted=Counted("c-2"))
    site.client.delete(store.keys.schedule)
    assert {key for swept in sweeps(store) for key in swept.orphans} == entries
    store.claim("one-3", 0, 30, counted=Counted("c-3"))
    swept = store.sweep("", "")
    found = set(swept.returned)
    while swept.cursor != "0":
        swept = store.sweep(swept.cursor, swept.mark)
        found |= set(swept.returned)
    assert found == entries
    assert store.sweep("", "").mark == ""


def test_the_eviction_policy_is_that_of_the_node(site: Site) -> None:
    store = site.store()
    node = node_of(store.client, store.keys.schedule)
    node.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert store.eviction() == (0, "allkeys-lru")
    finally:
        node.config_set("maxmemory-policy", "noeviction")


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


@pytest.mark.parametrize("site", [long("plain"), long("sentinel"), "cluster"], indirect=True)
def test_a_look_ahead_that_fails_delays_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beat sends the claimed entries and does not wait until their lease ends."""
    scheduler = site.scheduler()
    wait_until(lambda: scheduler.tick() is not None and leads(scheduler))
    put(site.store(), *(f"e{number}" for number in range(BATCH + 10)))
    failures = iter((RedisConnectionError("away"),))
    begin = Store.begin_claim

    def failing(store: Store, terms: ClaimRequest) -> Any:
        for error in failures:
            raise error
        return begin(store, terms)

    monkeypatch.setattr(Store, "begin_claim", failing)
    # Without the message now, the entry would wait until its lease ends after 30 seconds.
    wait_until(lambda: scheduler.tick() is not None and len(scheduler.sent) == BATCH + 10, 20.0)


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
