"""Builds completions, which a beat records in Redis after it has handled a claim."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Final

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import object_in, seconds_in
from redbeat.entries.decide import (
    DISABLED,
    LONGEST_WAIT,
    PARKED,
    SHORTEST_WAIT,
    score_of,
    wait_of,
)
from redbeat.entries.history import (
    History,
    encode_meta,
    encode_runtime,
    history_after_save,
    merged_history,
)
from redbeat.entries.runs import PERHAPS_SENT, SENT, SKIPPED, missed, nominal, run_line
from redbeat.entries.templates import Prototypes
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.metrics.counters import Counters
from redbeat.presentation.english import plural
from redbeat.printing import get_logger
from redbeat.schedules.next_run import MIN_EVERY, asks_itself
from redbeat.signals import emit, entry_dispatched, entry_finished, entry_missed
from redbeat.storage.records import (
    DELETE,
    DISABLE,
    PARK,
    RAN,
    RUN_ENDED,
    SKIP,
    WAITS,
    Claim,
    Completion,
)

from .loading import Attempt
from .scheduler_protocol import SchedulerProtocol

logger = get_logger("celery.beat")


def _custom_score(attempt: Attempt) -> float | None:
    """Return the next score (UNIX seconds) that a user's entry class computes, or None.

    None means that the schedule determines the score. The result is also None if the user's
    ``is_due`` and the schedule return almost the same time.
    """
    entry, seconds, now = attempt.entry, attempt.seconds, attempt.now
    if entry.scores_itself() and attempt.run.successor is not None:
        return _score_of_successor(attempt.run.successor, now)
    if type(entry).is_due is RedBeatSchedulerEntry.is_due or not isinstance(seconds, (int, float)):
        return None
    if seconds != seconds:  # Redis refuses a batch in which a score is NaN
        return None
    by_schedule = score_of(entry.decision().next_at)
    own_score = now + float(min(max(seconds, 0), LONGEST_WAIT))
    if abs(own_score - by_schedule) < SHORTEST_WAIT:
        return None
    return max(own_score, now + SHORTEST_WAIT)


def _score_of_successor(successor: RedBeatSchedulerEntry, now: float) -> float | None:
    try:
        score = float(successor.score)
        if not math.isfinite(score):
            raise ValueError(f"its score is {score}")
    except Exception:  # the message was sent, so its run must be recorded in any case
        logger.exception(
            "beat: Entry %s could not compute its score, so the beat uses its schedule",
            successor.name,
        )
        return None
    return score if score < 0 else max(score, now + SHORTEST_WAIT)


def _score_of_not_due(attempt: Attempt) -> float:
    """Return the next score of an entry without a due run.

    The score is the time at which a beat must check the entry again, in UNIX seconds.
    """
    own_score, decision, seconds = _custom_score(attempt), attempt.run.decision, attempt.seconds
    if own_score is not None:
        return own_score
    if decision is not None and not decision.due:
        return score_of(decision.next_at)
    if seconds is None:
        return PARKED
    number = float(seconds) if isinstance(seconds, (int, float)) else math.nan
    return attempt.now + wait_of(number).total_seconds()


ALLOW: Final = "allow"

#: A ``running`` field is invalid if its end is more than ``LONGEST_OVERLAP`` seconds in the future.
#: A run with an invalid ``running`` field counts as ended.
#: ``overlap_timeout`` is always less than ``LONGEST_OVERLAP``.
LONGEST_OVERLAP: Final = 1e9


def _running_until(claim: Claim) -> float:
    return seconds_in(claim.running_until) or 0.0


def is_running(attempt: Attempt) -> bool:
    """Return whether a run must wait because an earlier run of the entry may still be running."""
    claim, now = attempt.claim, attempt.now
    if attempt.entry.policy_field("overlap") == ALLOW or not claim.running_until:
        return False
    return now < _running_until(claim) <= now + LONGEST_OVERLAP


def put_back_while_running(claim: Claim) -> Completion:
    """Return a completion that delays a run until the previous run of the entry has ended."""
    return claim.put_back(_running_until(claim))._replace(running=WAITS)


def running_marker(entry: RedBeatSchedulerEntry, task_id: str) -> str:
    """Return the ``running`` field to store for a new run, or "" if runs may overlap."""
    if entry.policy_field("overlap") == ALLOW or not task_id:
        return ""
    return f"{task_id} {entry.policy_field('overlap_timeout')}"


def _score_after(attempt: Attempt, skipped: datetime) -> float:
    """Return the next score after a skipped run; skipped runs do not increase the run count."""
    entry, run = attempt.entry, attempt.run
    if asks_itself(entry.schedule):
        return score_of(entry.decision().next_at)
    after = entry.claimed(run.now, run.due)
    after.scheduled_at = skipped
    decision = after.decision()
    return run.now.timestamp() if decision.due else score_of(decision.next_at)


def _with_end(attempt: Attempt, completion: Completion) -> Completion:
    """Return the completion with the effects of ``on_finish`` if the entry has no runs left."""
    if completion.score != PARKED:
        return completion
    on_finish = attempt.entry.policy_field("on_finish")
    if on_finish == "delete":
        return completion._replace(end=DELETE)
    if on_finish == "disable":
        definition = {**object_in(attempt.claim.definition or "", "definition"), "enabled": False}
        return completion._replace(score=DISABLED, end=DISABLE, definition=json.dumps(definition))
    return completion._replace(end=PARK)


class Completions:
    """Builds completions, updates the counters and emits the signals. No round trips."""

    def __init__(
        self, scheduler: SchedulerProtocol, counters: Counters, prototypes: Prototypes
    ) -> None:
        self._scheduler = scheduler
        self._counters = counters
        self._prototypes = prototypes

    def announce_sent(self, attempt: Attempt) -> None:
        """Count a sent message, and emit the signal ``entry_dispatched``."""
        entry, run = attempt.entry, attempt.run
        late = None if run.trigger else (run.now - run.due).total_seconds()
        self._counters.dispatched(str(entry.name), late)
        if not entry_dispatched.receivers:
            return
        emit(
            entry_dispatched,
            self._scheduler,
            entry=entry,
            scheduled_at=run.instant,
            task_id=run.task_id,
            triggered=run.trigger is not None,
        )

    def announce_end(self, attempt: Attempt, completion: Completion) -> None:
        """If an entry has no runs left, log that it has finished, and emit ``entry_finished``."""
        if completion.end:
            entry = attempt.entry
            logger.info(
                "beat: Entry %s has finished, because it has no runs left (on_finish: %s)",
                *(entry.name, entry.policy_field("on_finish")),
            )
            emit(entry_finished, self._scheduler, entry=entry)

    def _count_missed(
        self, entry: RedBeatSchedulerEntry, count: int, scheduled_at: datetime | None
    ) -> None:
        self._counters.add("missed", str(entry.name), count)
        emit(entry_missed, self._scheduler, entry=entry, count=count, scheduled_at=scheduled_at)

    def sent(self, attempt: Attempt) -> Completion:
        """Return the completion of a run that was sent."""
        entry, run, own_score = attempt.entry, attempt.run, _custom_score(attempt)
        decision = run.decision or entry.decision()
        successor = run.successor or entry.next()
        if decision.missed:
            # The shortest interval means as often as possible.
            shortest = getattr(entry.schedule, "run_every", timedelta.max) <= MIN_EVERY
            log = logger.info if shortest else logger.warning
            log(
                "beat: Entry %s missed %s: the beat sent the run of %s, which replaces them",
                *(entry.name, plural(decision.missed, "run"), decision.scheduled_at),
            )
            self._count_missed(entry, decision.missed, decision.scheduled_at)
        score = score_of(decision.next_at) if own_score is None else own_score
        instant, anchor = run.nominal or nominal(run.instant), successor.scheduled_at or run.due
        runtime = encode_runtime(nominal(anchor), successor.last_run_at or anchor)
        meta, change = successor.history_text(), entry.timing_change
        if change is not None and anchor < change.at:  # older runs may be owed
            runtime = change.added_to(runtime)
        elif successor.scheduled_at is not None:
            self._prototypes.note(attempt.claim.key, meta, runtime, successor)
        line = run_line(instant, attempt.now, "" if run.own_id else SENT, run.task_id)
        running = running_marker(entry, run.task_id)
        completion = attempt.claim.done(RAN, score, meta, runtime)
        return _with_end(attempt, completion._replace(running=running, history=line))

    def not_sent(self, attempt: Attempt) -> Completion:
        """Return the completion of an entry that is not due, or whose due runs are too late.

        Usually, the next run is computed from the last run. If runs were missed, or if the last run
        is in the future, the completion records another instant from which to compute the next run.
        """
        entry, score = attempt.entry, _score_of_not_due(attempt)
        decision, runtime, line = entry.decision(), "", ""
        if decision.anchor and not decision.due and entry.last_run_at:
            last = nominal(decision.anchor)
            runtime = encode_runtime(last, entry.last_run_at)
            if decision.missed:
                logger.warning(
                    "beat: Entry %s missed %s up to %s: it is too late to catch up",
                    *(entry.name, plural(decision.missed, "run"), decision.anchor),
                )
                self._count_missed(entry, decision.missed, decision.anchor)
                line = run_line(last, attempt.now, missed(decision.missed))
            else:
                logger.warning(
                    "beat: The last run of entry %s, at %s, "
                    "is in the future: counting the next run from now",
                    *(entry.name, entry.anchor),
                )
        completion = attempt.claim.done(SKIP, score, runtime=runtime)
        return _with_end(attempt, completion._replace(history=line))

    def perhaps_sent(self, attempt: Attempt) -> Completion:
        """Return the completion of a run that may have been sent and must not be sent again.

        The completion increases the run count, so that the entry does not exceed ``max_runs``.
        """
        entry, claim = attempt.entry, attempt.claim
        decision = entry.decision()
        scheduled_at = decision.scheduled_at
        assert scheduled_at is not None
        task_id = entry.task_id_of(scheduled_at)
        logger.warning(
            "beat: Entry %s: the run of %s may have been sent with id %s, not sending it again",
            *(entry.name, scheduled_at, task_id),
        )
        self._count_missed(entry, 1, scheduled_at)
        ran_at = entry.last_run_at or scheduled_at
        meta = encode_meta(ran_at, entry.total_run_count + 1)
        runtime = encode_runtime(nominal(decision.anchor or scheduled_at), ran_at)
        score = score_of(decision.next_at) if entry.enabled else DISABLED
        line = run_line(nominal(scheduled_at), attempt.now, PERHAPS_SENT, task_id)
        running = "" if claim.running_until == RUN_ENDED else running_marker(entry, task_id)
        completion = claim.done(SKIP, score, meta, runtime)
        return _with_end(attempt, completion._replace(running=running, history=line))

    def overlapping(self, attempt: Attempt) -> Completion:
        """Return the completion for a run that is due while an earlier run is still running."""
        entry, claim = attempt.entry, attempt.claim
        decision = entry.decision()
        scheduled_at = decision.anchor or decision.scheduled_at
        waits = entry.policy_field("overlap") == "buffer_one"
        if waits or scheduled_at is None or entry.last_run_at is None:
            logger.debug("beat: Entry %s waits until its earlier run has ended", entry.name)
            return put_back_while_running(claim)
        missed_before = f" and {plural(decision.missed, 'missed run')}" if decision.missed else ""
        logger.warning(
            "beat: Entry %s skips the run of %s%s: an earlier run is still running",
            *(entry.name, scheduled_at, missed_before),
        )
        self._counters.add("skipped", str(entry.name))
        if decision.missed:
            self._count_missed(entry, decision.missed, scheduled_at)
        skipped = nominal(scheduled_at)
        runtime = encode_runtime(skipped, entry.last_run_at)
        completion = claim.done(SKIP, _score_after(attempt, scheduled_at), runtime=runtime)
        line = run_line(skipped, attempt.now, SKIPPED)
        return _with_end(attempt, completion._replace(history=line))

    def merged(
        self, attempt: Attempt, completion: Completion, stored: tuple[str, ...], now: float
    ) -> Completion:
        """Return the completion of a run during which an application changed the entry.

        ``stored`` contains the definition, policy and meta that are now in Redis. ``now`` is the
        current time in UNIX seconds. The entry becomes due again at ``now``, so that the next claim
        decides on the changed entry.
        """
        claim, (definition, policy, meta) = attempt.claim, stored
        completion = completion._replace(score=now, seen=stored)
        if not completion.meta:  # a triggered run does not change ``last_run_at``
            return completion
        run_history = History.read(completion.meta, completion.runtime)
        history = merged_history(claim.meta, meta, run_history)
        history = history_after_save(
            history,
            (claim.definition or "", claim.policy),
            (definition, policy),
            from_timestamp(now),
            rewritten=history.scheduled_at is None and run_history.scheduled_at is not None,
            foreign=attempt.entry.foreign_fields,
        )
        last_run_at, count, scheduled_at = history
        runtime = ""
        if last_run_at is not None and scheduled_at is not None:
            runtime = encode_runtime(nominal(scheduled_at), last_run_at)
        meta = encode_meta(last_run_at, count)
        return completion._replace(meta=meta, runtime=runtime, end="", definition="")
