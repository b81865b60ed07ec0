"""How long to wait after failures, how often to log them, and how many runs may leave a second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

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
#: The first wait is long enough for another beat to take the entry.
OTHERS_WAIT = BackOff(0.05, 30.0)

#: The back-off of an entry that ended a beat's process, or perhaps only was in its hand.
SUSPECT_WAIT = BackOff(60.0, 3600.0)

#: The back-off of ticks that fail because of Redis, and of ticks that fail for another reason.
REDIS_WAIT = BackOff(0.1, 2.0)
TICK_WAIT = BackOff(1.0, 8.0)


def should_log(attempts: int) -> bool:
    """Return whether to log a continuing failure again after this number of attempts.

    A failure that continues is logged after about 1, 2, 4, 8 and 17 minutes, and then about every
    34 minutes.
    """
    return attempts >= 32 and (attempts & (attempts - 1) == 0 or attempts % 1024 == 0)
