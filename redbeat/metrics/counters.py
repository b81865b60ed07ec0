"""What a beat measures of itself: its counters, and whether it is alive and ready.

``.<prefix>:stats`` has the totals of all beats. Nothing here makes a round trip.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Final, NamedTuple

from redbeat.storage.rows import Counted

#: The kinds of counters with their help texts. The field ``<kind>`` counts all entries, the field
#: ``<kind> <name>`` one of them.
KINDS: Final = {
    "dispatched": "Messages that were published",
    "failed": "Failed attempts to publish a message",
    "retried": "Failed attempts to publish a message, each followed by a retry",
    "missed": "Runs that were missed and will not be caught up",
    "skipped": "Runs skipped because an earlier run of the entry was still active",
    "quarantined": "Times that an unreadable entry was put into quarantine",
}

#: The results of runs that workers report, with their fields.
RESULTS: Final = {
    result: f"runs:{result}" for result in ("succeeded", "failed", "revoked", "ignored")
}

ROUND_TRIPS: Final = "round_trips"
MISMATCHES: Final = "render_mismatch"

#: Redis stores sums of seconds as whole microseconds.
MICROSECONDS: Final = 1_000_000


class Buckets:
    """A histogram of times in seconds, with a field per bucket and one for the sum in microseconds.

    A value counts in one bucket only; the export to Prometheus makes the buckets cumulative.
    """

    def __init__(self, name: str, *bounds: float) -> None:
        self.bounds = bounds
        self.texts = (*map(str, bounds), "+Inf")
        self.fields = tuple(f"{name}:{text}" for text in self.texts)
        self.sum = f"{name}:sum"

    def field(self, seconds: float) -> str:
        return self.fields[bisect_left(self.bounds, seconds)]

    def counts(self, values: Iterable[float]) -> dict[str, int]:
        """Return the number of values in each bucket, without empty buckets."""
        return Counter([self.fields[bisect_left(self.bounds, value)] for value in values])


LATENESS: Final = Buckets(
    "lateness", 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5, 10, 30, 60, 300
)
TICK: Final = Buckets("tick", 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5)


def entry_field(kind: str, name: str) -> str:
    return f"{kind} {name}"


def split(field: str) -> tuple[str, str] | None:
    """Return the kind and the name in a field of one entry, None for any other field."""
    kind, blank, name = field.partition(" ")
    return (kind, name) if blank and kind in KINDS else None


NOTHING: Final = Counted()


class Counters:
    """The counters of one beat. Only its thread counts; any thread may call :meth:`totals`.

    Single entries are counted only while the schedule has at most ``max_entries``.

    New counts go to Redis as a batch, together with the beat's next request, so no method here
    makes a round trip. If Redis's reply is lost, the next request sends the batch again with the
    same id. Redis then adds it only once, unless another beat sent counts in between.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._by_entry = False
        self._lock = Lock()
        #: The counts that no batch contains yet.
        self._new: Counter[str] = Counter()
        #: The lateness in seconds of messages that ``_new`` doesn't count yet.
        self._late: list[float] = []
        #: The sums of all batches so far: the totals, and the counts of single entries.
        self._batched: Counter[str] = Counter()
        self._batched_of_entries: dict[str, int] = {}
        #: The batch that Redis has not confirmed yet.
        self._unconfirmed = NOTHING
        #: The number of published messages since the beat started.
        self.sent = 0
        self._id = uuid.uuid4().hex[:12]
        self._batches = 0
        self._round_trips = 0

    @property
    def has_new_runs(self) -> bool:
        return bool(self._late) or not self._new.keys().isdisjoint(KINDS)

    # -- counting ------------------------------------------------------------------------------

    def dispatched(self, name: str, late: float | None) -> None:
        """Count a message; ``late`` is its lateness in seconds, None for a triggered run."""
        self.sent += 1
        if late is None:
            self._new["dispatched"] += 1
        else:
            self._late.append(late)  # append() is cheap, and this line runs for each message
        if self._by_entry:
            self._new["dispatched " + name] += 1

    def failed(self, name: str, lost: bool) -> None:
        """Count a failed publish, and its retry unless the message is ``lost``."""
        self.add("failed", name)
        if not lost:
            self.add("retried", name)

    def add(self, kind: str, name: str, number: int = 1) -> None:
        self._new[kind] += number
        if self._by_entry:
            self._new[entry_field(kind, name)] += number

    def ended(self, results: Mapping[str, str]) -> None:
        """Count the results of runs, by task id. A run that is retried has not ended."""
        self._new.update(RESULTS[one] for one in results.values() if one in RESULTS)

    def mismatched(self) -> None:
        """Count a rendered message that differed from Celery's."""
        self._new[MISMATCHES] += 1

    def ticked(self, seconds: float, round_trips: int, active: bool) -> None:
        """Count a tick of ``seconds``; ``round_trips`` is the total since the beat started.

        The ticks of a standby (not ``active``) are counted only in this process, so that it has
        nothing to write to Redis.
        """
        ticks = {
            TICK.field(seconds): 1,
            TICK.sum: int(seconds * MICROSECONDS),
            ROUND_TRIPS: round_trips - self._round_trips,
        }
        self._round_trips = round_trips
        if active:
            for field, number in ticks.items():
                self._new[field] += number
        else:
            with self._lock:
                self._batched.update(ticks)

    # -- sending -------------------------------------------------------------------------------

    def take(self) -> Counted:
        """Return the batch for the next request: the last one, until Redis has confirmed it."""
        if not self._unconfirmed.id and (self._new or self._late):
            with self._lock:
                late, self._late = self._late, []
                self._new.update(counts_of(late))
                new, self._new = self._new, Counter()
                self._batched.update({field: new[field] for field in new if " " not in field})
                self._keep_entries({field: new[field] for field in new if " " in field})
            self._batches += 1
            self._unconfirmed = Counted(f"{self._id}-{self._batches}", new)
        return self._unconfirmed

    def confirm(self, members: int) -> None:
        """Note that Redis has added the last batch; ``members`` is the number of its entries."""
        self._unconfirmed = NOTHING
        self._by_entry = members <= self._max_entries

    def _keep_entries(self, new: dict[str, int]) -> None:
        """Add counts of single entries.

        If there are too many, those that haven't changed for the longest time are dropped: their
        entries may have been deleted.
        """
        fields = self._batched_of_entries
        for field, number in new.items():
            fields[field] = fields.pop(field, 0) + number  # a changed field moves to the dict's end
        for field in list(fields)[: max(len(fields) - self._max_entries * len(KINDS), 0)]:
            del fields[field]

    # -- reading -------------------------------------------------------------------------------

    def totals(self) -> dict[str, int]:
        """Return all counts since the beat started, by field. Thread-safe."""
        with self._lock:
            totals = Counter({**self._batched, **self._batched_of_entries})
            totals.update(dict(self._new))
            totals.update(counts_of(self._late[:]))
        return totals


def counts_of(late: list[float]) -> dict[str, int]:
    """Return the counts of dispatched messages; ``late`` is how late each was, in seconds."""
    if not late:
        return {}
    total = int(sum(filter((0.0).__lt__, late)) * MICROSECONDS)
    return {"dispatched": len(late), **LATENESS.counts(late), LATENESS.sum: total}


# -- health ---------------------------------------------------------------------------------------

#: Seconds after the last tick until a beat counts as hung. No tick takes that long, even if neither
#: the broker nor Redis answers.
ALIVE_WITHIN: Final = 60.0

#: Seconds after the last successful tick during which a beat is ready; the shorter time applies
#: once a tick has failed.
READY_WITHIN: Final = 30.0
FAILING_WITHIN: Final = 10.0


class ProbeResult(NamedTuple):
    """The result of a health check, and why, in one line."""

    ok: bool
    why: str


class BeatHealth:
    """The health of one beat, which its thread writes and other threads read.

    ``clock`` returns monotonic seconds. A tick is successful if Redis answered.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticked_at = clock()
        self._completed_at: float | None = None
        #: Why the last tick failed, "" if it did not.
        self.failure = ""
        self._refused = False
        self._no_lock = False
        #: Why the beat cannot publish, "" if it can.
        self.problem = ""
        #: The error that makes ticks fail although Redis answers, or "".
        self.tick_error = ""
        #: Whether the beat leads, or is active because the lock is off; None if unknown.
        self.leads: bool | None = None

    # -- the thread of the beat ----------------------------------------------------------------

    def observe(self, leads: bool, no_lock: bool) -> None:
        """Note whether the beat leads, and whether the lock key has no valid lock."""
        self.leads, self._no_lock = leads, no_lock

    def ticked(self) -> None:
        self._ticked_at = self._clock()

    def completed(self) -> None:
        self._completed_at, self.failure = self._clock(), ""

    def failed(self, reason: str, *, refused: bool = False) -> None:
        """Note why, in one line, a tick failed because of Redis, which may have ``refused`` it."""
        self.failure, self._refused = reason, refused

    # -- other threads -------------------------------------------------------------------------

    @property
    def redis_up(self) -> bool:
        return self._completed_at is not None and not self.failure

    @property
    def may_answer(self) -> bool:
        """Whether Redis may answer a reader: a read-only or full one refuses only writes."""
        return self.redis_up or self._refused

    @property
    def tick_age(self) -> float | None:
        """Seconds since the last successful tick, None before the first."""
        return None if self._completed_at is None else self._clock() - self._completed_at

    def alive(self) -> ProbeResult:
        """Return whether the beat ticks. A failed tick counts, too: a restart would not help."""
        age = self._clock() - self._ticked_at
        return ProbeResult(age <= ALIVE_WITHIN, f"the last tick ended {age:.1f} s ago")

    def ready(self) -> ProbeResult:
        """Return whether the beat can send runs or, as a standby, take over."""
        age = self.tick_age
        if self.tick_error:
            return ProbeResult(False, self.tick_error)
        if age is None:
            reason = self.failure or "Redis has not answered"
            return ProbeResult(False, f"no successful tick yet: {reason}")
        if age > (FAILING_WITHIN if self.failure else READY_WITHIN):
            reason = self.failure or "Redis does not answer"
            return ProbeResult(False, f"the last tick succeeded {age:.1f} s ago: {reason}")
        if self._no_lock:
            return ProbeResult(False, "the lock key contains something that is not a lock")
        if self.problem:
            return ProbeResult(False, self.problem)
        return ProbeResult(True, "leader" if self.leads else "standby")
