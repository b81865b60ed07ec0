"""Knows whether a beat leads: with the beat lock, with a lock of the program, or with none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import LockNotOwnedError, RedisError

from redbeat.beat.lock import BeatLock, CustomLock
from redbeat.errors import described
from redbeat.metrics.health import BeatHealth
from redbeat.printing import get_logger
from redbeat.signals import emit, lock_acquired, lock_lost
from redbeat.storage.beats import NOT_A_LOCK

from .turn import Turn

logger = get_logger("celery.beat")

#: The holder of a program's lock that this beat has lost.
ANOTHER: Final = "another"

#: The end of the log line of a beat that ends after it lost the lock.
ENDS: Final = "; this beat ends, because redbeat_on_lock_lost is 'exit'"


@dataclass
class Lead:
    """The lock of one beat, and whether this beat leads.

    Arguments:
        scheduler: the sender of the signals.
        turn: renews the beat lock; :meth:`use` gives it another.
        lock: the beat lock, None if several beats share the work.
        health: learns whether this beat leads.
        exits: whether the beat ends after it lost the lock.
        was_leading: whether this beat led at its last turn.
        holder: the token of the beat that led then.
    """

    scheduler: Any
    turn: Turn
    lock: BeatLock | CustomLock | None
    health: BeatHealth
    exits: bool
    was_leading: bool = False
    holder: str = ""

    @property
    def timeout(self) -> float:
        """The seconds after which the lock expires, infinity without a lock."""
        return float("inf") if self.lock is None else self.lock.timeout

    @property
    def is_custom(self) -> bool:
        """Whether the lock is one of the program, which sends requests of its own."""
        return isinstance(self.lock, CustomLock)

    def use(self, lock: Any, timeout: float) -> None:
        """Use the lock of the scheduler, which a program may replace at any time.

        ``timeout`` is in seconds. One round trip to release a beat lock that was replaced.
        """
        before = self.lock
        if lock is before or (isinstance(before, CustomLock) and lock is before.lock):
            return
        if isinstance(before, BeatLock) and before.leading:
            try:
                before.release()
            except (RedisError, OSError) as error:
                logger.warning(
                    "beat: Could not release the previous lock, it expires by itself: %s",
                    described(error),
                )
        built_in = lock is None or isinstance(lock, BeatLock)
        self.lock = lock if built_in else CustomLock(lock, timeout)
        self.turn.lock = lock if built_in else None
        self.turn.is_shared = lock is None

    def keep(self) -> bool:
        """Extend or acquire a lock of the program; return False if this beat does not hold it.

        Turns renew the beat lock.
        """
        held = not isinstance(self.lock, CustomLock) or self.lock.keep()
        if not held:
            self.observe(ANOTHER)
        return held

    def observe(self, holder: str) -> None:
        """Tell others when this beat has begun or ceased to lead; ``holder`` has the lock now."""
        lock, self.holder = self.lock, holder
        leads = lock is not None and bool(lock.leading)
        self.health.observe(leads or lock is None, holder == NOT_A_LOCK)
        if leads is self.was_leading:
            return
        self.was_leading = leads
        if leads:
            emit(lock_acquired, self.scheduler)
            return
        emit(lock_lost, self.scheduler, holder=holder)
        if lock is not None and lock.lost and not self.exits:
            logger.warning("beat: Lost the lock %s, standing by", lock.lost)

    def ending(self) -> LockNotOwnedError | None:
        """Return the error with which a beat ends that lost its lock, None if it stands by."""
        lock = self.lock
        if lock is None or not lock.lost or not self.exits:
            return None
        return LockNotOwnedError(f"lost the lock {lock.key} to {self.holder}{ENDS}")

    def release(self, *, answered: bool) -> None:
        """Release the lock if this beat holds it, or may hold it. One round trip.

        It may hold the lock if Redis has not ``answered`` the last request.
        """
        lock = self.lock
        if lock is None or lock.leading is False:
            return
        if lock.leading or not answered or isinstance(lock, CustomLock):
            lock.release()
