"""Where the faults happen: two Redis servers, a schedule, beats of one side, and a ledger."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.faults.entries import Schedule, meta_json
from tests.faults.ledger import Ledger
from tests.faults.oracle import grid
from tests.servers import RedisServer

from .faultcounts import Counts, by_occurrence, by_run
from .sides import Side
from .supervisor import Supervisor

__all__ = ("LOCK", "LOCK_TIMEOUT", "TIMED", "Scene", "scene", "within")

LOCK = "redbeat::lock"
QUEUE = "celery"
#: Seconds; both sides get it where the time that a lock lives would hide everything else.
LOCK_TIMEOUT = 5
#: The settings that go with it. RedBeat 2 renews its lock once in each interval of the loop.
TIMED = {"redbeat_lock_timeout": LOCK_TIMEOUT, "beat_max_loop_interval": 1}
#: What makes Redis keep all that it confirmed.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
START_SECONDS = 60.0
STARTED = "beat: Starting..."
POLL = 0.02


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Wait until a condition is true; return False when that takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


@dataclass(frozen=True)
class Scene:
    """One side's beats on a schedule of their own. All instants are UNIX seconds."""

    side: Side
    schedule_redis: RedisServer
    broker_redis: RedisServer
    schedule: Schedule
    ledger: Ledger
    beats: Supervisor

    def start(self) -> int:
        """Start a beat and wait until it has started; return its number."""
        number = self.beats.add()
        if not within(START_SECONDS, lambda: STARTED in self.beats.said(number)):
            said = self.beats.said(number)[-2000:]
            raise RuntimeError(f"a beat of {self.side.version} did not start:\n{said}")
        return number

    def start_leader(self) -> int:
        """Start a beat and wait until there is a lock."""
        number = self.start()
        if not within(START_SECONDS, lambda: self.schedule.client.exists(LOCK)):
            raise RuntimeError(f"nobody took the lock:\n{self.beats.said(number)[-2000:]}")
        return number

    def put(self, entries: Sequence[str], every: float, first: float) -> None:
        """Store entries that ran one interval before ``first``, in the format both sides read."""
        history = meta_json(first - every, 1)
        self.schedule.put(entries, every, first, dict.fromkeys(entries, history))

    def begin(self, entries: Sequence[str], every: float, wait: float = 2.0) -> float:
        """Store entries; return their first instant, a whole second ``wait`` from now or later."""
        first = float(math.ceil(time.time() + wait))
        self.put(entries, every, first)
        return first

    def sent(self) -> int:
        """Return how many messages the broker has."""
        with redis.Redis.from_url(self.broker_redis.url) as client:
            length: Any = client.llen(QUEUE)
        return int(length)

    def ran_after(
        self, entries: Sequence[str], instant: float, seconds: float, give_up: float = math.inf
    ) -> bool:
        """Wait until all entries have a message that came after an instant.

        Return False after so many ``seconds``, or after ``give_up`` seconds without any message.
        """
        missing, read, latest = set(entries), 0, time.monotonic()

        def over() -> bool:
            nonlocal read, latest
            if fresh := self.ledger.since(read):
                read, latest = read + len(fresh), time.monotonic()
            missing.difference_update(one.entry for one in fresh if one.received >= instant)
            return not missing or time.monotonic() - latest >= give_up

        return within(seconds, over) and not missing

    def quiet(self, seconds: float, most: float) -> None:
        """Wait until no message came for so many seconds, ``most`` seconds at most."""
        self.ran_after([""], math.inf, most, seconds)

    def count(self, entries: Sequence[str], every: float, first: float, until: float) -> Counts:
        """Return the verdict on a grid up to ``until``, by what the messages of this side tell."""
        instants = grid(first, every, until)
        expected = dict.fromkeys(entries, instants)
        if self.side.name == "ours":
            return by_occurrence(expected, self.ledger.messages)
        return by_run(expected, self.ledger.messages, every)


@contextmanager
def scene(side: Side, settings: Mapping[str, Any], durable: bool = False) -> Iterator[Scene]:
    """Start the servers; everything that was started ends with the block, however it ends."""
    options = DURABLE if durable else ()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="redbeat-faults-"))
        schedule_redis = stack.enter_context(RedisServer(*options))
        broker_redis = stack.enter_context(RedisServer(*options))
        client = redis.Redis.from_url(schedule_redis.url, decode_responses=True)
        stack.callback(client.close)
        ledger = stack.enter_context(Ledger(broker_redis.url))
        more = {"redbeat_redis_url": schedule_redis.url, **settings}
        beats = stack.enter_context(Supervisor(side, Path(directory), broker_redis.url, more))
        yield Scene(side, schedule_redis, broker_redis, Schedule(client), ledger, beats)
