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
from .records import HISTORY_CHANGED, REFUSED, Completion, Result, Terms, Turn
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
class Question:
    """The terms of one turn, and what is to be known when it is answered."""

    terms: Terms
    deadline: float
    repeated: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A turn, with the id of its claims and the local time until which they may be published."""

    turn: Turn
    claim_id: str
    deadline: float


class Exchange:
    """Takes turns with Redis: one after the other, or one while the last is worked on.

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
        self._under_way: tuple[Question, Callable[[], Turn]] | None = None
        self._ready: Answer | None = None
        #: The local time of the last answer of Redis.
        self.answered_at = clock()
        self._now = 0.0

    def time_at(self, local: float) -> float:
        """The time of Redis at a local time: its last answer plus the local seconds since."""
        return self._now + (local - self.answered_at)

    def record(self, done: Completion) -> None:
        """Have a completion travel with the next turn."""
        self.pending.append(done)

    def turn(self, limit: int) -> Answer:
        """Keep the lock, record what is pending, claim up to ``limit``. One round trip."""
        self._await()
        question = self._question(limit)
        try:
            turn = self._store.claim(*question.terms)
        except BaseException:
            self._take_back(question)
            raise
        return self._receive(question, turn)

    def begin(self, limit: int) -> None:
        """Begin a turn whose answer :meth:`next` returns: Redis works on it meanwhile."""
        if self._under_way is None and self._ready is None and self._store.overlaps:
            question = self._question(limit)
            try:
                self._under_way = question, self._store.begin_claim(question.terms)
            except BaseException:
                self._take_back(question)
                raise

    def next(self, limit: int) -> Answer:
        """Return the answer to the turn that was begun, or to a new one."""
        ready = self.begun()
        return self.turn(limit) if ready is None else ready

    def begun(self) -> Answer | None:
        """Return the answer to the turn that was begun, None when none was."""
        self._await()
        ready, self._ready = self._ready, None
        return ready

    def _await(self) -> None:
        """Wait for the answer to the turn that was begun, and keep it."""
        if self._under_way is None:
            return
        (question, answer), self._under_way = self._under_way, None
        try:
            turn = answer()
        except BaseException:
            self._take_back(question)
            raise
        self._ready = self._receive(question, turn)

    def _question(self, limit: int) -> Question:
        if limit:
            self._claims_made += 1
        claim_id = f"{self._beat_id}-{self._claims_made}"
        lock = None if self._lock is None else self._lock.arguments()
        terms = Terms(claim_id, limit, LEASE, self.pending, lock)
        question = Question(terms, self._clock() + LEASE_USED, self._unsure)
        self.pending, self._unsure = [], False
        return question

    def _take_back(self, question: Question) -> None:
        """Nobody knows what became of the completions: they are sent again."""
        self.pending = [*question.terms.completions, *self.pending]
        self._unsure = True

    def _receive(self, question: Question, turn: Turn) -> Answer:
        self.answered_at, self._now = self._clock(), turn.now
        if self._lock is not None:
            self._lock.observe(turn)
        for done, result in zip(question.terms.completions, turn.results, strict=True):
            self._settle(done, result, question.repeated)
        return Answer(turn, question.terms.claim_id, question.deadline)

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
