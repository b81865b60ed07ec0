"""The liveness and readiness of a beat. No function in this module makes a round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

#: A beat counts as hung if its last tick ended more than ``ALIVE_WITHIN`` seconds ago.
#: No tick takes ``ALIVE_WITHIN`` seconds, even if neither the broker nor Redis answers.
ALIVE_WITHIN: Final = 60.0

#: A beat is ready if its last successful tick ended at most ``READY_WITHIN`` seconds ago.
#: If the last tick of a beat failed, ``FAILING_WITHIN`` replaces ``READY_WITHIN``.
READY_WITHIN: Final = 30.0
FAILING_WITHIN: Final = 10.0


class ProbeResult(NamedTuple):
    """The result of a health check, with a reason in one line."""

    ok: bool
    why: str


class BeatHealth:
    """The health of one beat, which the beat's thread writes and other threads read.

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
        #: The reason why the beat cannot publish, "" if the beat can publish.
        self.problem = ""
        #: The error that makes ticks fail although Redis answers, "" without an error.
        self.tick_error = ""
        #: Whether the beat leads, or is active because the lock is disabled; None if unknown.
        self.leads: bool | None = None

    # -- the thread of the beat ----------------------------------------------------------------

    def observe(self, leads: bool, no_lock: bool) -> None:
        """Store whether the beat leads, and whether the lock key contains no valid lock."""
        self.leads, self._no_lock = leads, no_lock

    def ticked(self) -> None:
        """Record the end of a successful or failed tick."""
        self._ticked_at = self._clock()

    def completed(self) -> None:
        """Record a successful tick."""
        self._completed_at, self.failure = self._clock(), ""

    def failed(self, reason: str, *, refused: bool = False) -> None:
        """Record a tick that failed because of Redis, or that Redis has ``refused``.

        ``reason`` is in one line.
        """
        self.failure, self._refused = reason, refused

    # -- other threads -------------------------------------------------------------------------

    @property
    def redis_up(self) -> bool:
        """Whether Redis answered the last tick."""
        return self._completed_at is not None and not self.failure

    @property
    def may_answer(self) -> bool:
        """Whether Redis may answer a reader: a read-only or full one refuses only writes."""
        return self.redis_up or self._refused

    @property
    def tick_age(self) -> float | None:
        """Seconds since the last successful tick, None before the first successful tick."""
        return None if self._completed_at is None else self._clock() - self._completed_at

    def alive(self) -> ProbeResult:
        """Return whether the beat ticks; failed ticks also count, as a restart would not help."""
        age = self._clock() - self._ticked_at
        return ProbeResult(age <= ALIVE_WITHIN, f"the last tick ended {age:.1f} s ago")

    def ready(self) -> ProbeResult:
        """Return whether the beat can dispatch runs or, if the beat is a standby, can take over."""
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
