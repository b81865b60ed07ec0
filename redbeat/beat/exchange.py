"""The conversation of one beat with Redis: what it records, what it claims, what time it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.entries.history import History, encode_meta
from redbeat.errors import DecodeError
from redbeat.metrics.counters import Counters
from redbeat.storage.quarantine import shown
from redbeat.storage.records import (
    AGAIN,
    HISTORY_CHANGED,
    RECORDED,
    REFUSED,
    Completion,
    Result,
    Terms,
    Turn,
)
from redbeat.storage.store import Store

from .leader import BeatLock, new_token

__all__ = ("Answer", "Exchange")

logger = get_logger("celery.beat")

#: Seconds a claim lasts at most, and at least. A beat that dies leaves its claims to others then.
LONGEST_LEASE, SHORTEST_LEASE = 30.0, 5.0

#: The part of a lease in which a beat still publishes; the rest is for the slowest publish.
USED_PART = 2 / 3

#: Round trips in which a last record is tried, when applications write histories meanwhile.
FLUSH_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Question:
    """The terms of one turn, and what is to be known when it is answered."""

    terms: Terms
    asked_at: float
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
        lease: seconds a claim lasts.
        history: runs kept in the history of an entry.
        counters: what the beat counts, told to Redis with each turn.
    """

    def __init__(
        self,
        store: Store,
        lock: BeatLock | None,
        clock: Callable[[], float],
        lease: float = LONGEST_LEASE,
        history: int = 10,
        counters: Counters | None = None,
    ) -> None:
        self.lease = lease
        self._counters = Counters(0) if counters is None else counters
        self._history = history
        self.pending: list[Completion] = []
        self._store = store
        #: The beat lock; None when several beats share the work.
        self.lock = lock
        self._clock = clock
        self._token = new_token()
        self._beat_id = self._token[-12:]
        self._claims_made = 0
        self._unsure = False
        self._lost: Terms | None = None
        self._confirmed: set[str] = set()
        self._under_way: tuple[Question, Callable[[], Turn]] | None = None
        self._ready: Answer | None = None
        #: The local time of the last answer of Redis.
        self.answered_at = clock()
        self._now = 0.0
        #: By how many seconds the clock of Redis went back since somebody set this to 0.
        self.went_back = 0.0

    def time_at(self, local: float) -> float:
        """The time of Redis at a local time: its last answer plus the local seconds since."""
        return self._now + (local - self.answered_at)

    def time(self) -> float:
        """The time of Redis, as :meth:`time_at` has it."""
        return self.time_at(self._clock())

    def record(self, completions: Iterable[Completion]) -> None:
        """Have completions travel with the next turn."""
        self.pending += completions

    @property
    def token(self) -> str:
        """What this beat is called among those that share the work."""
        return self._token

    def turn(self, limit: int, only: str = "") -> Answer:
        """Keep the lock, record what is pending, claim up to ``limit``. One round trip.

        With a key in ``only`` that entry is claimed and no other, whether it is due or not.
        """
        self._await()
        question = self._question(limit, only)
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

    def _question(self, limit: int, only: str = "") -> Question:
        now = self._clock()
        lock = None if self.lock is None else self.lock.arguments()
        terms = self._terms(limit, now)._replace(
            completions=self.pending, lock=lock, counted=self._counters.take(), only=only
        )
        question = Question(terms, now, self._unsure)
        self.pending, self._unsure = [], False
        return question

    def _terms(self, limit: int, now: float) -> Terms:
        """Return new terms, or those of claims that nobody knows about, for these come first."""
        lost = self._lost
        if lost is not None and limit:
            return lost._replace(limit=max(limit, lost.limit), reply_lost=True)
        if limit:
            self._claims_made += 1
        claim_id = f"{self._beat_id}-{self._claims_made}"
        expires = self.time_at(now) + self.lease if self._now else None
        return Terms(
            *(claim_id, limit, self.lease),
            expires=expires,
            token=self._token,
            history=self._history,
        )

    def _take_back(self, question: Question) -> None:
        """Nobody knows what became of completions and claims: they are asked for again.

        A promise is not: its run, if it was recorded, is not published any more.
        """
        unsure = [done for done in question.terms.completions if not done.promised]
        self.pending = [*unsure, *self.pending]
        self._unsure = True
        if question.terms.limit:
            self._lost = question.terms

    def _receive(self, question: Question, turn: Turn) -> Answer:
        if self._now:  # by the time at which it was asked, as the answer may have taken long
            self.went_back = max(self.went_back, self.time_at(question.asked_at) - turn.now)
        self.answered_at, self._now = self._clock(), turn.now
        self._counters.confirm(turn.members)
        if self.lock is not None:
            self.lock.observe(turn)
        for done, result in zip(question.terms.completions, turn.results, strict=True):
            if done.promised or result.code != RECORDED:
                self._settle(done, result, question.repeated)
        if question.terms.limit:
            self._lost = None
        used = turn.expires - turn.now - self.lease * (1 - USED_PART)
        return Answer(turn, question.terms.claim_id, question.asked_at + used)

    def hear(self) -> None:
        """Wait for the answer that is under way, if one is."""
        self._await()

    def confirm(self, promised: Sequence[Completion]) -> set[str]:
        """Record runs that are to be published only then; return the keys of those recorded.

        When an error is raised nobody knows which ones were. One round trip.
        """
        self._confirmed = set()
        self.pending += promised
        self.turn(0)
        return self._confirmed

    def unheard(self) -> Answer | None:
        """Return the claims whose answer got lost, None when there are none.

        No round trip when there are none, else one.
        """
        return None if self._lost is None else self.turn(self._lost.limit)

    def flush(self) -> None:
        """Record what is pending.

        No round trip when there is nothing, else one; another when an application wrote a history
        meanwhile.
        """
        for _ in range(FLUSH_ATTEMPTS):
            if self.pending:
                self.turn(0)

    def _settle(self, done: Completion, result: Result, repeated: bool) -> None:
        if done.promised and result.code == RECORDED:
            self._confirmed.add(done.key)
        elif done.promised and result.code == HISTORY_CHANGED:
            self.pending.append(Completion(done.key, done.claim_id, self._now, runtime=AGAIN))
        elif result.code == HISTORY_CHANGED:
            self.pending.append(merge(done, result.meta, self._now))
        elif result.code == REFUSED and not repeated:
            logger.info("beat: Entry %s was deleted or replaced during its run", shown(done.key))

    def leave(self) -> None:
        """Say that this beat is not present any more; a leader says so with its lock.

        One round trip, none where nothing is to be said.
        """
        if self.lock is None and self._now:
            self._store.leave(self._token)
        elif self.lock is not None and self._now and self.lock.leading is False:
            with suppress(RedisError, OSError):  # it is forgotten by itself
                self._store.leave(self.lock.token, locked=True)


def merge(done: Completion, meta: str, now: float) -> Completion:
    """Return the completion of a run during which an application wrote ``last_run_at`` itself.

    Its instant counts from now on, our run count stays, and the entry is looked at again.
    """
    try:
        theirs, ours = History.read(meta), History.read(done.meta)
    except DecodeError:
        return Completion(done.key, done.claim_id, now, running=done.running, history=done.history)
    count = max(theirs.total_run_count, ours.total_run_count)
    text = encode_meta(theirs.last_run_at, count)
    return done._replace(score=now, meta=text, runtime="", seen=meta, finish="")
