"""Compares the runs that were expected with the runs that happened, in pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.faults.ledger import Message

__all__ = ("Doubled", "Occurrence", "Report", "Rules", "grid", "judge")

#: Instants that differ by less than this many seconds are equal: scores have microseconds only.
SAME = 0.0005
#: Seconds by which a message may be early: few, because Redis and Python read the same clock.
EARLY = 0.002


class Occurrence(NamedTuple):
    """One scheduled run of an entry; ``instant`` is in UNIX seconds."""

    entry: str
    instant: float


class Doubled(NamedTuple):
    """An occurrence with ``extra`` more messages than one."""

    occurrence: Occurrence
    extra: int


@dataclass(frozen=True)
class Rules:
    """The rules of an entry besides its interval.

    ``limit`` is its ``max_runs``. ``triggers`` maps each id that ``trigger()`` returned to the time
    of the call. ``overlap_timeout`` is set for ``overlap="skip"``. Then ``ends`` maps ids to the
    time at which a worker reported the end of the run. Times are UNIX seconds.
    """

    limit: int | None = None
    triggers: Mapping[str, float] = field(default_factory=dict)
    overlap_timeout: float | None = None
    ends: Mapping[str, float] = field(default_factory=dict)


def grid(first: float, every: float, until: float) -> list[float]:
    """Return the instants of an interval from ``first`` to ``until``, both included."""
    if until < first - SAME:
        return []
    return [first + every * number for number in range(int((until - first + SAME) // every) + 1)]


@dataclass
class Report:
    """The result of checking a ledger.

    - ``lost``: occurrences that have no message and that no later message replaces.
    - ``coalesced``: occurrences that have no message but that a later message replaces.
    - ``doubled_same_id``: repeated messages with the same id.
    - ``doubled_other_id``: additional ids for one occurrence.
    - ``unknown``: messages that belong to no expected occurrence.
    - ``reused``: ids that were sent for several occurrences.
    - ``excess``: runs beyond the limit of their entry.
    - ``overlapping``: runs that began before the previous run ended.
    """

    expected: int = 0
    dispatched: int = 0
    lost: list[Occurrence] = field(default_factory=list)
    coalesced: list[Occurrence] = field(default_factory=list)
    doubled_same_id: list[Doubled] = field(default_factory=list)
    doubled_other_id: list[Doubled] = field(default_factory=list)
    early: list[Message] = field(default_factory=list)
    unknown: list[Message] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    excess: list[Message] = field(default_factory=list)
    overlapping: list[Message] = field(default_factory=list)
    delays: dict[Occurrence, float] = field(default_factory=dict)

    def late(self, seconds: float) -> list[Occurrence]:
        """Return the occurrences that were first sent more than ``seconds`` late."""
        return [occurrence for occurrence, delay in self.delays.items() if delay > seconds]

    @property
    def same_id(self) -> int:
        """Return how many messages repeat the id of an earlier message."""
        return sum(doubled.extra for doubled in self.doubled_same_id)

    @property
    def other_id(self) -> int:
        """Return how many ids there are in addition to one for each occurrence."""
        return sum(doubled.extra for doubled in self.doubled_other_id)

    @property
    def wrong(self) -> list[object]:
        """Return the errors that are never allowed; repeats with the same id are allowed."""
        breaches = (self.early, self.unknown, self.reused, self.excess, self.overlapping)
        return [one for many in (self.lost, self.doubled_other_id, *breaches) for one in many]

    def __str__(self) -> str:
        latest = max(self.delays.values(), default=0.0)
        return (
            f"{self.expected} expected, {self.dispatched} dispatched, {len(self.lost)} lost, "
            f"{len(self.coalesced)} coalesced, doubles: {self.same_id} same id, "
            f"{self.other_id} other id, {len(self.early)} early, {len(self.unknown)} unknown, "
            f"latest {latest:.2f} s"
        )


def judge(
    expected: Mapping[str, Sequence[float]],
    messages: Iterable[Message],
    coalescing: bool = False,
    rules: Mapping[str, Rules] | None = None,
) -> Report:
    """Compare ``messages`` with the expected occurrences and return the report.

    ``expected`` maps entries to ascending instants in UNIX seconds. Messages for occurrences after
    the last expected one are not checked, but they may replace missing ones. With ``coalescing``, a
    later message replaces all missing occurrences before it, even if its header does not count
    them. ``rules`` maps entries to their rules, if they have any.
    """
    of_entry: dict[str, list[Message]] = defaultdict(list)
    of_id: dict[str, set[tuple[str, float | None]]] = defaultdict(set)
    for message in messages:
        of_entry[message.entry].append(message)
        of_id[message.task_id].add((message.entry, message.scheduled_at))
    report = Report(reused=[task_id for task_id, found in of_id.items() if len(found) > 1])
    for entry, instants in expected.items():
        entry_rules = (rules or {}).get(entry, Rules())
        found = of_entry.pop(entry, [])
        scheduled = [message for message in found if not message.triggered]
        triggered = [message for message in found if message.triggered]
        _judge_triggers(report, entry, entry_rules.triggers, triggered)
        allowed = _judge_limit(report, instants, scheduled, entry_rules.limit)
        _judge_overlap(report, scheduled, entry_rules)
        skips = entry_rules.overlap_timeout is not None
        _judge_entry(report, entry, allowed, scheduled, coalescing or skips)
    for strangers in of_entry.values():
        report.unknown += strangers
    return report


def _judge_triggers(
    report: Report, entry: str, triggers: Mapping[str, float], messages: list[Message]
) -> None:
    sent: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        sent[message.task_id].append(message)
    report.expected += len(triggers)
    for task_id, asked_at in triggers.items():
        occurrence = Occurrence(entry, asked_at)
        if task_id in sent:
            _judge_sent(report, occurrence, sent.pop(task_id))
        else:
            report.lost.append(occurrence)
    for strangers in sent.values():
        report.unknown += strangers


def _firsts(messages: list[Message]) -> list[Message]:
    """Return the first message for each id, in order of arrival."""
    firsts: dict[str, Message] = {}
    for message in messages:
        firsts.setdefault(message.task_id, message)
    return list(firsts.values())


def _judge_limit(
    report: Report, instants: Sequence[float], messages: list[Message], limit: int | None
) -> Sequence[float]:
    """Return the expected instants up to the last run that the limit allows."""
    runs = _firsts(messages)
    if limit is None or len(runs) < limit:
        return instants
    report.excess += runs[limit:]
    last = max(message.scheduled_at or 0.0 for message in runs)
    return [instant for instant in instants if instant <= last + SAME]


def _judge_overlap(report: Report, messages: list[Message], rules: Rules) -> None:
    """Find runs that began before the previous run ended.

    A run ends when a worker reports its end, or after half the timeout. The ledger may read a
    message late; with the whole timeout, the test would then report an error that the beat did not
    make.
    """
    if rules.overlap_timeout is None:
        return
    for earlier, later in pairwise(_firsts(messages)):
        timed_out = earlier.received + rules.overlap_timeout / 2
        ended = min(rules.ends.get(earlier.task_id, timed_out), timed_out)
        if later.received < ended:
            report.overlapping.append(later)


def _judge_entry(
    report: Report, entry: str, instants: Sequence[float], messages: list[Message], coalescing: bool
) -> None:
    sent: dict[int, list[Message]] = defaultdict(list)
    excused: set[int] = set()
    for message in messages:
        index = _index(instants, message.scheduled_at)
        if index is None:
            report.unknown.append(message)
            continue
        sent[index].append(message)
        back = index if coalescing else _reach(instants, index, message)
        excused.update(range(max(0, index - back), index))
        if index == 0:
            # A late first run has its own instant, and counts the missed instants after it.
            excused.update(range(1, 1 + message.coalesced))
    report.expected += len(instants)
    for index, instant in enumerate(instants):
        occurrence = Occurrence(entry, instant)
        if index in sent:
            _judge_sent(report, occurrence, sent[index])
        else:
            (report.coalesced if index in excused else report.lost).append(occurrence)


def _index(instants: Sequence[float], instant: float | None) -> int | None:
    """Return the index of an instant in the list.

    Return the length of the list for a later instant, and None for any other missing instant.
    """
    if instant is None:
        return None
    place = bisect_left(instants, instant - SAME)
    if place == len(instants) or abs(instants[place] - instant) <= SAME:
        return place
    return None


def _reach(instants: Sequence[float], index: int, message: Message) -> int:
    """Return how many expected instants before a message its ``coalesced`` header counts.

    If the message is later than the last expected instant, its header also counts instants that are
    not in the list. The step of the interval determines their number.
    """
    beyond = 0
    if index == len(instants) and len(instants) > 1 and message.scheduled_at is not None:
        step = instants[-1] - instants[-2]
        beyond = round((message.scheduled_at - instants[-1]) / step) - 1
    return max(0, message.coalesced - beyond)


def _judge_sent(report: Report, occurrence: Occurrence, messages: list[Message]) -> None:
    report.dispatched += 1
    ids = {message.task_id for message in messages}
    if len(ids) > 1:
        report.doubled_other_id.append(Doubled(occurrence, len(ids) - 1))
    if len(messages) > len(ids):
        report.doubled_same_id.append(Doubled(occurrence, len(messages) - len(ids)))
    report.early += [
        message for message in messages if message.received < occurrence.instant - EARLY
    ]
    report.delays[occurrence] = min(message.received for message in messages) - occurrence.instant
