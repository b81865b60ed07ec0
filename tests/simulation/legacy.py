"""A beat that uses the data like RedBeat 2.4.2: the same lock, reads and writes."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import redis
from celery.schedules import BaseSchedule

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder

LOCK: Final = "redbeat::lock"
SCHEDULE: Final = "redbeat::schedule"
#: Maximum seconds between two checks for due entries.
MAX_INTERVAL: Final = 2.0
NEVER: Final = datetime(1, 1, 2, tzinfo=timezone.utc)


class LegacyBeat:
    """A RedBeat 2.4.2 beat: no holds, no repeated messages, random message ids.

    Arguments:
        schedule: client of the server with the schedule.
        broker: client of the database with the messages.
        lock_timeout: lock timeout in seconds.
        on_lock: function that is called when the beat has acquired the lock.
    """

    def __init__(
        self,
        schedule: redis.Redis,
        broker: redis.Redis,
        lock_timeout: float,
        on_lock: Callable[[], None],
    ) -> None:
        self.client, self.broker = schedule, broker
        self.milliseconds = int(lock_timeout * 1000)
        self.token = uuid.uuid4().hex
        self.on_lock = on_lock
        self.stopping = False

    def run(self) -> None:
        """Wait for the lock, then tick until stopped; raise an error if the lock is lost."""
        while not self.client.set(LOCK, self.token, nx=True, px=self.milliseconds):
            if self.stopping:
                return
            time.sleep(MAX_INTERVAL)
        self.on_lock()
        while not self.stopping:
            if not self._owns_lock():
                raise RuntimeError("the lock is not owned any more")
            self.client.pexpire(LOCK, self.milliseconds)
            time.sleep(max(self._tick(), 0.01))
        if self._owns_lock():
            self.client.delete(LOCK)

    def _owns_lock(self) -> bool:
        return self.client.get(LOCK) == self.token.encode()

    def _tick(self) -> float:
        """Send the due runs, and return the seconds until the next check."""
        now = time.time()
        with self.client.pipeline() as pipe:
            pipe.zrangebyscore(SCHEDULE, 0, now)
            pipe.zrangebyscore(SCHEDULE, f"({now}", now + MAX_INTERVAL, start=0, num=1)
            due, soon = pipe.execute()
        return min([*map(self._maybe_send, (*due, *soon)), MAX_INTERVAL])

    def _maybe_send(self, key: bytes) -> float:
        with self.client.pipeline() as pipe:
            pipe.hget(key, "definition")
            pipe.hget(key, "meta")
            text, history = pipe.execute()
        if not text:
            self.client.zrem(SCHEDULE, key)
            return MAX_INTERVAL
        definition = json.loads(text, cls=RedBeatJSONDecoder)
        meta = json.loads(history or "{}", cls=RedBeatJSONDecoder)
        if not definition.get("enabled", True):
            return MAX_INTERVAL
        schedule = definition["schedule"]
        is_due, seconds = schedule.is_due(meta.get("last_run_at") or NEVER)
        if is_due:
            self._record(key, schedule, meta.get("total_run_count", 0))
            self._send(definition)
        return MAX_INTERVAL if seconds is None else float(seconds)

    def _record(self, key: bytes, schedule: BaseSchedule, count: int) -> None:
        now = datetime.fromtimestamp(time.time(), timezone.utc)
        remaining: timedelta | None = schedule.remaining_estimate(now)
        meta = {"last_run_at": now, "total_run_count": count + 1}
        score = -1.0 if remaining is None else (now + remaining).timestamp()
        with self.client.pipeline() as pipe:
            pipe.hset(key, "meta", json.dumps(meta, cls=RedBeatJSONEncoder))
            pipe.zadd(SCHEDULE, {key: score})
            pipe.execute()

    def _send(self, definition: dict[str, Any]) -> None:
        body = json.dumps([definition.get("args") or [], definition["kwargs"], {}]).encode()
        headers = {
            "id": str(uuid.uuid4()),
            "task": definition["task"],
            "periodic_task_name": definition["name"],
        }
        message = {"body": base64.b64encode(body).decode(), "headers": headers}
        self.broker.lpush("celery", json.dumps(message))
