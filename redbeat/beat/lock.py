"""The beat lock: the beat that holds it leads, all others stand by.

A program may bring its own lock, or none.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import LockError, LockNotOwnedError, RedisError
from redis.lock import Lock

from redbeat.metrics.counters import BeatHealth
from redbeat.printing import get_logger
from redbeat.signals import emit, lock_acquired, lock_lost
from redbeat.storage.rows import Reply
from redbeat.storage.store import Store
from redbeat.storage.words import NOT_A_LOCK, SILENCE, TOKEN_PREFIX

if TYPE_CHECKING:
    from .turn import Turn

logger = get_logger("celery.beat")

#: What one check of the lock can add to the leader's silence, in seconds.
LONGEST_LOOK = 2.0

#: Seconds between two attempts of a blocking ``acquire``.
ACQUIRE_INTERVAL = 1.0


def new_token() -> str:
    since = int(time.time())
    return f"{TOKEN_PREFIX}{socket.gethostname()}:{os.getpid()}:{since}:{uuid.uuid4().hex}"


class BeatLock:
    """The lock of one beat. Every request of the leader renews it.

    A renewal resets the lock's time to live (TTL) to the full ``timeout``, in seconds. A standby
    that sees no renewal for :data:`SILENCE` seconds takes the leader for dead and takes over. Time
    in which the standby can't check the lock doesn't count.

    With shards, a beat's locks all carry the same token. Their holder also counts as dead if it has
    sent no request to the first shard for :data:`SILENCE` seconds, so a standby can take over a
    shard without watching its lock first. ``silent`` returns these seconds for a token.

    ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        token: str | None = None,
        silent: Callable[[str], float] = lambda _token: 0.0,
    ) -> None:
        self.key = self.name = key
        self.timeout = timeout
        self.token = token or new_token()
        self.leading: bool | None = None
        self._store = store
        self._clock = clock
        self._silent = silent
        self._holder = ""
        self._holder_ttl = 0.0
        self._looked_at = self._silent_seconds = 0.0
        #: The dead leader that was logged, until this beat has taken over or the leader is back.
        self._named_dead = ""

    @property
    def holder(self) -> str:
        """Token of the beat that held the lock at the last check, "" if unknown."""
        return self.token if self.leading else self._holder

    # -- methods of redis-py's lock ---------------------------------------------------------------

    def acquire(self, blocking: bool = True, blocking_timeout: float | None = None) -> bool:
        """Acquire the lock; return False if another beat holds it.

        ``blocking`` waits until the lock is free, at most ``blocking_timeout`` seconds. Each
        attempt takes one round trip.
        """
        until = None if blocking_timeout is None else self._clock() + blocking_timeout
        logger.info("beat: Acquiring lock...")
        while not self._store.acquire_lock(self.key, self.token, self.timeout):
            if not blocking or (until is not None and self._clock() >= until):
                return False
            time.sleep(ACQUIRE_INTERVAL)
        self._lead()
        return True

    def locked(self) -> bool:
        """Whether any beat holds the lock. One round trip."""
        return bool(self._store.lock_holder(self.key))

    def reacquire(self) -> bool:
        """Renew the lock for its timeout; return False if it's lost. One round trip."""
        return self.extend()

    def owned(self) -> bool:
        """Whether this beat holds the lock. One round trip."""
        return self._store.lock_holder(self.key) == self.token

    def extend(
        self,
        additional_time: float | None = None,
        replace_ttl: bool = False,  # noqa: ARG002 - an argument of redis-py's locks
    ) -> bool:
        """Let the lock expire after ``additional_time`` seconds, by default its timeout.

        Returns False if this beat doesn't hold the lock. One round trip.
        """
        ttl = self.timeout if additional_time is None else additional_time
        return self._store.extend_lock(self.key, self.token, ttl)

    def release(self) -> bool:
        """Release the lock; return False if this beat didn't hold it. One round trip."""
        logger.info("beat: Releasing lock")
        self.leading = None
        return self._store.release_lock(self.key, self.token)

    # -- methods that the tick calls --------------------------------------------------------------

    def words(self) -> tuple[str, int, str]:
        """What a request says of the lock (``Request.lock``)."""
        return self.key, int(self.timeout * 1000), self._dead_holder()

    def observe(self, reply: Reply) -> None:
        """Learn from ``reply`` who holds the lock, and log a change other than a loss."""
        if self.leading is None:
            logger.info("beat: Acquiring lock...")
        if reply.holder == self.token:
            if not self.leading:
                self._lead()
            return
        if reply.holder == NOT_A_LOCK and self.leading is None:
            logger.error(
                "beat: The key %s is not a lock; rename or delete it, or set redbeat_lock_key",
                self.key,
            )
        elif self.leading is None:
            logger.info("beat: The lock is held by %s, standing by", reply.holder)
        self.leading = False
        now = self._clock()
        passed, ttl_drop = now - self._looked_at, self._holder_ttl - reply.holder_ttl
        if reply.holder != self._holder or ttl_drop < passed / 2:
            self._silent_seconds, self._named_dead = 0.0, ""
        else:
            # An outage that delayed this check may have kept the leader from renewing, too.
            self._silent_seconds += min(passed, LONGEST_LOOK)
        self._holder, self._holder_ttl, self._looked_at = reply.holder, reply.holder_ttl, now

    def _lead(self) -> None:
        self.leading = True
        self._holder = ""
        logger.info("beat: Acquired lock")

    def _dead_holder(self) -> str:
        if not self._holder.startswith(TOKEN_PREFIX):
            return ""
        silence = self._silent_seconds
        if silence < min(SILENCE, self.timeout):
            silence = self._silent(self._holder)
            if silence < SILENCE:
                return ""
        if self._holder != self._named_dead:  # Redis may refuse the takeover, again and again
            self._named_dead = self._holder
            logger.warning(
                "beat: The leader %s is silent for %.0f s, so this beat takes over %s",
                *(self._holder, silence, self.key),
            )
        return self._holder


class CustomLock:
    """A lock object that a program assigned to ``scheduler.lock``.

    Each tick calls its ``extend`` for ``timeout`` seconds. A ``LockError`` means the lock is lost;
    from then on each tick calls ``acquire(blocking=False)`` until that returns true.
    """

    def __init__(self, lock: Any, timeout: float) -> None:
        self.lock = lock
        self.timeout = timeout
        self.key = getattr(lock, "name", type(lock).__name__)
        self.leading: bool | None = None

    def keep(self) -> bool:
        """Extend or acquire the lock; return whether this beat holds it.

        The number of round trips depends on the lock object.
        """
        try:
            self._extend()
            held = True
        except LockError:
            held = bool(self.lock.acquire(blocking=False))
        if held and not self.leading:
            logger.info("beat: Acquired lock")
        self.leading = held
        return held

    def _extend(self) -> None:
        # An int, as in RedBeat 2, and at least 1: 0 would delete the lock.
        seconds = max(int(self.timeout), 1)
        if getattr(type(self.lock), "extend", None) is Lock.extend:
            # Without replace_ttl, redis-py would add the seconds to what is left of the TTL.
            self.lock.extend(seconds, replace_ttl=True)
        else:
            self.lock.extend(seconds)

    def release(self) -> None:
        """Release the lock. The lock object may raise an error if it's already lost."""
        logger.info("beat: Releasing lock")
        self.leading = None
        self.lock.release()


class Lead:
    """The lock of one beat, and whether this beat leads.

    ``turn`` renews the beat lock; :meth:`use` gives it another. Without a ``lock``, several beats
    share the work. ``exits`` means that the beat ends once it has lost the lock.
    """

    def __init__(
        self, scheduler: Any, turn: Turn, lock: BeatLock | None, health: BeatHealth, exits: bool
    ) -> None:
        self._scheduler, self._turn, self._health, self._exits = scheduler, turn, health, exits
        self._lock: BeatLock | CustomLock | None = lock
        self._was_leading = False
        #: Which lock this beat lost and to whom, "" if it didn't.
        self._lost = ""

    @property
    def timeout(self) -> float:
        """Seconds after which the lock expires, infinity without a lock."""
        return float("inf") if self._lock is None else self._lock.timeout

    @property
    def is_custom(self) -> bool:
        """Whether the program brought the lock, which then sends requests of its own."""
        return isinstance(self._lock, CustomLock)

    def use(self, lock: Any, timeout: float) -> None:
        """Use the scheduler's lock, which a program may replace at any time.

        ``timeout`` is in seconds. One round trip if a beat lock has to be released.
        """
        before = self._lock
        if lock is before or (isinstance(before, CustomLock) and lock is before.lock):
            return
        if isinstance(before, BeatLock) and before.leading:
            with suppress(RedisError, OSError):  # then it expires on its own
                before.release()
        built_in = lock is None or isinstance(lock, BeatLock)
        self._lock = lock if built_in else CustomLock(lock, timeout)
        self._turn.lock = lock if built_in else None
        self._turn.is_shared = lock is None

    def keep(self) -> bool:
        """Extend or acquire a program's lock; return False if this beat doesn't hold it.

        The beat lock is renewed by turns instead.
        """
        held = not isinstance(self._lock, CustomLock) or self._lock.keep()
        if not held:
            self.observe("another")
        return held

    def observe(self, holder: str) -> None:
        """Announce that this beat has begun or ceased to lead.

        ``holder`` now has the lock, "" if this beat gave it away.
        """
        lock = self._lock
        leads = lock is not None and bool(lock.leading)
        self._health.observe(leads or lock is None, holder == NOT_A_LOCK)
        if leads is self._was_leading:
            return
        self._was_leading, self._lost = leads, ""
        if leads:
            emit(lock_acquired, self._scheduler)
            return
        emit(lock_lost, self._scheduler, holder=holder)
        if lock is not None and holder:
            self._lost = f"{lock.key} to {holder}"
            if not self._exits:
                logger.warning("beat: Lost the lock %s, standing by", self._lost)

    def ending(self) -> LockNotOwnedError | None:
        """The error with which a beat ends that lost its lock, None if it stands by instead."""
        if not self._lost or not self._exits:
            return None
        ends = "this beat ends, because redbeat_on_lock_lost is 'exit'"
        return LockNotOwnedError(f"lost the lock {self._lost}; {ends}")

    def release(self, *, answered: bool) -> None:
        """Release the lock if this beat holds it or may hold it. One round trip.

        It may hold the lock if Redis hasn't ``answered`` the last request.
        """
        lock = self._lock
        if lock is None or lock.leading is False:
            return
        if lock.leading or not answered or isinstance(lock, CustomLock):
            lock.release()
