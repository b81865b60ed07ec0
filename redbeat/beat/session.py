"""The exchanges of one beat with Redis: record runs, claim due entries, read the Redis clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from redis.exceptions import RedisError

from redbeat.codec.stored import byte_count
from redbeat.metrics.counters import NOTHING, Counters
from redbeat.printing import get_logger
from redbeat.storage.records import (
    BEFORE_RECORD,
    LEADER,
    REFUSED,
    STANDBY,
    Broker,
    ClaimReply,
    ClaimRequest,
    Completion,
    Result,
)
from redbeat.storage.store import Store

from .lock import BeatLock, new_token
from .retries import Pace

__all__ = (
    "Record",
    "Response",
    "Session",
)

logger = get_logger("celery.beat")


#: The longest and the shortest lease of a claim, in seconds. When a beat dies, other beats get its
#: claims once the lease is over.
LONGEST_LEASE, SHORTEST_LEASE = 30.0, 5.0

#: The part of a lease in which a beat publishes. The rest is a reserve for the slowest publish.
USABLE_LEASE_PART = 2 / 3

#: An entry counts as late this many seconds after its due time, as in ``claim.lua``.
LATE_AFTER = 1.0

#: Limits of pending completions, beyond which a beat sends them in the middle of a batch: runs,
#: bytes of their messages and definitions, and seconds that messages with their record wait. Low
#: limits keep messages on time, and a beat that dies leaves few runs that were sent but not
#: recorded.
MAX_PENDING_RUNS, MAX_PENDING_BYTES, MAX_PENDING_SECONDS = 50, 1 << 20, 0.02

#: The log line for a run that Redis refused because its claim had ended. The next claim decides
#: whether the run is too late.
CLAIM_ENDED = "beat: The run of %s is decided again: its claim ended before it could be sent"

#: Seconds for which an idle beat may omit what need not be done at each tick: to store its counts
#: and its presence, and to count static and quarantined entries.
QUICK_SECONDS = 1.0

#: Seconds for which a standby may omit to store its presence.
QUICK_STANDBY_SECONDS = 4.0

#: How often a flush tries to record runs whose entries an application changes at the same time.
FLUSH_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Record:
    """A completion, and the callback for its result.

    ``on_result`` is called once, with every kind of result. Without a callback the session logs a
    refusal.
    """

    completion: Completion
    on_result: Callable[[Result], None] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request to Redis: its body, its records, and the local time at which it is sent."""

    body: ClaimRequest
    records: list[Record]
    sent_at: float


@dataclass(frozen=True, slots=True)
class Response:
    """The reply to a request, and the local time until which its claims may be published.

    ``request`` is the body of the request, with the order of message and record for its claims.
    """

    reply: ClaimReply
    deadline: float
    request: ClaimRequest


class Session:
    """Sends the requests of one beat to Redis, one at a time.

    The beat can dispatch a batch while Redis works on the next request, see :meth:`begin`.

    Arguments:
        store: the schedule, on a client that does not retry.
        lock: the beat lock, None when several beats share the work.
        clock: monotonic seconds.
        lease: seconds a claim lasts.
        history: number of runs kept in the history of an entry.
        counters: counters of the beat, which each request adds to the stats in Redis.
        pace: limits how many late entries are claimed.
    """

    def __init__(
        self,
        store: Store,
        lock: BeatLock | None,
        clock: Callable[[], float],
        lease: float,
        history: int,
        counters: Counters,
        pace: Pace,
    ) -> None:
        self.lease = lease
        self.pace = pace
        self._counters = counters
        self._history = history
        self.pending: list[Record] = []
        #: Bytes of the messages and definitions of the pending completions.
        self._bytes = 0
        #: Whether a pending completion sends a message.
        self._has_messages = False
        self._store = store
        #: The beat lock; None when several beats share the work.
        self.lock = lock
        self._clock = clock
        self._token = new_token()
        self._beat_id = self._token[-12:]
        self._request_count = 0
        #: The request that has no reply yet. If its reply is lost, the next request repeats it.
        self._unanswered: Request | None = None
        #: Waits for the reply to the request in flight, None if no request is in flight.
        self._read_reply: Callable[[], ClaimReply] | None = None
        #: The response that :meth:`finish` returns.
        self._ready: Response | None = None
        #: Local time of the last reply of Redis.
        self.answered_at = self._sent_at = clock()
        #: The reply to the last whole request, and when that request was sent.
        self._whole_reply: ClaimReply | None = None
        self._whole_at = 0.0
        self._redis_time = 0.0
        #: Whether messages may be sent before their record, and the broker that gets the messages
        #: sent with their record.
        self.way = BEFORE_RECORD
        self.broker: Broker | None = None
        #: Seconds by which the Redis clock went back since a caller set this to 0.
        self.clock_went_back = 0.0

    def time_at(self, local: float) -> float:
        """Return the Redis time at a local time: the last reply plus the seconds since then."""
        return self._redis_time + (local - self.answered_at)

    def time(self) -> float:
        """Return the present Redis time, UNIX seconds, without a round trip."""
        return self.time_at(self._clock())

    @property
    def token(self) -> str:
        """The token of this beat in the list of active beats."""
        return self._token if self.lock is None else self.lock.token

    def record(
        self, completion: Completion, on_result: Callable[[Result], None] | None = None
    ) -> None:
        """Add a completion to the next request; for ``on_result`` see :class:`Record`."""
        self.pending.append(Record(completion, on_result))
        self._bytes += byte_count(completion.messages) + byte_count(completion.definition)
        self._has_messages = self._has_messages or bool(completion.messages)

    def request(self, limit: int, only: str = "") -> Response:
        """Renew the lock, record pending completions and claim up to ``limit`` due entries.

        With a key in ``only``, that entry alone is claimed, even when it is not due. With a limit
        of 0, the response may still have the claims of a request whose reply was lost; they are
        kept for :meth:`finish`. One round trip.
        """
        response = self._request(limit, only)
        if not limit and response.reply.claims:
            self._ready = response
        return response

    def _request(self, limit: int, only: str = "") -> Response:
        self.wait_for_reply()
        request = self._next_request(limit, only)
        return self._process_reply(self._store.claim(*request))

    def begin(self, limit: int) -> None:
        """Send a request and do not wait for its reply, which :meth:`next_response` returns.

        Does nothing while another request is in flight, or on a client that cannot do two things at
        a time.
        """
        has_room = self._ready is None or not limit
        if self._read_reply is None and has_room and self._store.overlaps:
            self._read_reply = self._store.begin_claim(self._next_request(limit))

    def send_if_full(self, local: float) -> None:
        """Send pending completions when they reach a limit, without waiting for the reply.

        ``local`` is the present by the local clock. One round trip when a limit is reached.
        """
        full = len(self.pending) >= MAX_PENDING_RUNS or self._bytes >= MAX_PENDING_BYTES
        if full or (self._has_messages and local - self._sent_at >= MAX_PENDING_SECONDS):
            self.send()

    def send(self) -> None:
        """Send pending completions without waiting for the reply. One round trip, or none."""
        if not self.pending:
            return
        if self._store.overlaps:
            self.wait_for_reply()
            self.begin(0)
        else:
            self.request(0)

    def next_response(self, limit: int) -> Response:
        """Return the response to the request in flight; if there is none, send a new request."""
        ready = self.finish()
        return self._request(limit) if ready is None else ready

    def finish(self) -> Response | None:
        """Return the response to the request in flight, None if no request is in flight."""
        self.wait_for_reply()
        ready, self._ready = self._ready, None
        return ready

    def wait_for_reply(self) -> None:
        """Wait for the reply to the request in flight, and keep its response for :meth:`finish`."""
        if self._read_reply is None:
            return
        read_reply, self._read_reply = self._read_reply, None
        response = self._process_reply(read_reply())
        if response.request.limit or self._ready is None:
            self._ready = response

    def _next_request(self, limit: int, only: str = "") -> ClaimRequest:
        """Return the next request; it repeats the last request if the reply to that was lost."""
        now, records, unanswered = self._clock(), self.pending, self._unanswered
        quick = None if only else self._reply_to_keep(now, limit)
        self.pending = []
        self._bytes, self._has_messages = 0, False
        if unanswered is None:
            self._request_count += 1
            turn_id, way = f"{self._beat_id}-{self._request_count}", self.way
        else:
            records, limit = [*unanswered.records, *records], max(limit, unanswered.body.limit)
            turn_id, only = unanswered.body.turn_id, unanswered.body.only or only
            way = unanswered.body.way  # that of the claims which the lost reply has
        body = ClaimRequest(
            *(turn_id, limit, self.lease),
            completions=[record.completion for record in records],
            lock=None if self.lock is None else self.lock.arguments(),
            reply_lost=unanswered is not None,
            token=self.token,
            history=self._history,
            counted=self._counters.take() if quick is None else NOTHING,
            only=only,
            way=way,
            broker=self.broker,
            late=self.pace.allowed(now) if limit else None,
            quick=quick,
        )
        self._sent_at, self._unanswered = now, Request(body, records, now)
        return body

    def _reply_to_keep(self, now: float, limit: int) -> ClaimReply | None:
        """Return the last reply if the next request may be quick, None for a whole request."""
        last = self._whole_reply
        if (
            last is None
            or self.pending
            or self._unanswered is not None
            or self._counters.has_new_runs
        ):
            return None
        if last.standing == STANDBY:
            return last if now - self._whole_at < QUICK_STANDBY_SECONDS else None
        if (
            not limit
            or now - self._whole_at >= QUICK_SECONDS
            or (self.lock is not None and last.holder != self.token)
        ):
            return None
        # A whole request is better if an entry is due, and needed if no entry is left.
        return last if last.next_due is not None and last.next_due > self.time_at(now) else None

    def _process_reply(self, reply: ClaimReply) -> Response:
        """Process the reply to the request without a reply; return it with its deadline."""
        request, self._unanswered = self._unanswered, None
        assert request is not None
        if self._redis_time:
            # Compare at the time of sending, since the reply may have taken long.
            self.clock_went_back = max(
                self.clock_went_back, self.time_at(request.sent_at) - reply.now
            )
        self.answered_at, self._redis_time = self._clock(), reply.now
        self._counters.confirm(reply.members)
        if reply.expires > reply.now:  # not a short reply
            self._whole_at = request.sent_at
        # A quick reply copies the standing, but a beat becomes the new leader only once.
        self._whole_reply = reply if reply.standing in (LEADER, STANDBY) else None
        if self.lock is not None:
            self.lock.observe(reply)
        for record, result in zip(request.records, reply.results, strict=True):
            if record.on_result is not None:
                record.on_result(result)
            elif result.code == REFUSED and not request.body.reply_lost:
                key = record.completion.key
                logger.info("beat: Entry %s was deleted or replaced during its run", key)
        if request.body.late:
            late = sum(claim.due < reply.now - LATE_AFTER for claim in reply.claims)
            self.pace.spend(min(late, request.body.late))
        usable = reply.expires - reply.now - self.lease * (1 - USABLE_LEASE_PART)
        return Response(reply, request.sent_at + usable, request.body)

    def recover_lost_claims(self) -> Response | None:
        """Repeat a request whose reply was lost, if it made claims, and return its response.

        Returns None if no such reply was lost. One round trip if a reply was lost, else none.
        """
        unanswered = self._unanswered
        if unanswered is None or not unanswered.body.limit:
            return None
        return self.request(unanswered.body.limit)

    def flush(self) -> None:
        """Wait for the reply to the request in flight, and record what is pending.

        No round trip if there is nothing to record. Otherwise one, and up to two more if an
        application changes the same entries at that time.
        """
        self.wait_for_reply()
        for _ in range(FLUSH_ATTEMPTS):
            if self.pending or self._unanswered is not None:
                self.request(0)

    def leave(self) -> None:
        """Send the last counts of runs, and remove this beat from the list of active beats.

        A leader is removed when it releases the lock. No round trip, or one or two.
        """
        if not self._redis_time:  # Redis never answered
            return
        if self._counters.has_new_runs:
            self.request(0)
        if self.lock is None:
            self._store.leave(self.token)
        elif self.lock.leading is False:
            with suppress(RedisError, OSError):  # Redis forgets a silent standby anyway
                self._store.leave(self.token, locked=True)
