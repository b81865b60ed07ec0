"""Computes waits after failures of Redis, the broker or an entry, and limits the rate of runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from redis.exceptions import NoPermissionError, ResponseError

from redbeat.calendar.zones import from_timestamp
from redbeat.connection.tls import hint
from redbeat.connection.urls import safe_url
from redbeat.entries.runs import cause_of, failed, nominal, run_line
from redbeat.errors import CannotRunHereError, reason_of
from redbeat.metrics.counters import Counters
from redbeat.metrics.health import BeatHealth
from redbeat.presentation.english import plural
from redbeat.printing import encodable, get_logger
from redbeat.signals import (
    broker_back,
    broker_lost,
    emit,
    entry_failed,
    redis_back,
    redis_lost,
)
from redbeat.storage.records import Claim, Completion

from .broker import NO_BROKER, broker_address, is_refusal
from .scheduler_protocol import SchedulerProtocol, name_of

logger = get_logger("celery.beat")


#: The minimum wait in seconds of a beat that has reached the rate limit.
SHORTEST_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class BackOff:
    """Exponential back-off: wait ``first`` seconds, and double the wait after each failure.

    No wait is longer than ``longest`` seconds.
    """

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after ``failures`` consecutive failures; 0 for no failure."""
        return min(self.first * 2.0 ** min(failures - 1, 32), self.longest) if failures else 0.0


class Pace:
    """A token bucket that allows ``rate`` runs per second, and bursts of at most ``rate`` runs.

    Times are in monotonic seconds. If ``rate`` is None, there is no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._capacity = max(rate or 0.0, 1.0)
        self._tokens, self._refilled_at = self._capacity, 0.0
        self._last_allowed: int | None = None

    def allowed(self, now: float) -> int | None:
        """Return the number of runs that are allowed now, None for no limit."""
        if self._rate is not None:
            self._tokens = min(
                self._tokens + (now - self._refilled_at) * self._rate, self._capacity
            )
            self._refilled_at, self._last_allowed = now, int(self._tokens)
        return self._last_allowed

    def spend(self, count: int) -> None:
        """Remove ``count`` tokens from the bucket, one per run."""
        self._tokens -= count

    def wait(self, now: float) -> float:
        """Return the seconds until the next token; infinity if the limit was not reached.

        The limit was reached if the last call of :meth:`allowed` returned 0.
        """
        if self._rate is None or self._last_allowed:
            return math.inf
        return max((1.0 - self._tokens) / self._rate - (now - self._refilled_at), SHORTEST_PAUSE)


#: The back-off while the broker is unavailable, and the back-off of an entry that cannot be sent.
BROKER_WAIT = BackOff(0.1, 2.0)
ENTRY_WAIT = BackOff(1.0, 60.0)

#: The back-off of an entry that this beat cannot run.
#: The first wait is long enough for another beat to claim the entry.
OTHERS_WAIT = BackOff(0.05, 30.0)

#: The back-off of ticks that fail because of Redis, and of ticks that fail for another reason.
REDIS_WAIT = BackOff(0.1, 2.0)
TICK_WAIT = BackOff(1.0, 8.0)

#: The maximum number of entries whose failures are stored.
#: A new failure may replace a failure that is older than ``REMEMBERED_FOR`` seconds.
REMEMBERED: Final = 10_000
REMEMBERED_FOR: Final = 120.0

#: The maximum number of edits in a row that delay a run of the edited entry.
#: An edit delays a run if the edit comes between the claim and the record of the run.
#: After more edits, the beat sends the run, because user code seems to edit the entry in each run.
MOST_EDITS: Final = 10

V = TypeVar("V")


class RecentEntries(Generic[V]):
    """Stores values of at most :data:`REMEMBERED` entries; new values replace old values."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[float, V]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> V | None:
        """Return the value of a key, None if no value is stored."""
        return self._values.get(key, (0.0, None))[1]

    def keep(self, key: str, value: V, now: float) -> bool:
        """Store the value of a key; return False if there is no room for the value.

        A value remains stored for at least :data:`REMEMBERED_FOR` seconds. The next failure of an
        entry still finds the value of the entry, even if more than :data:`REMEMBERED` entries fail.
        ``now`` is the current time in seconds.
        """
        self._values.pop(key, None)
        if len(self._values) >= REMEMBERED:
            oldest = next(iter(self._values))
            if self._values[oldest][0] > now - REMEMBERED_FOR:
                return False
            del self._values[oldest]
        self._values[key] = now, value
        return True

    def forget(self, key: str) -> V | None:
        """Remove and return the value of a key; return None if no value is stored."""
        return self._values.pop(key, (0.0, None))[1]


#: Failed attempts to send an entry are logged at the attempts 1, 2, 4, 8, 16 and 32.
#: Later failed attempts are logged at each multiple of ``LOG_EVERY``, about once an hour.
LOG_EVERY: Final = 64

#: The assumed number of attempts for an entry whose failures are not stored.
#: ``ATTEMPTS_UNKNOWN`` attempts result in the longest wait.
ATTEMPTS_UNKNOWN: Final = 32


class ReleasedRun(NamedTuple):
    """A run that this beat cannot execute: the reason, the due time and the number of attempts."""

    reason: str
    due: float
    attempt: int


class FailedAttempts(NamedTuple):
    """The number of consecutive failures of an entry, and the UNIX time of the first failure."""

    number: int
    since: float


class Retries:
    """Counts consecutive failed publishes, for each entry and for the broker."""

    def __init__(self, scheduler: SchedulerProtocol, counters: Counters) -> None:
        self._counters = counters
        self._scheduler = scheduler
        self._attempts: RecentEntries[FailedAttempts] = RecentEntries()
        self._released: RecentEntries[ReleasedRun] = RecentEntries()
        #: For each entry, how many times in a row an edit delayed the run.
        self._edits: RecentEntries[int] = RecentEntries()
        #: The latest time until which this beat leaves an entry to other beats, in UNIX seconds.
        self.others_until = 0.0
        self._last_error: BaseException | None = None
        self.broker_failures = 0
        self._broker_failed_at = 0.0
        #: Why the broker is not available, with its address; "" if the broker has not failed.
        self.problem = ""

    def retry(
        self, claim: Claim, now: float, error: Exception, unsure: bool | None = False
    ) -> Completion:
        """Return the completion of a failed publish: the run is due again after a back-off.

        ``unsure`` is True if the message may have been sent. ``unsure`` is None if the message may
        have been sent to some of its queues before the broker returned an error. After a broker
        error, the entry waits, so that the beat tries to publish another entry first.
        """
        cause = cause_of(error)
        if isinstance(cause, CannotRunHereError):
            return self.leave_to_others(claim, now, cause)
        self.count_failure(claim, error)
        if self.count_if_broker_failed(error, now):
            again_at = now + BROKER_WAIT.after(self.broker_failures)
            return _failed(claim.put_back(again_at, unsure is not False), claim, now, error)
        attempts = self._attempts.get(claim.key) or FailedAttempts(0, now)
        attempt = attempts.number + 1
        if not self._attempts.keep(claim.key, attempts._replace(number=attempt), now):
            attempt = ATTEMPTS_UNKNOWN
        wait = ENTRY_WAIT.after(attempt)
        if attempt & (attempt - 1) == 0 or attempt % LOG_EVERY == 0:
            logger.error(
                "beat: Could not send %s, attempt %d, trying again in %.0f s: %s",
                *(claim.key, attempt, wait, reason_of(cause_of(error))),
                exc_info=error if attempt == 1 else None,
            )
        if unsure is None:
            unsure = is_refusal(cause)
        return _failed(claim.put_back(now + wait, unsure), claim, now, error)

    def leave_to_others(self, claim: Claim, now: float, error: Exception) -> Completion:
        """Return a completion that makes a run due again, so that another beat can claim the run.

        Call this method for a run that this beat cannot execute. The failure is logged, counted and
        added to the history only once, and again if the reason of the failure changes.
        """
        reason, before = str(error) or repr(error), self._released.get(claim.key)
        known = before is not None and before.reason == reason
        same_run = before is not None and before.due == claim.due
        attempt = before.attempt + 1 if before is not None and same_run else 1
        if not self._released.keep(claim.key, ReleasedRun(reason, claim.due, attempt), now):
            known, attempt = True, ATTEMPTS_UNKNOWN
        again_at = round(now + OTHERS_WAIT.after(attempt), 6)  # scores in Redis have six decimals
        self.others_until = max(self.others_until, again_at)
        completion = _failed(claim.put_back(again_at), claim, now, error)
        if not known:
            self.count_failure(claim, error)
            logger.error(
                "beat: Entry %s cannot run here and is left to other beats; this beat tries again "
                "within %.0f s: %s",
                *(claim.key, OTHERS_WAIT.longest, reason),
            )
        elif attempt == 1:
            # Add no line to the history at the first attempt of a run, because another beat may
            # send the run.
            completion = completion._replace(history="")
        return completion

    def count_failure(self, claim: Claim, error: Exception | None, lost: bool = False) -> None:
        """Count a failed publish, and emit ``entry_failed``; a ``lost`` run is not retried."""
        name = name_of(self._scheduler, claim)
        self._counters.failed(name, lost)
        emit(entry_failed, self._scheduler, name=encodable(name), error=error, lost=lost)

    def put_back_edited(self, claim: Claim, now: float) -> Completion:
        """Count an edit that delays a run; return the completion that makes the run due again."""
        self._edits.keep(claim.key, (self._edits.get(claim.key) or 0) + 1, now)
        return claim.put_back(now)

    def is_edited_too_often(self, claim: Claim) -> bool:
        """Return whether edits delayed a run so often that the beat must now send the run."""
        return (self._edits.get(claim.key) or 0) >= MOST_EDITS

    def forget_edits(self, claim: Claim) -> None:
        """Reset the count of edits of an entry, after a run was recorded."""
        self._edits.forget(claim.key)

    def sent(self, claim: Claim) -> None:
        """Reset the failures of an entry and of the broker, after a message was sent."""
        self.forget(claim)
        self.forget_edits(claim)
        self.broker_answered()

    def forget(self, claim: Claim) -> None:
        """Reset the failures of an entry; the failures of the broker do not change."""
        attempts = self._attempts.forget(claim.key)
        if attempts is not None:
            logger.warning(
                "beat: Entry %s can be sent again, after %s since %s",
                claim.key,
                plural(attempts.number, "failed attempt"),
                from_timestamp(attempts.since).isoformat(" ", "seconds"),
            )
        self._released.forget(claim.key)

    def broker_answered(self) -> None:
        """Reset the failures of the broker, after it accepted a message."""
        if self.broker_failures:
            logger.warning(
                "beat: The broker is back, after %s since %s: %s",
                plural(self.broker_failures, "failed attempt"),
                from_timestamp(self._broker_failed_at).isoformat(" ", "seconds"),
                broker_address(self._scheduler.app),
            )
            failures, self.broker_failures = self.broker_failures, 0
            self._last_error, self.problem = None, ""
            emit(broker_back, self._scheduler, failures=failures)

    def count_if_broker_failed(self, error: Exception, now: float) -> bool:
        """Return whether an error means that the broker is unavailable; if so, count and log it.

        ``now`` is the Redis time in UNIX seconds.

        If several messages failed with the same error object, the error counts once. If the broker
        keeps failing, the error is logged at increasing intervals, without a traceback.
        """
        if error is self._last_error:
            return True
        if not self._scheduler.broker_failed(error):
            return False
        self.broker_failures += 1
        self._last_error = error
        address, reason = broker_address(self._scheduler.app), reason_of(cause_of(error))
        if self.broker_failures == 1:
            self._broker_failed_at = now
            self.problem = f"{NO_BROKER}: {address}: {reason}"
            emit(broker_lost, self._scheduler, error=cause_of(error))
        if self.broker_failures == 1 or should_log(self.broker_failures):
            logger.error(
                "beat: The broker is not available, trying again every %.0f s: %s: %s",
                *(BROKER_WAIT.longest, address, reason),
            )
        return True


def _failed(completion: Completion, claim: Claim, now: float, error: Exception) -> Completion:
    """Return ``completion`` with the reason of a failed attempt and with a history line."""
    line = run_line(nominal(from_timestamp(claim.due)), now, failed(error))
    return completion._replace(history=line, failure=reason_of(cause_of(error)))


def should_log(attempts: int) -> bool:
    """Return whether to log a continuing failure again after this number of attempts.

    A failure that continues is logged after about 1, 2, 4, 8 and 17 minutes, and then about every
    34 minutes.
    """
    return attempts >= 32 and (attempts & (attempts - 1) == 0 or attempts % 1024 == 0)


class FailedTicks:
    """Counts and logs consecutive failed ticks; each method sets the ``health`` of the beat.

    Arguments:
        scheduler: the sender of the signals.
        client: the Redis client, whose options help to explain a TLS error.
        url: the URL of Redis, which is written to the log.
        health: the health of the beat.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        client: Any,
        url: str,
        health: BeatHealth,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._client = client
        self._url = url
        self._health = health
        self._clock = clock
        #: How many ticks failed because of Redis, and how many failed for another reason.
        self.of_redis = self._others = 0
        #: Local times of the first and the last tick that failed because of Redis.
        self._first_at = self._last_at = 0.0
        self._ever_answered = False
        #: Whether the Redis user lacked a permission at the last failed tick.
        self.permission_denied = False
        self._logged_kinds: set[str] = set()

    def tick_failed(self, error: Exception) -> float:
        """Log an error that does not come from Redis; return the seconds to wait."""
        self._others += 1
        wait, reason = TICK_WAIT.after(self._others), reason_of(error)
        self._health.tick_error = f"the tick fails: {reason}"
        if self._others == 1:
            logger.error("beat: The tick failed, trying again in %.0f s", wait, exc_info=error)
        elif should_log(self._others):
            message = "beat: The tick failed %d times, trying again every %.0f s: %s"
            logger.error(message, self._others, wait, reason)
        return wait

    def redis_failed(self, error: Exception) -> float:
        """Log an error of Redis; return the seconds to wait."""
        self._health.failed()
        self._last_at = self._clock()
        if not self.of_redis:
            self._first_at = self._last_at
            emit(redis_lost, self._scheduler, error=error)
        self.of_redis += 1
        kind = type(error).__name__
        # Log the first error of each kind, because a lasting error may follow a short one such as
        # "connection refused".
        if kind not in self._logged_kinds or should_log(self.of_redis):
            self._logged_kinds.add(kind)
            why = "" if self._ever_answered else hint(error, self._client)
            what = "refuses a command" if type(error) is ResponseError else "is not available"
            logger.error(
                "beat: Redis %s, trying again every %.0f s: %s: %s: %s%s",
                *(what, REDIS_WAIT.longest, safe_url(self._url), kind, error, why),
            )
        self.permission_denied = isinstance(error, NoPermissionError)
        return REDIS_WAIT.after(self.of_redis)

    def end(self, answered_at: float) -> None:
        """Reset the failures after a tick without an error.

        ``answered_at`` is the local time of the last reply of Redis. Failures because of Redis are
        not reset if the last reply is older than the last failure, because the tick may have used
        the reply to an earlier request.
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
                *(self._clock() - self._first_at, safe_url(self._url)),
            )
            emit(redis_back, self._scheduler, failures=self.of_redis)
        self._health.completed()
        self.of_redis, self._ever_answered, self.permission_denied = 0, True, False
        self._logged_kinds.clear()
