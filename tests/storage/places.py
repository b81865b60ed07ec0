"""A store in a Redis, with shorter words for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from redbeat.codec.stored import bytes_of, text_of
from redbeat.storage.keys import Keys
from redbeat.storage.rows import Answer, Change, Look, Reply, Request, Row, digest_of, new_mark
from redbeat.storage.store import Store
from tests.deployments import PREFIX

KEYS = Keys(PREFIX)
LOCK = (f"{PREFIX}:lock", 5000, "")


def key_of(name: str) -> str:
    return f"{PREFIX}{name}"


def aside(what: str) -> str:
    return f".{PREFIX}:{what}"


def state_of(*marks: str) -> str:
    return json.dumps({"marks": marks})


class Place:
    """A store, and a client that has all rights and does not decode replies."""

    def __init__(self, client: Any, store: Store | None = None) -> None:
        self.client = client
        self.store = store or Store(client, KEYS)

    @property
    def now(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)

    @property
    def server(self) -> tuple[str, int, int]:
        database = self.client.connection_pool.connection_kwargs.get("db", 0)
        return self.client.info("server")["run_id"], int(database), int(database)

    def put(self, name: str, score: float | None = 1, **fields: str | bytes) -> str:
        """Write an entry by raw commands."""
        key = key_of(name)
        self.client.hset(bytes_of(key), mapping={"definition": "{}", **fields})
        if score is not None:
            self.client.zadd(KEYS.schedule, {bytes_of(key): score})
        return key

    def turn(self, *changes: Change, **more: Any) -> Reply:
        return self.store.turn(Request("t", more.pop("lock", None), changes, **more))

    def apply(self, *changes: Change, **more: Any) -> list[Answer]:
        return self.turn(*changes, **more).answers

    def words(self, *changes: Change, **more: Any) -> list[str]:
        return [answer.word for answer in self.apply(*changes, **more)]

    def look(self, **more: Any) -> list[str]:
        """Return the names of the rows of a look."""
        rows = self.turn(look=Look(**more)).rows
        return [row.key.removeprefix(PREFIX) for row in rows]

    def row(self, key: str) -> Row:
        (row,) = self.turn(look=Look(only=key)).rows
        return row

    def stored(self, key: str) -> dict[str, str]:
        found = self.client.hgetall(key)
        return {text_of(field): text_of(value) for field, value in found.items()}

    def score(self, key: str) -> float | None:
        score = self.client.zscore(KEYS.schedule, key)
        return None if score is None else float(score)


@contextmanager
def place_at(url: str) -> Iterator[Place]:
    with redis.Redis.from_url(url) as client:
        yield Place(client)


def record(row: Row, *, marks: tuple[str, ...] = (), **more: Any) -> Change:
    """Return a change of what was looked at, with a mark of its own and older marks."""
    mark = new_mark()
    texts = {"beat_state": state_of(mark, *marks), **more.pop("set", {})}
    return Change(row.key, mark=mark, expect=digest_of(row), set=texts, **more)
