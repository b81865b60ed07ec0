"""Sets up a fault scenario: two Redis servers, a schedule, beats and a record of all messages."""

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
#: The setting ``redbeat_lock_timeout`` for RedBeat 3 and RedBeat 2, in seconds.
#: With the longer default timeouts, the wait for the lock would dominate all results.
LOCK_TIMEOUT = 5
#: Settings with ``LOCK_TIMEOUT``.
#: RedBeat 2 renews its lock once per loop, so a loop must take less time than the lock timeout.
TIMED = {"redbeat_lock_timeout": LOCK_TIMEOUT, "beat_max_loop_interval": 1}
#: Options of a Redis server that keeps all confirmed writes when the server is killed.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
START_SECONDS = 60.0
STARTED = "beat: Starting..."
POLL = 0.02


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Wait until a condition is true; return False if it stays false for ``seconds`` seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


@dataclass(frozen=True)
class Scene:
    """Beats of one version of RedBeat, and their schedule. All instants are in UNIX seconds."""

    side: Side
    schedule_redis: RedisServer
    broker_redis: RedisServer
    schedule: Schedule
    ledger: Ledger
    beats: Supervisor

    def start(self) -> int:
        """Start a beat, wait until its log shows the start, and return its number."""
        number = self.beats.add()
        if not within(START_SECONDS, lambda: STARTED in self.beats.output(number)):
            log = self.beats.output(number)[-2000:]
            raise RuntimeError(f"a beat of RedBeat {self.side.version} did not start:\n{log}")
        return number

    def start_leader(self) -> int:
        """Start a beat, wait until the beat holds the lock, and return the number of the beat."""
        number = self.start()
        if not within(START_SECONDS, lambda: self.schedule.client.exists(LOCK)):
            raise RuntimeError(f"no beat acquired the lock:\n{self.beats.output(number)[-2000:]}")
        return number

    def put(self, entries: Sequence[str], every: float, first: float) -> None:
        """Store entries with their next run at ``first``, readable by RedBeat 3 and RedBeat 2."""
        history = meta_json(first - every, 1)
        self.schedule.put(entries, every, first, dict.fromkeys(entries, history))

    def begin(self, entries: Sequence[str], every: float, wait: float = 2.0) -> float:
        """Store entries and return the instant of their first run.

        The first run is at a whole second, at least ``wait`` seconds from now.
        """
        first = float(math.ceil(time.time() + wait))
        self.put(entries, every, first)
        return first

    def sent(self) -> int:
        """Return the number of messages in the queue."""
        with redis.Redis.from_url(self.broker_redis.url) as client:
            length: Any = client.llen(QUEUE)
        return int(length)

    def ran_after(
        self, entries: Sequence[str], instant: float, seconds: float, give_up: float = math.inf
    ) -> bool:
        """Return True as soon as each entry has a message that arrived at ``instant`` or later.

        Return False after ``seconds`` seconds, or after ``give_up`` seconds without any message.
        """
        missing, read, latest = set(entries), 0, time.monotonic()

        def over() -> bool:
            nonlocal read, latest
            if fresh := self.ledger.since(read):
                read, latest = read + len(fresh), time.monotonic()
            missing.difference_update(one.entry for one in fresh if one.received >= instant)
            return not missing or time.monotonic() - latest >= give_up

        return within(seconds, over) and not missing

    def quiet(self, seconds: float, limit: float) -> None:
        """Wait until no message arrives for ``seconds`` seconds; wait at most ``limit`` seconds."""
        self.ran_after([""], math.inf, limit, seconds)

    def count(self, entries: Sequence[str], every: float, first: float, until: float) -> Counts:
        """Compare the sent messages with the runs that are expected from ``first`` to ``until``.

        ``every`` is the interval of the entries in seconds.
        """
        instants = grid(first, every, until)
        expected = dict.fromkeys(entries, instants)
        if self.side.name == "ours":
            return by_occurrence(expected, self.ledger.messages)
        return by_run(expected, self.ledger.messages, every)


@contextmanager
def scene(side: Side, settings: Mapping[str, Any], durable: bool = False) -> Iterator[Scene]:
    """Start two Redis servers and a supervisor of beats; stop them after the ``with`` block."""
    options = DURABLE if durable else ()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="redbeat-faults-"))
        schedule_redis = stack.enter_context(RedisServer(*options))
        broker_redis = stack.enter_context(RedisServer(*options))
        client = redis.Redis.from_url(schedule_redis.url, decode_responses=True)
        stack.callback(client.close)
        ledger = stack.enter_context(Ledger(broker_redis.url))
        settings = {"redbeat_redis_url": schedule_redis.url, **settings}
        beats = stack.enter_context(Supervisor(side, Path(directory), broker_redis.url, settings))
        yield Scene(side, schedule_redis, broker_redis, Schedule(client), ledger, beats)
