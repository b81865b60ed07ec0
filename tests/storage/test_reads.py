"""Single values that programs read: what is due, the rank of an entry, the server's settings."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.storage.store import Store
from tests.storage.places import KEYS


def test_rank_of_an_unscheduled_entry_is_none(store: Store) -> None:
    assert store.rank(KEYS.entry("a")) is None


def test_the_eviction_policy_is_read_from_the_server(store: Store) -> None:
    assert store.server()["eviction"] == ""


@pytest.mark.parametrize("name", [" ", "a b", "a:b", "a/b", "naïve ☂", "{x}", "*", "\n", '"'])
def test_a_name_may_contain_anything(
    app: Celery, store: Store, redis_client: redis.Redis, name: str
) -> None:
    entry = RedBeatSchedulerEntry(name, "t", 60, app=app).save()
    assert redis_client.zscore(KEYS.schedule, KEYS.entry(name)) == entry.score
    assert RedBeatSchedulerEntry.from_key(entry.key, app).name == name
    assert store.rank(entry.key) == 0
    entry.delete()
    assert not redis_client.exists(entry.key)
