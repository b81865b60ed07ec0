"""One tick of a beat: keep the lock, claim, decide, publish, complete."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, Protocol

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from .entry import PARKED, RedBeatSchedulerEntry
from .errors import DecodeError, RedBeatError
from .eviction import check_eviction
from .history import History, encode_meta, encode_runtime
from .leader import BeatLock
from .occurrences import Run
from .prototypes import Prototypes
from .quarantine import Quarantine
from .statics import StaticEntries
from .store import (
    BATCH,
    HISTORY_CHANGED,
    REFUSED,
    STANDBY,
    Claim,
    Completion,
    Result,
    Store,
    Turn,
)
from .timing import asks_itself

__all__ = ("Dispatcher", "Hooks")

logger = get_logger("celery.beat")

#: Seconds a claim lasts. A beat that dies leaves its claims to others after that.
LEASE = 30.0

#: Seconds of a lease in which a beat still publishes; the rest is for the slowest publish.
LEASE_USED = 20.0

#: Seconds between two ticks at most: so fast are entries of raw Redis writers seen.
MAX_WAIT = 5.0

#: Seconds between two looks at the lock by a standby.
STANDBY_POLL = 1.0

#: Seconds one tick goes on claiming before it returns to the service.
MAX_TICK = 2.0

#: Seconds after which published occurrences are recorded, even in the middle of a batch.
FLUSH_INTERVAL = 0.25

#: Back-off in seconds while Redis or the broker is away, and for an entry that cannot be sent.
OUTAGE_WAIT = (0.1, 2.0)
ENTRY_WAIT = (1.0, 60.0)


class Hooks(Protocol):
    """What the dispatcher asks of the scheduler, which users subclass."""

    app: Any
    Entry: type[RedBeatSchedulerEntry]
    max_interval: float
    producer: Any

    def maybe_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Send the entry if it is due; return the seconds until it is due again."""

    def broker_failed(self, error: BaseException) -> bool:
        """Return whether the broker is to blame; then its connection is dropped."""


class Dispatcher:
    """Runs the ticks of one beat.

    Arguments:
        hooks: the scheduler.
        store: the schedule, on a client that does not retry: the tick has a back-off of its own.
        lock: the beat lock, None when several beats share the work.
        statics: the entries of ``beat_schedule``.
        eviction: the setting ``redbeat_key_expiry_check``.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        hooks: Hooks,
        store: Store,
        lock: BeatLock | None,
        statics: StaticEntries,
        eviction: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running = False
        self._hooks = hooks
        self._store = store
        self._lock = lock
        self._statics = statics
        self._eviction: str | None = eviction
        self._clock = clock
        self._quarantine = Quarantine(store, clock)
        self._prototypes = Prototypes(hooks)
        self._beat_id = uuid.uuid4().hex[:12]
        self._claims_made = 0
        self._claim_id = ""
        self._pending: list[Completion] = []
        self._repeated = False
        self._synced = False
        self._sync_again_at = 0.0
        self._missing: set[str] = set()
        self._attempts: dict[str, int] = {}
        self._redis_failures = 0
        self._broker_failures = 0
        self._asked_at = self._answered_at = clock()
        self._now = 0.0

    # -- the tick ------------------------------------------------------------------------------

    def tick(self) -> float:
        """Dispatch what is due; return the seconds to sleep until the next tick.

        Two round trips per 500 due entries, one when nothing is due. Errors of Redis and of the
        broker are logged and waited for; only :exc:`RedBeatKeyExpiryError` is raised.
        """
        self.running = True
        try:
            return self._available(self._work())
        except (RedisError, OSError) as error:
            return self._unavailable(error)
        except RedBeatError:
            raise
        except Exception:
            logger.exception("beat: The tick failed, trying again in %.0f s", STANDBY_POLL)
            return STANDBY_POLL
        finally:
            self.running = False

    def flush(self) -> None:
        """Record what was published. No round trip when there is nothing, else one."""
        if self._pending:
            self._turn(0)

    def _available(self, wait: float) -> float:
        if self._redis_failures:
            logger.warning("beat: Redis is back after %d failed ticks", self._redis_failures)
        self._redis_failures = 0
        return wait

    def _unavailable(self, error: Exception) -> float:
        if not self._redis_failures:
            logger.error("beat: Redis is not available, trying again: %r", error)
        self._redis_failures += 1
        return back_off(OUTAGE_WAIT, self._redis_failures)

    def _work(self) -> float:
        self._check_eviction()
        started = self._clock()
        while True:
            turn = self._turn(self._limit())
            if turn.standing == STANDBY:
                self._synced = False
                return min(STANDBY_POLL, self._longest_wait())
            if not self._sync(turn):
                continue
            if not turn.claims:
                self._quarantine.review(turn.quarantined)
                return self._wait(turn)
            self._dispatch(turn.claims)
            self._quarantine.flush()
            if self._broker_failures or self._clock() - started > MAX_TICK:
                self.flush()
                return back_off(OUTAGE_WAIT, self._broker_failures)

    def _check_eviction(self) -> None:
        if self._eviction is not None:
            check_eviction(self._store, self._eviction)
            self._eviction = None

    def _limit(self) -> int:
        if not self._synced:
            return 0
        return 1 if self._broker_failures else BATCH

    def _longest_wait(self) -> float:
        longest = min(MAX_WAIT, self._hooks.max_interval)
        return longest if self._lock is None else min(longest, self._lock.timeout / 3)

    def _wait(self, turn: Turn) -> float:
        longest = self._longest_wait()
        if turn.next_due is None:
            return longest
        return min(max(turn.next_due - self._redis_now(), 0.0), longest)

    def _redis_now(self) -> float:
        """The time of Redis: its last answer plus the local seconds since."""
        return self._now + (self._clock() - self._answered_at)

    # -- turns ---------------------------------------------------------------------------------

    def _turn(self, limit: int) -> Turn:
        """Keep the lock, record what was published, claim up to ``limit``. One round trip."""
        if limit:
            self._claims_made += 1
            self._claim_id = f"{self._beat_id}-{self._claims_made}"
        sent, repeated = self._pending, self._repeated
        self._repeated = True
        self._asked_at = self._clock()
        lock = None if self._lock is None else self._lock.arguments()
        turn = self._store.claim(self._claim_id, limit, LEASE, sent, lock)
        self._answered_at, self._now = self._clock(), turn.now
        self._pending, self._repeated = [], False
        if self._lock is not None:
            self._lock.observe(turn)
        for done, result in zip(sent, turn.results, strict=True):
            self._settle(done, result, repeated)
        return turn

    def _settle(self, done: Completion, result: Result, repeated: bool) -> None:
        if result.code == HISTORY_CHANGED:
            self._pending.append(merge(done, result.meta, self._now))
        elif result.code == REFUSED and not repeated:
            logger.info("beat: Entry %s was deleted or replaced during its run", done.key)

    def _sync(self, turn: Turn) -> bool:
        """Write static entries if that is due; False when another turn is needed before claims."""
        if self._synced:
            if turn.statics >= len(self._statics) or self._clock() < self._sync_again_at:
                return True
            logger.warning("beat: Static entries vanished from Redis, writing them again")
        self._sync_again_at = self._clock() + STANDBY_POLL
        key, token = (None, "") if self._lock is None else (self._lock.key, self._lock.token)
        now = datetime.fromtimestamp(turn.now, timezone.utc)
        self._synced = self._statics.sync(self._store, key, token, now)
        return bool(turn.claims)

    # -- a batch -------------------------------------------------------------------------------

    def _dispatch(self, claims: list[Claim]) -> None:
        claim_id, deadline = self._claim_id, self._asked_at + LEASE_USED
        rest = iter(claims)
        try:
            for claim in rest:
                if self._clock() >= deadline:
                    logger.warning("beat: Stalled past the lease of the claims, giving them back")
                    self._release(claim, claim_id)
                    break
                self._handle(claim, claim_id)
                if self._broker_failures:
                    break
                if self._clock() - self._answered_at > FLUSH_INTERVAL and self._pending:
                    self._turn(0)
        except (SystemExit, KeyboardInterrupt):
            self._give_back(rest, claim_id)
            self._record_before_exit()
            raise
        finally:
            self._give_back(rest, claim_id)

    def _record_before_exit(self) -> None:
        """Told to stop: record what is out, so that nobody sends it again."""
        try:
            self._quarantine.flush()
            self.flush()
        except (RedisError, OSError) as error:
            logger.error("beat: Could not record the last runs: %r", error)

    def _give_back(self, claims: Iterator[Claim], claim_id: str) -> None:
        for claim in claims:
            self._release(claim, claim_id)

    def _release(self, claim: Claim, claim_id: str, score: float | None = None) -> None:
        """Give a claim back: due again as it was, or at ``score``."""
        if claim.definition is not None:
            due = claim.due if score is None else score
            self._pending.append(Completion(claim.key, claim_id, due))

    def _handle(self, claim: Claim, claim_id: str) -> None:
        if claim.definition is None and not claim.problem:
            self._hash_is_gone(claim)
            return
        try:
            entry = self._load(claim)
        except Exception as error:
            self._quarantine.add(claim, claim_id, str(error) or repr(error), self._redis_now())
            return
        if not entry.enabled:
            self._pending.append(Completion(claim.key, claim_id, PARKED))
        elif self._decidable(entry, claim, claim_id):
            self._run(entry, claim, claim_id)

    def _decidable(self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str) -> bool:
        """Return whether the schedule can tell when it is due; if not, see to the claim."""
        try:
            entry.verdict()
        except Exception as error:
            if asks_itself(entry.schedule):  # the user's own code, which may recover
                self._failed(claim, claim_id, error)
            else:
                reason = f"cannot tell when it is due: {error!r}"
                self._quarantine.add(claim, claim_id, reason, self._redis_now())
            return False
        return True

    def _load(self, claim: Claim) -> RedBeatSchedulerEntry:
        if claim.problem or claim.definition is None:
            raise DecodeError("definition", claim.problem)
        prototype = self._prototypes.get(claim.key, claim.definition, claim.policy)
        entry = prototype.with_history(claim.meta, claim.runtime)
        entry.run = Run(utc(self._redis_now()), utc(claim.due))
        return entry

    def _hash_is_gone(self, claim: Claim) -> None:
        """Remove a member without a hash the second time: a writer may be between two commands."""
        if claim.key not in self._missing:
            self._missing.add(claim.key)
            return
        self._missing.discard(claim.key)
        if claim.key.removeprefix(self._store.keys.prefix) in self._statics:
            logger.warning("beat: Static entry %s vanished, writing it again", claim.key)
            self._synced = False
            return
        for member in self._store.forget([claim.key]):
            logger.error("beat: Entry %s is removed from the schedule: its hash is gone", member)

    # -- one entry -----------------------------------------------------------------------------

    def _run(self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str) -> None:
        run = entry.run
        assert run is not None
        try:
            producer = self._hooks.producer
        except Exception as error:
            self._failed(claim, claim_id, error)
            return
        try:
            seconds = self._hooks.maybe_due(entry, producer=producer)
        except Exception as error:
            self._failed(claim, claim_id, error)
            return
        if run.sent:
            self._sent(entry, run, claim, claim_id)
        elif run.error is not None:
            self._failed(claim, claim_id, run.error)
        else:
            self._not_due(run, seconds, claim, claim_id)

    def _sent(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, claim_id: str
    ) -> None:
        self._attempts.pop(claim.key, None)
        if self._broker_failures:
            logger.warning("beat: The broker is back")
            self._broker_failures = 0
        after = run.successor or entry.next()
        next_at = entry.verdict().next_at
        score = PARKED if next_at is None else next_at.timestamp()
        if next_at is None:
            logger.info("beat: Entry %s has finished: nothing is left to run", entry.name)
        runtime = encode_runtime(after.scheduled_at or run.due, after.last_run_at)
        self._pending.append(
            Completion(claim.key, claim_id, score, after.history_text(), runtime)
        )

    def _not_due(self, run: Run, seconds: Any, claim: Claim, claim_id: str) -> None:
        verdict = run.verdict
        if verdict is not None and not verdict.due:
            score = PARKED if verdict.next_at is None else verdict.next_at.timestamp()
        elif isinstance(seconds, (int, float)):
            score = self._redis_now() + max(float(seconds), 0.05)
        else:
            score = PARKED
        self._release(claim, claim_id, score)

    def _failed(self, claim: Claim, claim_id: str, error: Exception) -> None:
        """Keep an occurrence that could not be published: it is late, not lost."""
        if self._hooks.broker_failed(error):
            if not self._broker_failures:
                logger.error("beat: The broker is not available, trying again: %r", error)
            self._broker_failures += 1
            # Not at once, so that another entry is tried next: it may be this one's fault.
            wait = back_off(OUTAGE_WAIT, self._broker_failures)
            self._release(claim, claim_id, self._redis_now() + wait)
            return
        self._attempts[claim.key] = attempt = self._attempts.get(claim.key, 0) + 1
        wait = back_off(ENTRY_WAIT, attempt)
        logger.error(
            "beat: Could not send %s, attempt %d, trying again in %.0f s: %r",
            *(claim.key, attempt, wait, error),
        )
        self._release(claim, claim_id, self._redis_now() + wait)


def utc(seconds: float) -> datetime:
    """Return UNIX seconds as a datetime in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def back_off(bounds: tuple[float, float], failures: int) -> float:
    """Return the seconds to wait after so many failures in a row; 0 after none."""
    first, longest = bounds
    return 0.0 if not failures else min(first * 2 ** min(failures - 1, 16), longest)


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
