"""How long to wait: after so many failures in a row, and between runs that are too many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ("BackOff", "Pace")

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
