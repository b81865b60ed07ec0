"""`sync.lua` and `prune.lua`: the leader writes only static entries that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis

from redbeat.storage.records import SKIP, Completion, StaticRow
from redbeat.storage.store import Store
from tests.storage.conftest import KEYS, LOCK, ClaimOne, Put

SOON = 4_000_000_000.0
UNCHANGED, ADDED, CHANGED, MEMBER_AGAIN, OCCUPIED = range(5)


def row(name: str, definition: str = "d", policy: str = "", score: float = SOON) -> StaticRow:
    return StaticRow(name, KEYS.entry(name), definition, policy, f"meta of {name}", score)


def sync(store: Store, *rows: StaticRow) -> list[int] | None:
    return store.sync_statics(rows, None, "")


def score_of(client: redis.Redis, name: str) -> Any:
    return client.zscore(KEYS.schedule, KEYS.entry(name))


def hash_of(client: redis.Redis, name: str) -> Any:
    return client.hgetall(KEYS.entry(name))


def test_a_new_entry_is_added(store: Store, redis_client: redis.Redis) -> None:
    assert sync(store, row("a", policy="p")) == [ADDED]
    assert hash_of(redis_client, "a") == {
        "definition": "d",
        "policy": "p",
        "meta": "meta of a",
        "identity": '""',
    }
    assert score_of(redis_client, "a") == SOON
    assert store.static_names() == {"a"}


def test_an_equal_entry_changes_nothing(store: Store, redis_client: redis.Redis) -> None:
    sync(store, row("a"), row("b"))
    redis_client.hset(KEYS.entry("a"), "meta", "ran")
    assert sync(store, row("a", score=7), row("b", score=7)) == [UNCHANGED, UNCHANGED]
    assert hash_of(redis_client, "a")["meta"] == "ran"
    assert score_of(redis_client, "a") == SOON


@pytest.mark.parametrize("changed", [row("a", "d2"), row("a", policy="p2")])
def test_a_changed_entry_keeps_its_history_and_is_made_due(
    store: Store, redis_client: redis.Redis, changed: StaticRow
) -> None:
    sync(store, row("a"))
    redis_client.hset(KEYS.entry("a"), mapping={"meta": "ran", "runtime": "r", "note": "mine"})
    assert sync(store, changed) == [CHANGED]
    stored = hash_of(redis_client, "a")
    assert (stored["definition"], stored.get("policy", "")) == (changed.definition, changed.policy)
    assert (stored["meta"], stored["runtime"], stored["note"]) == ("ran", "r", "mine")
    assert 0 < score_of(redis_client, "a") < SOON


def test_a_removed_policy_is_removed_from_redis(store: Store, redis_client: redis.Redis) -> None:
    sync(store, row("a", policy="p"))
    assert sync(store, row("a")) == [CHANGED]
    assert "policy" not in hash_of(redis_client, "a")


def test_a_change_during_a_claim_waits_for_its_completion(
    store: Store, redis_client: redis.Redis, claim_one: ClaimOne
) -> None:
    sync(store, row("a", score=1))
    claim_one()
    held = score_of(redis_client, "a")
    assert sync(store, row("a", "d2")) == [CHANGED]
    assert score_of(redis_client, "a") == held
    turn = store.claim("c2", 0, 30, [Completion(KEYS.entry("a"), "c1", SKIP, SOON)])
    assert score_of(redis_client, "a") == pytest.approx(turn.now, abs=1e-5)


def test_a_lost_member_is_put_back(store: Store, redis_client: redis.Redis) -> None:
    sync(store, row("a"))
    redis_client.delete(KEYS.schedule)
    assert sync(store, row("a")) == [MEMBER_AGAIN]
    assert 0 < score_of(redis_client, "a") < SOON


def test_a_dynamic_entry_of_the_name_becomes_static_and_keeps_its_history(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("a", SOON, meta="ran")
    assert sync(store, row("a")) == [CHANGED]
    assert hash_of(redis_client, "a")["meta"] == "ran"
    assert store.static_names() == {"a"}


def test_a_history_without_a_definition_is_not_inherited(
    store: Store, redis_client: redis.Redis
) -> None:
    redis_client.hset(KEYS.entry("a"), items=["meta", "old", "claim", "x", "identity", '"old"'])
    assert sync(store, row("a")) == [ADDED]
    assert hash_of(redis_client, "a") == {
        "definition": "d",
        "meta": "meta of a",
        "identity": '""',
    }


def test_an_entry_of_redbeat_2_gets_an_empty_identity_and_others_keep_theirs(
    store: Store, redis_client: redis.Redis
) -> None:
    for name in ("a", "b"):
        redis_client.hset(KEYS.entry(name), "definition", "d")
        redis_client.zadd(KEYS.schedule, {KEYS.entry(name): SOON})
    redis_client.hset(KEYS.entry("b"), "identity", '"b"')
    assert sync(store, row("a"), row("b")) == [UNCHANGED, UNCHANGED]
    assert hash_of(redis_client, "a")["identity"] == '""'
    assert hash_of(redis_client, "b")["identity"] == '"b"'


def test_a_key_of_another_type_is_left_alone(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(KEYS.entry("a"), "somebody else's")
    assert sync(store, row("a"), row("b")) == [OCCUPIED, ADDED]
    assert redis_client.get(KEYS.entry("a")) == "somebody else's"
    assert store.static_names() == {"b"}
    assert score_of(redis_client, "a") is None


def test_a_changed_entry_leaves_the_quarantine(store: Store, redis_client: redis.Redis) -> None:
    sync(store, row("a"))
    redis_client.hset(KEYS.quarantine, KEYS.entry("a"), "note")
    sync(store, row("a", "d2"))
    assert redis_client.hlen(KEYS.quarantine) == 0


def test_no_rows_write_nothing(store: Store, redis_client: redis.Redis) -> None:
    assert sync(store) == []
    assert redis_client.dbsize() == 0


def test_five_hundred_rows_fit_in_one_round_trip(store: Store, redis_client: redis.Redis) -> None:
    assert sync(store, *(row(f"e{n}") for n in range(500))) == [ADDED] * 500
    assert redis_client.zcard(KEYS.schedule) == redis_client.scard(KEYS.statics) == 500


def test_rows_with_different_metas_get_their_own(store: Store, redis_client: redis.Redis) -> None:
    sync(store, *(replace(row(name), meta=meta) for name, meta in zip("abcd", "xxyx", strict=True)))
    assert [hash_of(redis_client, name)["meta"] for name in "abcd"] == list("xxyx")


@pytest.mark.parametrize("holder", [None, "other"])
def test_without_the_lock_nothing_is_written(
    store: Store, redis_client: redis.Redis, holder: str | None
) -> None:
    sync(store, row("old"))
    if holder:
        redis_client.set(LOCK, holder)
    assert store.sync_statics([row("a")], LOCK, "me") is None
    assert store.prune_statics(["old"], LOCK, "me") is False
    assert store.static_names() == {"old"}
    assert hash_of(redis_client, "a") == {}
    assert score_of(redis_client, "old") == SOON


def test_the_leader_writes(store: Store, redis_client: redis.Redis) -> None:
    store.acquire_lock(LOCK, "me", 60)
    assert store.sync_statics([row("a")], LOCK, "me", 90) == [ADDED]
    assert 60 < redis_client.pttl(LOCK) / 1000 <= 90
    assert store.prune_statics(["a"], LOCK, "me") is True
    assert store.static_names() == set()


def test_prune_removes_an_entry_with_all_that_belongs_to_it(
    store: Store, redis_client: redis.Redis
) -> None:
    sync(store, row("a"), row("b"))
    redis_client.hset(KEYS.quarantine, KEYS.entry("a"), "note")
    assert store.prune_statics(["a"], None, "") is True
    assert hash_of(redis_client, "a") == {}
    assert redis_client.zrange(KEYS.schedule, 0, -1) == [KEYS.entry("b")]
    assert store.static_names() == {"b"}
    assert redis_client.hlen(KEYS.quarantine) == 0


def test_prune_never_removes_what_is_not_static(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    put("dynamic", SOON)
    store.prune_statics(["dynamic"], None, "")
    assert score_of(redis_client, "dynamic") == SOON


def test_names_that_are_not_ascii_survive(store: Store) -> None:
    sync(store, row("naïve ☂"))
    assert store.static_names() == {"naïve ☂"}
    store.prune_statics(["naïve ☂"], None, "")
    assert store.static_names() == set()
