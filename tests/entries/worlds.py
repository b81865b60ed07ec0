"""A schedule on a real server, as programs change it and beats keep it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendar.zones import from_timestamp
from redbeat.entries import changes, saving
from redbeat.entries.history import encode_meta, run_line
from redbeat.entries.state import Hold, State, digest_of_meta, trigger_line
from redbeat.storage.keys import Keys
from redbeat.storage.reading import Page
from redbeat.storage.rows import Change, Reply, Request, Row, digest_of, new_mark
from redbeat.storage.store import Store
from redbeat.storage.words import DONE, TRIGGER
from tests.deployments import PREFIX

KEYS = Keys(PREFIX)
HOUR = 3600.0
Hook = Callable[[], object]


class HookedStore(Store):
    """A store that calls a hook before each turn, and loses replies as a client with retries does.

    A read of rows counts as a turn.

    Attributes:
        turns: the number of turns.
        before: what to call before the next turns, one after another.
        lost: the same, between a turn whose reply is lost and its repetition.
    """

    def __init__(self, client: Any, keys: Keys) -> None:
        super().__init__(client, keys, repeats=True)
        self.turns = 0
        self.before: list[Hook | None] = []
        self.lost: list[Hook | None] = []

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        self._disturb(super().begin_turn(request))  # which sends nothing before it is called
        return super().begin_turn(request)

    def read(self, keys: Sequence[str], history: bool = False) -> Page:
        if not history:
            self._disturb(partial(super().read, keys))
        return super().read(keys, history)

    def _disturb(self, request: Callable[[], Any]) -> None:
        self.turns += 1
        hook = self.before.pop(0) if self.before else None
        if hook is not None:
            hook()
        lost = self.lost.pop(0) if self.lost else None
        if lost is not None:
            request()
            lost()


def nothing() -> None:
    """Between a lost reply and the repetition nothing happens."""


@dataclass
class World:
    """A schedule, what programs do to it, and what beats would store."""

    app: Celery
    client: Any
    other: Store = field(init=False)
    store: HookedStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = HookedStore(self.client, KEYS)
        self.other = Store(self.client, KEYS)

    @property
    def now(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)

    def entry(self, name: str = "a", every: Any = HOUR, **more: Any) -> Any:
        return RedBeatSchedulerEntry(name, "proj.note", every, app=self.app, **more)

    def save(self, *entries: Any, **more: Any) -> int:
        """Save entries, and return the number of round trips."""
        before = self.store.turns
        saving.save(self.store, entries, **more)
        return self.store.turns - before

    def saved(self, name: str = "a", every: Any = HOUR, **more: Any) -> Any:
        entry = self.entry(name, every, **more)
        self.save(entry)
        return entry

    def load(self, name: str = "a") -> Any:
        key = self.key(name)
        return saving.load(self.other, self.app, key, RedBeatSchedulerEntry)

    def key(self, name: str = "a") -> str:
        return f"{PREFIX}{name}"

    def stored(self, name: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = self.client.hgetall(self.key(name))
        return found

    def definition(self, name: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.client.hget(self.key(name), "definition"))
        return found

    def row(self, name: str = "a") -> Row:
        found = changes.read(self.other, self.key(name))
        assert found is not None
        return found

    def state(self, name: str = "a") -> State:
        return State.read(*self.client.hmget(self.key(name), "beat_state", "meta"))

    def score(self, name: str = "a") -> float | None:
        found: float | None = self.client.zscore(KEYS.schedule, self.key(name))
        return found

    def is_due(self, name: str = "a") -> bool:
        score = self.score(name)
        return score is not None and 1 < score <= self.now

    def put_state(self, name: str = "a", score: float | None = None, **fields: Any) -> State:
        """Store a state as a beat does."""
        row, mark = self.row(name), new_mark()
        state = State.of(row)
        for field_name, value in fields.items():
            setattr(state, field_name, value)
        state.sign(mark, hold="hold" in fields)
        change = Change(
            row.key, mark, digest_of(row), set={"beat_state": state.text()}, score=score
        )
        assert self.other.turn(Request("beat", None, [change])).answers[0].word == DONE
        return state

    def run(self, name: str = "a", at: float | None = None, count: int | None = None) -> None:
        """Record a run as a beat does."""
        row, mark, now = self.row(name), new_mark(), self.now
        state, at = State.of(row), now if at is None else at
        runs = json.loads(row.meta or "{}").get("total_run_count", 0) + 1
        meta = encode_meta(from_timestamp(now), runs if count is None else count)
        state.meta, state.at, state.hold = digest_of_meta(meta), at, None
        state.sign(mark, run=True)
        line = json.dumps(run_line(at, now))
        fields = {"beat_state": state.text(), "meta": meta}
        change = Change(row.key, mark, digest_of(row), set=fields, score=at + HOUR, line=line)
        assert self.other.turn(Request("beat", None, [change])).answers[0].word == DONE

    def trigger(self, name: str = "a") -> None:
        self.other.say(self.key(name), trigger_line(new_mark(), self.now), kind=TRIGGER)

    def aside(self, what: str) -> Any:
        key = f".{PREFIX}:{what}"
        kind = self.client.type(key)
        if kind == "zset":
            return self.client.zrange(key, 0, -1)
        return sorted(self.client.hkeys(key) if kind == "hash" else self.client.smembers(key))


def near(instant: float, seconds: float = 0.001) -> Any:
    """Return what equals an instant; a relative tolerance would be half an hour."""
    return pytest.approx(instant, rel=0, abs=seconds)


def hold_at(until: float) -> Hold:
    return Hold("scheduled", until - 30, "the-id", until)


def span_of(world: World, hours: int = 5) -> tuple[datetime, datetime]:
    """Return a span of hours before the last run."""
    until = from_timestamp(world.now)
    return until - timedelta(hours=hours), until


def touch(world: World) -> None:
    """Let what a save expects be another text, without another meaning."""
    policy = world.client.hget(world.key(), "policy") or "{}"
    world.client.hset(world.key(), "policy", f"{policy} ")
