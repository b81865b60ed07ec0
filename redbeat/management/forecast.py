"""Computes upcoming runs of all entries, one after the other or for a whole period."""

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

#: A claimed entry may be due this much earlier than its score, because a claim raises the score.
SLACK = timedelta(seconds=60)


class Next(NamedTuple):
    """The next run of an entry, as an item of the heap.

    ``number`` is unique, so the heap never needs to compare two entry objects. ``runs_left``
    includes this run; None means no limit.
    """

    at: datetime
    name: str
    number: int
    entry: RedBeatSchedulerEntry
    runs_left: int | None


def agenda(
    pages: Iterable[tuple[list[RedBeatSchedulerEntry], datetime | None]], after: datetime
) -> Iterator[tuple[datetime, str]]:
    """Yield the nominal instant and the entry name of each run after ``after``, in order.

    ``pages`` contains the entries in due order. Each page is a list of entries and the due time of
    the last entry, or None for the last page. No entry on a later page is due before that time.

    A page is read only when the iteration reaches the due time of the previous page. If the jitter
    of an entry exceeds :data:`SLACK`, its run may therefore be out of order.
    """
    heap: list[Next] = []
    number = 0
    for entries, last_due in pages:
        for entry in entries:
            number += 1
            push(heap, entry, after, number, entry.runs_left)
        while heap and last_due is not None and heap[0].at < last_due - SLACK:
            yield pop(heap)
    while heap:
        yield pop(heap)


def pop(heap: list[Next]) -> tuple[datetime, str]:
    """Remove and return the earliest run, and add the next run of the same entry."""
    at, name, number, entry, runs_left = heapq.heappop(heap)
    push(heap, entry, at, number, None if runs_left is None else runs_left - 1)
    return at, name


def push(
    heap: list[Next],
    entry: RedBeatSchedulerEntry,
    after: datetime,
    number: int,
    runs_left: int | None,
) -> None:
    """Add the next run of an entry after an instant, if there is one."""
    if runs_left == 0:
        return
    for at in entry.upcoming(1, after):
        heapq.heappush(heap, Next(at, str(entry.name), number, entry, runs_left))


#: Maximum number of runs in a forecast.
MAX_RUNS: Final = 100_000

#: Number of entries after which a forecast reads no further page.
MAX_ENTRIES: Final = 5_000

MINUTE: Final = timedelta(minutes=1)

Pages = Iterable[tuple[list[RedBeatSchedulerEntry], datetime | None]]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The runs of all entries in a period, given as nominal instants in UTC.

    Attributes:
        since: the start of the period.
        until: the end of the period; ``runs`` contains all runs before this time.
        runs: entry name -> the instants of its runs; entries are ordered by their first run.
        complete: False if the forecast ends earlier than requested, because there are too many
            runs or entries.
    """

    since: datetime
    until: datetime
    runs: Mapping[str, Sequence[datetime]]
    complete: bool


def per_minute(runs: Mapping[str, Sequence[datetime]], start: datetime, minutes: int) -> list[int]:
    """Return the number of runs in each of the ``minutes`` minutes after ``start``."""
    counts = Counter(
        (instant - start) // MINUTE for instants in runs.values() for instant in instants
    )
    return [counts[minute] for minute in range(minutes)]


def forecast(pages: Pages, since: datetime, until: datetime) -> Forecast:
    """Return the runs after ``since`` and before ``until``.

    See :func:`agenda` for the form of ``pages``. Only pages with possible runs in the period are
    read. If there are more than :data:`MAX_RUNS` runs or :data:`MAX_ENTRIES` entries, the forecast
    ends before ``until``.
    """
    runs: dict[str, list[datetime]] = {}
    end, entry_count, run_count = until, 0, 0
    for entries, last_due in pages:
        for entry in entries:
            instants = list(islice(_runs_between(entry, since, end), entry.runs_left))
            if instants:
                runs[str(entry.name)] = instants
                run_count += len(instants)
            if run_count > MAX_RUNS:
                end, run_count = _drop_later_half(runs)
        entry_count += len(entries)
        if last_due is None or last_due - SLACK >= end:
            break
        if entry_count >= MAX_ENTRIES:
            end = max(last_due - SLACK, since)
            break
    kept = {name: [at for at in instants if at < end] for name, instants in runs.items()}
    ordered = sorted((instants[0], name) for name, instants in kept.items() if instants)
    return Forecast(since, end, {name: kept[name] for _, name in ordered}, end == until)


def _drop_later_half(runs: dict[str, list[datetime]]) -> tuple[datetime, int]:
    """Drop the later half of all runs; return the new end and the number of remaining runs."""
    all_instants = sorted(instant for instants in runs.values() for instant in instants)
    end = all_instants[len(all_instants) // 2]
    for name, instants in runs.items():
        runs[name] = [instant for instant in instants if instant < end]
    return end, sum(map(len, runs.values()))


def _runs_between(
    entry: RedBeatSchedulerEntry, since: datetime, until: datetime
) -> Iterator[datetime]:
    """Yield the runs of an entry in a period; compute them in batches of growing size."""
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
