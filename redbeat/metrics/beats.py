"""The beats of a schedule: the leader and the active beats, as Redis knows them."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from redbeat.codec.stored import instant_in, whole_in
from redbeat.config import App, ensure_conf
from redbeat.storage.keys import layout_of
from redbeat.storage.store import store_of
from redbeat.storage.words import SEEN_WITHIN, TOKEN_PREFIX


class BeatInfo(NamedTuple):
    """Identifies the process of a beat.

    ``since`` (UTC) is when it was started. ``host``, ``pid`` and ``since`` are None for beats of
    RedBeat 2, whose tokens don't have them. For beats of RedBeat 3, ``status`` also sets
    ``last_seen`` (UTC), the time of the last request, and ``leads_since`` (UTC), when the leader
    took the lock.
    """

    token: str
    host: str | None = None
    pid: int | None = None
    since: datetime | None = None
    last_seen: datetime | None = None
    leads_since: datetime | None = None

    @classmethod
    def read(cls, token: str) -> BeatInfo:
        """Decode a beat's token."""
        if not token.startswith(TOKEN_PREFIX):
            return cls(token)
        parts = token.removeprefix(TOKEN_PREFIX).rsplit(":", 3)
        if len(parts) != 4:
            return cls(token)
        pid, since = whole_in(parts[1]), instant_in(parts[2])
        return cls(token) if pid is None or since is None else cls(token, parts[0], pid, since)


def current_leader(app: App | None = None) -> BeatInfo | None:
    """The beat that holds the lock, None if the lock is free or disabled. One round trip."""
    key = ensure_conf(app).lock_key
    token = store_of(app).lock_holder(key) if key else ""
    return BeatInfo.read(token) if token else None


def active_beats(app: App | None = None) -> list[BeatInfo]:
    """The active beats: the leader, or all running beats if the lock is disabled.

    With shards, these are the beats that hold the lock of a shard, the first shard's leader first.
    A killed beat stays in the list for some seconds. One or two round trips.
    """
    key = ensure_conf(app).lock_key
    if key:
        parts, lock_key = enumerate(store_of(app).parts), layout_of(ensure_conf(app)).lock_key
        holders = [part.lock_holder(lock_key(number, key)) for number, part in parts]
        return [BeatInfo.read(token) for token in dict.fromkeys(filter(None, holders))]
    return [
        BeatInfo.read(beat.token) for beat in store_of(app).beats(SEEN_WITHIN) if not beat.locked
    ]
