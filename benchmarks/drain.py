"""How long real processes take to bring a number of messages into a queue."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import redis

from .beats import OPTIONS, QUEUE, ended
from .prepared import EVERY, emptied, seed
from .sides import SCRIPTS, Side

__all__ = ("Scene", "drain_bare", "drain_beats")

#: Seconds for beats to start, and for all messages to arrive.
START_SECONDS = 60.0
LIMIT = 120.0

#: Seconds between storing entries and the instant at which they are due.
AHEAD = 1.0

LOCK = "redbeat::lock"

#: Seconds between two looks at the queue; each takes a little of what is measured.
LOOK = 0.005


@dataclass(frozen=True, slots=True)
class Scene:
    """Where schedule and broker are, as processes see them, and what the app is told."""

    redis: str
    broker: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the variables that ``beatapp.py`` reads."""
        return {
            "BENCHMARK_REDIS": self.redis,
            "BENCHMARK_BROKER": self.broker,
            "BENCHMARK_SETTINGS": json.dumps(dict(self.settings)),
        }


@contextmanager
def running(side: Side, scene: Scene, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of a side for the block; what it says is told when it fails."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [side.python, *command],
            cwd=SCRIPTS,
            env=side.environment(**scene.environment()),
            stdout=log,
            stderr=log,
        )
        with ended(process):
            try:
                yield process
            except TimeoutError as error:
                log.seek(0)
                raise RuntimeError(f"{side.name}: {error}\n{log.read()[-2000:]}") from error


def arrival(queue: Any, count: int) -> float:
    """Return the seconds from the first message in the queue to the last of so many."""
    deadline, first, before = time.monotonic() + LIMIT, 0.0, 0
    while time.monotonic() < deadline:
        arrived = queue.llen(QUEUE)
        if arrived and not first:
            first, before = time.perf_counter(), arrived
        if arrived >= count:
            # As if it had been seen from the very first one.
            return (time.perf_counter() - first) * count / max(count - before, 1)
        time.sleep(LOOK)
    raise TimeoutError(f"{queue.llen(QUEUE)} of {count} messages arrived in {LIMIT:.0f} s")


def drain_bare(side: Side, plain: Scene, scene: Scene, count: int) -> float:
    """Return the seconds of a bare loop. ``plain`` is the scene as it is seen without delay."""
    with emptied(plain.broker) as queue, running(side, scene, ["bare.py", str(count)]):
        return arrival(queue, count)


def drain_beats(side: Side, plain: Scene, scene: Scene, count: int, beats: int = 1) -> float:
    """Return the seconds in which beats send entries that are due at the same instant.

    Ours are idle when that comes. The entries of the release are due when it starts: of entries
    that become due together later it sends one, and sleeps until its longest wait is over.
    """
    options = ["-m", "celery", "-A", "beatapp", *OPTIONS[:-1], "warning"]
    with emptied(plain.broker) as queue, redis.Redis.from_url(plain.redis) as client:
        if side.name != "ours":
            put(client, count, time.time() - 1)
        with ExitStack() as stack:
            for _ in range(beats):
                stack.enter_context(running(side, scene, options))
            if side.name == "ours":
                wait_until_idle(client, beats)
                put(client, count, time.time() + AHEAD)
                client.publish("redbeat::wakeup", "due")
            return arrival(queue, count)


def put(client: Any, count: int, due: float) -> None:
    """Store entries that are due at an instant."""
    seed(client, count, "interval", datetime.fromtimestamp(due - EVERY, timezone.utc), due)


def wait_until_idle(client: Any, beats: int) -> None:
    """Wait until so many of our beats are at work: one that leads, or several that share it."""
    deadline = time.monotonic() + START_SECONDS
    while client.zcard(".redbeat::beats") < beats and not (beats == 1 and client.exists(LOCK)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{beats} beats are not at work within {START_SECONDS:.0f} s")
        time.sleep(LOOK)
