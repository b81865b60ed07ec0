"""A beat whose requests tests can see and lose, with its schedule and its broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis
from celery import Celery
from redis.exceptions import ConnectionError as RedisConnectionError

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.state import State
from redbeat.storage.rows import Reply, Request
from redbeat.storage.store import Store
from tests.schedulers import Scheduler

SCHEDULE = "redbeat::schedule"


@contextmanager
def empty_broker(app: Celery, url: str) -> Iterator[redis.Redis]:
    """Let an app publish to an empty database of the server at ``url``, and empty it afterwards."""
    url = url.rsplit("/", 1)[0] + "/5"
    app.conf.broker_url = url
    with redis.Redis.from_url(url, decode_responses=True) as broker:
        broker.flushdb()
        yield broker
        broker.flushdb()


class Message(NamedTuple):
    """A message in the queue: the name of its entry, its task id, its nominal time."""

    name: str
    id: str
    scheduled_at: str
    args: list[Any]


class HookedStore(Store):
    """A store that calls ``before`` with each request, and loses the replies of ``lost`` turns.

    Its looks give out as many rows on a slow machine as on a fast one.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.before: list[Callable[[Request], None]] = []
        self.lost: list[Callable[[Request], bool]] = []

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        if request.look is not None:
            request = request._replace(look=request.look._replace(max_ms=10_000.0))
        for hook in [*self.before]:
            hook(request)
        read = super().begin_turn(request)
        if any(lose(request) for lose in self.lost):
            read()

            def fail() -> Reply:
                raise RedisConnectionError("the reply is lost")

            return fail
        return read


class HookedScheduler(Scheduler):
    """A scheduler whose beat has a :class:`HookedStore`."""

    make_store = HookedStore


@dataclass
class World:
    """A schedule on one server, a broker in another database or on another server."""

    app: Celery
    client: Any
    broker: Any
    beats: list[Any] = field(default_factory=list)

    def beat(self, make: type[Scheduler] = HookedScheduler) -> Any:
        self.beats.append(make(self.app))
        return self.beats[-1]

    def close(self) -> None:
        """Close what the beats opened, also of those that were killed."""
        for beat in self.beats:
            beat.store.before.clear()
            beat.store.lost.clear()
            beat.close()

    def put(self, name: str, late: float = 30.0, every: float = 3600.0, **more: Any) -> str:
        """Save an entry that was due ``late`` seconds ago; return its key."""
        entry = RedBeatSchedulerEntry(name, "proj.note", every, app=self.app, **more).save()
        self.client.hdel(entry.key, "identity", "runtime")
        self.client.zadd(SCHEDULE, {entry.key: self.now - late})
        self.client.hdel(entry.key, "meta")
        return str(entry.key)

    @property
    def now(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)

    @property
    def messages(self) -> list[Message]:
        found = []
        for raw in reversed(self.broker.lrange("celery", 0, -1)):
            message = json.loads(raw)
            headers = message["headers"]
            args = json.loads(base64.b64decode(message["body"]))[0]
            found.append(
                Message(headers["periodic_task_name"], headers["id"], headers["scheduled_at"], args)
            )
        return found

    @property
    def due(self) -> int:
        return int(self.client.zcount(SCHEDULE, 0, self.now + 31))

    def state(self, key: str) -> State:
        return State.read(*self.client.hmget(key, "beat_state", "meta"))

    def runs(self, key: str) -> int:
        return int(json.loads(self.client.hget(key, "meta"))["total_run_count"])


def run_until_idle(beat: Any, most: int = 20) -> None:
    """Tick until the beat has nothing to do; the first tick only acquires the lock."""
    beat.tick()
    for _ in range(most):
        if beat.tick() > 0:
            return
    raise AssertionError("the beat is never idle")
