"""Whether a beat is alive and ready, as seen by other threads. No round trips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ("ALIVE_WITHIN", "FAILING_WITHIN", "READY_WITHIN", "BeatHealth", "ProbeResult")

#: Seconds since its last tick, whatever came of it, after which a beat counts as hung. A tick that
#: waits for a broker and a Redis which do not answer takes less.
ALIVE_WITHIN: Final = 60.0

#: Seconds since the last tick that Redis answered after which a beat is not ready: while it works
#: on one, and after ticks that failed.
READY_WITHIN: Final = 30.0
FAILING_WITHIN: Final = 10.0


class ProbeResult(NamedTuple):
    """The answer to a probe: whether all is well, and a line that says why."""

    ok: bool
    why: str


class BeatHealth:
    """The signs of life of one beat; ``clock`` gives monotonic seconds.

    The thread of the beat writes, others read.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticked_at = clock()
        self._completed_at: float | None = None
        self._failing = False
        self._no_lock = False
        #: Why nothing is sent, "" where something is.
        self.problem = ""
        #: Whether it leads, or shares the work where there is no lock; None before it is known.
        self.leads: bool | None = None

    # -- the beat ------------------------------------------------------------------------------

    def observe(self, leads: bool, no_lock: bool) -> None:
        """Take note of a turn; ``no_lock`` when the key of the lock holds something else."""
        self.leads, self._no_lock = leads, no_lock

    def ticked(self) -> None:
        """Take note of the end of a tick, whatever came of it."""
        self._ticked_at = self._clock()

    def completed(self) -> None:
        """Take note of a tick that Redis answered."""
        self._completed_at, self._failing = self._clock(), False

    def failed(self) -> None:
        """Take note of a tick that Redis did not answer."""
        self._failing = True

    # -- the others ----------------------------------------------------------------------------

    @property
    def redis_up(self) -> bool:
        """Whether Redis answered the last tick."""
        return self._completed_at is not None and not self._failing

    @property
    def tick_age(self) -> float | None:
        """Seconds since the last tick that Redis answered, None before the first."""
        return None if self._completed_at is None else self._clock() - self._completed_at

    def alive(self) -> ProbeResult:
        """Tell whether the beat ticks, be it in vain: an outage of Redis is not its fault."""
        age = self._clock() - self._ticked_at
        return ProbeResult(age <= ALIVE_WITHIN, f"the last tick ended {age:.1f} s ago")

    def ready(self) -> ProbeResult:
        """Tell whether the beat leads, or stands by and could take over."""
        age = self.tick_age
        if age is None:
            return ProbeResult(False, "there was no tick yet that Redis answered")
        if age > (FAILING_WITHIN if self._failing else READY_WITHIN):
            return ProbeResult(False, f"Redis answered the last time {age:.1f} s ago")
        if self._no_lock:
            return ProbeResult(False, "the key of the lock holds something that is not a lock")
        if self.problem:
            return ProbeResult(False, self.problem)
        return ProbeResult(True, "leader" if self.leads else "standby")
