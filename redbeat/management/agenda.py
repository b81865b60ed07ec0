"""The next runs of many entries, in order, without reading more entries than they belong to."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("agenda",)

#: An entry may be due so much earlier than its score says: while a beat has a claim on it.
SLACK = timedelta(seconds=60)


class Next(NamedTuple):
    """The next run of an entry; the number keeps entries from being compared."""

    at: datetime
    name: str
    number: int
    entry: RedBeatSchedulerEntry


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
            push(heap, entry, after, number)
        while heap and rest is not None and heap[0].at < rest - SLACK:
            yield pop(heap)
    while heap:
        yield pop(heap)


def pop(heap: list[Next]) -> tuple[datetime, str]:
    """Take the first run out, and put the next one of that entry in."""
    at, name, number, entry = heapq.heappop(heap)
    push(heap, entry, at, number)
    return at, name


def push(heap: list[Next], entry: RedBeatSchedulerEntry, after: datetime, number: int) -> None:
    """Add the next run of an entry after an instant, if there is one."""
    for at in entry.upcoming(1, after):
        heapq.heappush(heap, Next(at, str(entry.name), number, entry))
