"""The one exchange of a beat with Redis: changes go there, answers and rows come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import time
from typing import Any, Final

from redbeat.beat.lock import BeatLock
from redbeat.metrics.counters import NOTHING, Counters
from redbeat.storage.rows import Answer, Change, Counted, Look, Reply, Request
from redbeat.storage.scripts import overlaps
from redbeat.storage.store import Store

#: A turn goes out when it has this many changes, this many bytes, or waits for this many seconds.
#: A killed beat leaves at most two turns of held runs.
MOST_CHANGES: Final = 50
MOST_BYTES: Final = 1 << 20
LONGEST_WAIT: Final = 0.02

#: What idle ticks count goes to Redis after this number of seconds, because a turn with counts
#: costs more, and at once if the number of entries has changed.
COUNTS_WAIT: Final = 1.0

#: The numbers of rows of a look: the usual one, and the one for a round trip longer than ``FAR``.
LIMIT, FAR_LIMIT, FAR = 75, 500, 0.01


#: Seconds after which the rows of a look that was sent ahead are looked at again.
LONGEST_AHEAD: Final = 0.4

#: Differences of two clocks up to this number of seconds are normal.
NORMAL_OFFSET: Final = 1.0

#: The reply to a look ahead, and when it was sent.
NO_LOOK: Final = (None, -math.inf)

#: The owner of a change, the answer to it, whether an earlier turn carried it and its reply was
#: lost, and the local time before the request went out.
Answered = tuple[Any, Answer, bool, float]


class Turn:
    """Sends the turns of one beat, one at a time, and keeps what was not answered.

    A turn is safe to repeat. If the reply to a turn is lost, the next turn carries its changes
    again, before the others.

    Arguments:
        store: the schedule in Redis, with a client that does not retry.
        lock: the beat lock, None if several beats share the work.
        token: the token of this beat.
        counters: the counters of the beat, which turns add to those in Redis.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        lock: BeatLock | None,
        token: str,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.lock = lock
        #: Whether several beats share the work, because there is no lock at all.
        self.is_shared = lock is None
        #: The common server of broker and schedule, None if scripts push no messages.
        self.server: tuple[str, int, int] | None = None
        #: The answers that the beat has not handled yet.
        self.answered: list[Answered] = []
        self._store = store
        self.token = token
        self._counters = counters
        self._clock = clock
        #: The changes to send, and those without an answer, each with its owner.
        self._items: list[tuple[Change, Any]] = []
        self._in_flight: list[tuple[Change, Any]] = []
        #: How many of those in flight an earlier turn carried, whose reply was lost.
        self._repeated = 0
        self._bytes = 0
        self._read_reply: Callable[[], Reply] | None = None
        #: Whether that turn looks ahead, and the reply to the last one that did, with its time.
        self._looks_ahead = False
        self._looked: tuple[Reply | None, float] = NO_LOOK
        self._counted = NOTHING
        self._counted_at = -math.inf
        self._members = -1
        self._redis_time = 0.0
        #: The local times of the last request, of the last reply, and the last round trip.
        self.sent_at = self.answered_at = clock()
        #: How many seconds the clock of this host is ahead of Redis's; 0 for a normal difference.
        self.host_ahead = 0.0
        self._host_sent_at = 0.0
        self.round_trip = 0.0
        #: The number of requests so far.
        self.round_trips = 0
        #: The seconds by which the clock of Redis went back; the beat resets it to 0.
        self.clock_went_back = 0.0

    # -- changes -------------------------------------------------------------------------------

    def add(self, change: Change, owner: Any) -> None:
        """Let the next turn carry a change; :attr:`answered` will have its answer."""
        self._items.append((change, owner))
        for command in change.push:
            self._bytes += len(command[-1])

    @property
    def pending(self) -> bool:
        """Whether there are changes without an answer."""
        return bool(self._items or self._in_flight)

    @property
    def owners(self) -> list[Any]:
        """The owners of the changes without an answer."""
        return [owner for _, owner in (*self._in_flight, *self._items)]

    def is_full(self) -> bool:
        """Return whether the next turn should go out now, in the middle of the rows of a look."""
        if not self._items:
            return False
        is_large = len(self._items) >= MOST_CHANGES or self._bytes >= MOST_BYTES
        return is_large or self._clock() - self.sent_at >= LONGEST_WAIT

    # -- turns ---------------------------------------------------------------------------------

    def send(self, look: Look | None = None) -> None:
        """Send the changes in a turn, and do not wait for its reply.

        With a ``look``, Redis looks ahead while this beat decides about rows that it has, and
        :meth:`looked` returns the reply. Waits for the reply to the turn before. One round trip, or
        none without changes.
        """
        self.finish()
        if not self._items:
            return
        if overlaps(self._store.client, self._store.keys.schedule):
            request, self._looks_ahead = self._request(look), look is not None
            self._read_reply = self._store.begin_turn(request)
        else:
            self._receive(self._store.turn(self._request(None)))

    def finish(self) -> None:
        """Wait for the reply to the turn that :meth:`send` sent, if there is one."""
        read_reply, self._read_reply = self._read_reply, None
        if read_reply is None:
            return
        looks_ahead, self._looks_ahead = self._looks_ahead, False
        round_trip = self.round_trip
        reply = self._receive(read_reply())
        self.round_trip = round_trip  # the reply has waited for this beat
        if looks_ahead:
            self._looked = reply, self.sent_at

    def looked(self) -> Reply | None:
        """Return the reply to the look that :meth:`send` sent, None without a recent one."""
        self.finish()
        (reply, sent_at), self._looked = self._looked, NO_LOOK
        return reply if self._clock() - sent_at < LONGEST_AHEAD else None

    @property
    def has_looked(self) -> bool:
        """Whether :meth:`looked` has a reply already, so that another look would be for nothing."""
        return self._looked[0] is not None

    def forget_look(self) -> None:
        """Do not use the reply to the look that :meth:`send` sent: its rows stay due."""
        self._looks_ahead, self._looked = False, NO_LOOK

    def look(self, look: Look | None) -> Reply:
        """Carry out a turn with all changes and a look, and return its reply. One round trip."""
        self.finish()
        return self._receive(self._store.turn(self._request(look)))

    def flush(self) -> None:
        """Carry the changes to Redis, and wait for the answers. One or two round trips."""
        self.finish()
        if self.pending:
            self.look(None)

    def exchange(self, changes: Sequence[Change]) -> Reply:
        """Carry out changes of no run, which are made again after an error. One round trip.

        A beat that stands by changes nothing.
        """
        self.finish()
        self._note_sent()
        lock = None if self.lock is None else self.lock.words()
        request = Request(self.token, lock, changes, leads_only=True)
        return self._observed(self._store.turn(request))

    def _request(self, look: Look | None) -> Request:
        """Return the next request; what an unanswered request carried comes first."""
        self._repeated = len(self._in_flight)
        self._in_flight += self._items
        self._items, self._bytes = [], 0
        self._note_sent()
        self._counted = self._counts() if look is not None else NOTHING
        return Request(
            self.token,
            None if self.lock is None else self.lock.words(),
            changes=[change for change, _ in self._in_flight],
            look=look,
            server=self.server,
            counts=self._counted.counts,
            counts_id=self._counted.id,
            in_hand=look is not None,
        )

    def _note_sent(self) -> None:
        self.sent_at, self._host_sent_at = self._clock(), time()
        self.round_trips += 1

    def _counts(self) -> Counted:
        """Return the counts that go with a look now."""
        is_due = self.sent_at - self._counted_at >= COUNTS_WAIT
        if not (is_due or self._counters.has_new_runs):
            return NOTHING
        counted = self._counters.take()
        if not counted.id and self._members < 0:  # the first look notes that this beat is there
            counted = Counted(self.token, {})
        if counted.id:
            self._counted_at = self.sent_at
        return counted

    def _receive(self, reply: Reply) -> Reply:
        items, self._in_flight = self._in_flight, []
        for number, ((_, owner), answer) in enumerate(zip(items, reply.answers, strict=True)):
            self.answered.append((owner, answer, number < self._repeated, self.sent_at))
        if self._counted is not NOTHING:
            self._counters.confirm(reply.members)
        elif reply.members >= 0 and reply.members != self._members:
            self._counted_at = -math.inf
        self._members = reply.members
        return self._observed(reply)

    def _observed(self, reply: Reply) -> Reply:
        """Note the time and the lock in a reply."""
        now = self._clock()
        if self._redis_time:
            expected = self._redis_time + (self.sent_at - self.answered_at)
            self.clock_went_back = max(self.clock_went_back, expected - reply.now)
        self.clock_went_back = max(self.clock_went_back, reply.back)
        self.round_trip = now - self.sent_at
        self.answered_at, self._redis_time = now, reply.now
        # Redis has read its clock between the request and this moment.
        least, most = self._host_sent_at - reply.now, time() - reply.now
        is_normal = least <= NORMAL_OFFSET and most >= -NORMAL_OFFSET
        self.host_ahead = 0.0 if is_normal else min(least, most, key=abs)
        if self.lock is not None:
            self.lock.observe(reply)
        return reply

    @property
    def limit(self) -> int:
        """The number of rows to look at."""
        return FAR_LIMIT if self.round_trip > FAR else LIMIT

    def time(self) -> float:
        """Return the time of Redis in UNIX seconds. No round trip."""
        return self._redis_time + (self._clock() - self.answered_at)
