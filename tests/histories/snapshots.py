"""All keys of a Redis at one instant as JSON, with functions to read, shift and write them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import redis

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.entries.state import digest_of_meta

__all__ = (
    "PREFIX",
    "RECORDINGS",
    "SCHEDULE",
    "Kept",
    "entries_in",
    "load",
    "moved",
    "recordings",
    "take",
)

PREFIX: Final = "redbeat:"
SCHEDULE: Final = "redbeat::schedule"
RECORDINGS: Final = Path(__file__).parent / "recordings"

#: Reads all keys at one instant, even while a beat works.
TAKE: Final = """
local readers = {
    hash = {'HGETALL'}, set = {'SMEMBERS'}, string = {'GET'}, zset = {'ZRANGE', 0, -1, 'WITHSCORES'}
}
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    local kind = redis.call('TYPE', key).ok
    local reader = readers[kind]
    local content = redis.call(reader[1], key, unpack(reader, 2))
    table.insert(found, {key, kind, content, redis.call('PTTL', key)})
end
return {redis.call('TIME'), found}
"""

Json = dict[str, Any]


def recordings() -> dict[str, Json]:
    """Return the recordings in this directory by name; a name is for example "2.4.2"."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RECORDINGS.glob("*.json"))}


@dataclass
class Kept:
    """An entry in a snapshot; ``last_run_at`` is None if the entry never ran.

    Only this package writes the field ``policy``, and ``beat_state`` with ``scheduled_at``, the
    nominal time of the last run in UNIX seconds.
    """

    definition: Json
    meta: Json
    policy: Json
    scheduled_at: float | None
    score: float
    last_run_at: datetime | None

    @classmethod
    def read(cls, fields: Json, score: float) -> Kept:
        """Return the entry from the fields of a hash, which may lack ``meta``."""
        meta = json.loads(fields.get("meta", "{}"))
        at = dict(meta.get("last_run_at") or {})
        if at:
            del at["__type__"]
            name = at.pop("timezone", "UTC")
            zone = ZoneInfo(name) if isinstance(name, str) else timezone(timedelta(seconds=name))
            last_run_at = datetime(tzinfo=zone, **at)
        definition, policy, state = (
            json.loads(fields.get(name, "{}")) for name in ("definition", "policy", "beat_state")
        )
        # RedBeat 2 does not update the state when it runs an entry.
        is_ours = state.get("of") == digest_of_meta(fields.get("meta"))
        scheduled_at = state.get("at") if is_ours else None
        return cls(definition, meta, policy, scheduled_at, score, last_run_at if at else None)

    @property
    def anchor(self) -> datetime | None:
        """Return the instant from which the next run counts: the last run, nominal if known."""
        if self.scheduled_at is None:
            return self.last_run_at
        return datetime.fromtimestamp(self.scheduled_at, timezone.utc)

    @property
    def schedule(self) -> Json:
        """Return the stored schedule."""
        found: Json = self.definition["schedule"]
        return found

    @property
    def enabled(self) -> bool:
        """Return whether the entry is enabled."""
        return bool(self.definition.get("enabled", True))

    @property
    def runs(self) -> int:
        """Return how many runs the entry had."""
        return int(self.meta.get("total_run_count", 0))


def entries_in(snapshot: Json) -> dict[str, Kept]:
    """Return the entries of a snapshot, by name."""
    keys, scores = snapshot["keys"], snapshot["keys"][SCHEDULE]["zset"]
    return {
        key.removeprefix(PREFIX): Kept.read(fields["hash"], scores[key])
        for key, fields in keys.items()
        if key.startswith(PREFIX) and "hash" in fields
    }


def take(client: redis.Redis) -> Json:
    """Return all keys and the time of Redis in UNIX seconds, in one round trip."""
    (seconds, micros), found = client.eval(TAKE, 0)
    keys = {key: _content(kind, content, pttl) for key, kind, content, pttl in sorted(found)}
    return {"at": int(seconds) + int(micros) / 1e6, "keys": keys}


def _content(kind: str, content: Any, pttl: int) -> Json:
    if kind == "string":
        return {"string": content, "pttl": pttl}
    if kind == "set":
        return {"set": sorted(content)}
    pairs = zip(content[::2], content[1::2], strict=True)
    if kind == "zset":
        return {"zset": {member: float(score) for member, score in pairs}}
    return {"hash": dict(pairs)}


def load(client: redis.Redis, snapshot: Json) -> None:
    """Write all keys of a snapshot; expiring keys keep their remaining time."""
    for key, kept in snapshot["keys"].items():
        if "hash" in kept:
            client.hset(key, mapping=kept["hash"])
        elif "zset" in kept:
            client.zadd(key, kept["zset"])
        elif "set" in kept:
            client.sadd(key, *kept["set"])
        else:
            client.set(key, kept["string"], px=kept["pttl"])


def moved(snapshot: Json, at: float) -> Json:
    """Return a snapshot as if it had been taken at ``at``, rounded to seconds.

    Last runs, scores, and the starts and ends of rules are shifted by the same number of whole
    seconds. Task arguments are not shifted.
    """
    delta = timedelta(seconds=int(at - snapshot["at"]))
    keys = {key: _moved_key(kept, delta) for key, kept in snapshot["keys"].items()}
    return {"at": snapshot["at"] + delta.total_seconds(), "keys": keys}


def _moved_key(kept: Json, delta: timedelta) -> Json:
    seconds = delta.total_seconds()
    if "zset" in kept:
        scores = kept["zset"].items()
        return {"zset": {name: at + seconds if at > 0 else at for name, at in scores}}
    fields = kept.get("hash", {})
    if "definition" not in fields:
        return kept
    definition = json.loads(fields["definition"])
    for name in ("dtstart", "until"):
        if name in definition["schedule"]:
            definition["schedule"][name] += seconds
    state = json.loads(fields.get("beat_state", "{}"))
    is_ours = state.get("of") == digest_of_meta(fields.get("meta"))
    fields = {**fields, "definition": json.dumps(definition)}
    if "meta" in fields:
        meta = json.loads(fields["meta"], cls=RedBeatJSONDecoder)
        meta["last_run_at"] = _later(meta["last_run_at"], delta)
        fields["meta"] = json.dumps(meta, cls=RedBeatJSONEncoder)
    if state:
        state |= {name: state[name] + seconds for name in ("at", "due") if name in state}
        if is_ours:
            state["of"] = digest_of_meta(fields.get("meta"))
        fields["beat_state"] = json.dumps(state)
    return {"hash": fields}


def _later(instant: datetime | None, delta: timedelta) -> datetime | None:
    return instant and (instant.astimezone(timezone.utc) + delta).astimezone(instant.tzinfo)
