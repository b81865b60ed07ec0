"""What was sent against what should have been: pure functions for messages of either side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.ledger import Message
from tests.faults.oracle import judge

__all__ = ("Counts", "by_occurrence", "by_run", "once")


@dataclass(frozen=True, slots=True)
class Counts:
    """How many occurrences were expected, and what became of them.

    ``missed`` have no message of their own. ``lost`` of these are not spoken for by a later message
    either; None where that cannot be told. ``same_id`` and ``other_id`` are messages too many.
    """

    expected: int
    sent: int
    missed: int
    lost: int | None
    same_id: int
    other_id: int


def once(entries: Iterable[str], messages: Iterable[Message]) -> Counts:
    """Count for entries that must run once; messages of other entries do not matter."""
    ids: dict[str, list[str]] = {entry: [] for entry in entries}
    for message in messages:
        if message.entry in ids:
            ids[message.entry].append(message.task_id)
    lost = sum(not found for found in ids.values())
    return Counts(
        expected=len(ids),
        sent=sum(map(len, ids.values())),
        missed=lost,
        lost=lost,
        same_id=sum(len(found) - len(set(found)) for found in ids.values()),
        other_id=sum(max(0, len(set(found)) - 1) for found in ids.values()),
    )


def by_occurrence(expected: Mapping[str, Sequence[float]], messages: Iterable[Message]) -> Counts:
    """Count by the nominal instants that messages carry.

    ``expected`` has the instants of each entry, UNIX seconds, ascending; messages of later ones and
    of other entries do not count.
    """
    report = judge(expected, [message for message in messages if message.entry in expected])
    return Counts(
        expected=report.expected,
        sent=report.dispatched + report.same_id + report.other_id,
        missed=len(report.lost) + len(report.coalesced),
        lost=len(report.lost),
        same_id=report.same_id,
        other_id=report.other_id,
    )


def by_run(
    expected: Mapping[str, Sequence[float]], messages: Iterable[Message], every: float
) -> Counts:
    """Count messages that do not tell their instants, by when they came.

    Of each entry, those up to half an interval (``every``, seconds) after the last instant count.
    One within half an interval of the one before is a double, and so is what exceeds the expected.
    """
    of_entry: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        instants = expected.get(message.entry)
        if instants and message.received <= instants[-1] + every / 2:
            of_entry[message.entry].append(message)
    total = missed = sent = same = 0
    for entry, instants in expected.items():
        found = of_entry[entry]
        runs = min(len(instants), _runs([message.received for message in found], every))
        total, missed, sent = (
            total + len(instants),
            missed + len(instants) - runs,
            sent + len(found),
        )
        same += len(found) - len({message.task_id for message in found})
    return Counts(total, sent, missed, None, same, sent - (total - missed) - same)


def _runs(arrivals: Iterable[float], every: float) -> int:
    """Return how many arrivals are half an interval or more after the last that was counted."""
    count, last = 0, float("-inf")
    for arrival in sorted(arrivals):
        if arrival - last >= every / 2:
            count, last = count + 1, arrival
    return count
