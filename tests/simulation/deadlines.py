"""The oracle's deadlines: what must have happened some seconds later, even if beats have faults.

Each deadline counts from the last disturbance that may explain a delay, and not from the time at
which everything works again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tests.simulation.lateness import LOOK, PROMPT
from tests.simulation.record import Action, Record
from tests.simulation.scenario import SERVER_FAULTS, STEP_FAULTS, Scenario

if TYPE_CHECKING:
    from tests.simulation.oracle import Coverage, Judgement

#: Seconds for which a beat has a run before another one may send it.
HELD: Final = 30.0

#: Maximum seconds from a trigger to its message if a healthy beat leads.
TRIGGERED: Final = 2.0

#: Seconds for which a worker keeps its reports after one that failed, and a margin.
KEPT: Final = 35.0

#: Seconds after a message in which its entry must not be failing. Later, a beat that cannot run the
#: entry may have failed at the next run, which another beat sends.
RECENT: Final = 2.5


def longest_hold(scenario: Scenario) -> float:
    """Return the seconds after which a beat that died delays nothing.

    By then another beat leads, and what the dead beat held is free.
    """
    return (min(scenario.lock_timeout, 25.0) if scenario.locked else 0.0) + HELD


def deadline_of(judgement: Judgement, action: Action) -> float | None:
    """Return when the run of an accepted trigger must have left.

    Return None if no beat was healthy from the trigger to the deadline, or if a server had a fault.
    """
    record = judgement.record
    hold, deadline = longest_hold(record.scenario), action.ended + TRIGGERED
    explained = action.ended - judgement.recovery
    for first, last, kind in sorted(record.disturbances):
        if last + judgement.recovery < action.ended or first > deadline:
            continue
        if kind not in STEP_FAULTS:
            return None
        deadline = max(deadline, first + hold + TRIGGERED)
    beats = (f"beat-{number + 1}" for number in range(record.scenario.beats))
    healthy = any(
        not any(first <= deadline and last >= explained for first, last in record.hit.get(beat, ()))
        for beat in beats
    )
    return deadline if healthy and deadline < record.scenario.duration else None


def judge_reported_ends(coverage: Coverage) -> None:
    """Check that an entry goes on after the end of its run was reported, whatever happened."""
    definition, state, judgement = coverage.definition, coverage.state, coverage.judgement
    if "overlap" not in definition or "delivery" in definition or "seconds" not in definition:
        return
    record, name = judgement.record, coverage.entry.name
    instants = [one.at for one in coverage.entry.arrivals if state.since <= one.at <= state.until]
    longest = float(definition.get("takes", 0)) + float(definition["seconds"]) + TRIGGERED
    for earlier, later in pairwise([*instants, min(state.until, coverage.duration)]):
        ended = was_reported(record, name, earlier, later)
        if ended is None:
            continue
        faults = (last for first, last, _ in record.disturbances if first <= later)
        well = max([ended, *(last + judgement.recovery for last in faults)])
        if later - well > longest:
            coverage.entry.fail(
                earlier, f"its run ended at {ended:.3f}, and nothing was sent since"
            )


def was_reported(record: Record, entry: str, since: float, until: float) -> float | None:
    """Return when the last end of the runs of an entry was reported.

    Only the runs that began in this period count. Return None if there is none, if one has not
    ended, or if the reports may have failed.
    """
    ends = [end for name, _, begin, end in record.runs if name == entry and since <= begin <= until]
    if not ends or max(ends) > until or record.rollbacks:
        return None
    troubled = any(
        kind in SERVER_FAULTS and first <= max(ends) + PROMPT and min(ends) - KEPT <= last
        for first, last, kind in record.disturbances
    )
    return None if troubled else max(ends)


def judge_failures(judgement: Judgement, bad: set[str]) -> None:
    """Check that no entry is failing after one of its runs was sent."""
    record = judgement.record
    for at, name in record.failures:
        sent = max(
            (one.at for one in record.arrivals if one.entry == name and one.at <= at), default=0
        )
        if name in bad or not at - RECENT < sent <= at - PROMPT:
            continue
        troubled = any(
            first <= at and last >= sent - PROMPT for first, last, _ in record.disturbances
        )
        if not troubled:
            judgement.fail(name, at, f"is failing {at - sent:.1f} s after a run of it was sent")


def judge_set(judgement: Judgement) -> None:
    """Check that each stored entry has a time, even if the set of times was lost."""
    record, end = judgement.record, judgement.record.scenario.duration
    if not judgement.disturbed(end - LOOK, end):
        for name in record.unlisted:
            judgement.fail(name, end, "is stored, and no beat knows when it is due")
