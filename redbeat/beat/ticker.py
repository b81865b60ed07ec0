"""The ticks of a beat: keep the lock, claim, dispatch, complete, wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeGuard, TypeVar

from celery.utils.log import get_logger
from redis.exceptions import LockNotOwnedError, NoPermissionError, RedisError

from redbeat.calendar.zones import from_timestamp
from redbeat.config import RedBeatConfig
from redbeat.connection.tls import hint
from redbeat.entries.decide import CLOCK_STEP
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import RedBeatError, described
from redbeat.metrics.counters import Counters
from redbeat.metrics.health import BeatHealth
from redbeat.signals import (
    emit,
    lock_acquired,
    lock_lost,
    redis_back,
    redis_lost,
    schedule_lost,
    statics_synced,
)
from redbeat.storage.checks import (
    check_eviction,
    check_rights,
    explained,
    warn_about_misspelt,
    warn_about_untagged,
)
from redbeat.storage.quarantine import Quarantine, printable
from redbeat.storage.records import NEW_LEADER, STANDBY, Claim, ClaimReply
from redbeat.storage.store import MAX_WAIT, Store

from .dispatch import Dispatcher, Given
from .exactly_once import CommonServer
from .lock import FORGET_AFTER, NOT_A_LOCK, BeatLock, OwnLock
from .maintenance import StatsCleanup, Sweep, follow_clock, follow_time_zone
from .publisher import Publisher
from .retries import BROKER_WAIT, BackOff, Pace, Recent
from .scheduler_protocol import SchedulerProtocol
from .session import LONGEST_LEASE, Response, Session
from .statics import StaticEntries
from .stop_signals import HeldSignals

__all__ = ("Ticker",)

logger = get_logger("celery.beat")

W = TypeVar("W")

#: Seconds between two looks at the lock by a standby.
STANDBY_POLL = 1.0

#: Seconds one tick goes on claiming before it returns to the service.
MAX_TICK = 2.0

#: Seconds that one batch may spend on making entries from their texts; the rest is given back.
MAX_READING = 0.5

#: Characters of a definition from which on it is read after the others of its batch.
LONG_TEXT = 65_536

#: Seconds between two looks for what nothing leads to, by a beat that is never idle.
LOOK_INTERVAL = 1.0

#: Seconds for which a beat lets others go first where it was the last to give an entry back.
HEAD_START = 0.025

#: Seconds to wait while Redis is away.
REDIS_WAIT = BackOff(0.1, 2.0)


def _is_ours(lock: Any) -> TypeGuard[BeatLock]:
    return isinstance(lock, BeatLock)


def _is_long(claim: Claim) -> bool:
    return len(claim.definition or "") > LONG_TEXT


class Ticker:
    """Runs the ticks of one beat.

    Arguments:
        hooks: the scheduler.
        store: the schedule, on a client that does not retry: the tick has a back-off of its own.
        lock: the beat lock, None when several beats share the work.
        statics: the entries of ``beat_schedule``.
        conf: the settings.
        clock: monotonic seconds.
        lease: seconds a claim lasts.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        store: Store,
        lock: BeatLock | None,
        statics: StaticEntries,
        conf: RedBeatConfig,
        clock: Callable[[], float] = time.monotonic,
        lease: float = LONGEST_LEASE,
    ) -> None:
        self.running = False
        self._scheduler = scheduler
        self._store = store
        self._lock: BeatLock | OwnLock | None = lock
        self._statics = statics
        self._conf = conf
        self._server_checked = False
        self._clock = clock
        self._quarantine = Quarantine(store, clock)
        self._sweep = Sweep(store, clock)
        self.health = BeatHealth(clock)
        self.counters = Counters(conf.metrics_entries)
        self._stats_cleanup = StatsCleanup(store, conf.metrics_entries, clock)
        self._publisher = Publisher(conf.publish_window, clock)
        pace = Pace(conf.max_rate)
        self._session = Session(
            *(store, lock, clock, lease, conf.history_size, self.counters, pace)
        )
        self._server = CommonServer(store, conf.delivery, clock)
        self._dispatcher = Dispatcher(
            *(scheduler, self._quarantine, self._session, self._publisher, self._server, statics),
            *(self.counters, conf),
        )
        self._at_most_once = self._dispatcher.at_most_once
        self._synced = False
        self._sync_again_at = 0.0
        self._prune_at = math.inf
        self._members = 0
        self._missing: Recent[bool] = Recent()
        self._looked_at = clock()
        self._told = ""
        self._offered_until = 0.0
        self._gone: list[str] = []
        self._redis_failures = 0
        self._led = False
        self._at_work = False
        self._look_again_at: list[float] = []
        self._answered = False
        self._refused = False
        self._causes: set[str] = set()
        self._stop = HeldSignals()

    # -- the tick ------------------------------------------------------------------------------

    def tick(self, claims: bool = True) -> float:
        """Dispatch what is due; return the seconds to sleep until the next tick.

        Two round trips per 500 due entries, one when nothing is due. Errors of Redis and of the
        broker are logged and waited for; only :exc:`RedBeatError` is raised, for settings that
        forbid to go on, and redis-py's ``LockNotOwnedError`` where they ask for it. A signal to
        stop ends it after what is under way, a second one at once.

        Without ``claims`` nothing is dispatched: the caller runs the entries by :meth:`run_one`.
        """
        return self.guarded(partial(self._work, claims))

    def take_lock(self) -> None:
        """Take the lock if it is free, before the first tick. One round trip."""
        if self._session.lock is not None:
            self.guarded(self._look_at_lock)

    def run_one(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Claim an entry, send it if it is due, and record that.

        ``options`` are those of ``apply_async``. Returns the seconds until it is due again, None
        for never; a second while another beat leads or holds a claim on the entry. No round trip
        for an entry that is not due, else two.

        Within a tick, for an object that a subclass loaded again: the claim is held already.
        """
        if self.running:
            return self._scheduler.send_if_due(entry, **options)
        return self.guarded(partial(self._run_one, entry, options))

    def release_lock(self) -> None:
        """Release the lock if it is held, or may be. One round trip then."""
        lock = self._lock
        if lock is not None and (lock.leading or (lock.leading is None and not _is_ours(lock))):
            lock.release()

    def use_lock(self, lock: Any, timeout: float) -> None:
        """Go on with the lock object of the scheduler, which a program may replace.

        None when several beats share the work; ``timeout`` is seconds. No round trip, one to
        release the lock before it.
        """
        if lock is self._lock or (isinstance(self._lock, OwnLock) and lock is self._lock.lock):
            return
        if _is_ours(self._lock) and self._lock.leading:
            try:
                self._lock.release()
            except (RedisError, OSError) as error:
                logger.warning(
                    "beat: The lock before this one expires by itself: %s", described(error)
                )
        own = lock is None or _is_ours(lock)
        self._lock = lock if own else OwnLock(lock, timeout)
        self._session.lock = lock if own else None

    def guarded(self, work: Callable[[], W]) -> W | float:
        """Return what ``work`` returns, or the seconds to wait after what went wrong."""
        self.running = True
        started = self._clock()
        try:
            with self._stop:
                return self._available(work())
        except LockNotOwnedError:
            raise
        except (RedisError, OSError) as error:
            return self._unavailable(explained(error, self._store))
        except RedBeatError:
            raise
        except Exception:
            logger.exception("beat: The tick failed, trying again in %.0f s", STANDBY_POLL)
            return STANDBY_POLL
        finally:
            self.running = False
            self._take_note(started)

    def _tell_problem(self) -> None:
        """Tell all who ask what keeps this beat from sending. One round trip when that changed."""
        problem = self._server.problem
        if problem != self._told:
            self._store.note_problem(problem)
            self._told = self.health.problem = problem

    def _take_note(self, started: float) -> None:
        """Count the tick that ends."""
        self.health.ticked()
        at_work = self.health.leads is True
        self.counters.ticked(self._clock() - started, self._store.round_trips, at_work)

    @property
    def available(self) -> bool:
        """Whether Redis answered at the last tick."""
        return not self._redis_failures

    def flush(self) -> None:
        """Record what was published, and give back what was claimed for later.

        No round trip when there is nothing, else one or a few.
        """
        self._dispatcher.deliver()
        self._at_most_once.keep()
        for response in (self._session.begun(), self._session.unheard()):
            if response is not None:
                self._give_back(response.reply.claims)
        self._session.flush()
        self._at_most_once.publish()

    def close(self) -> None:
        """Do as :meth:`flush`, for the last time."""
        try:
            self.flush()
            self._session.leave()
        finally:
            self._at_most_once.report_lost()
            self._publisher.close()
            self._server.close()

    def _available(self, wait: W) -> W:
        if self._redis_failures:
            logger.warning("beat: Redis is back after %d failed ticks", self._redis_failures)
            emit(redis_back, self._scheduler, failures=self._redis_failures)
        self.health.completed()
        self._redis_failures = 0
        self._answered = True
        self._causes.clear()
        return wait

    def _unavailable(self, error: Exception) -> float:
        self.health.failed()
        if not self._redis_failures:
            emit(redis_lost, self._scheduler, error=error)
        kind = type(error).__name__
        # Once per cause: what follows "connection refused" may be the one that lasts.
        if kind not in self._causes:
            self._causes.add(kind)
            why = "" if self._answered else hint(error, self._store.client)
            logger.error("beat: Redis is not available, trying again: %s: %s%s", kind, error, why)
        self._redis_failures += 1
        self._refused = isinstance(error, NoPermissionError)
        return REDIS_WAIT.after(self._redis_failures)

    def _work(self, claims: bool) -> float:
        self._check_server()
        started = self._clock()
        while True:
            failures = self._dispatcher.retries.of_broker
            self._at_most_once.keep()
            if not self._keep_own_lock():
                return self._stand_by("another")
            response = self._session.next(self._limit() if claims else 0)
            reply = response.reply
            self._at_most_once.publish()  # what a lost reply had left open
            if not self._leads(reply):
                return self._stand_by(reply.holder)
            if self._sync(reply):
                continue
            if reply.claims:
                self._look_ahead(reply)
                self._dispatch(response)
                self._look_after_though_busy(reply)
            elif (
                self._dispatcher.retries.of_broker <= failures
                and not self._session.pending
                and not self._look_after(reply)
            ):
                return self._wait(reply) if claims else self._longest_wait()
            # While the broker is away, entries that do not need it are still seen to.
            enough = self._stop.pending or self._clock() - started > MAX_TICK
            if self._dispatcher.retries.of_broker > failures or enough:
                self.flush()
                return BROKER_WAIT.after(self._dispatcher.retries.of_broker)

    def _run_one(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        due, seconds = self._scheduler.is_due(entry)
        if not (due or entry.put_up):
            return seconds
        waiting = self._prepare()
        if waiting is not None:
            return waiting
        response = self._session.request(1, entry.key)
        if not self._leads(response.reply):
            return self._stand_by(response.reply.holder)
        claim = next((claim for claim in response.reply.claims if claim.key == entry.key), None)
        if claim is None:
            self._give_back(response.reply.claims)
            return STANDBY_POLL
        if claim.definition is None and not claim.problem:
            return self._run_unstored(entry, options) if due else seconds
        self._dispatch(response, Given(entry, options))
        return self._recorded(entry.key, seconds)

    def _prepare(self) -> float | None:
        """Do what a tick does before it claims; the seconds to wait where this beat may not run."""
        self._check_server()
        if not self._keep_own_lock():
            return self._stand_by("another")
        if not self._synced:
            reply = self._look_at_lock()
            if reply.standing == STANDBY:
                return self._stand_by(reply.holder)
            self._sync(reply)
        return None

    def _recorded(self, key: str, seconds: float | None) -> float | None:
        """Record the run of one entry; return the seconds until it is due again."""
        records = self._session.pending
        scores = [record.done.score for record in records if record.done.key == key]
        self.flush()
        failures = self._dispatcher.retries.of_broker
        if failures:
            return BROKER_WAIT.after(failures)
        # The clock of this host may be ahead of Redis: then the run that was due is not due yet.
        waits = [max(score - self._session.time(), 0.0) for score in scores if score >= 0]
        return min(waits, default=seconds)

    def _run_unstored(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Send an entry that only the program has, which then remembers the run itself."""
        decision, count = entry.decision(), entry.total_run_count + 1
        seconds = self._scheduler.send_if_due(entry, **options)
        entry.adopt("", entry.default_now(), count, decision.anchor or decision.scheduled_at)
        return seconds

    def _keep_own_lock(self) -> bool:
        """Whether the lock is held if a program brought it; that of a beat is kept by its turns."""
        held = not isinstance(self._lock, OwnLock) or self._lock.keep()
        if not held:
            self._take_note_of_lead("another")
        return held

    def _look_at_lock(self) -> ClaimReply:
        reply = self._session.request(0).reply
        self._leads(reply)
        return reply

    def _leads(self, reply: ClaimReply) -> bool:
        """Whether this beat may go on; says when it begins or ceases to lead."""
        self._take_note_of_lead(reply.holder)
        at_work = reply.standing != STANDBY
        if at_work and not self._at_work:  # before this beat's own ticks are told
            back = self._store.last_tick() - reply.now
            self._session.went_back = max(self._session.went_back, back)
        self._at_work = at_work
        return at_work

    def _take_note_of_lead(self, holder: str) -> None:
        leads = self._lock is not None and bool(self._lock.leading)
        self.health.observe(leads or self._lock is None, holder == NOT_A_LOCK)
        if leads is not self._led:
            self._led = leads
            if leads:
                emit(lock_acquired, self._scheduler)
            else:
                emit(lock_lost, self._scheduler, holder=holder)

    def _stand_by(self, holder: str) -> float:
        self._synced, self._statics.offered = False, ""
        lock = self._lock
        if lock is not None and lock.lost and self._conf.on_lock_lost == "exit":
            self._session.flush()
            raise LockNotOwnedError(f"the lock {lock.key} is held by {holder}")
        return min(STANDBY_POLL, self._longest_wait())

    def _look_after(self, reply: ClaimReply) -> bool:
        """Look for entries that nothing leads to; True when there may be something to do."""
        self._looked_at = self._clock()
        self._stats_cleanup.look()
        self._prune_when_alone()
        return self._quarantine.review(reply.quarantined) or self._sweep.look()

    def _look_after_though_busy(self, reply: ClaimReply) -> None:
        """Do as :meth:`_look_after` now and then, for a beat that is never idle."""
        if self._clock() - self._looked_at >= LOOK_INTERVAL:
            self._look_after(reply)

    def _look_ahead(self, reply: ClaimReply) -> None:
        """Have Redis record the last batch and claim the next while this one is dispatched.

        A Redis that is just then away is seen to in the next turn: this batch is in hand.
        """
        more = reply.next_due is not None and reply.next_due <= reply.now
        worth_it = more or (self._session.pending and len(reply.claims) > self._session.batch // 2)
        if worth_it and not self._dispatcher.retries.of_broker:
            try:
                self._session.begin(self._limit() if more else 0)
            except (RedisError, OSError) as error:
                logger.debug("beat: Cannot look ahead: %r", error)

    def _check_server(self) -> None:
        if self._refused:  # No script runs that would stop half-way.
            check_rights(self._store)
        if not self._server_checked:
            check_eviction(self._store, self._conf.key_expiry_check)
            warn_about_untagged(self._store, self._conf)
            warn_about_misspelt(self._store)
            self._server_checked = True

    def _limit(self) -> int:
        if not self._synced:
            return 0
        return 1 if self._dispatcher.retries.of_broker else self._session.batch

    def _longest_wait(self) -> float:
        longest = min(MAX_WAIT, self._scheduler.max_interval)
        return longest if self._lock is None else min(longest, self._lock.timeout / 3)

    def _wait(self, reply: ClaimReply) -> float:
        longest = min(self._longest_wait(), self._session.pace.wait(self._clock()))
        if reply.next_due is None:
            return longest
        others_first = self._lock is None and reply.next_due <= self._offered_until
        wait = reply.next_due - self._session.time() + (HEAD_START if others_first else 0.0)
        return min(max(wait, 0.0), longest)

    # -- turns ---------------------------------------------------------------------------------

    def _sync(self, reply: ClaimReply) -> bool:
        """Write static entries if they are not there; True when the next thing is another turn."""
        emptied = self._emptied(reply)
        self._follow_clock()
        if self._synced and not emptied and not self._statics.unwritten:
            if self._statics_stand(reply) or self._clock() < self._sync_again_at:
                return False
            logger.warning("beat: Static entries vanished from Redis, writing them again")
        self._sync_again_at = self._clock() + STANDBY_POLL
        now, alone = from_timestamp(reply.now), self._lock is not None
        synced = self._statics.sync(self._store, self._session.lock, now, alone)
        self._synced = synced and self._follow_time_zone()
        if self._synced:
            self._prune_at = math.inf if alone else self._clock() + FORGET_AFTER
            emit(statics_synced, self._scheduler, **self._statics.synced)
        return not reply.claims

    def _follow_time_zone(self) -> bool:
        """Compute again what depends on another time zone; False when this beat lost the lead."""
        return self._still_leads(
            follow_time_zone(self._store, self._scheduler.app, self._scheduler.Entry)
        )

    def _follow_clock(self) -> None:
        """Look at entries again if the clock of Redis went back, as long as this beat leads.

        A second time after a lease: what was claimed before may be recorded until then.
        """
        now, back = self._clock(), self._session.went_back
        if back > CLOCK_STEP:
            logger.warning("beat: The clock of Redis went back by %.1f s", back)
            self._session.went_back, self._look_again_at = 0.0, [now, now + LONGEST_LEASE]
        if not self._look_again_at or now < self._look_again_at[0]:
            return
        if self._still_leads(follow_clock(self._store)):
            del self._look_again_at[0]

    def _still_leads(self, batches: Iterator[None]) -> bool:
        """Go through batches of work, keeping the lock; False when this beat lost the lead."""
        return all(self._look_at_lock().standing != STANDBY for _ in batches)

    def _prune_when_alone(self) -> None:
        """Without a lock, remove static entries that no beat may have had for a minute.

        One round trip, once after each start, and some more where there are such entries.
        """
        if self._clock() < self._prune_at:
            return
        self._prune_at = math.inf
        if self._statics.stale(self._store, alone=True):
            present = {beat.token for beat in self._store.beats(FORGET_AFTER) if not beat.locked}
            if present == {self._session.token}:
                self._statics.prune(self._store, None)
            else:
                self._prune_at = self._clock() + FORGET_AFTER

    def _statics_stand(self, reply: ClaimReply) -> bool:
        """Whether the static entries are there, as far as their number tells.

        Without a lock, another beat with a newer ``beat_schedule`` may have removed some.
        """
        return reply.statics >= (len(self._statics) if self._lock else min(len(self._statics), 1))

    def _emptied(self, reply: ClaimReply) -> bool:
        """Whether the whole schedule vanished since the last turn; that is said loudly.

        Raises ``LockNotOwnedError`` where the lock went with it, and a beat that lost its lock must
        end.
        """
        before, self._members = self._members, reply.members
        if reply.members or not before:
            return False
        self._sweep.hurry()
        lock_is_new = reply.standing == NEW_LEADER
        if before == 1 and not lock_is_new:  # it may just have been deleted
            return False
        logger.error("beat: The schedule in Redis is empty: all %d entries are gone", before)
        emit(schedule_lost, self._scheduler, count=before)
        if lock_is_new and self._conf.on_lock_lost == "exit":
            raise LockNotOwnedError("the lock vanished from Redis, and all entries with it")
        return True

    # -- a batch -------------------------------------------------------------------------------

    def _dispatch(self, response: Response, given: Given | None = None) -> None:
        """Dispatch claimed entries; what is left when the broker or the time fails is given back.

        ``given`` is what a program gave to send of one of them. A round trip now and then, see
        :meth:`Session.send_if_ripe`, and those of the quarantine.
        """
        # A text that takes long to read keeps no other entry waiting.
        response.reply.claims.sort(key=_is_long)
        rest = iter(response.reply.claims)
        try:
            self._dispatch_each(rest, response, given)
            self._dispatcher.deliver()
            if not self._dispatcher.retries.of_broker:
                self._at_most_once.keep()
        except (SystemExit, KeyboardInterrupt):
            self._give_back_rest(rest)
            self._record_before_exit()
            raise
        finally:
            # After an error of Redis too: what is written down as a message goes out now, while the
            # claims are held.
            self._dispatcher.deliver()
            self._give_back_rest(rest)
        self._quarantine.flush()
        self._forget_gone()
        self._offer_to_others()
        self._tell_problem()

    def _offer_to_others(self) -> None:
        """Have beats that share the work look at what this one cannot run.

        No round trip when there is nothing new, else two.
        """
        until = self._dispatcher.retries.others_until
        if self._lock is None and until > self._offered_until:
            self._offered_until = until
            self._session.flush()
            self._store.wake_beats()

    def _dispatch_each(
        self, claims: Iterator[Claim], response: Response, given: Given | None
    ) -> None:
        session, publisher, stop = self._session, self._publisher, self._stop
        loaded = self._dispatcher.loaded(response.reply.claims, response.reply.now, given)
        failures, reading = self._dispatcher.retries, 0.0
        for claim in claims:
            asked = self._clock()
            entry = next(loaded)
            started = self._clock()
            reading += started - asked
            if started >= response.deadline:
                logger.warning("beat: Stalled past the lease of the claims, giving them back")
                self._give_back((claim,))
                return
            if claim.definition is None and not claim.problem:
                self._hash_is_gone(claim.key)
                continue
            if self._missing:
                self._missing.forget(claim.key)
            try:
                self._dispatcher.dispatch(entry, claim, session.time_at(started))
            except (SystemExit, KeyboardInterrupt):
                # Nobody knows whether it is out; whoever sends it again does so under the same id.
                session.record(claim.put_back(claim.due, unsure=True))
                raise
            if publisher.ripe(started):
                self._dispatcher.advance()
                session.send()  # of what is out, few runs are not recorded
            if failures.of_broker or stop.pending or reading > MAX_READING:
                return
            session.send_if_ripe(started)

    def _record_before_exit(self) -> None:
        """Told to stop: record what is out, so that nobody sends it again."""
        try:
            self.flush()
            self._quarantine.flush()
        except (RedisError, OSError) as error:
            logger.error("beat: Could not record the last runs: %s", described(error))

    def _give_back_rest(self, claims: Iterable[Claim]) -> None:
        self._give_back(claims)
        self._give_back(self._at_most_once.withdraw())

    def _give_back(self, claims: Iterable[Claim]) -> None:
        """Let entries be due as they were."""
        for claim in claims:
            if claim.definition is not None:
                self._session.record(claim.put_back(claim.due))

    def _hash_is_gone(self, key: str) -> None:
        """Remove a member without a hash the second time: a writer may be between two commands."""
        if self._missing.forget(key) is None:
            self._missing.keep(key, True, self._clock())
            return
        if key.removeprefix(self._store.keys.prefix) in self._statics:
            logger.warning("beat: Static entry %s vanished, writing it again", key)
            self._synced = False
        else:
            self._gone.append(key)

    def _forget_gone(self) -> None:
        """Remove the members without a hash. No round trip when there are none, else one."""
        gone, self._gone = self._gone, []
        for member in self._store.forget(gone) if gone else ():
            logger.error(
                "beat: Entry %s is removed from the schedule: its hash is gone", printable(member)
            )
