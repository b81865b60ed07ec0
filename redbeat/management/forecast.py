"""The runs to come of all entries within a span of time, for pictures of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("MAX_ENTRIES", "MAX_RUNS", "Forecast", "agenda", "forecast", "per_minute")

#: An entry may be due so much earlier than its score says: while a beat has a claim on it.
SLACK = timedelta(seconds=60)


class Next(NamedTuple):
    """The next run of an entry; the number keeps entries from being compared.

    ``left`` is how many runs it has from this one on, None for any number.
    """

    at: datetime
    name: str
    number: int
    entry: RedBeatSchedulerEntry
    left: int | None


def agenda(
    pages: Iterable[tuple[list[RedBeatSchedulerEntry], datetime | None]], after: datetime
) -> Iterator[tuple[datetime, str]]:
    """Yield the nominal instants after ``after`` with the name of the entry, in order.

    ``pages`` are entries in due order, each page with the instant before which none of the next
    pages is due, None for the last one. A page is read when that instant has come near: what jitter
    puts off for longer may be found too late to come in order.
    """
    heap: list[Next] = []
    number = 0
    for entries, rest in pages:
        for entry in entries:
            number += 1
            push(heap, entry, after, number, entry.runs_left)
        while heap and rest is not None and heap[0].at < rest - SLACK:
            yield pop(heap)
    while heap:
        yield pop(heap)


def pop(heap: list[Next]) -> tuple[datetime, str]:
    """Take the first run out, and put the next one of that entry in."""
    at, name, number, entry, left = heapq.heappop(heap)
    push(heap, entry, at, number, None if left is None else left - 1)
    return at, name


def push(
    heap: list[Next],
    entry: RedBeatSchedulerEntry,
    after: datetime,
    number: int,
    left: int | None,
) -> None:
    """Add the next run of an entry after an instant, if there is one."""
    if left == 0:
        return
    for at in entry.upcoming(1, after):
        heapq.heappush(heap, Next(at, str(entry.name), number, entry, left))


#: Runs that a forecast holds at most.
MAX_RUNS: Final = 100_000

#: Entries that a forecast looks at, at most; a page more.
MAX_ENTRIES: Final = 5_000

MINUTE: Final = timedelta(minutes=1)

Pages = Iterable[tuple[list[RedBeatSchedulerEntry], datetime | None]]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The nominal instants, UTC, of each entry that runs in a span.

    Attributes:
        since, until: the span; all runs before ``until`` are here.
        runs: the instants of each entry, by name, the entry that runs first before the others.
        complete: whether ``until`` is what was asked for, and not where it became too much.
    """

    since: datetime
    until: datetime
    runs: Mapping[str, Sequence[datetime]]
    complete: bool


def per_minute(runs: Mapping[str, Sequence[datetime]], start: datetime, minutes: int) -> list[int]:
    """Return how many runs there are in each minute from ``start`` on."""
    counts = Counter((instant - start) // MINUTE for own in runs.values() for instant in own)
    return [counts[minute] for minute in range(minutes)]


def forecast(pages: Pages, since: datetime, until: datetime) -> Forecast:
    """Return the runs after ``since`` and before ``until``.

    ``pages`` are those of :func:`~redbeat.management.forecast.agenda`; a page is read when it can
    hold a run of the span. What is more than :data:`MAX_RUNS` or :data:`MAX_ENTRIES` moves
    ``until``.
    """
    runs: dict[str, list[datetime]] = {}
    end, looked_at, total = until, 0, 0
    for entries, rest in pages:
        for entry in entries:
            own = list(islice(_before(entry, since, end), entry.runs_left))
            if own:
                runs[str(entry.name)] = own
                total += len(own)
            if total > MAX_RUNS:
                end, total = _halved(runs)
        looked_at += len(entries)
        if rest is None or rest - SLACK >= end:
            break
        if looked_at >= MAX_ENTRIES:
            end = max(rest - SLACK, since)
            break
    kept = {name: [at for at in own if at < end] for name, own in runs.items()}
    ordered = sorted((own[0], name) for name, own in kept.items() if own)
    return Forecast(since, end, {name: kept[name] for _, name in ordered}, end == until)


def _halved(runs: dict[str, list[datetime]]) -> tuple[datetime, int]:
    """Drop the later half of all runs; return where that begins, and how many are left."""
    instants = sorted(instant for own in runs.values() for instant in own)
    end = instants[len(instants) // 2]
    for name, own in runs.items():
        runs[name] = [instant for instant in own if instant < end]
    return end, sum(map(len, runs.values()))


def _before(entry: RedBeatSchedulerEntry, since: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the runs of an entry in a span; they are computed in growing batches."""
    size, after = 2, since
    for _ in range(MAX_RUNS):
        batch = entry.upcoming(size, after)
        for instant in batch:
            if instant >= until:
                return
            yield instant
        if len(batch) < size:
            return
        size, after = min(size * 4, 4096), batch[-1]
