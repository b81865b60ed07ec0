"""Reads and writes a schedule with raw Redis commands, in the documented format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

import redis

__all__ = ("SCHEDULE", "Schedule", "meta_json", "names")

SCHEDULE = "redbeat::schedule"
PREFIX = "redbeat:"
PARTS = ("year", "month", "day", "hour", "minute", "second", "microsecond")


def names(count: int, stem: str = "e") -> list[str]:
    """Return ``count`` names for entries."""
    return [f"{stem}{number}" for number in range(count)]


def definition_json(name: str, every: float) -> str:
    """Return an interval definition as JSON; task and arguments contain the entry's name."""
    schedule = {"__type__": "interval", "every": every, "relative": False}
    definition = {
        "name": name,
        "task": f"faults.{name}",
        "args": [],
        "kwargs": {"entry": name},
        "options": {},
        "schedule": schedule,
        "enabled": True,
    }
    return json.dumps(definition)


def meta_json(last_run_at: float, total_run_count: int = 0) -> str:
    """Return a run history as JSON; ``last_run_at`` is in UNIX seconds."""
    at = datetime.fromtimestamp(last_run_at, timezone.utc)
    fields = {part: getattr(at, part) for part in PARTS}
    instant = {"__type__": "datetime", **fields, "timezone": "UTC"}
    return json.dumps({"last_run_at": instant, "total_run_count": total_run_count})


class Schedule:
    """A schedule in one Redis; ``client`` may also be a Sentinel client or a cluster client."""

    def __init__(self, client: redis.Redis | redis.RedisCluster, prefix: str = PREFIX) -> None:
        self.client: Any = client
        self.prefix = prefix
        self.key = f"{prefix}:schedule"

    def now(self) -> float:
        """Return the time of Redis, in UNIX seconds."""
        seconds, micros = self.client.time()
        return int(seconds) + int(micros) / 1e6

    def put(
        self,
        entries: Iterable[str],
        every: float,
        score: float = 0.0,
        meta: Mapping[str, str] | None = None,
    ) -> None:
        """Store entries that run every ``every`` seconds, and wake up the beats.

        Without the wakeup, a beat would read the schedule only after some seconds, too late for
        entries that are due now. An entry without a history first runs at ``score`` (0 means now)
        and then every ``every`` seconds. ``meta`` maps names to histories.
        """
        pipeline = self.client.pipeline(transaction=False)
        members: dict[str, float] = {}
        for name in entries:
            fields = {"definition": definition_json(name, every)}
            if meta and name in meta:
                fields["meta"] = meta[name]
            pipeline.hset(self.prefix + name, mapping=fields)
            members[self.prefix + name] = score
        pipeline.zadd(self.key, members)
        pipeline.execute()
        self.client.publish(f"{self.prefix}:wakeup", "due")

    def run_counts(self, entries: Iterable[str]) -> dict[str, int]:
        """Return the recorded ``total_run_count`` of each entry; 0 without a history."""
        names_to_read = list(entries)
        pipeline = self.client.pipeline(transaction=False)
        for name in names_to_read:
            pipeline.hget(self.prefix + name, "meta")
        metas = pipeline.execute()
        return {
            name: json.loads(meta).get("total_run_count", 0) if meta else 0
            for name, meta in zip(names_to_read, metas, strict=True)
        }

    def held(self, entries: Iterable[str]) -> list[str]:
        """Return the entries whose run a beat holds."""
        names_to_read = list(entries)
        pipeline = self.client.pipeline(transaction=False)
        for name in names_to_read:
            pipeline.hget(self.prefix + name, "beat_state")
        found = zip(names_to_read, pipeline.execute(), strict=True)
        return [name for name, state in found if '"hold":' in (state or "")]

    def due_before(self, instant: float) -> int:
        """Return how many entries have a score between 0 and ``instant``."""
        return int(self.client.zcount(self.key, 0, instant))

    def lock_token(self) -> str | None:
        """Return the token in the beat lock, or None if the lock is free."""
        token: str | None = self.client.get(f"{self.prefix}:lock")
        return token
