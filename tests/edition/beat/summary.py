"""Logs how many runs were sent, in place of a line for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from redbeat.metrics.counters import Counters
from redbeat.presentation.english import plural
from redbeat.printing import get_logger

logger = get_logger("celery.beat")

#: Seconds between two summaries.
INTERVAL: Final = 1.0


class Summary:
    """The sent runs of one beat that no line of the log tells yet.

    ``logs_each`` is true if each run has a line; then there is no summary. ``clock`` returns
    monotonic seconds.
    """

    def __init__(self, counters: Counters, logs_each: bool, clock: Callable[[], float]) -> None:
        self.logs_each = logs_each
        self._counters, self._clock = counters, clock
        self._logged, self._logged_at = 0, float("-inf")

    def log(self, interval: float = INTERVAL) -> None:
        """Log how many runs were sent since the last line, at most every ``interval`` seconds."""
        if self.logs_each:
            return
        now, sent = self._clock(), self._counters.sent - self._logged
        if sent and now - self._logged_at >= interval:
            logger.info("Scheduler: Sent %s", plural(sent, "run"))
            self._logged, self._logged_at = self._counters.sent, now
