"""Runs of an entry that must not overlap: what to record of those that go on, or have to wait."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

from celery.utils.log import get_logger

from redbeat.entries.due import score_of
from redbeat.entries.history import encode_runtime
from redbeat.entries.nominal import nominal
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.storage.records import SKIP, WAITS, Claim, Completion
from redbeat.timing import asks_itself

__all__ = ("goes_on", "marker", "put_off")

logger = get_logger("celery.beat")

ALLOW: Final = "allow"


def goes_on(entry: RedBeatSchedulerEntry, claim: Claim, now: float) -> bool:
    """Return whether an earlier run may go on with which the next must not overlap."""
    if entry.policy_field("overlap") == ALLOW or not claim.running_until:
        return False
    try:
        until = float(claim.running_until)
    except ValueError:
        return False
    return now < until < math.inf


def marker(entry: RedBeatSchedulerEntry, task_id: str) -> str:
    """Return the ``running`` of a completion for a run that begins, "" where none is needed."""
    if entry.policy_field("overlap") == ALLOW or not task_id:
        return ""
    return f"{task_id} {entry.policy_field('overlap_timeout')}"


def put_off(entry: RedBeatSchedulerEntry, claim: Claim) -> tuple[Completion, datetime | None]:
    """Return what to record for an occurrence that is due while an earlier run goes on.

    With the occurrence if that is skipped; one that waits is the latest when its time comes.
    """
    verdict = entry.verdict()
    scheduled_at = verdict.anchor or verdict.scheduled_at
    waits = entry.policy_field("overlap") == "buffer_one"
    if waits or scheduled_at is None or entry.last_run_at is None:
        until = float(claim.running_until)
        logger.debug("beat: Entry %s waits for the end of its run", entry.name)
        return claim.put_back(until)._replace(running=WAITS), None
    logger.warning(
        "beat: Entry %s skips the run of %s: an earlier one goes on", entry.name, scheduled_at
    )
    runtime = encode_runtime(nominal(scheduled_at), entry.last_run_at)
    score = _score_after(entry, scheduled_at)
    return claim.done(SKIP, score, runtime=runtime), scheduled_at


def _score_after(entry: RedBeatSchedulerEntry, skipped: datetime) -> float:
    """Return when the entry is due after an occurrence that does not count as a run."""
    run = entry.run
    if run is None or asks_itself(entry.schedule):
        return score_of(entry.verdict().next_at)
    after = entry.claimed(run.now, run.due)
    after.scheduled_at = skipped
    verdict = after.verdict()
    return run.now.timestamp() if verdict.due else score_of(verdict.next_at)
