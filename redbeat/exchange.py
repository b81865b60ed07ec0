"""The conversation of one beat with Redis: what it records, what it claims, what time it is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from celery.utils.log import get_logger

from .errors import DecodeError
from .history import History, encode_meta
from .leader import BeatLock
from .quarantine import shown
from .records import HISTORY_CHANGED, REFUSED, Completion, Result, Turn
from .store import Store

__all__ = ("Answer", "Exchange")

logger = get_logger("celery.beat")

#: Seconds a claim lasts. A beat that dies leaves its claims to others after that.
LEASE = 30.0

#: Seconds of a lease in which a beat still publishes; the rest is for the slowest publish.
LEASE_USED = 20.0

#: Round trips in which a last record is tried, when applications write histories meanwhile.
FLUSH_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """A turn, with the id of its claims and the local time until which they may be published."""

    turn: Turn
    claim_id: str
    deadline: float


class Exchange:
    """Takes turns with Redis.

    Arguments:
        store: the schedule, on a client that does not retry.
        lock: the beat lock, None when several beats share the work.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, lock: BeatLock | None, clock: Callable[[], float]) -> None:
        self.pending: list[Completion] = []
        self._store = store
        self._lock = lock
        self._clock = clock
        self._beat_id = uuid.uuid4().hex[:12]
        self._claims_made = 0
        self._unsure = False
        self._answered_at = clock()
        self._now = 0.0

    def now(self) -> float:
        """The time of Redis: its last answer plus the local seconds since."""
        return self._now + self.silence()

    def silence(self) -> float:
        """The seconds since the last answer of Redis."""
        return self._clock() - self._answered_at

    def record(self, done: Completion) -> None:
        """Have a completion travel with the next turn."""
        self.pending.append(done)

    def turn(self, limit: int) -> Answer:
        """Keep the lock, record what is pending, claim up to ``limit``. One round trip."""
        if limit:
            self._claims_made += 1
        claim_id = f"{self._beat_id}-{self._claims_made}"
        sent, repeated = self.pending, self._unsure
        # Until there is an answer nobody knows what became of them: they are sent again.
        self._unsure = True
        deadline = self._clock() + LEASE_USED
        lock = None if self._lock is None else self._lock.arguments()
        turn = self._store.claim(claim_id, limit, LEASE, sent, lock)
        self._answered_at, self._now = self._clock(), turn.now
        self.pending, self._unsure = [], False
        if self._lock is not None:
            self._lock.observe(turn)
        for done, result in zip(sent, turn.results, strict=True):
            self._settle(done, result, repeated)
        return Answer(turn, claim_id, deadline)

    def flush(self) -> None:
        """Record what is pending.

        No round trip when there is nothing, else one; another when an application wrote a history
        meanwhile.
        """
        for _ in range(FLUSH_ATTEMPTS):
            if self.pending:
                self.turn(0)

    def _settle(self, done: Completion, result: Result, repeated: bool) -> None:
        if result.code == HISTORY_CHANGED:
            self.pending.append(merge(done, result.meta, self._now))
        elif result.code == REFUSED and not repeated:
            logger.info("beat: Entry %s was deleted or replaced during its run", shown(done.key))


def merge(done: Completion, meta: str, now: float) -> Completion:
    """Return the completion of a run during which an application wrote ``last_run_at`` itself.

    Its instant counts from now on, our run count stays, and the entry is looked at again.
    """
    try:
        theirs, ours = History.read(meta), History.read(done.meta)
    except DecodeError:
        return Completion(done.key, done.claim_id, now)
    count = max(theirs.total_run_count, ours.total_run_count)
    return Completion(done.key, done.claim_id, now, encode_meta(theirs.last_run_at, count))
