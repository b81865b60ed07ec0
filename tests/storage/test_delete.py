"""Tests of `delete.lua`, `forget.lua` and the functions that read stored entries."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from redbeat.errors import DecodeError
from redbeat.storage.records import RAN, Completion
from redbeat.storage.store import Store
from tests.deployments import PREFIX
from tests.storage.conftest import KEYS, ClaimOne, Put


def test_delete_leaves_nothing(store: Store, redis_client: redis.Redis, put: Put) -> None:
    key = put("a", meta="m", claim="c", note="mine")
    redis_client.hset(KEYS.quarantine, key, "note")
    assert store.delete(key) is True
    assert list(redis_client.scan_iter("*")) == []


def test_delete_of_a_missing_entry_returns_that(store: Store) -> None:
    assert store.delete(KEYS.entry("a")) is False


def test_delete_removes_a_member_without_a_hash(store: Store, redis_client: redis.Redis) -> None:
    redis_client.zadd(KEYS.schedule, {KEYS.entry("a"): 1})
    assert store.delete(KEYS.entry("a")) is True
    assert redis_client.zcard(KEYS.schedule) == 0


def test_delete_removes_a_hash_without_a_member(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    key = put("a")
    redis_client.delete(KEYS.schedule)
    assert store.delete(key) is True
    assert not redis_client.exists(key)


class Repeating(redis.Redis):
    """A client that loses the reply of each script, and repeats the call."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute a command, a script twice."""
        execute: Any = super().execute_command
        reply = execute(*args, **options)
        return execute(*args, **options) if args[0] == "EVAL" else reply


def test_a_pop_whose_reply_is_lost_returns_the_entry(
    redis_client: redis.Redis, redis_url: str, put: Put
) -> None:
    """Fault: the reply of a pop is lost, and the client repeats the call."""
    key = put("a", meta="m")
    definition = redis_client.hget(key, "definition")
    redis_client.script_flush()
    client = Repeating.from_url(redis_url)
    assert Store(client, KEYS).pop(key)[:2] == (definition, "m")
    client.close()
    (copy,) = redis_client.scan_iter("*")
    assert 0 < redis_client.ttl(copy) <= 60
    assert redis_client.hget(copy, "definition") == definition


def test_a_second_pop_of_an_entry_returns_nothing(store: Store, put: Put) -> None:
    key = put("a")
    assert store.pop(key)[0] is not None
    assert store.pop(key)[0] is None


def test_delete_during_a_claim_wins(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", meta="m")
    claim_one()
    store.delete(key)
    (result,) = store.claim("c2", 0, 30, [Completion(key, "c1", RAN, 5, "ran", "r")]).results
    assert result.code == 0
    assert list(redis_client.scan_iter(f"{PREFIX}*")) == []


def test_a_recreated_entry_refuses_the_completion_of_the_deleted_one(
    store: Store, redis_client: redis.Redis, put: Put, claim_one: ClaimOne
) -> None:
    key = put("a", meta="m")
    claim_one()
    store.delete(key)
    store.save(key, "definition of a", "", "new", "", "", 4_000_000_000)
    (result,) = store.claim("c2", 0, 30, [Completion(key, "c1", RAN, 5, "ran", "r")]).results
    assert result.code == 0
    assert redis_client.hget(key, "meta") == "new"
    assert redis_client.zscore(KEYS.schedule, key) == 4_000_000_000


def test_forget_removes_only_what_has_no_definition(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    back = put("back", 1)
    gone, other = KEYS.entry("gone"), KEYS.entry("other")
    redis_client.zadd(KEYS.schedule, {gone: 1, other: 1})
    redis_client.set(other, "another type by now")
    assert store.forget([gone, back, other, KEYS.entry("never")]) == [gone]
    assert set(redis_client.zrange(KEYS.schedule, 0, -1)) == {back, other}
    assert redis_client.zscore(KEYS.schedule, back) > 1  # type: ignore[operator]


def test_load_returns_the_four_texts(store: Store, put: Put) -> None:
    key = put("a", meta="m", policy="p", runtime="r", claim="c")
    assert store.load(key) == ("definition of a", "m", "p", "r", "")


def test_load_of_a_missing_entry_is_empty(store: Store) -> None:
    assert store.load(KEYS.entry("a")) == (None, "", "", "", "")


def test_load_of_another_type_names_the_key(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(KEYS.entry("a"), "x")
    with pytest.raises(DecodeError, match=f"'{PREFIX}a' is not an entry"):
        store.load(KEYS.entry("a"))


def test_due_returns_due_entries_and_the_next_one(store: Store, put: Put) -> None:
    second, first = put("b", 2), put("a", 1)
    following = put("later", 4_000_000_000)
    put("much-later", 5_000_000_000)
    put("parked", -1)
    assert [key for key, _ in store.due(store.time())] == [first, second, following]


def test_rank_of_an_unscheduled_entry_is_none(store: Store) -> None:
    assert store.rank(KEYS.entry("a")) is None


def test_the_eviction_policy_is_read_from_the_server(store: Store) -> None:
    maxmemory, policy = store.eviction()
    assert maxmemory == 0
    assert policy == "noeviction"


def test_delete_unchanged_leaves_an_entry_that_has_changed(
    store: Store, redis_client: redis.Redis, put: Put
) -> None:
    key = put("a", policy="p")
    definition = str(redis_client.hget(key, "definition"))
    assert store.delete_unchanged(key, definition, "") is False
    assert store.delete_unchanged(key, "other", "p") is False
    assert redis_client.exists(key)
    assert redis_client.zscore(KEYS.schedule, key) is not None
    assert store.delete_unchanged(key, definition, "p") is True
    assert store.delete_unchanged(key, definition, "p") is True  # the reply was lost
    assert not redis_client.exists(key)
    assert redis_client.zscore(KEYS.schedule, key) is None
