"""Runs that could not be sent: kept, reported, and tried again after a while."""

from __future__ import annotations

from celery.beat import SchedulingError
from celery.utils.log import get_logger

from redbeat.calendar.zones import from_timestamp
from redbeat.entries.nominal import nominal
from redbeat.entries.runs import failed, run_line
from redbeat.errors import described
from redbeat.metrics.counters import Counters
from redbeat.signals import emit, entry_failed
from redbeat.storage.quarantine import shown
from redbeat.storage.records import AGAIN, Claim, Completion

from .backoff import BackOff
from .broker import broker_address
from .hooks import Hooks, name_of

__all__ = ("BROKER_WAIT", "Failures")

logger = get_logger("celery.beat")

#: Seconds to wait while the broker is away, and for an entry that cannot be sent.
BROKER_WAIT = BackOff(0.1, 2.0)
ENTRY_WAIT = BackOff(1.0, 60.0)


class Failures:
    """How often publishing failed in a row: for each entry, and because of the broker."""

    def __init__(self, hooks: Hooks, counters: Counters) -> None:
        self._counters = counters
        self._hooks = hooks
        self._attempts: dict[str, int] = {}
        self._last: BaseException | None = None
        self.of_broker = 0

    def note(self, claim: Claim, claim_id: str, now: float, error: Exception) -> Completion:
        """Keep an occurrence that could not be published: it is late, not lost.

        It waits even when the broker is to blame, so that another entry is tried next.
        """
        name = name_of(self._hooks, claim)
        self._counters.failed(name, lost=False)
        if entry_failed.receivers:
            emit(entry_failed, self._hooks, name=shown(name), error=error, lost=False)
        if self.broker_is_away(error):
            again_at = now + BROKER_WAIT.after(self.of_broker)
            return Completion(claim.key, claim_id, again_at, runtime=AGAIN)
        self._attempts[claim.key] = attempt = self._attempts.get(claim.key, 0) + 1
        wait = ENTRY_WAIT.after(attempt)
        logger.error(
            "beat: Could not send %s, attempt %d, trying again in %.0f s: %r",
            *(shown(claim.key), attempt, wait, error),
            exc_info=error if attempt == 1 else None,
        )
        # The first tells why; the others would push out what happened before.
        line = ""
        if attempt == 1:
            line = run_line(nominal(from_timestamp(claim.due)), now, failed(error))
        return Completion(claim.key, claim_id, now + wait, runtime=AGAIN, history=line)

    def forget(self, claim: Claim) -> None:
        """An entry was sent."""
        if self._attempts:
            self._attempts.pop(claim.key, None)
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
        if not self._hooks.broker_failed(error):
            return False
        self.of_broker += 1
        self._last = error
        if self.of_broker == 1 or is_worth_a_line(self.of_broker):
            logger.error(
                "beat: The broker is not available, trying again: %s: %s",
                *(broker_address(self._hooks.app), _reason(error)),
            )
        return True


def is_worth_a_line(attempts: int) -> bool:
    """Return whether to log a failure that lasts: after 1, 2, 4, ... minutes, then each 34."""
    return attempts >= 32 and (attempts & (attempts - 1) == 0 or attempts % 1024 == 0)


def _reason(error: BaseException) -> str:
    """Return the text of an error; that of Celery hides what the broker answered."""
    while isinstance(error, SchedulingError) and error.__cause__ is not None:
        error = error.__cause__
    return described(error)
