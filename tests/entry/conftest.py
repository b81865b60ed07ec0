"""Fixtures that read and write the stored data of an entry with a plain client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import redis

from redbeat import RedBeatSchedulerEntry
from tests.deployments import PREFIX

Stored: TypeAlias = Callable[[str], dict[str, str]]
ScoreOf: TypeAlias = Callable[[str], Any]
PutRaw: TypeAlias = Callable[..., str]

SCHEDULE = f"{PREFIX}:schedule"


class OwnedEntry(RedBeatSchedulerEntry):
    """A subclass with an additional argument, stored in the definition."""

    def __init__(self, *args: Any, owner: str = "nobody", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.owner = owner

    def definition(self) -> dict[str, Any]:
        return {**super().definition(), "owner": self.owner}


@pytest.fixture
def stored(redis_client: redis.Redis) -> Stored:
    """A function that returns the fields of an entry that RedBeat 2 knows, and the policy."""

    def stored(name: str) -> dict[str, str]:
        found: Any = redis_client.hgetall(f"{PREFIX}{name}")
        return {name: text for name, text in found.items() if name != "beat_state"}

    return stored


@pytest.fixture
def score_of(redis_client: redis.Redis) -> ScoreOf:
    """A function that returns the score of an entry in the sorted set."""

    def score_of(name: str) -> Any:
        return redis_client.zscore(SCHEDULE, f"{PREFIX}{name}")

    return score_of


@pytest.fixture
def put_raw(redis_client: redis.Redis) -> PutRaw:
    """A function that stores an entry by raw commands, and returns its key."""

    def put_raw(definition: Any, meta: Any = None, score: float = 0) -> str:
        key = f"{PREFIX}{definition['name']}"
        redis_client.hset(key, "definition", json.dumps(definition))
        if meta is not None:
            redis_client.hset(key, "meta", json.dumps(meta))
        redis_client.zadd(SCHEDULE, {key: score})
        return key

    return put_raw
