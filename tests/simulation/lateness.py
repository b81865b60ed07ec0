"""The oracle's rules about late, missed, limited and postponed runs.

These rules apply only if the disturbances in a schedule explain every delay. A delayed request or a
process that resumes after a freeze may still send a run that was decided before.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tests.simulation.record import Arrival, Record

if TYPE_CHECKING:
    from tests.simulation.oracle import Coverage

#: Maximum difference of equal instants in seconds: stored instants are rounded to microseconds.
SAME: Final = 0.001

#: Seconds after its nominal instant within which an undisturbed run is sent.
PROMPT: Final = 1.0

#: Maximum seconds between two checks for due entries when no wakeup arrives.
LOOK: Final = 5.0

#: Disturbances after which beats decide again about every run.
DELAYS_ONLY: Final = frozenset(("restart", "stop", "deploy"))

#: Maximum seconds between the decision to run and the message.
DECIDED: Final = 1.5

#: Missed runs are counted up to this number only.
MOST_MISSED: Final = 100


def judge_lateness(coverage: Coverage, slots: list[float]) -> None:
    """Check the messages of a schedule with the nominal instants ``slots``."""
    if "overlap" in coverage.definition:
        judge_gaps(coverage)
        return
    judge_missed(coverage, slots)
    for arrival in coverage.sent:
        if only_delayed(coverage, arrival):
            judge_late(coverage, arrival, slots)


def judge_delays(coverage: Coverage) -> None:
    """Check that each late message was delayed by a fault and was sent soon after this fault."""
    if "overlap" in coverage.definition:
        return  # A run may wait for the previous run.
    judgement, state = coverage.judgement, coverage.state
    for arrival in coverage.sent:
        due = max(arrival.nominal - judgement.record.scenario.start, state.since) + coverage.jitter
        late, longest = arrival.at - due, PROMPT + drifted(judgement.record, arrival)
        if late > longest and not judgement.disturbed(arrival.at, arrival.at):
            coverage.entry.fail(
                arrival.at, f"the run of {arrival.nominal:.6f} is {late:.3f} s late"
            )


def drifted(record: Record, arrival: Arrival) -> float:
    """Return how late a message can be because the clock of the sender's host drifts.

    A beat waits by this clock. At each look for due entries, it reads the clock of Redis again.
    """
    drifts = record.drifts.get(arrival.sender, ())
    return LOOK * max((abs(drift) for at, drift in drifts if at <= arrival.at), default=0.0)


def only_delayed(coverage: Coverage, arrival: Arrival) -> bool:
    """Return whether a message can have been delayed by outages only."""
    judgement = coverage.judgement
    nominal = arrival.nominal - judgement.record.scenario.start
    return all(
        kind in DELAYS_ONLY
        for begin, end, kind in judgement.record.disturbances
        if begin <= arrival.at and end + judgement.recovery >= nominal
    )


def is_first_since_due(coverage: Coverage, arrival: Arrival) -> bool:
    """Return whether a message is the first of its schedule since its nominal instant."""
    nominal = arrival.nominal - coverage.judgement.record.scenario.start
    return not any(nominal < other.at < arrival.at for other in coverage.sent)


def judge_late(coverage: Coverage, arrival: Arrival, slots: list[float]) -> None:
    """Check a message that arrived late."""
    judgement = coverage.judgement
    definition, policy = coverage.definition, coverage.definition.get("coalesce", "latest")
    grace = definition.get("misfire_grace_time")
    late = arrival.clock - arrival.nominal - coverage.jitter
    if grace is not None and late > grace + DECIDED:
        coverage.entry.fail(arrival.at, f"sent {late:.3f} s late, {grace} s are allowed")
    if judgement.record.scenario.separate_broker and is_first_since_due(coverage, arrival):
        return  # Perhaps the beat sent it before the fault.
    first = bisect_right(slots, arrival.nominal + SAME)
    later = bisect_right(slots, arrival.clock - coverage.jitter - DECIDED) - first
    if policy == "latest" and later > 0 and definition.get("delivery") != "at_most_once":
        coverage.entry.fail(arrival.at, f"sent although {later} later runs were due")
    limit = definition.get("catch_up_limit")
    if policy == "all" and limit is not None and later >= limit:
        coverage.entry.fail(
            arrival.at, f"{later + 1} runs are caught up with, {limit} is the limit"
        )


def judge_missed(coverage: Coverage, slots: list[float]) -> None:
    """Check the counts of missed runs in messages."""
    start = coverage.judgement.record.scenario.start
    if coverage.judgement.record.legacy_runs or coverage.jumps:
        return  # A 2.4.2 beat sends no count, and a new series of runs misses nothing.
    for earlier, later in pairwise(coverage.sent):
        if earlier.task_id == later.task_id:
            continue
        if earlier is coverage.sent[0] and earlier.coalesced:
            continue  # A late first run counts the runs after it.
        if later.coalesced and coverage.calm(earlier.nominal - 1, later.nominal + 1):
            coverage.entry.fail(later.at, f"{later.coalesced} runs count as missed, none was")
        if coverage.may_skip or "coalesce" in coverage.definition or "end" in coverage.definition:
            continue
        first = bisect_right(slots, earlier.nominal + SAME)
        missed = bisect_right(slots, later.nominal - SAME) - first
        if later.coalesced < min(missed, MOST_MISSED):
            coverage.entry.fail(
                later.at,
                f"the run of {later.nominal - start:.3f} s tells of {later.coalesced} missed "
                f"runs, there were {missed}",
            )


def judge_gaps(coverage: Coverage) -> None:
    """Check that entries without overlapping runs continue after the end of each run."""
    definition, state = coverage.definition, coverage.state
    if "seconds" not in definition:
        return
    arrivals = [one for one in coverage.entry.arrivals if state.since <= one.at <= state.until]
    instants = [*(one.at for one in arrivals), min(state.until, coverage.duration)]
    longest = float(definition.get("takes", 0)) + float(definition["seconds"]) + 2.0
    for earlier, later in pairwise(instants):
        calm = not coverage.judgement.disturbed(earlier - longest, later)
        if calm and later - earlier > longest:
            coverage.entry.fail(earlier, f"nothing was sent for {later - earlier:.3f} s")
