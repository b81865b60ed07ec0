"""Runs the ticks of a beat: a tick renews the lock, dispatches due entries, and records runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import LockNotOwnedError, RedisError

from redbeat.calendar.zones import from_timestamp
from redbeat.config import LOG_EACH, RedBeatConfig
from redbeat.entries.decide import CLOCK_STEP
from redbeat.entry import RedBeatSchedulerEntry, is_redbeat_entry
from redbeat.errors import (
    ConfigurationError,
    DecodeError,
    InvalidEntryError,
    RedBeatError,
    described,
)
from redbeat.metrics.counters import Counters
from redbeat.metrics.health import BeatHealth
from redbeat.presentation.english import plural
from redbeat.printing import get_logger
from redbeat.settings import AT_MOST_ONCE
from redbeat.signals import emit, lock_acquired, lock_lost, schedule_lost, statics_synced
from redbeat.storage.checks import (
    LayoutNote,
    check_eviction,
    check_rights,
    explained,
    warn_about_misspelt,
    warn_about_untagged,
)
from redbeat.storage.reading import BATCH, PROBLEM
from redbeat.storage.records import NEW_LEADER, STANDBY, WITH_RECORD, Claim, ClaimReply
from redbeat.storage.store import MAX_WAIT, Store

from .dispatch import Dispatcher
from .loading import CallerEntry
from .lock import FORGET_AFTER, NOT_A_LOCK, BeatLock, CustomLock
from .maintenance import StatsCleanup, Sweep, follow_clock, follow_time_zone
from .publisher import Publisher
from .retries import BROKER_WAIT, FailedTicks, Pace, RecentEntries, should_log
from .scheduler_protocol import SchedulerProtocol
from .session import LONGEST_LEASE, Response, Session
from .statics import StaticEntries
from .stop_signals import HeldSignals

logger = get_logger("celery.beat")

W = TypeVar("W")

#: Seconds between two attempts of a standby to acquire the lock.
STANDBY_POLL = 1.0

#: Seconds for which one tick claims batches before the tick returns to Celery's beat service.
MAX_TICK = 2.0

#: Maximum number of seconds to load the entries of one batch.
#: After ``MAX_LOADING`` seconds, the beat releases the claims of the entries not yet dispatched.
MAX_LOADING = 0.5

#: Seconds between two calls of the maintenance in a beat that is never idle.
MAINTENANCE_INTERVAL = 1.0

#: Seconds for which this beat leaves an entry to other beats after it could not run the entry.
HEAD_START = 0.025

#: Seconds after which a beat stores a lasting problem in Redis again.
PROBLEM_INTERVAL = 30.0

#: Minimum number of seconds between two log lines with the number of sent runs.
SUMMARY_INTERVAL = 1.0

#: The error about an entry of another class whose ``is_due()`` raises.
NOT_AN_ENTRY = (
    "beat: Entry %s of the schedule does not run: is_due() of class %s raised %s. An entry must be "
    "a RedBeatSchedulerEntry, or a ScheduleEntry of Celery"
)

#: Seconds between two checks of a broker that is not available, while no entry is due.
BROKER_CHECK = 10.0

#: The end of the log line of a beat that ends after it lost the lock.
ENDS = "; this beat ends, because redbeat_on_lock_lost is 'exit'"


def _has_due(reply: ClaimReply) -> bool:
    return reply.next_due is not None and reply.next_due <= reply.now


class Ticker:
    """Runs the ticks of one beat.

    Arguments:
        scheduler: the scheduler that users may subclass.
        store: the schedule in Redis, with a client that does not retry, because the beat backs off
            after a failed tick.
        lock: the beat lock, None if several beats share the work.
        statics: the entries of ``beat_schedule``.
        conf: the settings.
        clock: returns monotonic seconds.
        lease: the seconds after which a claim expires.
        publisher, pace: objects that several tickers of one beat share; None creates new objects.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        store: Store,
        lock: BeatLock | None,
        statics: StaticEntries,
        conf: RedBeatConfig,
        clock: Callable[[], float],
        lease: float,
        publisher: Publisher | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.running = False
        #: Seconds for which one tick claims batches.
        self.max_tick = MAX_TICK
        #: Whether each tick waits for all replies, because several tickers share one client.
        self.waits_for_reply = publisher is not None
        self._scheduler = scheduler
        self._store = store
        self._lock: BeatLock | CustomLock | None = lock
        self._statics = statics
        self._conf = conf
        #: Whether the settings and keys of the server were checked, perhaps by another ticker.
        self.server_checked = False
        self._clock = clock
        self._sweep = Sweep(store, clock)
        self.health = BeatHealth(clock)
        self.counters = Counters(conf.metrics_entries)
        self._stats_cleanup = StatsCleanup(store, conf.metrics_entries, clock)
        self._publisher = publisher or Publisher(conf.publish_window, clock)
        pace = pace or Pace(conf.max_rate)
        self._session = Session(
            *(store, lock, clock, lease, conf.history_size, self.counters, pace)
        )
        if conf.delivery == AT_MOST_ONCE:
            # With at-most-once delivery, a run without a record cannot have been sent.
            self._session.way = WITH_RECORD
        self._dispatcher = Dispatcher(
            *(scheduler, store, self._session, self._publisher, statics),
            *(self.counters, conf, clock),
        )
        self._at_most_once = self._dispatcher.at_most_once
        self._quarantine = self._dispatcher.quarantine
        self._retries = self._dispatcher.retries
        self._sync_again_at = 0.0
        self._prune_at = math.inf
        self._member_count = 0
        self._without_hash: RecentEntries[bool] = RecentEntries()
        self._maintained_at = clock()
        self._reported_problem, self._problem_stored_at = "", 0.0
        self._others_first_until = self._others_pass_until = 0.0
        self._members_to_remove: list[str] = []
        self._failures = FailedTicks(scheduler, store.client, conf.redis_url, self.health, clock)
        self._unanswered: Counter[str] = Counter()
        self._broker_checked_at = 0.0
        self._logs_each = conf.log_dispatch == LOG_EACH
        self._sent_logged, self._sent_logged_at = 0, float("-inf")
        #: Whether this beat ends after it lost the lock.
        self._exits = conf.on_lock_lost == "exit"
        self._was_leading = False
        self._was_active = False
        self._rescan_at: list[float] = []
        self._stop = HeldSignals()

    # -- the tick ------------------------------------------------------------------------------

    def tick(self, claims: bool = True) -> float:
        """Dispatch due entries; return the seconds to sleep until the next tick.

        If ``claims`` is false, the tick dispatches no entries, because the caller runs each entry
        with :meth:`run_one`.

        If Redis or the broker fails, this method logs the error and returns a longer wait. Raises
        :exc:`RedBeatError` for settings with which the beat cannot run, and redis-py's
        ``LockNotOwnedError`` if the lock is lost and ``redbeat_on_lock_lost`` is ``exit``. A stop
        signal ends the tick after the current publish; a second stop signal ends the tick at once.

        Takes two round trips per 500 due entries, or one if no entry is due.
        """
        return self.guarded(partial(self._tick, claims))

    def take_lock(self) -> None:
        """Acquire the lock if it is free, before the first tick. One round trip."""
        if self._session.lock is not None:
            self.guarded(self._renew_lock)

    def run_one(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Claim one entry, send it if it is due, and record the run.

        ``options`` are arguments of ``apply_async``. Returns the seconds until the entry is due
        again, None if it is never due again. While another beat leads or has claimed the entry,
        the method returns at most 1 second. Takes two round trips, or none if the entry is not due.

        If a subclass calls this method within a tick, the method only sends the entry, because the
        tick has already claimed the entry.
        """
        if self.running:
            return self._scheduler.send_if_due(entry, **options)
        return self.guarded(partial(self._run_one, entry, options))

    def release_lock(self) -> None:
        """Release the lock if this beat holds or may hold the lock, which takes one round trip.

        A beat may hold the lock after a script failed, because the script may have acquired the
        lock before the error.
        """
        lock = self._lock
        if lock is not None and (
            lock.leading
            or (lock.leading is None and not (self.available and isinstance(lock, BeatLock)))
        ):
            lock.release()

    def use_lock(self, lock: Any, timeout: float) -> None:
        """Use the lock object of the scheduler, which a program may replace at any time.

        ``lock`` is None if several beats share the work; ``timeout`` is in seconds. Takes one round
        trip to release the previous lock, or none if the lock is not replaced.
        """
        if lock is self._lock or (isinstance(self._lock, CustomLock) and lock is self._lock.lock):
            return
        if isinstance(self._lock, BeatLock) and self._lock.leading:
            try:
                self._lock.release()
            except (RedisError, OSError) as error:
                logger.warning(
                    "beat: Could not release the previous lock, it expires by itself: %s",
                    described(error),
                )
        built_in = lock is None or isinstance(lock, BeatLock)
        self._lock = lock if built_in else CustomLock(lock, timeout)
        self._session.lock = lock if built_in else None

    def guarded(self, work: Callable[[], W]) -> W | float:
        """Return the result of ``work``, or the seconds to wait after an error."""
        self.running = True
        self._at_most_once.begin_tick()
        started = self._clock()
        try:
            with self._stop:
                result = work()
                # A custom lock sends requests in each tick, so its server has just answered.
                custom = isinstance(self._lock, CustomLock)
                self._failures.end(math.inf if custom else self._session.answered_at)
                return result
        except LockNotOwnedError:
            raise
        except (RedisError, OSError) as error:
            return self._failures.redis_failed(explained(error, self._store))
        except (DecodeError, InvalidEntryError) as error:  # bad data must not end a beat
            return self._tick_failed(error)
        except RedBeatError:
            raise
        except Exception as error:
            return self._tick_failed(error)
        finally:
            self.running = False
            self._count_tick(started)

    def _tick_failed(self, error: Exception) -> float:
        """Log and report an error that no other code handles; return the seconds to wait."""
        wait = self._failures.tick_failed(error)
        with suppress(RedisError, OSError):
            self._report_problem()
        return wait

    def _report_problem(self) -> None:
        """Store why this beat cannot send messages, for health checks and ``redbeat status``.

        Takes one round trip if the problem changed. While a problem lasts, takes another round trip
        every :data:`PROBLEM_INTERVAL` seconds, because another beat may have removed the stored
        text.
        """
        server = self._dispatcher.server
        problem = self.health.tick_error or server.problem or self._retries.problem
        self.health.problem = problem
        again = problem and self._clock() - self._problem_stored_at >= PROBLEM_INTERVAL
        if problem != self._reported_problem or again:
            self._store.note(PROBLEM, problem)
            self._reported_problem, self._problem_stored_at = problem, self._clock()

    def _log_sent(self, interval: float = SUMMARY_INTERVAL) -> None:
        """Log the number of sent runs, at most once per ``interval`` seconds.

        Logs nothing if the log already has a line for each run.
        """
        now, sent = self._clock(), self.counters.sent - self._sent_logged
        if self._logs_each or not sent or now - self._sent_logged_at < interval:
            return
        logger.info("Scheduler: Sent %s", plural(sent, "run"))
        self._sent_logged, self._sent_logged_at = self.counters.sent, now

    def _count_tick(self, started: float) -> None:
        """Count a tick that began at the local time ``started`` and ends now."""
        self._log_sent()
        self.health.ticked()
        active = self.health.leads is True
        self.counters.ticked(self._clock() - started, self._store.round_trips, active)

    @property
    def available(self) -> bool:
        """Whether Redis answered at the last tick."""
        return not self._failures.of_redis

    def flush(self) -> None:
        """Record published runs, and release the claims of a batch that was claimed ahead.

        Takes no round trip if there is nothing to record or release, else one or a few.
        """
        self._dispatcher.deliver()
        self._at_most_once.record()
        for response in (self._session.finish(), self._session.recover_lost_claims()):
            if response is not None:
                self._release_claims(response.reply.claims)
        self._session.flush()
        self._at_most_once.publish()

    def resign(self) -> bool:
        """Record published runs and release the lock, so that another beat can lead.

        Returns False if Redis did not answer. A few round trips.
        """
        self.guarded(self._resign)
        return self.available

    def _resign(self) -> float:
        self.flush()
        self._session.leave()
        self.release_lock()
        self._statics.write_again()
        self._was_active = False
        self._observe_leadership("")
        return 0.0

    def close(self) -> None:
        """Call :meth:`flush` for the last time, and close the connections of the beat."""
        self._at_most_once.begin_tick()
        try:
            self.flush()
            self._session.leave()
        finally:
            self._log_sent(0.0)
            self._at_most_once.report_lost()
            self._publisher.close()
            self._dispatcher.server.close()

    def _tick(self, claims: bool) -> float:
        seconds = self._work(claims)
        if self.waits_for_reply:
            self._session.wait_for_reply()
        return seconds

    def _work(self, claims: bool) -> float:
        self._check_server()
        started = self._clock()
        while True:
            failures = self._retries.broker_failures
            self._at_most_once.record()
            if not self._keep_custom_lock():
                return self._stand_by("another")
            response = self._session.next_response(self._limit() if claims else 0)
            reply = response.reply
            self._at_most_once.publish()  # the reply may confirm records of an earlier request
            if not self._leads(reply):
                return self._stand_by(reply.holder)
            if self._sync(reply):
                continue
            if reply.claims:
                self._claim_ahead(reply)
                self._dispatch(response)
                self._session.send()  # Redis sends messages during the maintenance
                self._maintain_when_busy(reply)
            elif (
                self._retries.broker_failures <= failures
                and not self._session.pending
                and (response.request.limit or not _has_due(reply) or not claims)
                and not self._maintain(reply)
            ):
                return self._wait(reply) if claims else self._longest_wait()
            # While the broker is unavailable, each tick still handles entries that send no message.
            stop_now = self._stop.pending or self._clock() - started > self.max_tick
            if self._retries.broker_failures > failures or stop_now:
                self.flush()
                self._report_problem()
                return BROKER_WAIT.after(self._retries.broker_failures)

    def _run_one(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        claimable = is_redbeat_entry(entry)
        due, seconds = self._scheduler.is_due(entry) if claimable else self._ask(entry)
        if not (due or (claimable and entry.put_up)):
            return seconds
        waiting = self._prepare()
        if waiting is not None:
            return waiting
        response = self._session.request(1, entry.key) if claimable else self._session.request(0)
        if not self._leads(response.reply):
            return self._stand_by(response.reply.holder)
        if not claimable:
            return self._scheduler.send_if_due(entry, **options)
        claim = next((claim for claim in response.reply.claims if claim.key == entry.key), None)
        if claim is None:
            self._release_claims(response.reply.claims)
            return STANDBY_POLL
        if claim.definition is None and not claim.problem:
            return self._run_unstored(entry, options) if due else seconds
        self._dispatch(response, CallerEntry(entry, options))
        return self._record_one(entry.key, seconds)

    def _ask(self, entry: Any) -> tuple[bool, float | None]:
        """Return what ``is_due()`` of an entry of another class returns; False if it raises."""
        name = str(getattr(entry, "name", entry))
        try:
            answer: tuple[bool, float | None] = self._scheduler.is_due(entry)
            self._unanswered.pop(name, None)
            return answer
        except Exception as error:
            self._unanswered[name] += 1
            if self._unanswered[name] == 1 or should_log(self._unanswered[name]):
                logger.error(NOT_AN_ENTRY, name, type(entry).__name__, described(error))
            return False, STANDBY_POLL

    def _prepare(self) -> float | None:
        """Prepare a claim; return the seconds to wait if this beat cannot claim now, else None."""
        self._check_server()
        if not self._keep_custom_lock():
            return self._stand_by("another")
        if self._statics.unwritten:
            reply = self._renew_lock()
            if reply.standing == STANDBY:
                return self._stand_by(reply.holder)
            self._sync(reply)
        return None

    def _record_one(self, key: str, seconds: float | None) -> float | None:
        """Record the run of one entry; return the seconds until the entry is due again."""
        records = self._session.pending
        scores = [record.completion.score for record in records if record.completion.key == key]
        self.flush()
        failures = self._retries.broker_failures
        if failures:
            return BROKER_WAIT.after(failures)
        # If the clock of this host is ahead of the clock of Redis, the run may not be due yet.
        waits = [max(score - self._session.time(), 0.0) for score in scores if score >= 0]
        return min(waits, default=seconds)

    def _run_unstored(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Send an entry that is not in Redis; record the run only in the entry object."""
        decision, count = entry.decision(), entry.total_run_count + 1
        seconds = self._scheduler.send_if_due(entry, **options)
        entry.adopt("", entry.default_now(), count, decision.anchor or decision.scheduled_at)
        return seconds

    def _keep_custom_lock(self) -> bool:
        """Extend the custom lock, if any; return False if this beat does not hold the custom lock.

        The built-in lock needs no call, because each request renews the built-in lock.
        """
        held = not isinstance(self._lock, CustomLock) or self._lock.keep()
        if not held:
            self._observe_leadership("another")
        return held

    def _renew_lock(self) -> ClaimReply:
        reply = self._session.request(0).reply
        self._leads(reply)
        return reply

    def _leads(self, reply: ClaimReply) -> bool:
        """Return whether this beat is active; emit a signal when it starts or stops leading."""
        self._observe_leadership(reply.holder)
        active = reply.standing != STANDBY
        if active and not self._was_active:
            # The Redis clock may have gone back since the last tick of another beat.
            last_tick, layout = self._store.last_tick_and_layout()
            problem = layout and self._conf.shards == 1 and LayoutNote.of(layout).problem(1)
            if problem:
                raise ConfigurationError(problem)
            back = last_tick - reply.now
            self._session.clock_went_back = max(self._session.clock_went_back, back)
        self._was_active = active
        return active

    def _observe_leadership(self, holder: str) -> None:
        lock = self._lock
        leads = lock is not None and bool(lock.leading)
        self.health.observe(leads or lock is None, holder == NOT_A_LOCK)
        if leads is not self._was_leading:
            self._was_leading = leads
            if leads:
                emit(lock_acquired, self._scheduler)
            else:
                emit(lock_lost, self._scheduler, holder=holder)
                if lock is not None and lock.lost and not self._exits:
                    logger.warning("beat: Lost the lock %s, standing by", lock.lost)

    def _stand_by(self, holder: str) -> float:
        self._statics.write_again()
        lock = self._lock
        if lock is not None and lock.lost and self._exits:
            self._session.flush()
            raise LockNotOwnedError(f"lost the lock {lock.key} to {holder}{ENDS}")
        return min(STANDBY_POLL, self._longest_wait())

    def _maintain(self, reply: ClaimReply) -> bool:
        """Run the maintenance; return True if a new claim may find due entries."""
        self._maintained_at = self._clock()
        self._stats_cleanup.run()
        self._prune_without_lock()
        self._check_broker(reply)
        self._report_problem()
        return self._quarantine.review(reply.quarantined) or self._sweep.run()

    def _check_broker(self, reply: ClaimReply) -> None:
        """Check whether the broker is available again, although no entry is due soon.

        Without the check of the broker, the beat would report an outage until its next run. If a
        run is due soon, this method does nothing, because the run is the better test: a broker may
        accept connections, but refuse messages. Takes one round trip if the broker is back, else
        none.
        """
        retries = self._retries
        soon = reply.next_due is not None and reply.next_due < reply.now + BROKER_CHECK
        too_early = self._clock() < self._broker_checked_at + BROKER_CHECK
        if not retries.broker_failures or soon or too_early:
            return
        self._broker_checked_at = self._clock()
        try:
            self._scheduler.check_broker()
        except Exception as error:
            retries.count_if_broker_failed(error, self._session.time())
        else:
            retries.broker_answered()

    def _maintain_when_busy(self, reply: ClaimReply) -> None:
        """Call :meth:`_maintain` at intervals in a beat that is never idle."""
        self._log_sent()
        if self._clock() - self._maintained_at >= MAINTENANCE_INTERVAL:
            self._maintain(reply)

    def _claim_ahead(self, reply: ClaimReply) -> None:
        """Let Redis record the last batch and claim the next batch during the dispatch.

        An error of Redis is only logged, so that the beat still dispatches the batch that is
        already claimed. The next request repeats the failed request, and raises any further error.
        """
        more = _has_due(reply)
        worth_it = more or (self._session.pending and len(reply.claims) > BATCH // 2)
        if worth_it and not self._retries.broker_failures:
            try:
                self._session.begin(self._limit() if more else 0)
            except (RedisError, OSError) as error:
                logger.debug("beat: Could not claim the next batch ahead: %r", error)

    @property
    def redis_time(self) -> float:
        """The current Redis time in UNIX seconds. No round trip."""
        return self._session.time()

    @property
    def token(self) -> str:
        """The token of this beat in the list of active beats."""
        return self._session.token

    def _check_server(self) -> None:
        if self._failures.permission_denied:  # without a permission, scripts stop halfway
            check_rights(self._store)
        if not self.server_checked:
            check_eviction(self._store, self._conf.key_expiry_check)
            warn_about_untagged(self._store, self._conf)
            warn_about_misspelt(self._store)
            self.server_checked = True

    def _limit(self) -> int:
        if self._statics.unwritten:
            return 0
        return 1 if self._retries.broker_failures else BATCH

    def _longest_wait(self) -> float:
        longest = min(MAX_WAIT, self._scheduler.max_interval)
        return longest if self._lock is None else min(longest, self._lock.timeout / 3)

    def _wait(self, reply: ClaimReply) -> float:
        longest = min(self._longest_wait(), self._session.pace.wait(self._clock()))
        if reply.next_due is None:
            return longest
        others_first = self._lock is None and reply.next_due <= self._others_first_until
        wait = reply.next_due - self._session.time() + (HEAD_START if others_first else 0.0)
        return min(max(wait, 0.0), longest)

    # -- requests ------------------------------------------------------------------------------

    def _sync(self, reply: ClaimReply) -> bool:
        """Write missing static entries; return True if the tick must send a new request next."""
        vanished = self._schedule_vanished(reply)
        self._follow_clock()
        if not vanished and not self._statics.unwritten:
            if self._statics_present(reply) or self._clock() < self._sync_again_at:
                return False
            logger.warning(
                "beat: Static entries vanished from Redis, so the beat writes them again"
            )
        self._sync_again_at = self._clock() + STANDBY_POLL
        now, exclusive = from_timestamp(reply.now), self._lock is not None
        self._statics.unwritten = not (
            self._statics.sync(self._store, self._session.lock, now, exclusive)
            and self._still_leads(
                follow_time_zone(self._store, self._scheduler.app, self._scheduler.Entry)
            )
        )
        if not self._statics.unwritten:
            self._prune_at = math.inf if exclusive else self._clock() + FORGET_AFTER
            emit(statics_synced, self._scheduler, **self._statics.synced)
        return not reply.claims

    def _follow_clock(self) -> None:
        """Scan the entries after the Redis clock went back, as long as this beat leads.

        A second scan follows after :data:`LONGEST_LEASE` seconds, because beats may still record
        runs of older claims during these seconds.
        """
        now, back = self._clock(), self._session.clock_went_back
        if back > CLOCK_STEP:
            logger.warning("beat: The clock of Redis went back by %.1f s", back)
            self._session.clock_went_back, self._rescan_at = 0.0, [now, now + LONGEST_LEASE]
        if not self._rescan_at or now < self._rescan_at[0]:
            return
        if self._still_leads(follow_clock(self._store)):
            del self._rescan_at[0]

    def _still_leads(self, batches: Iterator[None]) -> bool:
        """Process batches, and renew the lock after each; return False if the lock is lost."""
        return all(self._renew_lock().standing != STANDBY for _ in batches)

    def _prune_without_lock(self) -> None:
        """Remove entries that are no longer in ``beat_schedule`` if several beats share the work.

        The entries are removed only if no other beat is active, because another beat may have other
        static entries. Does nothing in the first minute after a start, because other beats may not
        be running yet. Takes one round trip after each start, and some more if there are entries to
        remove.
        """
        if self._clock() < self._prune_at:
            return
        self._prune_at = math.inf
        if self._statics.stale(self._store, exclusive=True):
            present = {beat.token for beat in self._store.beats(FORGET_AFTER) if not beat.locked}
            if present == {self._session.token}:
                self._statics.prune(self._store, None)
            else:
                self._prune_at = self._clock() + FORGET_AFTER

    def _statics_present(self, reply: ClaimReply) -> bool:
        """Return whether Redis contains as many static entries as ``beat_schedule``.

        Without a lock, one static entry in Redis is enough, because another beat with a newer
        ``beat_schedule`` may have removed the other entries.
        """
        return reply.statics >= (len(self._statics) if self._lock else min(len(self._statics), 1))

    def _schedule_vanished(self, reply: ClaimReply) -> bool:
        """Return whether all entries vanished since the last request; if so, log an error.

        Raises ``LockNotOwnedError`` if the lock vanished with the entries and
        ``redbeat_on_lock_lost`` is ``exit``.
        """
        before, self._member_count = self._member_count, reply.members
        if reply.members or not before:
            return False
        lock_is_new = reply.standing == NEW_LEADER
        if before == 1 and not lock_is_new:  # a program may have deleted the only entry
            return False
        logger.error("beat: The schedule in Redis is empty: all %d entries are gone", before)
        emit(schedule_lost, self._scheduler, count=before)
        if lock_is_new and self._exits:
            raise LockNotOwnedError(f"the lock vanished from Redis, and all entries with it{ENDS}")
        return True

    # -- a batch -------------------------------------------------------------------------------

    def _dispatch(self, response: Response, caller_entry: CallerEntry | None = None) -> None:
        """Dispatch claimed entries; release the remaining claims if the broker fails or time is up.

        ``caller_entry`` is the object that a program passed to ``maybe_due``. Takes one round trip
        each time :meth:`Session.send_if_full` sends pending runs, and the round trips of
        :meth:`Quarantine.flush`.
        """
        response.reply.claims.sort(key=self._dispatcher.loader.rank)
        self._let_others_pass(response.reply.claims)
        rest = iter(response.reply.claims)
        failures = self._retries.broker_failures
        try:
            self._dispatch_each(rest, response, caller_entry)
            self._dispatcher.deliver()
            if self._retries.broker_failures <= failures:
                self._at_most_once.record()
        except (SystemExit, KeyboardInterrupt):
            self._release_rest(rest)
            self._record_before_exit()
            raise
        finally:
            # Deliver the messages even after an error of Redis, because the collected messages must
            # be sent before their claims expire.
            self._dispatcher.deliver()
            self._release_rest(rest)
        self._quarantine.flush()
        self._remove_missing()
        self._wake_other_beats()
        self._report_problem()

    def _let_others_pass(self, claims: list[Claim]) -> None:
        """Release the claims of entries that may take long, if a batch took long just now.

        So other entries have the beat for as long as the slow batch had it.
        """
        seconds, rank = self._others_pass_until - self._clock(), self._dispatcher.loader.rank
        if seconds > 0:
            self._release_claims(filter(rank, claims), self._session.time() + seconds)
            claims[:] = [claim for claim in claims if not rank(claim)]

    def _wake_other_beats(self) -> None:
        """Wake up beats that share the work with this beat, for entries that this beat cannot run.

        Takes two round trips if there is an entry that this beat cannot run, else none.
        """
        until = self._retries.others_until
        if self._lock is None and until > self._others_first_until:
            self._others_first_until = until
            self._session.flush()
            self._store.wake_beats()

    def _dispatch_each(
        self, claims: Iterator[Claim], response: Response, caller_entry: CallerEntry | None
    ) -> None:
        session, publisher, stop = self._session, self._publisher, self._stop
        loaded = self._dispatcher.loader.load_all(response, caller_entry)
        retries, loading_seconds = self._retries, 0.0
        for claim in claims:
            loading_started = self._clock()
            loaded_entry = next(loaded)
            started = self._clock()
            loading_seconds += started - loading_started
            if started >= response.deadline:
                logger.warning(
                    "beat: This beat stalled past the lease of its claims, and releases the claims"
                )
                self._release_claims((claim,))
                return
            if claim.definition is None and not claim.problem:
                self._handle_missing_hash(claim.key)
                continue
            self._without_hash.forget(claim.key)
            try:
                self._dispatcher.dispatch(loaded_entry, claim, session.time_at(started))
            except (SystemExit, KeyboardInterrupt):
                # The message may have been sent, so the next attempt must keep the task id.
                session.record(claim.put_back(claim.due, unsure=True))
                raise
            if publisher.should_flush(started):
                session.wait_for_reply()  # a beat that dies leaves few runs unrecorded
                self._dispatcher.advance()
                session.send()
            slow_seconds = self._dispatcher.loader.slow_seconds
            if slow_seconds > MAX_LOADING:
                self._others_pass_until = self._clock() + slow_seconds
                rest = [*claims]
                self._let_others_pass(rest)
                self._release_claims(rest)
            if retries.broker_failures or stop.pending or loading_seconds > MAX_LOADING:
                return
            session.send_if_full(started)

    def _record_before_exit(self) -> None:
        """Record the sent runs before the process exits, so that no beat sends the runs again."""
        try:
            self.flush()
            self._quarantine.flush()
        except (RedisError, OSError) as error:
            logger.error("beat: Could not record the last runs: %s", described(error))

    def _release_rest(self, claims: Iterable[Claim]) -> None:
        self._release_claims(claims)
        self._release_claims(self._at_most_once.withdraw())

    def _release_claims(self, claims: Iterable[Claim], due: float = 0.0) -> None:
        """Release the claims of entries, so that the entries have their former scores again.

        Entries that were due before ``due`` (UNIX seconds) become due then.
        """
        for claim in claims:
            if claim.definition is not None:
                self._session.record(claim.put_back(max(claim.due, due)))

    def _handle_missing_hash(self, key: str) -> None:
        """Remove a key without a hash from the schedule, after two claims have found the key.

        After the first claim, a program may still be about to write the hash.
        """
        if self._without_hash.forget(key) is None:
            self._without_hash.keep(key, True, self._clock())
            return
        if self._store.keys.name_of(key) in self._statics:
            logger.warning("beat: Static entry %s vanished, so the beat writes it again", key)
            self._statics.unwritten = True
        else:
            self._members_to_remove.append(key)

    def _remove_missing(self) -> None:
        """Remove keys without a hash from the schedule. At most one round trip."""
        gone, self._members_to_remove = self._members_to_remove, []
        for member in self._store.forget(gone) if gone else ():
            logger.error("beat: Entry %s is removed from the schedule: its hash is gone", member)
