"""What one beat counts, and the fields of the hash ``.<prefix>:stats`` with the sums."""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from threading import Lock
from typing import Final

from redbeat.storage.records import Counted

__all__ = (
    "KINDS",
    "LATENESS",
    "LEADER",
    "MICROSECONDS",
    "ROUND_TRIPS",
    "TICK",
    "Counters",
    "Steps",
    "entry_field",
    "split",
)

#: What is counted of entries: in all, and by entry as ``<kind> <name>``.
KINDS: Final = ("dispatched", "failed", "retried", "missed", "skipped", "quarantined")

ROUND_TRIPS: Final = "round_trips"

LEADER: Final = "leader"

#: In a second: sums of seconds are whole numbers in Redis.
MICROSECONDS: Final = 1_000_000


class Steps:
    """The steps of a histogram, seconds: a field for each, and one for the sum in microseconds.

    A value is counted in one of them; Prometheus adds them up.
    """

    def __init__(self, name: str, *bounds: float) -> None:
        self.bounds = bounds
        self.texts = (*map(str, bounds), "+Inf")
        self.fields = tuple(f"{name}:{text}" for text in self.texts)
        self.sum = f"{name}:sum"

    def field(self, seconds: float) -> str:
        """Return the field in which a value is counted."""
        return self.fields[bisect_left(self.bounds, seconds)]

    def counts(self, values: Iterable[float]) -> dict[str, int]:
        """Return how many values are in each step, for those that have any."""
        ordered = sorted(values)
        up_to = [bisect_right(ordered, bound) for bound in self.bounds]
        spans = zip(self.fields, pairwise((0, *up_to, len(ordered))), strict=True)
        return {field: end - begin for field, (begin, end) in spans if end > begin}


LATENESS: Final = Steps("lateness", 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5, 10, 30, 60, 300)
TICK: Final = Steps("tick", 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5)


def entry_field(kind: str, name: str) -> str:
    """Return the field in which something is counted of one entry."""
    return f"{kind} {name}"


def split(field: str) -> tuple[str, str] | None:
    """Return kind and name of the field of an entry, None for any other."""
    kind, blank, name = field.partition(" ")
    return (kind, name) if blank and kind in KINDS else None


NOTHING: Final = Counted()


class Counters:
    """Counts in the thread of the beat; any thread may read :meth:`totals`. No round trips.

    Up to ``most`` entries are counted one by one as well, while there are no more than that.

    What was counted travels with the next turn. When the answer to that gets lost, it is said again
    under the same id, so it counts once, unless another beat spoke in between.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_entry = False
        self._lock = Lock()
        self._new: defaultdict[str, int] = defaultdict(int)
        #: How late messages were that are not yet among these, seconds.
        self._late: list[float] = []
        self._told: dict[str, int] = {}
        self._told_of_entries: dict[str, int] = {}
        self._under_way = NOTHING
        self._id = uuid.uuid4().hex[:12]
        self._batches = 0
        self._round_trips = 0

    # -- counting ------------------------------------------------------------------------------

    def dispatched(self, name: str, late: float | None) -> None:
        """Count a message, ``late`` seconds after it was due; None for one beside the schedule."""
        if late is None:
            self._new["dispatched"] += 1
        else:
            self._late.append(late)  # this is done for each message, the rest for many of them
        if self._by_entry:
            self._new["dispatched " + name] += 1

    def failed(self, name: str, lost: bool) -> None:
        """Count a message that could not be sent; unless ``lost`` it is tried again."""
        self.add("failed", name)
        if not lost:
            self.add("retried", name)

    def add(self, kind: str, name: str, number: int = 1) -> None:
        """Count something of :data:`~redbeat.metrics.counters.KINDS`."""
        self._new[kind] += number
        if self._by_entry:
            self._new[entry_field(kind, name)] += number

    def ticked(self, seconds: float, round_trips: int, at_work: bool) -> None:
        """Count a tick; ``round_trips`` are those of the beat since it began.

        Those of a standby (not ``at_work``) are not told to Redis, to which a standby writes
        nothing.
        """
        ticks = {
            TICK.field(seconds): 1,
            TICK.sum: int(seconds * MICROSECONDS),
            ROUND_TRIPS: round_trips - self._round_trips,
        }
        self._round_trips = round_trips
        if at_work:
            for field, number in ticks.items():
                self._new[field] += number
        else:
            with self._lock:
                _add(self._told, ticks)

    # -- telling -------------------------------------------------------------------------------

    def take(self) -> Counted:
        """Return what to tell with the next turn: the last once more if nobody confirmed it."""
        if not self._under_way.id and (self._new or self._late):
            with self._lock:
                late, self._late = self._late, []
                _add(self._new, counts_of(late))
                new, self._new = self._new, defaultdict(int)
                _add(self._told, {field: new[field] for field in new if " " not in field})
                self._keep_entries({field: new[field] for field in new if " " in field})
            self._batches += 1
            self._under_way = Counted(f"{self._id}-{self._batches}", new)
        return self._under_way

    def confirm(self, members: int) -> None:
        """Take note that a turn was answered, and how many entries there are."""
        self._under_way = NOTHING
        self._by_entry = members <= self._most

    def _keep_entries(self, new: dict[str, int]) -> None:
        """Keep the entries that were counted last: those that are gone are among the others."""
        kept = self._told_of_entries
        for field, number in new.items():
            kept[field] = kept.pop(field, 0) + number
        for field in list(kept)[: max(len(kept) - self._most * len(KINDS), 0)]:
            del kept[field]

    # -- reading -------------------------------------------------------------------------------

    @property
    def by_entry(self) -> bool:
        """Whether entries are counted one by one."""
        return self._by_entry

    def totals(self) -> dict[str, int]:
        """Return all that was counted since the beat began, by field. For any thread."""
        with self._lock:
            totals = {**self._told, **self._told_of_entries}
            _add(totals, dict(self._new))
            _add(totals, counts_of(self._late[:]))
        return totals


def counts_of(late: list[float]) -> dict[str, int]:
    """Return what to add for messages that were late, seconds."""
    if not late:
        return {}
    total = int(sum(filter((0.0).__lt__, late)) * MICROSECONDS)
    return {"dispatched": len(late), **LATENESS.counts(late), LATENESS.sum: total}


def _add(totals: dict[str, int], new: dict[str, int]) -> None:
    for field, number in new.items():
        totals[field] = totals.get(field, 0) + number
