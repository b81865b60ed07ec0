"""Reads of programs: those that grow with the schedule come in parts, so no command takes long."""

from __future__ import annotations

from typing import Any

import redis

from redbeat.management.find import static_among
from redbeat.metrics.problems import server_of
from redbeat.storage.reading import BATCH, SCAN_COUNT
from redbeat.storage.store import Store
from tests.storage.places import KEYS

MANY = 2 * SCAN_COUNT + 7


def test_static_names(store: Store, redis_client: redis.Redis) -> None:
    assert store.static_names() == set()
    names = {f"entry-{number}" for number in range(MANY)}
    redis_client.sadd(KEYS.statics, *names)
    assert store.static_names() == names
    assert static_among(store, ["entry-1", "other"]) == {"entry-1"}


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


def test_the_eviction_policy_is_read_from_the_server(store: Store) -> None:
    assert server_of(store)["eviction"] == ""
