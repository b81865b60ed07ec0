"""The beat lock: one beat leads, the others stand by."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from celery.utils.log import get_logger
from redis.exceptions import LockError
from redis.lock import Lock

from redbeat.calendar.zones import from_timestamp
from redbeat.config import ensure_conf
from redbeat.entry import store_of
from redbeat.storage.records import ClaimReply
from redbeat.storage.store import Store

__all__ = (
    "BeatInfo",
    "BeatLock",
    "CustomLock",
    "active_beats",
    "current_leader",
    "new_token",
)

logger = get_logger("celery.beat")


#: How the token of a beat of RedBeat 3 starts; any other token is a foreign holder.
TOKEN_PREFIX = "redbeat3:"

#: What ``claim.lua`` calls the holder when the key of the lock holds something else.
NOT_A_LOCK = "a key that is not a lock"

#: Seconds a leader may go without renewing before it is taken for dead.
SILENCE = 20.0

#: Seconds between two looks at the lock that count as silence of the leader, at most.
LONGEST_LOOK = 2.0

#: Seconds since its last turn after which a beat does not count as one that shares the work.
SEEN_WITHIN = 10.0

#: Seconds since its last turn after which a beat is forgotten, as in ``claim.lua``.
FORGET_AFTER = 60.0

#: Seconds between two attempts to acquire, when blocking.
POLL = 1.0


def new_token() -> str:
    """Return a token that tells who holds the lock: host, pid and since when (UNIX seconds)."""
    since = int(time.time())
    return f"{TOKEN_PREFIX}{socket.gethostname()}:{os.getpid()}:{since}:{uuid.uuid4().hex}"


class BeatInfo(NamedTuple):
    """Which process a beat is.

    ``host``, ``pid`` and ``since`` (UTC) are None for one that does not tell, such as a beat of
    RedBeat 2. ``last_seen`` (UTC) is known from a status only, and of a beat that tells.
    """

    token: str
    host: str | None = None
    pid: int | None = None
    since: datetime | None = None
    last_seen: datetime | None = None

    @classmethod
    def read(cls, token: str) -> BeatInfo:
        """Return what the token of a beat tells."""
        if not token.startswith(TOKEN_PREFIX):
            return cls(token)
        try:
            host, pid, since, _ = token.removeprefix(TOKEN_PREFIX).rsplit(":", 3)
            return cls(token, host, int(pid), from_timestamp(int(since)))
        except (ValueError, OverflowError):
            return cls(token)


def current_leader(app: Any = None) -> BeatInfo | None:
    """Return who holds the beat lock of an app's schedule; None for nobody, or when it is off.

    One round trip.
    """
    key = ensure_conf(app).lock_key
    token = store_of(app).lock_holder(key) if key else ""
    return BeatInfo.read(token) if token else None


def active_beats(app: Any = None) -> list[BeatInfo]:
    """Return the beats that dispatch: the leader, or all that share the work without a lock.

    A beat that was killed is listed for some seconds more. One or two round trips.
    """
    if ensure_conf(app).lock_key:
        leader = current_leader(app)
        return [leader] if leader else []
    return [
        BeatInfo.read(beat.token) for beat in store_of(app).beats(SEEN_WITHIN) if not beat.locked
    ]


class BeatLock:
    """The lock of one beat, renewed by its ticks.

    A leader renews every few seconds, which sets the time to live back to the full timeout. So a
    leader whose time to live only falls, for :data:`SILENCE`, is dead, and need not be waited for.
    Time in which this beat could not look at the lock does not count.

    Arguments:
        store: where the lock is kept.
        key: Redis key of the lock.
        timeout: seconds the lock lives when it is not renewed.
        clock: monotonic seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.key = key
        self.timeout = timeout
        self.token = new_token()
        self.leading: bool | None = None
        #: Whether it was ours once and another beat took it.
        self.lost = False
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._holder = ""
        self._holder_ttl = 0.0
        self._looked_at = self._silent_seconds = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} {self.timeout:g}s leading={self.leading}>"

    # -- as redis-py's lock --------------------------------------------------------------------

    def acquire(self, blocking: bool = True, blocking_timeout: float | None = None) -> bool:
        """Take the lock; when ``blocking``, wait for it. One round trip per attempt."""
        until = None if blocking_timeout is None else self._clock() + blocking_timeout
        logger.info("beat: Acquiring lock...")
        while not self._store.acquire_lock(self.key, self.token, self.timeout):
            if not blocking or (until is not None and self._clock() >= until):
                return False
            self._sleep(POLL)
        self._lead()
        return True

    @property
    def name(self) -> str:
        """The Redis key of the lock."""
        return self.key

    def locked(self) -> bool:
        """Whether anybody holds the lock. One round trip."""
        return bool(self._store.lock_holder(self.key))

    def reacquire(self) -> bool:
        """Let the lock live for its timeout from now, as :meth:`extend` does. One round trip."""
        return self.extend()

    def owned(self) -> bool:
        """Whether the lock is ours now. One round trip."""
        return self._store.lock_holder(self.key) == self.token

    def extend(
        self,
        additional_time: float | None = None,
        replace_ttl: bool = False,  # noqa: ARG002 - redis-py's locks take it
    ) -> bool:
        """Let the lock live for the timeout, or ``additional_time`` seconds, from now.

        False when it is not ours. One round trip.
        """
        ttl = self.timeout if additional_time is None else additional_time
        return self._store.extend_lock(self.key, self.token, ttl)

    def release(self) -> bool:
        """Give up the lock; False when it was not ours. One round trip."""
        logger.info("beat: Releasing lock")
        self.leading = None
        return self._store.release_lock(self.key, self.token)

    # -- as the tick uses it -------------------------------------------------------------------

    def arguments(self) -> tuple[str, str, float, str]:
        """Return what :meth:`Store.claim` needs: key, token, seconds to live, a dead holder."""
        return self.key, self.token, self.timeout, self._dead_holder()

    def observe(self, reply: ClaimReply) -> None:
        """Take note of who holds the lock, and log a change."""
        if reply.holder == self.token:
            if not self.leading:
                self._lead()
            return
        if self.leading:
            self.lost = True
            logger.warning("beat: Lost the lock to %s, standing by", reply.holder)
        elif reply.holder == NOT_A_LOCK and self.leading is None:
            logger.error(
                "beat: The key %s is not a lock; rename or delete it, or set redbeat_lock_key",
                self.key,
            )
        elif self.leading is None:
            logger.info("beat: Acquiring lock...")
            logger.info("beat: The lock is held by %s, standing by", reply.holder)
        self.leading = False
        self._watch(reply.holder, reply.holder_ttl)

    def _lead(self) -> None:
        if self.leading is None:
            logger.info("beat: Acquiring lock...")
        self.leading = True
        self.lost = False
        self._holder = ""
        logger.info("beat: Acquired lock")

    def _watch(self, holder: str, ttl: float) -> None:
        now = self._clock()
        passed, fell = now - self._looked_at, self._holder_ttl - ttl
        if holder != self._holder or fell < passed / 2:
            self._silent_seconds = 0.0
        else:
            # While this beat could not look, the leader may have been unable to renew.
            self._silent_seconds += min(passed, LONGEST_LOOK)
        self._holder, self._holder_ttl, self._looked_at = holder, ttl, now

    def _dead_holder(self) -> str:
        if not self._holder.startswith(TOKEN_PREFIX):
            return ""
        if self._silent_seconds < min(SILENCE, self.timeout):
            return ""
        logger.warning(
            "beat: %s is silent for %.0f s, taking over", self._holder, self._silent_seconds
        )
        return self._holder


class CustomLock:
    """A lock object that a program put into ``scheduler.lock``, used as it is.

    It is extended by its own ``extend``, or ``reacquire`` where it has no other, and lost when that
    raises ``LockError``; then its ``acquire`` is called, without blocking, until it returns true.

    Arguments:
        lock: the program's object.
        timeout: seconds it is extended for.
    """

    def __init__(self, lock: Any, timeout: float) -> None:
        self.lock = lock
        self.timeout = timeout
        self._seconds = max(int(timeout), 1)  # as in RedBeat 2, but 0 deletes a lock
        self.key = getattr(lock, "name", type(lock).__name__)
        self.leading: bool | None = None
        #: Whether it was held once and is not any more.
        self.lost = False

    def keep(self) -> bool:
        """Extend the lock or acquire it; whether it is held. As many round trips as that takes."""
        try:
            self._extend()
            held = True
        except LockError as error:
            if self.leading:
                self.lost = True
                logger.warning("beat: Lost the lock %s, standing by: %s", self.key, error)
            held = bool(self._acquire())
        if held and not self.leading:
            logger.info("beat: Acquired lock")
        self.lost = self.lost and not held
        self.leading = held
        return held

    def _extend(self) -> None:
        extend = getattr(self.lock, "extend", None)
        if extend is None:
            getattr(self.lock, "reacquire", bool)()
        elif getattr(type(self.lock), "extend", None) is Lock.extend:
            # Or redis-py's lock would live longer and longer.
            extend(self._seconds, replace_ttl=True)
        else:
            extend(self._seconds)

    def _acquire(self) -> Any:
        acquire = getattr(self.lock, "acquire", None)
        return acquire is not None and acquire(blocking=False)

    def release(self) -> None:
        """Release the lock; it may be lost already."""
        logger.info("beat: Releasing lock")
        self.leading = None
        getattr(self.lock, "release", bool)()
