"""Fixtures for a store on a real Redis server, and for functions that write entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
import redis
from celery import Celery

from redbeat.config import get_redis
from redbeat.storage.store import Store
from tests.deployments import STANDALONE, chosen_kind
from tests.storage.places import KEYS, Place

Put: TypeAlias = Callable[..., str]


@pytest.fixture
def store(redis_url: str, app: Celery) -> Iterator[Store]:
    """The store of an empty Redis. On a single server, its client does not decode replies."""
    if chosen_kind() == STANDALONE:
        with redis.Redis.from_url(redis_url) as client:
            yield Store(client, KEYS)
    else:
        with get_redis(app) as client:
            yield Store(client, KEYS)


@pytest.fixture
def place(redis_url: str, store: Store) -> Iterator[Place]:
    """The store, and an unlimited client to look at what it stores."""
    with redis.Redis.from_url(redis_url) as client:
        yield Place(client, store)


@pytest.fixture
def put(redis_client: redis.Redis) -> Put:
    """A function that writes an entry by raw commands, and returns its key."""

    def put(name: str, score: float = 1, **fields: str) -> str:
        key = KEYS.entry(name)
        redis_client.hset(key, "definition", f"definition of {name}")
        for field, value in fields.items():
            redis_client.hset(key, field, value)
        redis_client.zadd(KEYS.schedule, {key: score})
        return key

    return put
