"""Entries in Redis, and a beat that sends nothing: what is there before anything is measured.

Of whichever RedBeat the interpreter has, so that it uses nothing but what this project and the
release both offer. A part of the package, and imported by ``workload.py``, which is in none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
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
    "seed",
    "seed_due",
    "stored_datetime",
)

#: Seconds that a command may take: to remove a million entries takes some.
SOCKET_SECONDS = 120.0

#: Entries written at once while a workload is prepared.
SEED_BATCH = 10_000

#: Seconds between two runs of an entry, and how long ago its last run was when it is due.
EVERY = 3600
OVERDUE = EVERY + 1

#: The schedules that entries may have, as stored.
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
    """Return an instant in UTC as RedBeat stores it."""
    fields = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    parts = {name: getattr(instant, name) for name in fields}
    return {"__type__": "datetime", **parts, "timezone": "UTC"}


def emptied(url: str, **options: Any) -> Any:
    """Return a client of a Redis from which everything is removed."""
    client: Any = redis.Redis.from_url(url, socket_timeout=SOCKET_SECONDS, **options)
    # Valkey frees the memory later by default, which would be measured too.
    client.execute_command("FLUSHALL", "SYNC")
    return client


#: Stores entries from one index up to another; the index takes the place of @ in a definition.
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
    """Return the definition of an entry whose task no app knows, with @ in place of its index."""
    fields = {"args": ["@"], "kwargs": {"three": 3}, "options": {}, "enabled": True}
    named = {"name": "entry-@", "task": "unknown"}
    return json.dumps({**named, **fields, "schedule": STORED[kind]})


def seed(client: Any, count: int, kind: str, last_run_at: datetime, score: float) -> None:
    """Store entries as any program may; those that exist keep all but history and score."""
    meta = json.dumps({"last_run_at": stored_datetime(last_run_at), "total_run_count": 1})
    for start in range(0, count, SEED_BATCH):
        last = min(start + SEED_BATCH, count) - 1
        client.eval(SEED, 0, start, last, definition_of(kind), meta, score)


def seed_due(client: Any, count: int, kind: str) -> None:
    """Store entries that are due now."""
    now = datetime.now(timezone.utc)
    seed(client, count, kind, now - timedelta(seconds=OVERDUE), int(now.timestamp()) - 1)


def seed_spread(client: Any, count: int, begin: float, every: float | None = None) -> None:
    """Store entries that run every second, the first runs spread over the second after ``begin``.

    With ``every`` all of them run at the same instants, ``every`` seconds apart.
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
    """The stock scheduler, which counts the messages of tasks that the app does not know."""

    sent = 0

    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        """Count a message, and send it."""
        self.sent += 1
        return super().send_task(*args, **kwargs)


class UnsentScheduler(CountingScheduler):
    """The stock scheduler, except that nothing travels to a broker."""

    def send_task(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a message."""
        self.sent += 1


def make_app(url: str, broker: str | None = None, **settings: Any) -> Celery:
    """Return an app with its schedule in Redis; its broker is in memory unless another is given."""
    app = Celery("benchmark", broker=broker or "memory://", set_as_current=False)
    # No result back end: the clean-up entry that Celery adds would be one more.
    app.conf.update(redbeat_redis_url=url, timezone="UTC", result_expires=None, **settings)
    return app


@contextmanager
def beat(
    app: Celery, kind: type[CountingScheduler] = UnsentScheduler
) -> Iterator[CountingScheduler]:
    """Start the beat of ``app``: make it, let it lead, let it tick once; release its lock."""
    scheduler = kind(app)
    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
    try:
        scheduler.tick()
        yield scheduler
    finally:
        scheduler.close()
