"""Prepares measurements: stores entries in Redis, and starts a beat that publishes no messages.

This module uses only functions that RedBeat 3 and RedBeat 2 have. The script ``workload.py``
imports this module without the package, so this module has no relative imports.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat.schedulers import acquire_distributed_beat_lock

__all__ = (
    "EVERY",
    "OVERDUE",
    "CountingScheduler",
    "UnsentScheduler",
    "beat",
    "definition_of",
    "emptied",
    "make_app",
    "note_peak_memory",
    "seed",
    "seed_due",
    "stored_datetime",
)

#: Timeout of a Redis command in seconds, long enough for FLUSHALL to delete a million entries.
SOCKET_SECONDS = 120.0

#: Number of entries that one call of the script ``SEED`` stores.
SEED_BATCH = 10_000

#: The interval of the entries, and the time since the last run of a due entry, in seconds.
EVERY = 3600
OVERDUE = EVERY + 1

#: Schedule name -> the JSON of the schedule, as stored in Redis.
STORED = {
    "interval": {"__type__": "interval", "every": float(EVERY), "relative": False},
    "second": {"__type__": "interval", "every": 1.0, "relative": False},
    "crontab": {
        "__type__": "crontab",
        "minute": "0",
        "hour": "*",
        "day_of_week": "*",
        "day_of_month": "*",
        "month_of_year": "*",
    },
}


def stored_datetime(instant: datetime) -> dict[str, Any]:
    """Return an instant in UTC as the JSON value that RedBeat stores in Redis."""
    fields = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    parts = {name: getattr(instant, name) for name in fields}
    return {"__type__": "datetime", **parts, "timezone": "UTC"}


def emptied(url: str, **options: Any) -> Any:
    """Delete all data of a Redis server and return a client for this server."""
    client: Any = redis.Redis.from_url(url, socket_timeout=SOCKET_SECONDS, **options)
    # Without SYNC, Valkey would free memory in the background, which would affect the results.
    client.execute_command("FLUSHALL", "SYNC")
    return client


#: A Lua script that stores the entries with the indexes from ``ARGV[1]`` to ``ARGV[2]``.
#: The script replaces @ in the definition by the index of the entry.
SEED = """
local definition, meta, score = ARGV[3], ARGV[4], ARGV[5]
for index = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local number = string.format('%d', index)
  local key = 'redbeat:entry-' .. number
  local text = string.gsub(definition, '@', number)
  redis.call('HSET', key, 'definition', text, 'meta', meta)
  redis.call('ZADD', 'redbeat::schedule', score, key)
end
"""


def definition_of(kind: str) -> str:
    """Return a definition as JSON, with @ instead of the index of the entry.

    The definition has a task that does not exist in the app.
    """
    fields = {"args": ["@"], "kwargs": {"three": 3}, "options": {}, "enabled": True}
    name_and_task = {"name": "entry-@", "task": "unknown"}
    return json.dumps({**name_and_task, **fields, "schedule": STORED[kind]})


def seed(
    client: Any, count: int, kind: str, last_run_at: datetime, score: float, first: int = 0
) -> None:
    """Write entries directly to Redis; overwrite definition, meta and score of existing entries.

    ``first`` is the index of the first entry.
    """
    meta = json.dumps({"last_run_at": stored_datetime(last_run_at), "total_run_count": 1})
    for start in range(first, first + count, SEED_BATCH):
        last = min(start + SEED_BATCH, first + count) - 1
        client.eval(SEED, 0, start, last, definition_of(kind), meta, score)


def seed_due(client: Any, count: int, kind: str, first: int = 0) -> None:
    """Store entries that are due now."""
    now = datetime.now(timezone.utc)
    ran = now - timedelta(seconds=OVERDUE)
    seed(client, count, kind, ran, int(now.timestamp()) - 1, first)


def seed_spread(client: Any, count: int, begin: float, every: float | None = None) -> None:
    """Store entries that run every second from ``begin``, evenly distributed over the second.

    If ``every`` is given, all entries run at the same instants, every ``every`` seconds.
    """
    definition = definition_of("second").replace('"every": 1.0', f'"every": {every or 1.0}')
    pipe = client.pipeline(transaction=False)
    for index in range(count):
        first, key = begin if every else begin + index / count, f"redbeat:entry-{index}"
        ran = datetime.fromtimestamp(first - (every or 1.0), timezone.utc)
        meta = json.dumps({"last_run_at": stored_datetime(ran), "total_run_count": 1})
        fields = {"definition": definition.replace("@", str(index)), "meta": meta}
        pipe.hset(key, mapping=fields)
        pipe.zadd("redbeat::schedule", {key: first})
    pipe.execute()


class CountingScheduler(RedBeatScheduler):
    """A RedBeat scheduler that counts its messages for tasks that do not exist in the app."""

    sent = 0

    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        """Count and send a message."""
        self.sent += 1
        return super().send_task(*args, **kwargs)


class UnsentScheduler(CountingScheduler):
    """A RedBeat scheduler that counts messages instead of publishing them."""

    def send_task(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a message."""
        self.sent += 1


def make_app(url: str, broker: str | None = None, **settings: Any) -> Celery:
    """Return an app with its schedule in Redis; the default broker is in memory."""
    app = Celery("benchmark", broker=broker or "memory://", set_as_current=False)
    # If result_expires is set, Celery adds the entry celery.backend_cleanup to the schedule.
    app.conf.update(redbeat_redis_url=url, timezone="UTC", result_expires=None, **settings)
    return app


def note_peak_memory(file: str) -> None:
    """Write the peak memory of this process to a file when the process ends, in KiB.

    This function does not use ``ru_maxrss``, which includes the memory of the parent process. On
    systems other than Linux, the function writes 0.
    """

    def write() -> None:
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        peak = next((line.split()[1] for line in lines if line.startswith("VmHWM")), "0")
        Path(file).write_text(peak)

    atexit.register(write)


@contextmanager
def beat(
    app: Celery, kind: type[CountingScheduler] = UnsentScheduler
) -> Iterator[CountingScheduler]:
    """Start a beat: acquire the lock and tick once. Release the lock after the ``with`` block."""
    scheduler = kind(app)
    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
    try:
        scheduler.tick()
        yield scheduler
    finally:
        scheduler.close()
