"""The beats of a schedule: the leader and the active beats, as Redis knows them."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from redbeat.codec.stored import instant_in, whole_in
from redbeat.config import App, ensure_conf

from .keys import layout_of
from .store import store_of

#: The prefix of the lock tokens of RedBeat 3.
#: Tokens without the prefix belong to other programs or older versions.
TOKEN_PREFIX = "redbeat3:"

#: The holder that ``turn.lua`` returns if the value of the lock key is not a string.
NOT_A_LOCK = "a key that is not a lock"

#: Seconds without a renewal after which a leader counts as dead.
SILENCE = 20.0

#: A beat counts as active for ``SEEN_WITHIN`` seconds after its last request.
SEEN_WITHIN = 10.0

#: A beat is removed from the list of beats ``FORGET_AFTER`` seconds after its last request.
#: ``lua/parts/share.lua`` must contain the same number as ``FORGET_AFTER``.
FORGET_AFTER = 60.0


class BeatInfo(NamedTuple):
    """Identifies the process of a beat.

    ``since`` (UTC) is when the beat was started. ``host``, ``pid`` and ``since`` are None for beats
    of RedBeat 2, because a token of RedBeat 2 does not contain these fields. The function
    ``status`` sets two more, for beats of RedBeat 3: ``last_seen`` (UTC) is the time of the beat's
    last request, ``leads_since`` (UTC) when the leader took the lock.
    """

    token: str
    host: str | None = None
    pid: int | None = None
    since: datetime | None = None
    last_seen: datetime | None = None
    leads_since: datetime | None = None

    @classmethod
    def read(cls, token: str) -> BeatInfo:
        """Decode the token of a beat."""
        if not token.startswith(TOKEN_PREFIX):
            return cls(token)
        parts = token.removeprefix(TOKEN_PREFIX).rsplit(":", 3)
        if len(parts) != 4:
            return cls(token)
        pid, since = whole_in(parts[1]), instant_in(parts[2])
        return cls(token) if pid is None or since is None else cls(token, parts[0], pid, since)


def current_leader(app: App | None = None) -> BeatInfo | None:
    """Return the beat that holds the lock, None if the lock is free or disabled.

    One round trip.
    """
    key = ensure_conf(app).lock_key
    token = store_of(app).lock_holder(key) if key else ""
    return BeatInfo.read(token) if token else None


def active_beats(app: App | None = None) -> list[BeatInfo]:
    """Return the active beats: the leader, or all running beats if the lock is disabled.

    For a schedule with shards, the list contains each beat that holds the lock of a shard. The
    first beat in the list is the leader of the first shard. A killed beat remains in the list for
    some seconds. Takes one or two round trips.
    """
    key = ensure_conf(app).lock_key
    if key:
        parts, lock_key = enumerate(store_of(app).parts), layout_of(ensure_conf(app)).lock_key
        holders = [part.lock_holder(lock_key(number, key)) for number, part in parts]
        return [BeatInfo.read(token) for token in dict.fromkeys(filter(None, holders))]
    return [
        BeatInfo.read(beat.token) for beat in store_of(app).beats(SEEN_WITHIN) if not beat.locked
    ]
