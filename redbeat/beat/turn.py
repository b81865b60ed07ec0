"""How a beat talks to Redis: in one exchange, changes go there, and answers and rows come back."""

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

#: A turn goes out when it has this many changes, or this many bytes, or after this many seconds. A
#: killed beat leaves at most two turns of held runs.
MOST_CHANGES: Final = 50
MOST_BYTES: Final = 1 << 20
LONGEST_WAIT: Final = 0.02

#: What idle ticks count goes to Redis after this many seconds, because counts make a turn dearer.
#: It goes at once if the number of entries has changed.
COUNTS_WAIT: Final = 1.0

#: How many rows a look asks for, and how many if a round trip takes more than ``FAR`` seconds.
LIMIT, FAR_LIMIT, FAR = 75, 500, 0.01


#: Seconds after which the reply to a look ahead is too old.
LONGEST_AHEAD: Final = 0.4

#: Up to how many seconds two clocks normally differ.
NORMAL_OFFSET: Final = 1.0

#: In place of the reply to a look ahead, and the time when it was sent.
NO_LOOK: Final = (None, -math.inf)

#: A change's owner, the answer, whether an earlier turn carried the change and its reply was lost,
#: and the local time before the request.
Answered = tuple[Any, Answer, bool, float]


class Turn:
    """Sends the turns of one beat, one at a time, and keeps what wasn't answered.

    A turn is safe to repeat. If its reply is lost, the next turn carries its changes again, before
    the others.

    The client of ``store`` must not retry. Without a ``lock``, several beats share the work. Turns
    add ``counters`` to those in Redis. ``clock`` returns monotonic seconds.
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
        #: The server that broker and schedule share, None if scripts push no messages.
        self.server: tuple[str, int, int] | None = None
        #: Answers that the beat hasn't handled yet.
        self.answered: list[Answered] = []
        self._store = store
        self.token = token
        self._counters = counters
        self._clock = clock
        self._items: list[tuple[Change, Any]] = []
        self._in_flight: list[tuple[Change, Any]] = []
        #: How many of those in flight were in an earlier turn, whose reply was lost.
        self._repeated = 0
        self._bytes = 0
        self._read_reply: Callable[[], Reply] | None = None
        #: Whether that turn looks ahead; the reply to the last one that did, and when it was sent.
        self._looks_ahead = False
        self._looked: tuple[Reply | None, float] = NO_LOOK
        self._counted = NOTHING
        self._counted_at = -math.inf
        self._members = -1
        self._redis_time = 0.0
        #: Local times of the last request and the last reply.
        self.sent_at = self.answered_at = clock()
        #: How many seconds this host's clock is ahead of Redis's; 0 for a normal difference.
        self.host_ahead = 0.0
        self._host_sent_at = 0.0
        self.round_trip = 0.0
        self.round_trips = 0
        #: How many seconds Redis's clock went back; the beat resets it.
        self.clock_went_back = 0.0

    # -- changes -------------------------------------------------------------------------------

    def add(self, change: Change, owner: Any) -> None:
        """Put a change into the next turn; its answer comes in :attr:`answered`."""
        self._items.append((change, owner))
        for command in change.push:
            self._bytes += len(command[-1])

    @property
    def pending(self) -> bool:
        return bool(self._items or self._in_flight)

    @property
    def owners(self) -> list[Any]:
        return [owner for _, owner in (*self._in_flight, *self._items)]

    def is_full(self) -> bool:
        """Whether the next turn should go out now, in the middle of a look's rows."""
        if not self._items:
            return False
        is_large = len(self._items) >= MOST_CHANGES or self._bytes >= MOST_BYTES
        return is_large or self._clock() - self.sent_at >= LONGEST_WAIT

    # -- turns ---------------------------------------------------------------------------------

    def send(self, look: Look | None = None) -> None:
        """Send the changes in a turn, without waiting for its reply.

        With a ``look``, Redis looks ahead while this beat decides about the rows it has, and
        :meth:`looked` returns the reply. Waits for the reply to the turn before. One round trip,
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
        read_reply, self._read_reply = self._read_reply, None
        if read_reply is None:
            return
        looks_ahead, self._looks_ahead = self._looks_ahead, False
        round_trip = self.round_trip
        reply = self._receive(read_reply())
        self.round_trip = round_trip  # this reply's time includes the beat's own work
        if looks_ahead:
            self._looked = reply, self.sent_at

    def looked(self) -> Reply | None:
        """The reply to the look that :meth:`send` sent, None without a recent one."""
        self.finish()
        (reply, sent_at), self._looked = self._looked, NO_LOOK
        return reply if self._clock() - sent_at < LONGEST_AHEAD else None

    @property
    def has_looked(self) -> bool:
        """Whether :meth:`looked` already has a reply, which makes another look pointless."""
        return self._looked[0] is not None

    def forget_look(self) -> None:
        """Drop the reply to the look that :meth:`send` sent: its rows stay due."""
        self._looks_ahead, self._looked = False, NO_LOOK

    def look(self, look: Look | None) -> Reply:
        """Carry out a turn with all changes and a look. One round trip."""
        self.finish()
        return self._receive(self._store.turn(self._request(look)))

    def flush(self) -> None:
        """Send all changes, and wait for the answers. One or two round trips."""
        self.finish()
        if self.pending:
            self.look(None)

    def exchange(self, changes: Sequence[Change]) -> Reply:
        """Carry out changes that belong to no run and are made again after an error.

        One round trip. On a standby nothing is changed.
        """
        self.finish()
        self._note_sent()
        lock = None if self.lock is None else self.lock.words()
        request = Request(self.token, lock, changes, leads_only=True)
        return self._observed(self._store.turn(request))

    def _request(self, look: Look | None) -> Request:
        """The next request; what an unanswered one carried comes first."""
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
        now = self._clock()
        if self._redis_time:
            expected = self._redis_time + (self.sent_at - self.answered_at)
            self.clock_went_back = max(self.clock_went_back, expected - reply.now)
        self.clock_went_back = max(self.clock_went_back, reply.back)
        self.round_trip = now - self.sent_at
        self.answered_at, self._redis_time = now, reply.now
        # Redis read its clock at some time between the request and now.
        least, most = self._host_sent_at - reply.now, time() - reply.now
        is_normal = least <= NORMAL_OFFSET and most >= -NORMAL_OFFSET
        self.host_ahead = 0.0 if is_normal else min(least, most, key=abs)
        if self.lock is not None:
            self.lock.observe(reply)
        return reply

    @property
    def limit(self) -> int:
        return FAR_LIMIT if self.round_trip > FAR else LIMIT

    def time(self) -> float:
        """Redis's time in UNIX seconds. No round trip."""
        return self._redis_time + (self._clock() - self.answered_at)
