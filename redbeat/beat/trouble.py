"""What does not work: Redis, the broker, an entry on this beat, an entry that ends beats.

Also how long to wait after failures, how often to log them, and how many runs may leave a second.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ReadOnlyError, ResponseError

from redbeat.beat.broker import broker_address
from redbeat.config import ensure_conf
from redbeat.connection.urls import safe_url
from redbeat.errors import cause_of, reason_of
from redbeat.metrics.counters import BeatHealth
from redbeat.printing import get_logger, plural, printable
from redbeat.signals import broker_back, broker_lost, emit, redis_back, redis_lost
from redbeat.storage.rows import Change, Hand
from redbeat.storage.words import HANDS, NO_BROKER

logger = get_logger("celery.beat")

#: Seconds between two checks whether the broker is back while there is nothing to send.
CHECKED_EVERY: Final = 10.0

MOST_SKIPPED: Final = 1000

ENDED_A_BEAT: Final = "the processes of two beats ended while they had only this entry in hand"

#: An entry is set aside once this many beats vanished with it alone in hand.
ENOUGH: Final = 2

#: The least wait at the rate limit, in seconds.
SHORTEST_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class BackOff:
    """Exponential back-off, in seconds: ``first``, doubled after each failure up to ``longest``."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Seconds to wait after ``failures`` in a row, 0 without any."""
        return min(self.first * 2.0 ** min(failures - 1, 32), self.longest) if failures else 0.0


class Pace:
    """A token bucket: ``rate`` runs per second, and bursts of as many. None is no limit.

    Times are in monotonic seconds.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._capacity = max(rate or 0.0, 1.0)
        self._tokens, self._refilled_at = self._capacity, 0.0

    def allowed(self, now: float) -> int | None:
        """How many runs may leave now, None for no limit."""
        if self._rate is None:
            return None
        tokens = self._tokens + (now - self._refilled_at) * self._rate
        self._tokens, self._refilled_at = min(tokens, self._capacity), now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        self._tokens -= count

    def wait(self, now: float) -> float:
        """Seconds until the next token, infinity if there is one."""
        if self._rate is None or self._tokens >= 1.0:
            return math.inf
        return max((1.0 - self._tokens) / self._rate - (now - self._refilled_at), SHORTEST_PAUSE)


#: Back-off while the broker is down, and of an entry that can't be sent.
BROKER_WAIT = BackOff(0.1, 2.0)
ENTRY_WAIT = BackOff(1.0, 60.0)

#: Back-off of an entry that this beat can't run. In the first wait another beat can take it.
OTHERS_WAIT = BackOff(0.05, 30.0)

#: Back-off of an entry that ended a beat's process, or was merely in its hands.
SUSPECT_WAIT = BackOff(60.0, 3600.0)

#: The errors of a Redis that is full, and of one that couldn't save its data.
NO_WRITES: Final = re.compile(r"maxmemory|MISCONF|unable to persist")

#: Back-off of ticks that fail because of Redis, and for another reason.
REDIS_WAIT = BackOff(0.1, 2.0)
TICK_WAIT = BackOff(1.0, 8.0)


def should_log(attempts: int) -> bool:
    """Whether to log a failure after this many attempts.

    The first one, then a lasting one after about 1, 2, 4, 8 and 17 minutes, then about every 34.
    """
    doubled = attempts & (attempts - 1) == 0
    return attempts == 1 or (attempts >= 32 and (doubled or attempts % 1024 == 0))


class FailedTicks:
    """Counts and logs consecutive failed ticks, and tells ``health`` of them.

    ``scheduler`` sends the signals, and has the beat's clock.
    """

    def __init__(self, scheduler: Any, health: BeatHealth) -> None:
        self._scheduler, self._health = scheduler, health
        self._url = safe_url(ensure_conf(scheduler.app).redis_url)
        self._clock: Callable[[], float] = scheduler.clock
        #: Ticks that failed because of Redis, and for another reason.
        self.of_redis = self._others = 0
        #: Local times of the first and the last tick that failed because of Redis.
        self._first_at = self._last_at = 0.0
        self._logged_kinds: set[str] = set()

    def tick_failed(self, error: Exception) -> float:
        """Log an error that doesn't come from Redis; return the seconds to wait."""
        self._others += 1
        wait, reason = TICK_WAIT.after(self._others), reason_of(error)
        self._health.tick_error = f"the tick fails: {reason}"
        if should_log(self._others):
            traceback = error if self._others == 1 else None
            message = "beat: The tick failed, trying again in %.0f s: %s"
            logger.error(message, wait, reason, exc_info=traceback)
        return wait

    def redis_failed(self, error: Exception, answered_at: float) -> float:
        """Log an error of Redis; return the seconds to wait.

        ``answered_at`` is the local time of Redis's last reply.
        """
        answered, self._last_at = answered_at > self._last_at, self._clock()
        if not self.of_redis:
            self._first_at = self._last_at
            emit(redis_lost, self._scheduler, error=error)
        self.of_redis += 1
        kind = type(error).__name__
        refused = isinstance(error, ResponseError)
        self._health.failed(printable(f"{kind}: {error}"), refused=refused)
        # Log the first error of each kind: a lasting one may follow a short "connection refused".
        if kind not in self._logged_kinds or should_log(self.of_redis):
            self._logged_kinds.add(kind)
            logger.error(
                "beat: Redis %s, trying again every %.0f s: %s: %s: %s",
                *(_what_it_does(error), REDIS_WAIT.longest, self._url, kind, error),
            )
        # A connection that keeps breaking between answers doesn't mean that the server is down.
        return REDIS_WAIT.first if answered else REDIS_WAIT.after(self.of_redis)

    def end(self, answered_at: float) -> None:
        """Reset the failures after a tick without an error.

        ``answered_at`` is the local time of Redis's last reply. If Redis has failed since, its
        failures stay: the tick may have used the reply to an earlier request.
        """
        if self._others:
            ticks = plural(self._others, "failed tick")
            logger.warning("beat: The tick works again, after %s", ticks)
            self._others, self._health.tick_error = 0, ""
        if self.of_redis:
            if answered_at <= self._last_at:
                return
            logger.warning(
                "beat: Redis is back, after %s in %.0f s: %s",
                plural(self.of_redis, "failed tick"),
                *(self._clock() - self._first_at, self._url),
            )
            emit(redis_back, self._scheduler, failures=self.of_redis)
        self._health.completed()
        self.of_redis = 0
        self._logged_kinds.clear()


def _what_it_does(error: Exception) -> str:
    if isinstance(error, ReadOnlyError) or NO_WRITES.search(str(error)):
        return "takes no writes"
    return "refuses a command" if type(error) is ResponseError else "is not available"


class Broker:
    """Counts and logs consecutive failures of the broker.

    ``scheduler`` says what an error means, drops a broken connection, and has the clock.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._clock: Callable[[], float] = scheduler.clock
        self.failures = 0
        #: Whether it failed in this tick; the beat resets this.
        self.failed = False
        #: Why the broker is unavailable, with its address; "" while it works.
        self.problem = ""
        self._failed_at = 0.0
        self._checked_at = 0.0

    def is_down(self, error: Exception) -> bool:
        """Whether an error means that the broker is down; if so, count and log it.

        All messages that fail in one tick count once.
        """
        if not self._scheduler.broker_failed(error):
            return False
        if self.failed:
            return True
        self.failed = True
        self.failures += 1
        address, reason = broker_address(self._scheduler.app), reason_of(cause_of(error))
        if self.failures == 1:
            self._failed_at = self._clock()
            self.problem = f"{NO_BROKER}: {address}: {reason}"
            emit(broker_lost, self._scheduler, error=cause_of(error))
        if should_log(self.failures):
            logger.error(
                "beat: The broker is not available, trying again every %.0f s: %s: %s",
                *(BROKER_WAIT.longest, address, reason),
            )
        return True

    def answered(self) -> None:
        """Forget the failures there were: the broker took a message."""
        logger.warning(
            "beat: The broker is back, after %s in %.0f s: %s",
            plural(self.failures, "failed attempt"),
            *(self._clock() - self._failed_at, broker_address(self._scheduler.app)),
        )
        failures, self.failures, self.problem = self.failures, 0, ""
        emit(broker_back, self._scheduler, failures=failures)

    def check(self, *, soon: bool) -> None:
        """See whether the broker is back, so that an idle beat doesn't report it for long.

        A run that is due ``soon`` is the better test: a broker may accept connections and refuse
        messages.
        """
        if not self.failures or soon or self._clock() < self._checked_at + CHECKED_EVERY:
            return
        self._checked_at = self._clock()
        try:
            self._scheduler.check_broker()
        except Exception as error:
            self.is_down(error)
        else:
            self.answered()


@dataclass(slots=True)
class Skipped:
    reason: str
    digest: str
    attempts: int
    again_at: float


class SkipList:
    """Entries that this beat leaves to others, until their text changes or a time has passed.

    Their scores stay as they are, so that other beats see how late they are.
    """

    def __init__(self) -> None:
        self._skipped: dict[str, Skipped] = {}

    def add(self, key: str, digest: str, reason: str, now: float) -> bool:
        """Skip an entry; return whether the reason is new. ``now`` is in monotonic seconds."""
        before = self._skipped.pop(key, None)
        attempts = before.attempts + 1 if before is not None else 1
        if len(self._skipped) >= MOST_SKIPPED:
            del self._skipped[next(iter(self._skipped))]
        again_at = now + OTHERS_WAIT.after(attempts)
        self._skipped[key] = Skipped(reason, digest, attempts, again_at)
        return before is None or before.reason != reason

    def digests(self, now: float) -> dict[str, str]:
        """Key -> digest of what the next look leaves out."""
        if not self._skipped:
            return {}
        return {key: one.digest for key, one in self._skipped.items() if one.again_at > now}

    def wait(self, now: float) -> float:
        """Seconds until the next entry is tried again, infinity if there is none.

        Entries that should have been tried already were edited, or are gone.
        """
        waits = (one.again_at - now for one in self._skipped.values())
        return min((seconds for seconds in waits if seconds > 0), default=float("inf"))


class Suspects:
    """The entries that a vanished beat had in hand.

    The next beat looks at each of them alone, and notes that in Redis. An entry that two beats had
    alone when they vanished is set aside. So killing a pod with entries in hand harms none of them,
    and killing others right after it hardly ever does.
    """

    def __init__(self) -> None:
        self._hands: list[Hand] = []
        self._keys: list[str] = []
        #: The only entry of the last look; "" for an ordinary look.
        self.alone = ""
        #: Entries to set aside without loading them.
        self.guilty: set[str] = set()

    def note(self, hands: Iterable[Hand]) -> None:
        for hand in hands:
            if any(hand.token == noted.token for noted in self._hands):
                continue  # a beat that was merely slow notes other keys at each turn
            self._hands.append(hand)
            self._keys += [key for key in hand.keys if key not in self._keys]
            if not hand.alone:
                logger.warning(
                    "beat: A beat vanished with %d entries in hand; looking at each of them alone",
                    len(hand.keys),
                )
                continue
            alone = Counter(key for other in self._hands if other.alone for key in other.keys)
            self.guilty.update(key for key in hand.keys if alone[key] >= ENOUGH)

    def next(self) -> str:
        """Key of the entry to look at next, alone; "" if there is none."""
        self.alone = self._keys.pop() if self._keys else ""
        return self.alone

    @property
    def is_idle(self) -> bool:
        """Whether the last look and the next one are ordinary."""
        return not (self._keys or self.alone)

    def looked_at(self, key: str) -> None:
        """Note that a program with a loop of its own has looked at an entry, alone."""
        if key in self._keys:
            self._keys.remove(key)

    def done(self) -> list[Change]:
        """The changes that forget the notes, once each entry was looked at."""
        if self._keys or not self._hands:
            return []
        hands, self._hands = self._hands, []
        self.guilty.clear()
        return [Change("", index=[["HDEL", HANDS, hand.token] for hand in hands])]
