"""Runs a real ``celery beat`` process and measures when its messages arrive in the queue."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import IO, Any

from .metering import Metrics
from .prepared import emptied, seed, seed_spread
from .sides import SCRIPTS, Side

__all__ = ("BeatCase", "Message", "ended", "metrics_of", "run_beat")

QUEUE = "celery"
OPTIONS = ("beat", "-S", "redbeat.RedBeatScheduler", "--pidfile=", "-l", "info")

#: Maximum number of messages that one LPOP command removes from the queue.
AT_ONCE = 1000

#: The timeouts for the first message of a beat and for the exit of a beat, in seconds.
START_SECONDS = 30.0
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class BeatCase:
    """A measurement of a beat that runs ``entries`` entries every second, for ``seconds`` seconds.

    With ``spread``, the runs are evenly distributed over each second. Without ``spread``, all
    entries run at the same instant.
    """

    entries: int
    seconds: int
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message from the queue, with times in UNIX seconds.

    ``due`` is None if the message does not contain the due time of its run. ``arguments``
    identifies the entry, because messages of RedBeat 2 do not contain the name of the entry.
    """

    arrived: float
    arguments: str
    due: float | None


def run_beat(side: Side, url: str, case: BeatCase) -> Metrics:
    """Empty the Redis server, run a beat, and return metrics of the received messages."""
    client = emptied(url, decode_responses=True)
    # Without ``case.spread``, all runs are due at whole seconds. The measurement starts and ends
    # halfway between two whole seconds, so no run is due near the start or the end.
    start = int(time.time())
    if case.spread:
        seed_spread(client, case.entries, start + 1)
    else:
        seed(client, case.entries, "second", datetime.fromtimestamp(start, timezone.utc), start + 1)
    with started(side, url) as (process, log):
        first = first_message(client, process)
        if first is None:
            log.seek(0)
            raise RuntimeError(f"no message from the beat arrived:\n{log.read()[-2000:]}")
        opens = math.ceil(first.arrived) + 0.5
        messages = list(received(client, opens, opens + case.seconds))
    client.close()
    return metrics_of(messages, case)


@contextmanager
def started(side: Side, url: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """Run a beat during the ``with`` block; yield the process and its log file."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [side.python, "-m", "celery", "-A", "beatapp", *OPTIONS],
            cwd=SCRIPTS,
            env=side.environment(BENCHMARK_REDIS=url),
            stdout=log,
            stderr=log,
        )
        with ended(process):
            yield process, log


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate a process after the ``with`` block; kill the process if it does not exit soon."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def first_message(client: Any, process: subprocess.Popen[bytes]) -> Message | None:
    """Return the first message, or None if the beat exits or no message arrives in time."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for taken in receive(client, 0.5):
            return parsed(*taken)
    return None


def receive(client: Any, timeout: float) -> list[tuple[float, str]]:
    """Remove all messages from the queue; return the time of arrival and the text of each message.

    The times are in UNIX seconds. The function waits at most ``timeout`` seconds for the first
    message. The function does not parse messages, because a slow reader would distort the
    measurement.
    """
    popped = client.blpop(QUEUE, timeout)
    if popped is None:
        return []
    arrived = time.time()
    return [(arrived, text) for text in (popped[1], *(client.lpop(QUEUE, AT_ONCE) or ()))]


def parsed(arrived: float, text: str) -> Message:
    """Parse the text of a message from the queue and return a :class:`Message`."""
    headers = json.loads(text)["headers"]
    due = headers.get("scheduled_at")
    instant = None if due is None else datetime.fromisoformat(due).timestamp()
    return Message(arrived, headers["argsrepr"], instant)


def received(client: Any, opens: float, closes: float) -> Iterator[Message]:
    """Wait until ``closes``; return the messages that arrived from ``opens`` to ``closes``."""
    taken: list[tuple[float, str]] = []
    while (rest := closes - time.time()) > 0:
        taken += receive(client, max(rest, 0.01))
    return (parsed(*item) for item in taken if opens <= item[0] < closes)


def metrics_of(messages: list[Message], case: BeatCase) -> Metrics:
    """Return the share of expected messages that arrived, and quantiles of gaps and lateness.

    A gap is the time between two consecutive messages of an entry. All times are in seconds.
    """
    metrics: Metrics = {"share": len(messages) / (case.entries * case.seconds)}
    late = [message.arrived - message.due for message in messages if message.due is not None]
    for name, values in (("gap", gaps(messages)), ("late", late)):
        if values:
            metrics[f"{name}_p50"] = quantile(values, 0.5)
            metrics[f"{name}_p99"] = quantile(values, 0.99)
    return metrics


def gaps(messages: list[Message]) -> list[float]:
    """Return the seconds between consecutive messages of the same entry, for all entries."""
    runs: dict[str, list[float]] = defaultdict(list)
    for message in messages:
        runs[message.arguments].append(message.arrived)
    return [later - earlier for arrivals in runs.values() for earlier, later in pairwise(arrivals)]


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of the values; ``share`` is from 0 to 1, for example 0.5 for the median."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
