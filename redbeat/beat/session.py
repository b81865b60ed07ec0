"""Sends the requests with which a beat records runs, claims entries and reads the Redis clock."""

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

logger = get_logger("celery.beat")


#: The longest and the shortest lease of a claim, in seconds.
#: When a beat dies, other beats can claim its entries after the leases have expired.
LONGEST_LEASE, SHORTEST_LEASE = 30.0, 5.0

#: The fraction of a lease during which a beat may start to publish.
#: The rest of the lease is a reserve for slow publishes.
USABLE_LEASE_PART = 2 / 3

#: An entry counts as late if its due time is more than ``LATE_AFTER`` seconds ago.
#: ``claim.lua`` must contain the same number as ``LATE_AFTER``.
LATE_AFTER = 1.0

#: Limits of the pending completions: their number, their size in bytes, and a time in seconds.
#: ``MAX_PENDING_BYTES`` limits the messages and definitions in the pending completions.
#: ``MAX_PENDING_SECONDS`` limits how long a completion with a message waits.
#: If a limit is reached, the beat sends the completions before the end of the batch.
#: The limits are low, so that messages are on time.
#: Low limits also mean that few sent runs are unrecorded if the beat dies.
MAX_PENDING_RUNS, MAX_PENDING_BYTES, MAX_PENDING_SECONDS = 50, 1 << 20, 0.02

#: The log line for a run that Redis refused because its claim had expired.
#: At the next claim of the entry, a beat decides whether the run is too late.
CLAIM_ENDED = (
    "beat: The run of %s was not sent, because its claim ended first. "
    "The next claim decides whether the run is too late"
)

#: Seconds between two whole requests of an idle beat, which sends quick requests in between.
#: A quick request does less work than a whole request.
#: Only a whole request stores the counters and the presence of a beat.
#: Only a whole request counts the static entries and the quarantined entries.
QUICK_SECONDS = 1.0

#: Seconds between two whole requests of a standby, which store the presence of the standby.
QUICK_STANDBY_SECONDS = 4.0

#: How many times :meth:`Session.flush` tries to record runs of entries that are being changed.
FLUSH_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Record:
    """A completion, and the callback for its result.

    ``on_result`` is called once with the result, even if Redis refused the completion. If there is
    no callback, the session logs a refused completion.
    """

    completion: Completion
    on_result: Callable[[Result], None] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request to Redis with its body, the records of runs, and the local time of sending."""

    body: ClaimRequest
    records: list[Record]
    sent_at: float


@dataclass(frozen=True, slots=True)
class Response:
    """The reply to a request, and the local time until which the beat may send the claimed runs.

    ``request`` is the body of the request. ``request.way`` is the order in which the claimed runs
    are sent and recorded.
    """

    reply: ClaimReply
    deadline: float
    request: ClaimRequest


class Session:
    """Sends the requests of one beat to Redis, one at a time.

    The beat can dispatch a batch while Redis executes the next request, see :meth:`begin`.

    Arguments:
        store: the schedule in Redis, with a client that does not retry.
        lock: the beat lock, None if several beats share the work.
        clock: returns monotonic seconds.
        lease: the seconds after which a claim expires.
        history: the number of runs kept in the history of an entry.
        counters: the counters of the beat, which each request adds to the counters in Redis.
        pace: limits the number of late entries that a request claims.
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
        #: The size in bytes of the messages and definitions in the pending completions.
        self._bytes = 0
        #: Whether a pending completion sends a message.
        self._has_messages = False
        self._store = store
        #: The beat lock; None if several beats share the work.
        self.lock = lock
        self._clock = clock
        self._token = new_token()
        self._beat_id = self._token[-12:]
        self._request_count = 0
        #: The request that has no reply yet.
        #: If the reply is lost, the next request repeats the unanswered request.
        self._unanswered: Request | None = None
        #: Waits for the reply to the request in flight; None if no request is in flight.
        self._read_reply: Callable[[], ClaimReply] | None = None
        #: The response that :meth:`finish` returns.
        self._ready: Response | None = None
        #: Local time of the last reply of Redis.
        self.answered_at = self._sent_at = clock()
        #: The last reply, None if the next request must be a whole request.
        self._whole_reply: ClaimReply | None = None
        #: The local time of the last whole request.
        self._whole_at = 0.0
        self._redis_time = 0.0
        #: Whether a message may be sent before its run is recorded, or only with the record.
        self.way = BEFORE_RECORD
        #: The broker, if a Lua script sends messages together with the records of their runs.
        self.broker: Broker | None = None
        #: The seconds by which the Redis clock went back; a caller resets the attribute to 0.
        self.clock_went_back = 0.0

    def time_at(self, local: float) -> float:
        """Return the Redis time at a local time, computed from the time in the last reply."""
        return self._redis_time + (local - self.answered_at)

    def time(self) -> float:
        """Return the current Redis time in UNIX seconds. No round trip."""
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

        If ``only`` is the key of an entry, this method claims only this entry, even if the entry is
        not due. If ``limit`` is 0, and the reply contains the claims of an earlier request whose
        reply was lost, :meth:`finish` returns these claims. One round trip.
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
        """Send a request without waiting; :meth:`next_response` waits for the reply.

        Does nothing while another request is in flight, or if the client cannot send a request
        without waiting for its reply.
        """
        has_room = self._ready is None or not limit
        if self._read_reply is None and has_room and self._store.overlaps:
            self._read_reply = self._store.begin_claim(self._next_request(limit))

    def send_if_full(self, local: float) -> None:
        """Send the pending completions if they have reached a limit; do not wait for the reply.

        ``local`` is the current local time. Takes one round trip if a limit is reached, else none.
        """
        full = len(self.pending) >= MAX_PENDING_RUNS or self._bytes >= MAX_PENDING_BYTES
        if full or (self._has_messages and local - self._sent_at >= MAX_PENDING_SECONDS):
            self.send()

    def send(self) -> None:
        """Send the pending completions without waiting for the reply of Redis.

        Takes one round trip, or none if no completions are pending.
        """
        if not self.pending:
            return
        if self._store.overlaps:
            self.wait_for_reply()
            self.begin(0)
        else:
            self.request(0)

    def next_response(self, limit: int) -> Response:
        """Return the response to the request in flight, or to a new request if there is none."""
        ready = self.finish()
        return self._request(limit) if ready is None else ready

    def finish(self) -> Response | None:
        """Return the response to the request in flight, None if no request is in flight."""
        self.wait_for_reply()
        ready, self._ready = self._ready, None
        return ready

    def wait_for_reply(self) -> None:
        """Wait for the reply to the request in flight; :meth:`finish` returns the response."""
        if self._read_reply is None:
            return
        read_reply, self._read_reply = self._read_reply, None
        response = self._process_reply(read_reply())
        if response.request.limit or self._ready is None:
            self._ready = response

    def _next_request(self, limit: int, only: str = "") -> ClaimRequest:
        """Return the next request, which repeats the last request if its reply was lost."""
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
            way = unanswered.body.way  # the lost reply contains claims with this ``way``
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
        """Return the last reply if a quick request is enough; None requires a whole request."""
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
        # If an entry is due, or if the schedule is empty, a quick request saves no time, because
        # the script executes a whole request.
        return last if last.next_due is not None and last.next_due > self.time_at(now) else None

    def _process_reply(self, reply: ClaimReply) -> Response:
        """Process the reply to the last request; return the reply with its deadline."""
        request, self._unanswered = self._unanswered, None
        assert request is not None
        if self._redis_time:
            # Compare the clocks at the time of the request, because the reply may have taken long.
            self.clock_went_back = max(
                self.clock_went_back, self.time_at(request.sent_at) - reply.now
            )
        self.answered_at, self._redis_time = self._clock(), reply.now
        self._counters.confirm(reply.members)
        if reply.expires > reply.now:  # not a quick reply
            self._whole_at = request.sent_at
        # A quick reply copies the fields about the lock from the stored reply. A reply with
        # NEW_LEADER is not stored, because the next quick reply would report the new leader a
        # second time.
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
        """If a reply with claims was lost, repeat its request, and return the response.

        Returns None if no reply with claims was lost. Takes one round trip if a request is
        repeated, else none.
        """
        unanswered = self._unanswered
        if unanswered is None or not unanswered.body.limit:
            return None
        return self.request(unanswered.body.limit)

    def flush(self) -> None:
        """Wait for the reply to the request in flight, and record the pending completions.

        Takes no round trip if there is nothing to record, else one. Takes up to two more round
        trips if an application changes the entries of the completions at the same time.
        """
        self.wait_for_reply()
        for _ in range(FLUSH_ATTEMPTS):
            if self.pending or self._unanswered is not None:
                self.request(0)

    def leave(self) -> None:
        """Store the last counters, and remove this beat from the list of active beats.

        A leader remains on the list until it releases the lock. At most two round trips.
        """
        if not self._redis_time:  # Redis never answered
            return
        if self._counters.has_new_runs:
            self.request(0)
        if self.lock is None:
            self._store.leave(self.token)
        elif self.lock.leading is False:
            with suppress(RedisError, OSError):  # Redis removes a silent standby anyway
                self._store.leave(self.token, locked=True)
