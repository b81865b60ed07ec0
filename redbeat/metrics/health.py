"""Whether a beat is alive and ready. Nothing here makes a round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

#: Seconds after the last tick until a beat counts as hung. No tick takes that long, even if neither
#: the broker nor Redis answers.
ALIVE_WITHIN: Final = 60.0

#: Seconds after the last successful tick during which a beat is ready; the shorter time applies
#: once a tick has failed.
READY_WITHIN: Final = 30.0
FAILING_WITHIN: Final = 10.0


class ProbeResult(NamedTuple):
    """The result of a health check, and why, in one line."""

    ok: bool
    why: str


class BeatHealth:
    """The health of one beat, which its thread writes and other threads read.

    ``clock`` returns monotonic seconds. A tick is successful if Redis answered.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticked_at = clock()
        self._completed_at: float | None = None
        #: Why the last tick failed, "" if it did not.
        self.failure = ""
        self._refused = False
        self._no_lock = False
        #: Why the beat cannot publish, "" if it can.
        self.problem = ""
        #: The error that makes ticks fail although Redis answers, or "".
        self.tick_error = ""
        #: Whether the beat leads, or is active because the lock is off; None if unknown.
        self.leads: bool | None = None

    # -- the thread of the beat ----------------------------------------------------------------

    def observe(self, leads: bool, no_lock: bool) -> None:
        """Note whether the beat leads, and whether the lock key has no valid lock."""
        self.leads, self._no_lock = leads, no_lock

    def ticked(self) -> None:
        self._ticked_at = self._clock()

    def completed(self) -> None:
        self._completed_at, self.failure = self._clock(), ""

    def failed(self, reason: str, *, refused: bool = False) -> None:
        """Note why, in one line, a tick failed because of Redis, which may have ``refused`` it."""
        self.failure, self._refused = reason, refused

    # -- other threads -------------------------------------------------------------------------

    @property
    def redis_up(self) -> bool:
        return self._completed_at is not None and not self.failure

    @property
    def may_answer(self) -> bool:
        """Whether Redis may answer a reader: a read-only or full one refuses only writes."""
        return self.redis_up or self._refused

    @property
    def tick_age(self) -> float | None:
        """Seconds since the last successful tick, None before the first."""
        return None if self._completed_at is None else self._clock() - self._completed_at

    def alive(self) -> ProbeResult:
        """Return whether the beat ticks. A failed tick counts, too: a restart would not help."""
        age = self._clock() - self._ticked_at
        return ProbeResult(age <= ALIVE_WITHIN, f"the last tick ended {age:.1f} s ago")

    def ready(self) -> ProbeResult:
        """Return whether the beat can send runs or, as a standby, take over."""
        age = self.tick_age
        if self.tick_error:
            return ProbeResult(False, self.tick_error)
        if age is None:
            reason = self.failure or "Redis has not answered"
            return ProbeResult(False, f"no successful tick yet: {reason}")
        if age > (FAILING_WITHIN if self.failure else READY_WITHIN):
            reason = self.failure or "Redis does not answer"
            return ProbeResult(False, f"the last tick succeeded {age:.1f} s ago: {reason}")
        if self._no_lock:
            return ProbeResult(False, "the lock key contains something that is not a lock")
        if self.problem:
            return ProbeResult(False, self.problem)
        return ProbeResult(True, "leader" if self.leads else "standby")
