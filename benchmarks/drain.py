"""Measures how fast beats, or a loop without a scheduler, publish messages to a queue."""

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

#: The timeouts for the start of all beats and for the arrival of all messages, in seconds.
START_SECONDS = 60.0
LIMIT = 120.0

#: Seconds from the storage of the entries to their due time.
AHEAD = 1.0

LOCK = "redbeat::lock"

#: Seconds between two polls of the queue. More frequent polls would take CPU time from the beats.
POLL = 0.005


@dataclass(frozen=True, slots=True)
class Scene:
    """The configuration of a measured process: schedule URL, broker URL and app settings."""

    redis: str
    broker: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that ``beatapp.py`` reads."""
        return {
            "BENCHMARK_REDIS": self.redis,
            "BENCHMARK_BROKER": self.broker,
            "BENCHMARK_SETTINGS": json.dumps(dict(self.settings)),
        }


@contextmanager
def running(side: Side, scene: Scene, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the Python environment of a scheduler during the ``with`` block.

    A TimeoutError in the ``with`` block becomes a RuntimeError that includes the output of the
    command.
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
    """Return the seconds between the arrivals of the first and the last of ``count`` messages."""
    deadline, first_at, missed = time.monotonic() + LIMIT, 0.0, 0
    while time.monotonic() < deadline:
        arrived = queue.llen(QUEUE)
        if arrived and not first_at:
            first_at, missed = time.perf_counter(), arrived
        if arrived >= count:
            # The measurement starts with the first poll that finds messages in the queue. The time
            # for all messages is extrapolated from the messages that arrive after the first poll.
            return (time.perf_counter() - first_at) * count / max(count - missed, 1)
        time.sleep(POLL)
    raise TimeoutError(f"only {queue.llen(QUEUE)} of {count} messages arrived in {LIMIT:.0f} s")


def drain_bare(side: Side, plain: Scene, scene: Scene, count: int) -> float:
    """Return the seconds that a loop without a scheduler needs to publish ``count`` messages.

    ``plain`` contains the direct URLs of the Redis servers; ``scene`` may contain URLs of a proxy.
    """
    with emptied(plain.broker) as queue, running(side, scene, ["bare.py", str(count)]):
        return arrival(queue, count)


def drain_beats(side: Side, plain: Scene, scene: Scene, count: int, beats: int = 1) -> float:
    """Return the seconds that beats need to send ``count`` entries that are due at one instant.

    Beats of RedBeat 3 are running and idle when the entries become due. A beat of RedBeat 2 starts
    after the entries have become due, because an idle beat of RedBeat 2 would send only one entry
    and then sleep for its maximum loop interval.
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
    """Store entries that are all due at the instant ``due``, in UNIX seconds."""
    seed(client, count, "interval", datetime.fromtimestamp(due - EVERY, timezone.utc), due)


def wait_until_idle(client: Any, beats: int) -> None:
    """Wait until all beats are registered in Redis, or until a single beat holds the lock."""
    deadline = time.monotonic() + START_SECONDS
    while client.zcard(".redbeat::beats") < beats and not (beats == 1 and client.exists(LOCK)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{beats} beats did not start within {START_SECONDS:.0f} s")
        time.sleep(POLL)
