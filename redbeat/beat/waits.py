"""When to look again at an entry whose class, or schedule, has a say in that."""

from __future__ import annotations

import math
from typing import Any

from celery.utils.log import get_logger

from redbeat.entries.due import PARKED, score_of
from redbeat.entries.occurrences import LONGEST_WAIT, SHORTEST_WAIT, Run, wait_of
from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("own_wait", "score_of_not_due")

logger = get_logger("celery.beat")


def own_wait(entry: RedBeatSchedulerEntry, seconds: Any, now: float) -> float | None:
    """Return the next score by a class of the user's own; None when the schedule decides.

    An ``is_due`` that only adds a condition agrees with the schedule, but for the time it took to
    ask.
    """
    if entry.scores_itself() and entry.run is not None and entry.run.successor is not None:
        return _own_score(entry.run.successor, now)
    if type(entry).is_due is RedBeatSchedulerEntry.is_due or not isinstance(seconds, (int, float)):
        return None
    if seconds != seconds:  # NaN: as a score Redis refuses it, and the whole batch with it
        return None
    by_schedule = score_of(entry.verdict().next_at)
    own = now + float(min(max(seconds, 0), LONGEST_WAIT))
    return None if abs(own - by_schedule) < SHORTEST_WAIT else max(own, now + SHORTEST_WAIT)


def _own_score(after: RedBeatSchedulerEntry, now: float) -> float | None:
    try:
        score = float(after.score)
        if not math.isfinite(score):
            raise ValueError(f"its score is {score}")
    except Exception:  # the message is out: what is recorded of it must not depend on this
        logger.exception("beat: Entry %s cannot tell its next run, its schedule does", after.name)
        return None
    return score if score < 0 else max(score, now + SHORTEST_WAIT)


def score_of_not_due(entry: RedBeatSchedulerEntry, run: Run, seconds: Any, now: float) -> float:
    """Return when to look again at an entry that was not sent."""
    own = own_wait(entry, seconds, now)
    if own is not None:
        return own
    verdict = run.verdict
    if verdict is not None and not verdict.due:
        return score_of(verdict.next_at)
    if seconds is None:
        return PARKED
    number = float(seconds) if isinstance(seconds, (int, float)) else math.nan
    return now + wait_of(number).total_seconds()
