"""Compares sent messages with expected runs, for RedBeat 3 and RedBeat 2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.ledger import Message
from tests.faults.oracle import judge

__all__ = ("Counts", "by_occurrence", "by_run", "once")


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of expected runs and of sent messages.

    Attributes:
        expected: number of expected runs.
        sent: number of sent messages.
        missed: number of expected runs for which no separate message was sent.
        lost: number of missed runs that were not coalesced into a later run; None if unknown.
        same_id: number of duplicate messages with the task id of an earlier message.
        other_id: number of duplicate messages with a different task id.
    """

    expected: int
    sent: int
    missed: int
    lost: int | None
    same_id: int
    other_id: int


def once(entries: Iterable[str], messages: Iterable[Message]) -> Counts:
    """Count the messages of entries that must run exactly once; ignore all other entries."""
    ids: dict[str, list[str]] = {entry: [] for entry in entries}
    for message in messages:
        if message.entry in ids:
            ids[message.entry].append(message.task_id)
    lost = sum(not sent for sent in ids.values())
    return Counts(
        expected=len(ids),
        sent=sum(map(len, ids.values())),
        missed=lost,
        lost=lost,
        same_id=sum(len(sent) - len(set(sent)) for sent in ids.values()),
        other_id=sum(max(0, len(set(sent)) - 1) for sent in ids.values()),
    )


def by_occurrence(expected: Mapping[str, Sequence[float]], messages: Iterable[Message]) -> Counts:
    """Count messages by the nominal instant of their run, which each message contains.

    ``expected`` maps each entry to the instants of its runs in UNIX seconds, in ascending order.
    Messages that belong to no expected run are not counted.
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
    """Count messages without a nominal instant by their time of arrival.

    ``every`` is the interval of the entries in seconds. Messages that arrive more than half an
    interval after the last expected instant of their entry are ignored. A message is a duplicate if
    it arrives less than half an interval after the last counted message, or if the entry already
    has a message for each expected run.
    """
    of_entry: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        instants = expected.get(message.entry)
        if instants and message.received <= instants[-1] + every / 2:
            of_entry[message.entry].append(message)
    total = missed = sent = same = 0
    for entry, instants in expected.items():
        arrived = of_entry[entry]
        runs = min(len(instants), _runs([message.received for message in arrived], every))
        total, missed, sent = (
            total + len(instants),
            missed + len(instants) - runs,
            sent + len(arrived),
        )
        same += len(arrived) - len({message.task_id for message in arrived})
    return Counts(total, sent, missed, None, same, sent - (total - missed) - same)


def _runs(arrivals: Iterable[float], every: float) -> int:
    """Count arrivals, except arrivals within half an interval after the last counted arrival."""
    count, last = 0, float("-inf")
    for arrival in sorted(arrivals):
        if arrival - last >= every / 2:
            count, last = count + 1, arrival
    return count
