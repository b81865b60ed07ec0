"""When to look again at an entry whose class, or schedule, has a say in that."""

from __future__ import annotations

from typing import Any

from redbeat.entries.due import PARKED, score_of
from redbeat.entries.occurrences import Run
from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("own_wait", "score_of_not_due")

#: Seconds that a class of the user's own may at least ask to be left alone.
SHORTEST_WAIT = 0.05


def own_wait(entry: RedBeatSchedulerEntry, seconds: Any, now: float) -> float | None:
    """Return the next score by an ``is_due`` of the user's own; None when the schedule decides.

    One that only adds a condition agrees with the schedule, but for the time it took to ask.
    """
    if type(entry).is_due is RedBeatSchedulerEntry.is_due or not isinstance(seconds, (int, float)):
        return None
    by_schedule, own = score_of(entry.verdict().next_at), now + float(seconds)
    return None if abs(own - by_schedule) < SHORTEST_WAIT else max(own, now + SHORTEST_WAIT)


def score_of_not_due(entry: RedBeatSchedulerEntry, run: Run, seconds: Any, now: float) -> float:
    """Return when to look again at an entry that was not sent."""
    own = own_wait(entry, seconds, now)
    if own is not None:
        return own
    verdict = run.verdict
    if verdict is not None and not verdict.due:
        return score_of(verdict.next_at)
    if isinstance(seconds, (int, float)):
        return now + max(float(seconds), SHORTEST_WAIT)
    return PARKED
