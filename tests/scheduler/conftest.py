"""Fixtures for beats that record their messages in a list, with their schedule in a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from time import time
from typing import Any, TypeVar

import pytest
import redis
from celery import Celery

from redbeat.beat.beat import Beat
from redbeat.beat.parts import PartedBeat
from redbeat.beat.wakeup import WakeUp
from redbeat.schedulers import RedBeatScheduler
from tests import workers
from tests.deployments import PREFIX
from tests.stored import put_state

from .clients import CountingRedis, Wire, counting_client, wired_client

SCHEDULE = f"{PREFIX}:schedule"
STATICS = f"{PREFIX}:statics"
QUARANTINE = f".{PREFIX}:quarantine"
LOCK = f"{PREFIX}:lock"
STATS = f".{PREFIX}:stats"
BEATS = f".{PREFIX}:beats"
HANDS = f".{PREFIX}:hands"

Json = dict[str, Any]
S = TypeVar("S", bound=RedBeatScheduler)


@dataclass(frozen=True)
class Sent:
    """A message that the scheduler sent."""

    task: str
    args: list[Any]
    kwargs: Json
    options: Json

    @property
    def name(self) -> str:
        """The name of the entry."""
        return str(self.options["headers"]["periodic_task_name"])

    @property
    def id(self) -> str:
        """The task id."""
        return str(self.options["task_id"])

    @property
    def scheduled_at(self) -> datetime:
        """The nominal instant of the occurrence."""
        return datetime.fromisoformat(self.options["headers"]["scheduled_at"])


class Clock:
    """A monotonic clock, in seconds, that advances only when a test calls :meth:`advance`."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        self.seconds += seconds


class RecordingScheduler(RedBeatScheduler):
    """A scheduler that records its messages. It first calls ``before_send`` with the task name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[Sent] = []
        self.before_send: Callable[[str], None] = lambda _task: None
        super().__init__(*args, **kwargs)

    def send_task(
        self, name: str, args: Any = None, kwargs: Any = None, producer: Any = None, **options: Any
    ) -> None:
        """Call ``before_send``, then record the message."""
        assert producer is not None
        self.before_send(name)
        self.sent.append(Sent(name, args, kwargs, options))

    @property
    def beat(self) -> Beat | PartedBeat:
        """The beat of this scheduler, for tests that look at its locks or health."""
        beat: Beat | PartedBeat = self._beat
        return beat

    @property
    def wakeup(self) -> WakeUp:
        """The connection on which this beat hears of changes."""
        wakeup: WakeUp = self._wakeup
        return wakeup

    @property
    def names(self) -> list[str]:
        """The names of the entries whose messages were sent, in order."""
        return [message.name for message in self.sent]


def void(_result: object) -> None:
    """Return None, so that a lambda can discard the result of a call."""


def once(action: Callable[[], Any]) -> Callable[[str], None]:
    """Return a function for ``before_send`` that runs ``action`` before the first message only."""
    actions = [action]

    def before_send(_task: str) -> None:
        while actions:
            actions.pop()()

    return before_send


def datetime_json(instant: datetime) -> Json:
    """Return an instant in the JSON form that RedBeat stores."""
    parts = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    fields = {part: getattr(instant, part) for part in parts}
    return {"__type__": "datetime", **fields, "timezone": "UTC"}


@contextmanager
def heard(signal: Any) -> Iterator[list[Json]]:
    """Note the arguments with which a signal is sent."""
    calls: list[Json] = []

    def receiver(**arguments: Any) -> None:
        calls.append(arguments)

    signal.connect(receiver, weak=False)
    try:
        yield calls
    finally:
        signal.disconnect(receiver)


def lines(log: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """Return the log messages that contain all of ``words``."""
    return [line for line in log.messages if all(word in line for word in words)]


def end_run(app: Celery, sent: Sent) -> None:
    """Report that a worker ended the task of this message."""
    workers.end_run(app, sent.id, sent.options["headers"])


def interval_json(every: float) -> Json:
    """Return an interval in the JSON form that RedBeat stores."""
    return {"__type__": "interval", "every": every, "relative": False}


@dataclass
class World:
    """Functions that read and write the schedule in Redis with plain Redis commands."""

    app: Celery
    client: Any
    schedulers: list[RedBeatScheduler] = field(default_factory=list)
    #: When this test began, as UNIX seconds.
    began: float = field(default_factory=time)

    def scheduler(self, **kwargs: Any) -> RecordingScheduler:
        """Return a new recording scheduler. The fixture ``world`` closes it after the test."""
        return self.scheduler_of(RecordingScheduler, **kwargs)

    def scheduler_of(self, cls: type[S], clock: Clock | None = None, **kwargs: Any) -> S:
        """Return a new scheduler of the class ``cls``, which uses ``clock`` if given."""
        cls = cls if clock is None else on_clock(cls, clock)
        scheduler = cls(kwargs.pop("app", self.app), **kwargs)
        self.schedulers.append(scheduler)
        return scheduler

    def now(self) -> float:
        """Return the time of Redis as UNIX seconds."""
        seconds, micros = self.client.time()
        return float(seconds) + float(micros) / 1e6

    def later(self, seconds: float) -> Any:
        """Return what equals each time that is ``seconds`` after a moment of this test."""
        most = (self.now() - self.began) / 2
        return pytest.approx(self.began + most + seconds, abs=most + 0.001)

    def backs_off(self, name: str) -> bool:
        """Return whether a failed run waits for at least a second before the next attempt.

        A tick that took long may have tried it again already, and doubled the delay.
        """
        return self.began + 1 <= (self.score(name) or 0) <= self.now() + 60

    def ago(self, seconds: float) -> datetime:
        """Return the instant that was ``seconds`` ago, by the clock of Redis."""
        return datetime.fromtimestamp(self.now(), timezone.utc) - timedelta(seconds=seconds)

    def put(
        self,
        name: str,
        schedule: Json | None = None,
        last_run_at: datetime | None = None,
        score: float = 0,
        **definition: Any,
    ) -> str:
        """Store an entry by raw commands, and return its key. By default, it is due now."""
        key = f"{PREFIX}{name}"
        text = {"name": name, "task": f"tasks.{name}", "schedule": schedule or interval_json(60)}
        self.client.hset(key, "definition", json.dumps({**text, **definition}))
        if last_run_at is not None:
            self.put_meta(name, last_run_at)
        self.client.zadd(SCHEDULE, {key: score})
        return key

    def put_many(self, count: int, score: float = 0, every: float = 3600.0) -> None:
        """Store entries ``e0``, ``e1``, ... that never ran."""
        pipeline = self.client.pipeline(transaction=False)
        for number in range(count):
            definition = {"name": f"e{number}", "task": "t", "schedule": interval_json(every)}
            pipeline.hset(f"{PREFIX}e{number}", "definition", json.dumps(definition))
            pipeline.zadd(SCHEDULE, {f"{PREFIX}e{number}": score})
        pipeline.execute()

    def make_due(self, *names: str) -> None:
        """Make entries due since a second, despite their back-off.

        The test ends before the next run of an entry that runs each minute.
        """
        due = self.now() - 1
        self.client.zadd(SCHEDULE, {f"{PREFIX}{name}": due for name in names})
        for name in names:
            self._end_hold(name)

    def put_meta(self, name: str, last_run_at: datetime) -> None:
        """Write the last run of an entry to its hash field ``meta``, as some applications do."""
        meta = json.dumps({"last_run_at": datetime_json(last_run_at)})
        self.client.hset(f"{PREFIX}{name}", "meta", meta)

    def score(self, name: str) -> float | None:
        """Return the score of an entry, or None if the sorted set does not contain the entry."""
        score = self.client.zscore(SCHEDULE, f"{PREFIX}{name}")
        return None if score is None else float(score)

    def is_held(self, name: str) -> bool:
        """Return whether a beat holds a run of an entry."""
        return '"hold":' in (self.client.hget(f"{PREFIX}{name}", "beat_state") or "")

    def is_in_hand(self, name: str) -> bool:
        """Return whether a beat holds a run of an entry, or looked at it in its last request."""
        notes = self.client.hvals(HANDS)
        return self.is_held(name) or any(f'"{PREFIX}{name}"' in note for note in notes)

    def field(self, name: str, field: str) -> Json:
        """Return a hash field of an entry, decoded from JSON."""
        text = self.client.hget(f"{PREFIX}{name}", field)
        assert text is not None, f"{name} has no {field}"
        decoded: Json = json.loads(text)
        return decoded

    def identity(self, name: str) -> str:
        """Return the identity of an entry."""
        return str(self.field(name, "beat_state")["id"])

    def run_count(self, name: str) -> int:
        """Return the recorded run count of an entry."""
        if not self.client.hexists(f"{PREFIX}{name}", "meta"):
            return 0
        return int(self.field(name, "meta").get("total_run_count", 0))

    def running(self, name: str) -> tuple[str, float] | None:
        """Return the task id of the current run of an entry, and until when beats wait for its end.

        Return None if there is none, or if its end was reported.
        """
        state, inbox = self.client.hmget(f"{PREFIX}{name}", "beat_state", "inbox")
        lines = json.loads(inbox or "[]")
        ended = {line[1] for line in lines if line[0] == "end"}
        retried = {line[1] for line in lines if line[2] == "retried"}
        task_id, until, *_ = json.loads(state or "{}").get("running") or ("", 0)
        return (task_id, float(until)) if task_id and task_id not in ended - retried else None

    def put_running(self, name: str, until: float) -> None:
        """Store that a run of an entry is going on, and until when beats wait for its end."""
        put_state(self.client, f"{PREFIX}{name}", running=["another", until])

    def take_reports(self, scheduler: RedBeatScheduler) -> None:
        """Let a beat take in what workers reported, for which it may wait a second."""
        inbox = f".{PREFIX}:inbox"
        for key in self.client.zrange(inbox, 0, -1):
            self.client.zadd(inbox, {key: 1})
        scheduler.tick()

    def end_hold(self, name: str) -> None:
        """Change the hold of an entry's run as if its time was over, and make the entry due."""
        assert self.is_held(name), f"no beat holds a run of {name}"
        self._end_hold(name)
        self.client.zadd(SCHEDULE, {f"{PREFIX}{name}": 1})

    def _end_hold(self, name: str) -> None:
        if self.is_held(name):
            hold = self.field(name, "beat_state")["hold"]
            hold[3] = 1
            put_state(self.client, f"{PREFIX}{name}", hold=hold)

    def put_waiting(self, name: str, *tokens: str | bytes) -> None:
        """Store requests of runs as another program may: ``id:time``, or the token of a backfill.

        The next tick finds them.
        """
        key = f"{PREFIX}{name}"
        joined = b" ".join(token.encode() if isinstance(token, str) else token for token in tokens)
        lines = b",\n".join(map(_line_of, joined.split(b" ")))
        self.client.hset(key, "inbox", b"[%s]" % lines)
        self.client.zadd(f".{PREFIX}:inbox", {key: 1})

    def waiting(self, name: str) -> int:
        """Return how many requests of runs wait, also those that have finished."""
        inbox, state = self.client.hmget(f"{PREFIX}{name}", "inbox", "beat_state")
        said = [line for line in json.loads(inbox or "[]") if line[0] != "end"]
        return len([*said, *json.loads(state or "{}").get("waiting", ())])

    def quarantine(self) -> dict[str, Json]:
        """Return the quarantined entries: the stored details, keyed by entry key."""
        notes = self.client.hgetall(QUARANTINE)
        return {key: json.loads(note) for key, note in notes.items()}

    def dump(self) -> dict[str, Any]:
        """Return all data in Redis except the lock, metrics, last requests and beat presence.

        The marks of changes, which say nothing about an entry, are left out as well.
        """
        readers: dict[str, Callable[[str], Any]] = {
            "hash": lambda key: _without_marks(self.client.hgetall(key)),
            "set": self.client.smembers,
            "string": self.client.get,
            "zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
        }
        keys = {key for key in self.client.scan_iter() if ":turn:" not in key}
        keys -= {LOCK, STATS, BEATS}
        return {key: readers[self.client.type(key)](key) for key in keys}

    def calls(self) -> int:
        """Return how many scripts the server has run so far, according to ``INFO``."""
        stats = self.client.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in SCRIPT_CALLS)


def _without_marks(fields: dict[str, str]) -> dict[str, Any]:
    if "beat_state" not in fields:
        return fields
    return {**fields, "beat_state": {**json.loads(fields["beat_state"]), "m": None}}


def _line_of(token: bytes) -> bytes:
    """Return a waiting run as a line of an inbox."""
    if b"/" in token:
        return b'["backfill","%s"]' % token
    run_id, _, at = token.partition(b":")
    try:
        return b'["trigger","%s",%s]' % (run_id, json.dumps(float(at)).encode())
    except ValueError:
        return b'["trigger","%s","%s"]' % (run_id, at)


SCRIPT_CALLS = ("eval", "evalsha")


def on_clock(cls: type[S], clock: Clock) -> type[S]:
    """Return a subclass of ``cls`` that uses ``clock``."""
    return type(cls.__name__, (cls,), {"clock": clock})


@pytest.fixture
def clock() -> Clock:
    """A clock that the test advances."""
    return Clock()


@contextmanager
def world_at(url: str) -> Iterator[World]:
    """An app and its schedule in a server of the test's own."""
    app = Celery("apart", broker="memory://", set_as_current=False)
    app.conf.update(
        redbeat_redis_url=url, redbeat_key_prefix=PREFIX, timezone="UTC", result_expires=None
    )
    with redis.Redis.from_url(url, decode_responses=True) as client:
        world = World(app, client)
        yield world
        for scheduler in world.schedulers:
            scheduler.close()
    app.redbeat_redis.close()


@pytest.fixture
def world(app: Celery, redis_client: redis.Redis) -> Iterator[World]:
    """An empty schedule, and functions that read and write it."""
    world = World(app, redis_client)
    yield world
    for scheduler in world.schedulers:
        scheduler.close()
    for scheduler in world.schedulers:
        client = getattr(scheduler.app, "redbeat_redis", None)
        if client is not None:
            client.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The records of the logger ``celery.beat`` at level INFO and above."""
    caplog.set_level("INFO", "celery.beat")
    return caplog


@pytest.fixture
def counting(app: Celery, redis_url: str) -> CountingRedis:
    """The Redis client of the app. It counts what it sends."""
    client = counting_client(redis_url)
    app.redbeat_redis = client
    return client


@pytest.fixture
def wire(app: Celery, redis_url: str) -> Wire:
    """The Redis client of the app. It can lose commands and replies."""
    client = wired_client(redis_url)
    app.redbeat_redis = client
    return client
