"""Retries: how long to wait after failures of the broker, of one entry, or of Redis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from celery.utils.log import get_logger

from redbeat.calendar.zones import from_timestamp
from redbeat.entries.runs import cause_of, failed, nominal, run_line
from redbeat.errors import CannotRunHereError, described
from redbeat.metrics.counters import Counters
from redbeat.signals import emit, entry_failed
from redbeat.storage.quarantine import printable
from redbeat.storage.records import Claim, Completion

from .broker import broker_address
from .scheduler_protocol import SchedulerProtocol, name_of

__all__ = (
    "BROKER_WAIT",
    "BackOff",
    "Pace",
    "Recent",
    "Retries",
)

logger = get_logger("celery.beat")


#: Seconds for which a beat waits at least where runs wait for their pace.
SHORTEST_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class BackOff:
    """Waits that double from ``first`` to ``longest`` seconds."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after ``failures`` in a row; 0 after none."""
        return min(self.first * 2.0 ** min(failures - 1, 32), self.longest) if failures else 0.0


class Pace:
    """A token bucket: ``rate`` a second, those of one second at once. Times in monotonic seconds.

    Without a rate there is no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._most = max(rate or 0.0, 1.0)
        self._tokens, self._at = self._most, 0.0
        self._last: int | None = None

    def allowed(self, now: float) -> int | None:
        """Return how many are allowed now, None for any number."""
        if self._rate is not None:
            self._tokens = min(self._tokens + (now - self._at) * self._rate, self._most)
            self._at, self._last = now, int(self._tokens)
        return self._last

    def spend(self, count: int) -> None:
        """Note that so many of those allowed were used."""
        self._tokens -= count

    def wait(self, now: float) -> float:
        """Return the seconds until one is allowed; infinite unless none was, when asked last."""
        if self._rate is None or self._last:
            return math.inf
        return max((1.0 - self._tokens) / self._rate - (now - self._at), SHORTEST_PAUSE)


#: Seconds to wait while the broker is away, and for an entry that cannot be sent.
BROKER_WAIT = BackOff(0.1, 2.0)
ENTRY_WAIT = BackOff(1.0, 60.0)

#: Seconds for which an entry that this beat cannot run is left to others. At first others need just
#: the time to hear of the entry; later none seems to be there.
OTHERS_WAIT = BackOff(0.05, 30.0)

#: Entries of which a failure is remembered, at most, and seconds after which one may be forgotten.
REMEMBERED: Final = 10_000
REMEMBERED_FOR: Final = 120.0

V = TypeVar("V")


class Recent(Generic[V]):
    """Values by entry key, of which there are :data:`REMEMBERED` at most."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, V]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> V | None:
        """Return what is kept for a key."""
        return self._kept.get(key, (0.0, None))[1]

    def keep(self, key: str, value: V, now: float) -> bool:
        """Keep a value; ``now`` in seconds.

        False where there is no room: a value that is kept leaves only after
        :data:`REMEMBERED_FOR`, or the keys that come in turn would push out one another.
        """
        self._kept.pop(key, None)
        if len(self._kept) >= REMEMBERED:
            oldest = next(iter(self._kept))
            if self._kept[oldest][0] > now - REMEMBERED_FOR:
                return False
            del self._kept[oldest]
        self._kept[key] = now, value
        return True

    def forget(self, key: str) -> V | None:
        """Remove what is kept for a key, and return it."""
        return self._kept.pop(key, (0.0, None))[1]


#: In place of how often an entry failed, where that is not remembered: it waits the longest.
MANY: Final = 32


class PutBack(NamedTuple):
    """An occurrence that was left to other beats: why, when it was due, and how often."""

    reason: str
    due: float
    attempt: int


class Retries:
    """How often publishing failed in a row: for each entry, and because of the broker."""

    def __init__(self, scheduler: SchedulerProtocol, counters: Counters) -> None:
        self._counters = counters
        self._scheduler = scheduler
        self._attempts: Recent[int] = Recent()
        self._put_back: Recent[PutBack] = Recent()
        #: UNIX seconds until which entries are left to other beats, the latest of them.
        self.others_until = 0.0
        self._last: BaseException | None = None
        self.of_broker = 0

    def note(
        self, claim: Claim, now: float, error: Exception, unsure: bool | None = False
    ) -> Completion:
        """Keep an occurrence that could not be published: it is late, not lost.

        With ``unsure`` its message may be out nevertheless; None if the broker may have it.

        It waits even when the broker is to blame, so that another entry is tried next.
        """
        if isinstance(error, CannotRunHereError):
            return self.put_back(claim, now, error)
        self._count(claim, error)
        if self.broker_is_away(error):
            again_at = now + BROKER_WAIT.after(self.of_broker)
            return claim.put_back(again_at, unsure is not False)
        attempt = (self._attempts.get(claim.key) or 0) + 1
        if not self._attempts.keep(claim.key, attempt, now):
            attempt = MANY  # of so many entries not each one is logged
        wait = ENTRY_WAIT.after(attempt)
        logger.error(
            "beat: Could not send %s, attempt %d, trying again in %.0f s: %r",
            *(printable(claim.key), attempt, wait, error),
            exc_info=error if attempt == 1 else None,
        )
        # The first tells why; the others would push out what happened before.
        line = ""
        if attempt == 1:
            line = run_line(nominal(from_timestamp(claim.due)), now, failed(error))
        return claim.put_back(now + wait, bool(unsure))._replace(history=line)

    def put_back(self, claim: Claim, now: float, error: Exception) -> Completion:
        """Leave an entry that this beat cannot run to others; look at it again after a while.

        That is logged, counted and noted in its history once, until the reason is another one.
        """
        reason, before = str(error) or repr(error), self._put_back.get(claim.key)
        known = before is not None and before.reason == reason
        again = before is not None and before.due == claim.due
        attempt = before.attempt + 1 if before is not None and again else 1
        if not self._put_back.keep(claim.key, PutBack(reason, claim.due, attempt), now):
            known, attempt = True, MANY
        again_at = round(now + OTHERS_WAIT.after(attempt), 6)  # as exact as scores are
        self.others_until = max(self.others_until, again_at)
        line = ""
        if not known:
            self._count(claim, error)
            logger.error(
                "beat: Entry %s cannot run here and is left to other beats, looking again within "
                "%.0f s: %s",
                *(printable(claim.key), OTHERS_WAIT.longest, reason),
            )
            line = run_line(nominal(from_timestamp(claim.due)), now, failed(error))
        return claim.put_back(again_at)._replace(history=line)

    def _count(self, claim: Claim, error: Exception) -> None:
        name = name_of(self._scheduler, claim)
        self._counters.failed(name, lost=False)
        if entry_failed.receivers:
            emit(entry_failed, self._scheduler, name=printable(name), error=error, lost=False)

    def forget(self, claim: Claim) -> None:
        """An entry was sent."""
        if self._attempts:
            self._attempts.forget(claim.key)
        if self._put_back:
            self._put_back.forget(claim.key)
        if self.of_broker:
            self.broker_is_there()

    def broker_is_there(self) -> None:
        """The broker took a message."""
        if self.of_broker:
            logger.warning("beat: The broker is back after %d failed attempts", self.of_broker)
            self.of_broker, self._last = 0, None

    def broker_is_away(self, error: Exception) -> bool:
        """Return whether the broker is to blame for an error; then count that, and log it.

        An error that failed many messages together counts as one. The line is repeated at growing
        distances; it has no traceback.
        """
        if error is self._last:
            return True
        if not self._scheduler.broker_failed(error):
            return False
        self.of_broker += 1
        self._last = error
        if self.of_broker == 1 or is_worth_a_line(self.of_broker):
            logger.error(
                "beat: The broker is not available, trying again: %s: %s",
                *(broker_address(self._scheduler.app), described(cause_of(error))),
            )
        return True


def is_worth_a_line(attempts: int) -> bool:
    """Return whether to log a failure that lasts: after 1, 2, 4, ... minutes, then each 34."""
    return attempts >= 32 and (attempts & (attempts - 1) == 0 or attempts % 1024 == 0)
