"""Reads whose results grow with the schedule come in parts, so that no command takes long."""

from __future__ import annotations

from typing import Any

import redis

from redbeat.storage.reading import BATCH, SCAN_COUNT
from redbeat.storage.store import Store

from .conftest import KEYS

MANY = 2 * SCAN_COUNT + 7


def test_all_due_entries_and_the_next_one(store: Store, redis_client: redis.Redis) -> None:
    """Parked entries are left out, and entries with the same score are all there."""
    due = {f"due-{number:05}": float(number // 3) for number in range(MANY)}
    parked = {f"parked-{number}": -1.0 for number in range(9)}
    redis_client.zadd(KEYS.schedule, due | parked)
    assert store.due(MANY) == list(due.items())
    later = {"later-1": MANY + 1.5, "later-2": MANY + 2}
    redis_client.zadd(KEYS.schedule, later)
    assert store.due(MANY) == [*due.items(), ("later-1", MANY + 1.5)]
    assert store.due(-0.5) == [("due-00000", 0.0)]
    assert store.round_trips == (1 + 3) + (1 + 3) + (1 + 1)


def test_static_names(store: Store, redis_client: redis.Redis) -> None:
    assert store.static_names() == set()
    names = {f"entry-{number}" for number in range(MANY)}
    redis_client.sadd(KEYS.statics, *names)
    assert store.static_names() == names
    assert store.static_among(["entry-1", "other"]) == {"entry-1"}


def test_quarantined_entries(store: Store, redis_client: redis.Redis) -> None:
    notes: Any = {f"entry-{number}": f"note {number}" for number in range(3 * BATCH)}
    redis_client.hset(KEYS.quarantine, mapping=notes)
    assert store.quarantined() == notes
    some = store.quarantined(50)
    assert len(some) == 50
    assert some.items() <= notes.items()


def test_calendars(store: Store, redis_client: redis.Redis) -> None:
    texts: Any = {f"calendar-{number}": "x" * 100 for number in range(900)}
    redis_client.hset(KEYS.calendars, mapping=texts)
    assert store.calendars() == texts
    assert store.calendars(["calendar-1", "other"]) == {"calendar-1": "x" * 100}


def test_tidying(store: Store, redis_client: redis.Redis) -> None:
    """What belongs to deleted entries goes, and the rest stays."""
    many = range(3 * BATCH)
    redis_client.zadd(KEYS.failing, {f"{KEYS.prefix}gone-{number}": 1 for number in many})
    redis_client.zadd(KEYS.expected, {f"{KEYS.prefix}gone-{number}": 1 for number in many})
    redis_client.hset(KEYS.stats, mapping={f"sent gone-{number}": 1 for number in many})
    key = KEYS.entry("here")
    redis_client.hset(key, mapping={"definition": "{}", "failing": "[]"})
    redis_client.zadd(KEYS.schedule, {key: 1})
    redis_client.zadd(KEYS.failing, {key: 1})
    redis_client.zadd(KEYS.expected, {key: 1})
    redis_client.hset(KEYS.stats, mapping={"sent here": 1, "sent": 7})
    assert store.tidy_stats(10) == len(many)
    assert redis_client.zrange(KEYS.failing, 0, -1) == [key]
    assert redis_client.zrange(KEYS.expected, 0, -1) == [key]
    assert redis_client.hgetall(KEYS.stats) == {"sent here": "1", "sent": "7"}
    assert store.tidy_stats(0) == 1
