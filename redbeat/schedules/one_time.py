"""The schedule type ``clocked``, for schedules that run once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from redbeat.calendar.walltime import instant_of
from redbeat.calendar.zones import EPOCH, as_utc
from redbeat.config import App

from .rule import RuleSchedule, aware_moment


class clocked(RuleSchedule):  # noqa: N801 - the name users import
    """A schedule that runs once, at ``clocked_time``.

    If ``clocked_time`` is in the past and the entry has not run since ``clocked_time``, the entry
    runs immediately. A naive ``clocked_time`` is interpreted as UTC. Raises ``ValueError`` if
    ``clocked_time`` is not a datetime or is before 1970. ``nowfun`` and ``app`` have the same
    meaning as in :class:`celery.schedules.crontab`.
    """

    def __init__(
        self,
        clocked_time: datetime,
        *,
        nowfun: Callable[[], datetime] | None = None,
        app: App | None = None,
    ) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.clocked_time = aware_moment("clocked_time", clocked_time)
        self._instant = instant_of(self.clocked_time)
        if self._instant < EPOCH:
            raise ValueError(f"clocked_time: {self.clocked_time} is before 1970")

    def occurrence_after(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """Return ``clocked_time`` in UTC if it is after ``after``, else None.

        If ``inclusive`` is true, the method also returns a ``clocked_time`` that equals ``after``.
        """
        moment = as_utc(after)
        is_ahead = self._instant > moment or (inclusive and self._instant == moment)
        return self._instant if is_ahead else None

    @property
    def start(self) -> datetime:
        """``clocked_time`` in UTC."""
        return self._instant

    def counts_from(self, now: datetime) -> datetime:
        """Return the UTC instant after which the runs of a new entry are due.

        The returned instant is before ``clocked_time``, so that an entry that is created after
        ``clocked_time`` still runs.
        """
        return min(as_utc(now), self._instant - timedelta.resolution)

    def fields(self) -> dict[str, Any]:
        """Return the constructor arguments that create an equal schedule."""
        return {"clocked_time": self.clocked_time}

    def _identity(self) -> tuple[Any, ...]:
        return self._instant, self.nowfun

    def __repr__(self) -> str:
        return f"<clocked: {self.clocked_time}>"
