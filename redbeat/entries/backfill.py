"""Backfills: requests to send the runs of a past time span, one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

from redbeat.calendar.walltime import TICK
from redbeat.calendar.zones import from_timestamp
from redbeat.errors import InvalidEntryError

#: Runs per second.
BACKFILL_RATE: Final = 10.0

#: A backfill that falls behind its rate catches up on at most this many seconds.
BURST: Final = 1.0

#: Runs per second.
MIN_RATE: Final = 0.0001

MAX_RUNS: Final = 100_000

#: The most spans of one backfill. Also the most finished backfills and waiting runs of an entry,
#: together.
MAX_SPANS: Final = 100

#: From the start (included) to the end (excluded).
Span = tuple[datetime, datetime]

#: Yields an entry's nominal instants, starting at the given instant.
Occurrences = Callable[[datetime], Iterator[datetime]]


class Backfill(NamedTuple):
    """A backfill of the runs from ``since`` (included) to ``until`` (excluded), and its progress.

    Attributes:
        id: a random id.
        rate: the most runs per second.
        sent: how many runs beats have sent.
        total: how many runs there are to send, counted when the backfill was requested.
        left: the parts of the span whose runs are not sent yet; empty once the backfill has
            finished.
        ready_at: the earliest time to send the next run, in UNIX seconds; None once the backfill
            has finished.
    """

    id: str
    since: datetime
    until: datetime
    rate: float
    sent: int
    total: int
    left: tuple[Span, ...]
    ready_at: float | None

    @property
    def finished(self) -> bool:
        """Whether there is no run left to send."""
        return self.ready_at is None

    def instants(self, occurrences: Occurrences) -> Iterator[datetime]:
        for since, until in self.left:
            for instant in occurrences(since):
                if instant >= until:
                    break
                yield instant

    def ended(self, until: datetime) -> Backfill:
        """Drop the runs that aren't sent yet; the first of them is at ``until``."""
        return self._replace(total=self.sent, until=until, left=(), ready_at=None)

    def after_run(self, at: datetime, now: float) -> Backfill:
        """``at`` is the nominal instant of the run that was sent; ``now`` is in UNIX seconds."""
        left = tuple((max(begin, at + TICK), end) for begin, end in self.left if end > at + TICK)
        done = self._replace(sent=self.sent + 1, left=left)
        if self.ready_at is None or not left or done.sent >= self.total:
            return done.without_rest()
        return done._replace(ready_at=max(self.ready_at + 1 / self.rate, now - BURST))

    def without_rest(self) -> Backfill:
        return self._replace(left=(), ready_at=None)


class Planned(NamedTuple):
    """The plan for a backfill of the span from ``since`` to just before ``until``.

    The span contains no run that the schedule itself will send.

    Attributes:
        instants: the nominal instants of the runs to send.
        left_out: how many runs of the span this backfill does not send, because they were sent
            before or wait in another backfill.
        backfill: the backfill to store, None if there is no run to send.
    """

    instants: list[datetime]
    left_out: int
    since: datetime
    until: datetime
    backfill: Backfill | None


def with_backfill(
    backfills: Sequence[Backfill], new: Backfill, again: bool
) -> tuple[Backfill, ...]:
    """Finished backfills whose spans overlap or touch become one; ``again`` removes them."""
    others = [one for one in backfills if not one.finished]
    finished = [] if again else _merged([one for one in backfills if one.finished])
    if len(finished) + len(others) > MAX_SPANS:
        problem = f"has {MAX_SPANS} backfills; the option 'again' removes finished backfills"
        raise InvalidEntryError("backfill", problem)
    return (*finished, *others, new)


def _merged(finished: Sequence[Backfill]) -> list[Backfill]:
    merged: list[Backfill] = []
    for one in sorted(finished, key=lambda one: one.since):
        last = merged[-1] if merged else None
        if last is None or one.since > last.until:
            merged.append(one)
        else:
            until, sent = max(last.until, one.until), last.sent + one.sent
            merged[-1] = last._replace(until=until, sent=sent, total=last.total + one.total)
    return merged


def cancelled(backfills: Sequence[Backfill]) -> tuple[Backfill, ...]:
    kept = [one for one in backfills if one.finished or one.sent]
    return tuple(one if one.finished else one.ended(one.left[0][0]) for one in kept)


def first_to_send(entry: Any, now: float) -> datetime:
    """From when on the schedule itself sends the runs; at the latest ``now`` (UNIX seconds)."""
    present = from_timestamp(now)
    last: datetime | None = entry.anchor
    if last is not None:
        return min(last + TICK, present)
    due: datetime | None = entry.decision_at(present).scheduled_at
    if due is not None:
        return min(due, present)
    plan = entry.occurrence_plan()
    first = present - timedelta(seconds=plan.policy.jitter + plan.policy.spread)
    delayed = (at for at in entry.occurrences_from(first) if plan.due_at(at) > present)
    return min(next(delayed, present), present)


def planned(
    request: Backfill,
    occurrences: Occurrences,
    sent: Collection[datetime],
    earlier: Sequence[Backfill],
) -> Planned:
    """``sent`` are the nominal instants that the history reports as sent.

    All runs in the spans of ``earlier`` count as sent, too. Raises :exc:`InvalidEntryError` if the
    span contains too many runs, or if there are too many gaps between the runs to send.
    """

    def is_left(instant: datetime) -> bool:
        covered = any(one.since <= instant < one.until for one in earlier)
        return instant not in sent and not covered

    everything = list(islice(request.instants(occurrences), MAX_RUNS + 1))
    if len(everything) > MAX_RUNS:
        problem = f"the span has more than {MAX_RUNS} runs; backfill the span in parts"
        raise InvalidEntryError("until", problem)
    groups = [list(group) for left, group in groupby(everything, is_left) if left]
    if len(groups) > MAX_SPANS:
        problem = f"the runs to send have more than {MAX_SPANS} gaps; backfill the span in parts"
        raise InvalidEntryError("until", problem)
    instants = [instant for group in groups for instant in group]
    spans = tuple((group[0], group[-1] + TICK) for group in groups)
    backfill = request._replace(total=len(instants), left=spans) if instants else None
    left_out = len(everything) - len(instants)
    return Planned(instants, left_out, request.since, request.until, backfill)
