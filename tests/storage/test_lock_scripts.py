"""The lock is acquired, extended and released without a turn."""

from __future__ import annotations

from typing import Any

import redis

from redbeat.schedulers import LUA_EXTEND_TO_SCRIPT
from redbeat.storage.store import Store
from tests.storage.places import LOCK

KEY = LOCK[0]


def ttl(client: redis.Redis) -> Any:
    return client.pttl(KEY)


def test_a_free_lock_is_taken_with_a_time_to_live(store: Store, redis_client: redis.Redis) -> None:
    assert store.acquire_lock(KEY, "me", 12.5) is True
    assert redis_client.get(KEY) == "me"
    assert 12_000 < ttl(redis_client) <= 12_500


def test_acquiring_the_own_lock_renews_it(store: Store, redis_client: redis.Redis) -> None:
    store.acquire_lock(KEY, "me", 5)
    assert store.acquire_lock(KEY, "me", 60) is True
    assert ttl(redis_client) > 59_000


def test_the_lock_of_another_beat_is_left_alone(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(KEY, "other", px=5_000)
    assert store.acquire_lock(KEY, "me", 60) is False
    assert store.extend_lock(KEY, "me", 60) is False
    assert store.release_lock(KEY, "me") is False
    assert redis_client.get(KEY) == "other"
    assert ttl(redis_client) <= 5_000


def test_a_lock_without_an_end_is_left_alone(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(KEY, "other")
    assert store.acquire_lock(KEY, "me", 60) is False
    assert ttl(redis_client) == -1


def test_extend_counts_from_now(store: Store, redis_client: redis.Redis) -> None:
    store.acquire_lock(KEY, "me", 60)
    assert store.extend_lock(KEY, "me", 10) is True
    assert 9_000 < ttl(redis_client) <= 10_000


def test_a_free_lock_is_neither_extended_nor_released(
    store: Store, redis_client: redis.Redis
) -> None:
    assert store.extend_lock(KEY, "me", 10) is False
    assert store.release_lock(KEY, "me") is False
    assert not redis_client.exists(KEY)


def test_release_releases_the_own_lock_once(store: Store) -> None:
    store.acquire_lock(KEY, "me", 60)
    assert store.release_lock(KEY, "me") is True
    assert store.release_lock(KEY, "me") is False
    assert store.acquire_lock(KEY, "other", 60) is True


def test_the_holder_of_the_lock_is_returned(store: Store) -> None:
    assert store.lock_holder(KEY) == ""
    store.acquire_lock(KEY, "me", 60)
    assert store.lock_holder(KEY) == "me"


def test_the_exported_script_extends_a_lock(redis_client: redis.Redis) -> None:
    redis_client.set(KEY, "me", px=1_000)
    assert redis_client.eval(LUA_EXTEND_TO_SCRIPT, 1, KEY, "me", 60_000) == 1
    assert ttl(redis_client) > 59_000
    assert redis_client.eval(LUA_EXTEND_TO_SCRIPT, 1, KEY, "you", 1) == 0
