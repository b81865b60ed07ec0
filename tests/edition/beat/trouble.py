"""Knows what does not work, and how long to wait: the broker, an entry, an entry of this beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redbeat.beat.broker import NO_BROKER, broker_address
from redbeat.beat.retries import BROKER_WAIT, OTHERS_WAIT, should_log
from redbeat.calendar.zones import from_timestamp
from redbeat.entries.runs import cause_of
from redbeat.errors import reason_of
from redbeat.presentation.english import plural
from redbeat.printing import get_logger
from redbeat.signals import broker_back, broker_lost, emit
from redbeat.storage.reading import PROBLEM
from tests.edition.storage.rows import Change
from tests.edition.words import STATS

logger = get_logger("celery.beat")

#: Seconds after which a beat stores a lasting problem again.
PROBLEM_INTERVAL: Final = 30.0

#: Seconds between two looks whether the broker is back while nothing is to be sent.
CHECKED_EVERY: Final = 10.0

#: Maximum number of entries that this beat leaves to others.
MOST_SKIPPED: Final = 1000


class Broker:
    """Counts and logs consecutive failures of the broker.

    ``scheduler`` says what an error means, and drops a broken connection.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.failures = 0
        #: Why the broker is not available, with its address; "" while it works.
        self.problem = ""
        self._failed_at = 0.0
        self._checked_at = 0.0
        self._last_error: BaseException | None = None

    def is_down(self, error: Exception, now: float) -> bool:
        """Return whether an error means that the broker is away; if so, count and log it.

        Messages that fail with one error object count once. ``now`` is in UNIX seconds.
        """
        if error is self._last_error:
            return True
        if not self._scheduler.broker_failed(error):
            return False
        self.failures += 1
        self._last_error = error
        address, reason = broker_address(self._scheduler.app), reason_of(cause_of(error))
        if self.failures == 1:
            self._failed_at = now
            self.problem = f"{NO_BROKER}: {address}: {reason}"
            emit(broker_lost, self._scheduler, error=cause_of(error))
        if self.failures == 1 or should_log(self.failures):
            logger.error(
                "beat: The broker is not available, trying again every %.0f s: %s: %s",
                *(BROKER_WAIT.longest, address, reason),
            )
        return True

    def answered(self) -> None:
        """Forget the failures, because the broker took a message."""
        if not self.failures:
            return
        logger.warning(
            "beat: The broker is back, after %s since %s: %s",
            plural(self.failures, "failed attempt"),
            from_timestamp(self._failed_at).isoformat(" ", "seconds"),
            broker_address(self._scheduler.app),
        )
        failures, self.failures, self.problem = self.failures, 0, ""
        self._last_error = None
        emit(broker_back, self._scheduler, failures=failures)

    def check(self, now: float, local: float, *, soon: bool) -> None:
        """Look whether the broker is back, so that an idle beat does not report it for long.

        If a run is due ``soon``, it is the better test: a broker may accept connections, but refuse
        messages. ``now`` is in UNIX seconds, ``local`` in monotonic ones.
        """
        if not self.failures or soon or local < self._checked_at + CHECKED_EVERY:
            return
        self._checked_at = local
        try:
            self._scheduler.check_broker()
        except Exception as error:
            self.is_down(error, now)
        else:
            self.answered()


class Report:
    """Stores why this beat cannot send, for health checks and the status."""

    def __init__(self) -> None:
        self._stored, self._stored_at = "", 0.0

    def change(self, problem: str, now: float) -> Change | None:
        """Return the change that stores a problem, None if it is stored; "" removes the last one.

        A lasting problem is stored again from time to time, because another beat may have removed
        it. ``now`` is in monotonic seconds.
        """
        again = problem and now - self._stored_at >= PROBLEM_INTERVAL
        if problem == self._stored and not again:
            return None
        self._stored, self._stored_at = problem, now
        command = ["HSET", STATS, PROBLEM, problem] if problem else ["HDEL", STATS, PROBLEM]
        return Change("", index=[command])


@dataclass(slots=True)
class Skipped:
    """An entry that this beat cannot run: why, its texts' digest, and when to try again."""

    reason: str
    digest: str
    attempts: int
    again_at: float


class SkipList:
    """The entries that this beat leaves to other beats, until their texts change or a time passes.

    The scores of the entries stay as they are, so that other beats see how late the entries are.
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

    def forget(self, key: str) -> None:
        """Forget an entry that ran here."""
        self._skipped.pop(key, None)

    def digests(self, now: float) -> dict[str, str]:
        """Return key -> digest of what the next look leaves out."""
        if not self._skipped:
            return {}
        return {key: one.digest for key, one in self._skipped.items() if one.again_at > now}

    def wait(self, now: float) -> float:
        """Return the seconds until the next entry is tried again, infinity if there is none.

        What was to be tried before is edited, or gone.
        """
        waits = (one.again_at - now for one in self._skipped.values())
        return min((seconds for seconds in waits if seconds > 0), default=float("inf"))
