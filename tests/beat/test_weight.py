"""What one run weighs: how many functions are called for it, in how many files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest
import redis
from celery import Celery

import redbeat
from redbeat.beat import message
from redbeat.calendar.zones import UTC
from redbeat.codec.stored import text_of
from redbeat.entries.history import encode_meta
from tests.schedulers import Scheduler
from tests.servers import RedisServer

pytestmark = [pytest.mark.standalone, pytest.mark.long]

#: Where the code lives that is counted.
HOME: Final = f"{Path(str(redbeat.__file__)).parent}{os.sep}"

#: How many runs are due at once.
RUNS: Final = 50

PLAIN = '{{"name": "{0}", "task": "t", "schedule": {{"__type__": "interval", "every": 60}}}}'
POLICY = '{"overlap": "skip", "exclude": ["holidays"], "timezone": "Europe/Paris"}'
HOLIDAYS = '{"days": ["2000-01-01"], "rules": [], "zone": null}'


class Weight(NamedTuple):
    """Calls a run, how often they go from one file to another, and in how many files they are."""

    calls: float
    changes: float
    files: int


class Steady(Scheduler):
    """A scheduler whose clock stands still, so that a busy machine makes no more turns."""

    clock = staticmethod(lambda: 1000.0)


class World:
    """A beat, whose entries are new at each turn, like those of a program that has just started."""

    def __init__(self, app: Celery, client: redis.Redis, broker: redis.Redis) -> None:
        self.client, self.broker = client, broker
        self.beat = Steady(app)
        self._rounds = iter("abcdefgh")

    def weigh(self, policy: str = "") -> Weight:
        """Return what the third of three rounds weighs; the ways of the first ones may differ."""
        self._send(policy)
        self._send(policy)
        calls: list[str] = []

        def note(frame: FrameType, event: str, _argument: Any) -> None:
            path = frame.f_code.co_filename
            if event == "call" and path.startswith(HOME):
                calls.append(path)

        self._make_due(policy)
        sys.setprofile(note)
        try:
            self._drain()
        finally:
            sys.setprofile(None)
        changes = sum(one != other for one, other in pairwise(calls))
        return Weight(len(calls) / RUNS, changes / RUNS, len(set(calls)))

    def _send(self, policy: str) -> None:
        self._make_due(policy)
        self._drain()

    def _make_due(self, policy: str) -> None:
        letter, now = next(self._rounds), datetime.now(UTC)
        last = now - timedelta(seconds=90)
        for number in range(RUNS):
            name = f"{letter}{number}"
            texts: dict[Any, Any] = {"definition": PLAIN.format(name), "meta": encode_meta(last)}
            texts |= {"policy": policy} if policy else {}
            self.client.hset(f"redbeat:{name}", mapping=texts)
            self.client.zadd("redbeat::schedule", {f"redbeat:{name}": now.timestamp() - 30})

    def _drain(self) -> None:
        for _ in range(40):
            self.beat.tick()
            if self.broker.llen("celery") >= RUNS:
                break
        assert self.broker.llen("celery") == RUNS
        self.broker.delete("celery")


@pytest.fixture
def other_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["one server", "two servers"])
def world(
    request: pytest.FixtureRequest,
    app: Celery,
    redis_client: redis.Redis,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    server = redis_server
    if request.param == "two servers":
        server = request.getfixturevalue("other_server")
    app.conf.broker_url = f"{server.url.rsplit('/', 1)[0]}/5"
    monkeypatch.setattr(message, "ONE_IN", float("inf"))  # no message is compared by chance
    with redis.Redis.from_url(app.conf.broker_url) as broker:
        broker.flushdb()
        world = World(app, redis_client, broker)
        world.beat.tick()
        yield world
        world.beat.close()
        broker.flushdb()


def test_a_plain_run(world: World, request: pytest.FixtureRequest) -> None:
    weight = world.weigh()
    # Celery 5.3 and Python 3.10 need the most.
    most = Weight(71, 37, 35) if "one" in request.node.name else Weight(100, 54, 37)
    assert all(one <= limit for one, limit in zip(weight, most, strict=True)), weight


def test_a_run_that_is_not_rendered(world: World, request: pytest.FixtureRequest) -> None:
    world.beat.app.conf.task_send_sent_event = True
    weight = world.weigh()
    most = Weight(100, 66, 40) if "one" in request.node.name else Weight(127, 75, 40)
    assert all(one <= limit for one, limit in zip(weight, most, strict=True)), weight


def test_a_run_with_overlap_calendar_and_zone(world: World) -> None:
    aside = text_of(world.beat.store.keys.calendars).removesuffix("calendars")
    world.client.hset(f"{aside}calendars", "holidays", HOLIDAYS)
    world.client.set(f"{aside}calendars-version", "version-of-12")
    plain, rich = world.weigh(), world.weigh(POLICY)
    assert rich.calls <= 1.3 * plain.calls
