"""The turns that one beat takes with Redis: record what ran, claim what is due, read the time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.metrics.counters import Counters
from redbeat.storage.quarantine import printable
from redbeat.storage.records import (
    BEFORE_RECORD,
    RECORDED,
    REFUSED,
    Broker,
    ClaimReply,
    ClaimRequest,
    Completion,
    Result,
)
from redbeat.storage.store import BATCH, Store

from .lock import BeatLock, new_token
from .retries import Pace

__all__ = (
    "Record",
    "Response",
    "Session",
)

logger = get_logger("celery.beat")


#: Seconds a claim lasts at most, and at least. A beat that dies leaves its claims to others then.
LONGEST_LEASE, SHORTEST_LEASE = 30.0, 5.0

#: The part of a lease in which a beat still publishes; the rest is for the slowest publish.
USED_PART = 2 / 3

#: Seconds for which an entry is on time, as in ``claim.lua``.
ON_TIME = 1.0

#: What is to be recorded is sent in the middle of a batch when it is so many runs, or when messages
#: that leave with it have so many bytes or wait for so many seconds: a message is not to be late,
#: and a beat that dies leaves few runs that are sent and not recorded.
RIPE_RUNS, RIPE_BYTES, RIPE_AFTER = 50, 1 << 20, 0.02

#: Seconds that Redis may work on a turn, since others wait that long. If it takes longer, the next
#: claims are fewer, down to this number; if a full batch takes less than half, they grow again.
MOST_WORK, SMALLEST_BATCH = 0.008, 50

#: Round trips in which a last record is tried, when applications write histories meanwhile.
FLUSH_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Record:
    """A completion, and who wants to know what became of it.

    ``heard`` is called once with the result, whatever that is; without it only a refusal is logged.
    """

    done: Completion
    on_result: Callable[[Result], None] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """The terms of one turn, its records, and the local time at which it was asked."""

    terms: ClaimRequest
    records: list[Record]
    asked_at: float


@dataclass(frozen=True, slots=True)
class Response:
    """A turn, and the local time until which what it claimed may be published."""

    reply: ClaimReply
    deadline: float


class Session:
    """Takes turns with Redis: one after the other, or one while the last is worked on.

    Arguments:
        store: the schedule, on a client that does not retry.
        lock: the beat lock, None when several beats share the work.
        clock: monotonic seconds.
        lease: seconds a claim lasts.
        history: runs kept in the history of an entry.
        counters: what the beat counts, told to Redis with each turn.
        pace: how many late entries are claimed.
    """

    def __init__(
        self,
        store: Store,
        lock: BeatLock | None,
        clock: Callable[[], float],
        lease: float = LONGEST_LEASE,
        history: int = 10,
        counters: Counters | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.lease = lease
        self.pace = pace or Pace(None)
        self._counters = Counters(0) if counters is None else counters
        self._history = history
        self.pending: list[Record] = []
        #: Bytes of the messages that leave with what is pending.
        self._bytes = 0
        self._store = store
        #: How many entries to claim at once.
        self.batch = BATCH
        #: The beat lock; None when several beats share the work.
        self.lock = lock
        self._clock = clock
        self._token = new_token()
        self._beat_id = self._token[-12:]
        self._turns = 0
        #: The turn whose reply got lost; it is asked for again before anything else.
        self._lost: Request | None = None
        self._under_way: tuple[Request, Callable[[], ClaimReply]] | None = None
        self._ready: Response | None = None
        #: The local time of the last answer of Redis.
        self.answered_at = self._sent_at = clock()
        self._now = 0.0
        #: What may be sent before it is recorded, and where messages go that are recorded with it.
        self.way = BEFORE_RECORD
        self.broker: Broker | None = None
        #: By how many seconds the clock of Redis went back since somebody set this to 0.
        self.went_back = 0.0

    def time_at(self, local: float) -> float:
        """The time of Redis at a local time: its last answer plus the local seconds since."""
        return self._now + (local - self.answered_at)

    def time(self) -> float:
        """The time of Redis, as :meth:`time_at` has it."""
        return self.time_at(self._clock())

    def record(self, done: Completion, on_result: Callable[[Result], None] | None = None) -> None:
        """Have a completion travel with the next turn; ``heard`` as in :class:`Record`."""
        self.pending.append(Record(done, on_result))
        self._bytes += len(done.messages)

    @property
    def token(self) -> str:
        """What this beat is called among those that share the work."""
        return self._token

    def request(self, limit: int, only: str = "") -> Response:
        """Keep the lock, record what is pending, claim up to ``limit``. One round trip.

        With a key in ``only`` that entry is claimed and no other, whether it is due or not.
        """
        self.hear()
        request = self._question(limit, only)
        try:
            reply = self._store.claim(*request.terms)
        except BaseException:
            self._lost = request
            raise
        return self._receive(request, reply)

    def begin(self, limit: int) -> None:
        """Begin a turn whose answer :meth:`next` returns: Redis works on it meanwhile."""
        free = self._ready is None or not limit
        if self._under_way is None and free and self._store.overlaps:
            request = self._question(limit)
            try:
                self._under_way = request, self._store.begin_claim(request.terms)
            except BaseException:
                self._lost = request
                raise

    def send_if_ripe(self, local: float) -> None:
        """Have Redis record what waits, when that is much or old, without waiting for the answer.

        One round trip then. ``local`` is the present by the clock.
        """
        ripe = len(self.pending) >= RIPE_RUNS or self._bytes >= RIPE_BYTES
        if ripe or (self._bytes and local - self._sent_at >= RIPE_AFTER):
            self.send()

    def send(self) -> None:
        """Have Redis record what waits, without waiting for the answer. One round trip, or none."""
        if not self.pending:
            return
        if self._store.overlaps:
            self.hear()
            self.begin(0)
        else:
            self.request(0)

    def next(self, limit: int) -> Response:
        """Return the answer to the turn that was begun, or to a new one."""
        ready = self.begun()
        return self.request(limit) if ready is None else ready

    def begun(self) -> Response | None:
        """Return the answer to the turn that was begun, None when none was."""
        self.hear()
        ready, self._ready = self._ready, None
        return ready

    def hear(self) -> None:
        """Wait for the answer to the turn that was begun, if one was, and keep it."""
        if self._under_way is None:
            return
        (request, response), self._under_way = self._under_way, None
        try:
            reply = response()
        except BaseException:
            self._lost = request
            raise
        on_result = self._receive(request, reply)
        if request.terms.limit or self._ready is None:
            self._ready = on_result

    def _question(self, limit: int, only: str = "") -> Request:
        """Return the next question: after a lost reply the same once more, and what came since."""
        records, lost = self.pending, self._lost
        self.pending, self._lost, self._bytes = [], None, 0
        if lost is None:
            self._turns += 1
            turn_id = f"{self._beat_id}-{self._turns}"
        else:
            records, limit = [*lost.records, *records], max(limit, lost.terms.limit)
            turn_id, only = lost.terms.turn_id, lost.terms.only or only
        terms = ClaimRequest(
            *(turn_id, limit, self.lease),
            completions=[record.done for record in records],
            lock=None if self.lock is None else self.lock.arguments(),
            reply_lost=lost is not None,
            token=self._token,
            history=self._history,
            counted=self._counters.take(),
            only=only,
            way=self.way,
            broker=self.broker,
            late=self.pace.allowed(self._clock()) if limit else None,
        )
        self._sent_at = self._clock()
        return Request(terms, records, self._sent_at)

    def _receive(self, request: Request, reply: ClaimReply) -> Response:
        if self._now:  # by the time at which it was asked, as the answer may have taken long
            self.went_back = max(self.went_back, self.time_at(request.asked_at) - reply.now)
        self.answered_at, self._now = self._clock(), reply.now
        self._counters.confirm(reply.members)
        self._fit(reply)
        if self.lock is not None:
            self.lock.observe(reply)
        for record, result in zip(request.records, reply.results, strict=True):
            if record.on_result is not None:
                record.on_result(result)
            elif result.code != RECORDED:
                self._not_recorded(record.done, result, request.terms.reply_lost)
        if request.terms.late:
            late = sum(claim.due < reply.now - ON_TIME for claim in reply.claims)
            self.pace.spend(min(late, request.terms.late))
        used = reply.expires - reply.now - self.lease * (1 - USED_PART)
        return Response(reply, request.asked_at + used)

    def _fit(self, reply: ClaimReply) -> None:
        """Set how many entries the next turn claims, so that others need not wait for long."""
        if reply.took > MOST_WORK:
            self.batch = max(int(self.batch * MOST_WORK / reply.took), SMALLEST_BATCH)
        elif reply.took < MOST_WORK / 2 and len(reply.claims) >= self.batch:
            self.batch = min(self.batch + SMALLEST_BATCH, BATCH)

    def _not_recorded(self, done: Completion, result: Result, repeated: bool) -> None:
        if result.code == REFUSED and not repeated:
            logger.info(
                "beat: Entry %s was deleted or replaced during its run", printable(done.key)
            )

    def unheard(self) -> Response | None:
        """Return the claims whose answer got lost, None when there are none.

        No round trip when there are none, else one.
        """
        lost = self._lost
        return None if lost is None or not lost.terms.limit else self.request(lost.terms.limit)

    def flush(self) -> None:
        """Record what is pending.

        No round trip when there is nothing, else one; another when an application wrote a history
        meanwhile.
        """
        for _ in range(FLUSH_ATTEMPTS):
            if self.pending or self._lost is not None:
                self.request(0)

    def leave(self) -> None:
        """Say that this beat is not present any more; a leader says so with its lock.

        One round trip, none where nothing is to be said.
        """
        if self.lock is None and self._now:
            self._store.leave(self._token)
        elif self.lock is not None and self._now and self.lock.leading is False:
            with suppress(RedisError, OSError):  # it is forgotten by itself
                self._store.leave(self.lock.token, locked=True)
