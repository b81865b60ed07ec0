"""Measures how fast real processes publish a number of messages to a queue."""

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

#: Timeouts in seconds: for the start of beats, and for the arrival of all messages.
START_SECONDS = 60.0
LIMIT = 120.0

#: Seconds from storing entries until they are due.
AHEAD = 1.0

LOCK = "redbeat::lock"

#: Seconds between two polls of the queue; polling costs a little of the measured CPU.
POLL = 0.005


@dataclass(frozen=True, slots=True)
class Scene:
    """The URLs of schedule and broker, and the settings of the app, for a process."""

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
    """Run a process of a side during the context.

    A TimeoutError in the context becomes a RuntimeError with the process' output.
    """
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
    """Return the seconds from the first of ``count`` messages in the queue to the last."""
    deadline, first_at, missed = time.monotonic() + LIMIT, 0.0, 0
    while time.monotonic() < deadline:
        arrived = queue.llen(QUEUE)
        if arrived and not first_at:
            first_at, missed = time.perf_counter(), arrived
        if arrived >= count:
            # Extrapolate to include the messages that arrived before the first poll saw any.
            return (time.perf_counter() - first_at) * count / max(count - missed, 1)
        time.sleep(POLL)
    raise TimeoutError(f"{queue.llen(QUEUE)} of {count} messages arrived in {LIMIT:.0f} s")


def drain_bare(side: Side, plain: Scene, scene: Scene, count: int) -> float:
    """Return the seconds of a bare loop; ``plain`` is the scene without a delaying proxy."""
    with emptied(plain.broker) as queue, running(side, scene, ["bare.py", str(count)]):
        return arrival(queue, count)


def drain_beats(side: Side, plain: Scene, scene: Scene, count: int, beats: int = 1) -> float:
    """Return the seconds in which beats publish entries that are due at the same instant.

    This project's beats are idle when the entries become due. For the release, the entries are due
    before it starts: of entries that become due together later, it sends only one and then sleeps
    for its maximum interval.
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
    """Wait until this project's beats are ready: one leader, or ``beats`` without a lock."""
    deadline = time.monotonic() + START_SECONDS
    while client.zcard(".redbeat::beats") < beats and not (beats == 1 and client.exists(LOCK)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{beats} beats did not start within {START_SECONDS:.0f} s")
        time.sleep(POLL)
