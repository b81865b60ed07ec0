"""One beat at work: each tick looks at what is due, decides, and writes down what it decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from redis.exceptions import LockNotOwnedError, RedisError

from redbeat import errors
from redbeat.beat.lock import BeatLock, Lead, new_token
from redbeat.beat.stop_signals import STOP, HeldSignals
from redbeat.calendar.zones import from_timestamp
from redbeat.config import ensure_conf
from redbeat.entries import verdicts
from redbeat.entries.decide import CLOCK_STEP
from redbeat.entries.run import FIRST, HOLD, INSIDE, REST, UNJUDGED, Rule, Run
from redbeat.errors import CannotRunHereError, DecodeError, InvalidEntryError, cause_of
from redbeat.metrics.counters import BeatHealth, Counters
from redbeat.printing import get_logger, plural
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, LOG_EACH
from redbeat.storage.checks import explained
from redbeat.storage.keys import check_destinations
from redbeat.storage.reading import HOST_AHEAD, PROBLEM
from redbeat.storage.rows import Change, Look, Reply, Request, Row, digest_of
from redbeat.storage.store import Store
from redbeat.storage.words import BEATS, DONE, LEADS, STATE, STATS

from . import early, message, outcome, trouble
from .early import Early
from .load import Rules
from .one_step import OneStep
from .outcome import Outcome
from .own_code import OwnCode, OwnTick
from .send import Sender, SharedError, StoppedError
from .statics import Statics
from .turn import MOST_CHANGES, NORMAL_OFFSET, Turn
from .upkeep import Sync, Upkeep

logger = get_logger("celery.beat")

W = TypeVar("W")

#: Seconds after which an idle tick leaves the rest of its upkeep to the next one.
LONGEST_UPKEEP: Final = 0.25

#: Seconds for which one tick works before it returns to Celery's beat service.
MAX_TICK: Final = 2.0

#: Seconds between a standby's attempts to get the lock.
STANDBY_POLL: Final = 1.0

#: How many rows to look ahead at. With thousands due, an entry that becomes due waits for these and
#: for those in hand.
AHEAD_LIMIT: Final = 50

#: Seconds after which a look is too old to decide by. The rows that are left stay due.
LONGEST_LOOK: Final = 0.5

#: The longest wait between two ticks, in seconds.
LONGEST_WAIT: Final = 5.0

#: Seconds after which a block of rows goes on without what it hasn't loaded or judged yet.
LONGEST_BLOCK: Final = 0.1

#: Seconds between two log lines about sent runs, and until a lasting problem is stored again.
SUMMARY_INTERVAL: Final = 1.0
PROBLEM_INTERVAL: Final = 30.0

CLOCK_DIFFERS: Final = (
    "beat: The clock of this host is %.0f s %s that of Redis, by which runs are sent; expires and "
    "countdown are counted by that of Redis too"
)

#: Seconds until a member of the schedule is removed because its hash is missing.
MISSING_FOR: Final = 5.0


class Shared:
    """What belongs to the process rather than to one part of the schedule; see ``parts.py``."""

    def __init__(self, scheduler: Any, client: Any) -> None:
        conf, clock = ensure_conf(scheduler.app), scheduler.clock
        self.own = OwnCode(scheduler)
        self.messages = message.Messages(scheduler.app, conf)
        self.one_step = OneStep(client, conf, clock)
        self.sender = Sender(conf.publish_window, clock)
        self.broker = trouble.Broker(scheduler)
        self.pace = trouble.Pace(conf.max_rate)


class Beat:
    """Runs the ticks of one beat.

    ``scheduler`` may be a user's subclass; its ``clock`` returns monotonic seconds. The client of
    ``store`` must not retry. Without a ``lock``, several beats share the work. ``shared`` is what
    this beat shares with those of other parts of the schedule.
    """

    def __init__(
        self,
        scheduler: Any,
        store: Store,
        lock: BeatLock | None,
        statics: Statics,
        shared: Shared | None = None,
    ) -> None:
        conf = ensure_conf(scheduler.app)
        clock: Callable[[], float] = scheduler.clock
        self.running = False
        self.max_tick = MAX_TICK
        self.health = BeatHealth(clock)
        self.counters = Counters(conf.metrics_entries)
        self._scheduler = scheduler
        self._store = store
        self._conf = conf
        self._clock = clock
        self._logs_each = conf.log_dispatch == LOG_EACH
        #: How many sent runs the log has told of, and when it last did, on the local clock.
        self._logged, self._logged_at = 0, -math.inf
        token = lock.token if lock is not None else new_token()
        self._turn = Turn(store, lock, token, self.counters, clock)
        self.lead = Lead(scheduler, self._turn, lock, self.health, conf.on_lock_lost == "exit")
        self.rules = Rules(scheduler.app, scheduler.Entry)
        self.sync = Sync(scheduler, statics, store, self._turn, self.rules)
        self._upkeep = Upkeep(store, self._turn.exchange, clock, conf)
        self._is_part = shared is not None
        shared = shared or Shared(scheduler, store.client)
        self._own, self._messages, self._one_step = shared.own, shared.messages, shared.one_step
        self._sender, self._broker, self._pace = shared.sender, shared.broker, shared.pace
        self._own.check(conf.delivery == EXACTLY_ONCE)
        self._own_tick = OwnTick(self, scheduler, self._own)
        self._outcome = Outcome(scheduler, conf, self.counters, self._entry_of)
        self._early = Early(
            *(self.rules, self._outcome, self._messages, conf.key_prefix),
            order_of=self._order_of,
            capture=self._captured,
        )
        self._skip = trouble.SkipList()
        #: The problem that Redis shows, and the local time when this beat stored it.
        self._reported, self._reported_at = "", 0.0
        self._reported_ahead = 0.0
        self._suspects = trouble.Suspects()
        self._failures = trouble.FailedTicks(scheduler, self.health)
        self._stop = HeldSignals()
        #: Rows to decide about again: they changed before the change reached Redis.
        self._again: list[Row] = []
        #: Runs whose messages may leave now.
        self._ready: list[Run] = []
        #: Keys of entries that were edited between the last look and the change that sends.
        self._edited: set[str] = set()
        self._missing: dict[str, float] = {}
        self._is_there = False

    @property
    def token(self) -> str:
        return self._turn.token

    @property
    def sent(self) -> int:
        return self.counters.sent

    def totals(self) -> dict[str, int]:
        """All counts since this beat started, by field. Thread-safe."""
        return self.counters.totals()

    # -- the lock ------------------------------------------------------------------------------

    def take_lock(self) -> None:
        """Acquire the lock if it's free. One round trip."""
        reply = self.guarded(lambda: self.look(Look(limit=0)))
        if isinstance(reply, Reply):  # only a new leader hears of losses and of runs in hand, once
            self._suspects.note(reply.hands)
            self._upkeep.note(reply)

    def use_lock(self, lock: Any, timeout: float) -> None:
        self.lead.use(lock, timeout)

    # -- the tick ------------------------------------------------------------------------------

    def tick(self, looks: bool = True) -> float:
        """Send what's due; return the seconds to sleep until the next tick.

        With ``looks=False`` nothing is sent: the caller sends each entry with :meth:`run_one`.

        If Redis or the broker fails, the error is logged and the wait is longer. Raises
        :exc:`RedBeatError` for settings the beat can't run with, and ``LockNotOwnedError`` if the
        lock is lost and ``redbeat_on_lock_lost`` is ``exit``.
        """
        return self.guarded(partial(self._work, looks))

    def run_one(self, entry: Any, options: dict[str, Any]) -> float | None:
        """Send one entry if it's due, for a program with a loop or a mapping of its own.

        ``options`` go to ``apply_async``. Returns the seconds until the entry is due again, None
        for never. Two or three round trips, or none if the entry isn't due.
        """
        if self.running:  # within a tick, which has already decided about the entry
            seconds: float | None = self._scheduler.send_if_due(entry, **options)
            return seconds
        return self.guarded(partial(self._own_tick.run, entry, options))

    def guarded(self, work: Callable[[], W]) -> W | float:
        """Return the result of ``work``, or the seconds to wait after an error."""
        self.running = True
        started, self._broker.failed = self._clock(), False
        try:
            with self._stop:
                self.rules.refresh(self._scheduler.Entry)
                self._own.refresh()
                result = work()
                # A program's lock sends its own requests, and Redis has just answered them.
                answered_at = math.inf if self.lead.is_custom else self._turn.answered_at
                self._failures.end(answered_at)
                return result
        except LockNotOwnedError:
            raise
        except (SystemExit, KeyboardInterrupt):
            self._record_before_exit()
            raise
        except (RedisError, OSError) as error:
            why = explained(error, self._store)
            return self._failures.redis_failed(why, self._turn.answered_at)
        except Exception as error:
            is_about_data = isinstance(error, (DecodeError, InvalidEntryError))
            if isinstance(error, errors.RedBeatError) and not is_about_data:
                raise
            return self._tick_failed(error)  # bad data must not end a beat
        finally:
            self.running = False
            self._turn.forget_look()
            self._log_sent()
            self.health.ticked()
            trips, leads = self._turn.round_trips, self.health.leads is True
            self.counters.ticked(self._clock() - started, trips, leads)

    def _work(self, looks: bool) -> float:
        started = idle_since = self._clock()
        while True:
            self._send_early()
            reply = self._looked() or self.look(self._next_look() if looks else Look(limit=0))
            if reply is None:
                return self.stand_by()
            if self.prepare(reply):
                continue
            is_idle = not self._handle_rows(reply)
            idle_since = idle_since if is_idle else self._clock()
            goes_on = self._maintain(reply, is_idle)
            if is_idle and not goes_on:
                return self._wait(reply) if looks else self._longest_wait()
            if is_idle and self._clock() - idle_since > LONGEST_UPKEEP:
                return 0.0
            failed = self._broker.failed
            if failed or self._stop.pending or self._clock() - started > self.max_tick:
                if not failed:  # else the same runs are held again and again
                    self._turn.flush()
                    self._publish_ready()
                self.flush()
                return trouble.BROKER_WAIT.after(self._broker.failures)

    def look(self, look: Look | None) -> Reply | None:
        """Carry out a turn and return its reply, None while another beat leads."""
        if not self.lead.keep():
            return None
        self._is_there = True
        return self._taken_in(self._turn.look(look))

    def _looked(self) -> Reply | None:
        """The reply to the look that was sent ahead. None without one, or on a standby."""
        reply = self._turn.looked()
        return None if reply is None else self._taken_in(reply)

    def _taken_in(self, reply: Reply) -> Reply | None:
        self._handle_answers()
        self.lead.observe(reply.holder)
        return reply if reply.standing >= LEADS else None

    def hear_answers(self) -> None:
        """Ask again for lost answers to changes. No round trip if there are none."""
        if self._turn.pending:
            self.look(None)

    def run_row(self, key: str, reply: Reply) -> float | None:
        """Carry out what is decided about a reply's only row; return its score after that.

        One round trip, or two if the run is held first; more if the entry is edited in between.
        """
        rows: Sequence[Row] = reply.rows
        self._suspects.looked_at(key)
        while True:
            self._handle(rows, reply, finish=True)
            if not rows and not self._turn.pending:  # the last look says what became of the run
                break
            reply = self._turn.look(Look(only=key))
            self._handle_answers()
            rows, self._again = self._again, []
        return next((float(row.score) for row in reply.rows if row.score), None)

    def prepare(self, reply: Reply) -> bool:
        """Do what comes before the rows. True: static entries were written, so look again."""
        self._upkeep.check()
        self._suspects.note(reply.hands)
        self._upkeep.note(reply)
        if self._turn.clock_went_back > CLOCK_STEP:
            self._upkeep.clock_went_back(self._turn.clock_went_back)
        self._turn.clock_went_back = 0.0
        return self.sync.run(reply) and not reply.rows

    def _handle_rows(self, reply: Reply) -> bool:
        """Decide and send; return whether there was something to do, or still is."""
        rows = [*self._again, *self._paced(reply)]
        self._again = []
        undecided = [row for row in rows if not self._early.has(row)] if self._early.runs else rows
        self._handle(undecided, reply, finish=not reply.rows)
        return bool(rows or self._suspects.alone or self._turn.pending or self._sender.busy)

    def _handle(self, rows: Sequence[Row], reply: Reply, *, finish: bool) -> None:
        """Decide and send. ``finish`` waits until the broker has confirmed every message."""
        self._decide_all(rows, reply)
        self._publish_ready()
        if finish:
            self._settle(wait=True)
        for change in self._suspects.done():
            self._turn.add(change, None)
        self._report_problem()
        self._report_clock()

    def _report_clock(self) -> None:
        ahead = self._turn.host_ahead
        if abs(ahead - self._reported_ahead) <= NORMAL_OFFSET:
            return
        self._reported_ahead = ahead
        if ahead:
            where = "ahead of" if ahead > 0 else "behind"
            logger.warning(CLOCK_DIFFERS, abs(ahead), where)
        else:
            logger.warning("beat: The clock of this host is right again")
        self._store_stat(HOST_AHEAD, f"{ahead:.3f}" if ahead else "")

    def _report_problem(self) -> None:
        problem = self.health.tick_error or self._one_step.problem or self._broker.problem
        self.health.problem = problem
        now = self._clock()
        # A lasting problem is stored again: another beat may have removed it.
        if problem != self._reported or (problem and now - self._reported_at >= PROBLEM_INTERVAL):
            self._reported, self._reported_at = problem, now
            self._store_stat(PROBLEM, problem)

    def _store_stat(self, field: str, text: str) -> None:
        command = ["HSET", STATS, field, text] if text else ["HDEL", STATS, field]
        self._turn.add(Change("", index=[command]), None)

    def _log_sent(self, interval: float = SUMMARY_INTERVAL) -> None:
        now, sent = self._clock(), self.counters.sent - self._logged
        if sent and not self._logs_each and now - self._logged_at >= interval:
            logger.info("Scheduler: Sent %s", plural(sent, "run"))
            self._logged, self._logged_at = self.counters.sent, now

    def _tick_failed(self, error: Exception) -> float:
        wait = self._failures.tick_failed(error)
        with suppress(Exception):  # a later tick stores it
            self._report_problem()
            self._turn.flush()
        return wait

    def _maintain(self, reply: Reply, is_idle: bool) -> bool:
        """Do upkeep; return whether an idle beat should look again at once."""
        self._log_sent()
        if is_idle:
            self.sync.prune()
            soon = reply.next is not None and reply.next < reply.now + trouble.CHECKED_EVERY
            self._broker.check(soon=soon)
        return self._upkeep.run(reply, busy=not is_idle)

    def _paced(self, reply: Reply) -> Sequence[Row]:
        """Rows in the order to decide about them: late ones come last, and count for the pace."""
        if self._suspects.alone and not any(is_due(row, reply.now) for row in reply.rows):
            return ()  # another beat has sent it, or set it aside
        # If more is due than a look gives out, what has just become due goes first.
        newest_first = reply.next is not None and reply.next <= reply.now
        late = {row.key for row in reply.rows if is_late(row, reply.now)}
        if self._conf.max_rate is not None:
            self._pace.spend(len(late))
        rows = []
        for row in reply.rows:
            score, was_due = float(row.score or 0), row.key in late  # texts differ: 1.5e+9
            rows.append((was_due, -score if newest_first and not was_due else score, row.key, row))
        return [row for *_, row in sorted(rows)]

    def flush(self) -> None:
        """Record what was published, and give back what was held and never tried."""
        while True:
            self._ready, untried = [], self._ready
            for run in untried:
                self._give_back(run)
            self._settle(wait=True)
            if not self._turn.pending:
                break
            self._turn.flush()
            self._handle_answers()
        self._again.clear()

    def _record_before_exit(self) -> None:
        """Call :meth:`flush` now: a signal ends this process at once."""
        if STOP.over:
            return
        try:
            self.flush()
        except (RedisError, OSError) as error:
            logger.error("beat: Could not record the last runs: %s", errors.described(error))

    def unfinished(self) -> set[str]:
        """Names of the entries whose runs are on their way, but not recorded yet."""
        runs = [*self._turn.owners, *self._sender.runs, *self._ready]
        return {run.rule.name for run in runs if run is not None and run.stage != REST}

    def settle(self) -> None:
        """Wait until the broker has confirmed everything this beat published."""
        if self._sender.busy:
            self.guarded(lambda: self._settle(wait=True))

    def leave(self) -> None:
        """Call :meth:`flush`, and tell Redis that this beat is gone with nothing in hand."""
        self.flush()
        if not self._is_there:
            return
        self._is_there = False
        self._turn.look(Look(limit=0))
        names = (self._turn.token, f"{self._turn.token} lock")
        gone = Change("", index=[["ZREM", BEATS, *names]])
        self._store.turn(Request(self._turn.token, None, [gone]))

    def resign(self) -> None:
        self.leave()
        self.release_lock()
        self.lead.observe("")
        self.sync.statics.unwritten = True

    def close(self) -> None:
        try:
            self.leave()
        finally:
            self._log_sent(0.0)
            self._sender.close()
            self._one_step.close()

    def sync_now(self) -> None:
        self.sync.write(from_timestamp(self._turn.time()))

    def release_lock(self) -> None:
        """Release the lock if this beat holds it or may hold it. One round trip."""
        self.lead.release(answered=self.available)

    def time(self) -> float:
        """Redis's time in UNIX seconds. No round trip."""
        return self._turn.time()

    @property
    def available(self) -> bool:
        """Whether Redis answered at the last tick."""
        return not self._failures.of_redis

    def _next_look(self) -> Look:
        now = self._clock()
        limit = 1 if self._broker.failures else self._turn.limit
        late = self._pace.allowed(now)
        if self.sync.statics.unwritten:
            return Look(limit=0)
        suspect = self._suspects.next()
        if suspect:
            return Look(only=suspect)
        return Look(limit, late, skip=self._skip.digests(now), shares=self._turn.is_shared)

    def stand_by(self) -> float:
        """Seconds to wait while another beat leads.

        Raises ``LockNotOwnedError`` if this beat lost the lock and ``redbeat_on_lock_lost`` is
        ``exit``.
        """
        self.sync.statics.unwritten = True
        self._early.clear()
        self.flush()  # what a beat that has just lost the lock has published, or still holds
        ending = self.lead.ending()
        if ending is not None:
            raise ending
        return min(STANDBY_POLL, self._longest_wait())

    def wait_for(self, score: float | None) -> float | None:
        """Seconds until an entry with this score is looked at, None for never."""
        if self._broker.failures:
            return trouble.BROKER_WAIT.after(self._broker.failures)
        return None if score is None or score < 0 else max(score - self._turn.time(), 0.0)

    def _longest_wait(self) -> float:
        longest: float = min(LONGEST_WAIT, self._scheduler.max_interval)
        return min(longest, self.lead.timeout / 3)

    def _wait(self, reply: Reply) -> float:
        """Seconds until the next tick. If much is due soon, it's decided now."""
        before = self._decide_early(reply)
        if self.sync.statics.unwritten:
            return STANDBY_POLL
        now = self._clock()
        longest = min(self._longest_wait(), self._pace.wait(now), self._skip.wait(now))
        if reply.next is None:
            return longest
        return min(max(reply.next - before - self._turn.time(), 0.0), longest)

    # -- before an instant ---------------------------------------------------------------------

    def _decide_early(self, reply: Reply) -> float:
        """Decide now what is due at the next instant, if that's many entries; see ``early.py``.

        A few round trips, once for an instant. Returns how many seconds before it to come back.
        """
        # Other parts and other beats may have something due before that.
        one_of_many = self._turn.is_shared or self._is_part or self._conf.max_rate is not None
        never = one_of_many or self._own.makes_entries or self._conf.delivery == AT_MOST_ONCE
        is_crowd = reply.crowd >= early.FEWEST and self._may_look_ahead()
        if never or not (is_crowd and self._early.wants(reply)):
            return 0.0
        at = reply.next or 0.0
        if at > reply.now + early.SECONDS:
            return early.SECONDS
        self._early.begin(reply)
        try:
            producer = self._scheduler.producer
            self._messages.begin(producer)
            if not self._messages.renders:
                return 0.0
        except Exception:  # without a broker, the first run says so
            return 0.0
        self._decide_until(at - early.BREAK, producer)
        return 0.0

    def _decide_until(self, end: float, producer: Any) -> None:
        """Look at what is due soon, page by page, and decide about it, at most until ``end``."""
        offset = 0
        while offset < early.MOST and self._turn.time() < end and not self._stop.pending:
            page = self.look(Look(early.PAGE, soon=early.SECONDS, offset=offset))
            if page is None or self.prepare(page) or not page.rows:
                break
            self._early.decide(page.rows, producer)
            offset += len(page.rows)

    def _order_of(self, rule: Rule, producer: Any) -> str:
        """The order of a run's steps, INSIDE or HOLD, if no foreign code takes part; else ""."""
        delivery = rule.policy.delivery or self._conf.delivery
        if delivery == AT_MOST_ONCE or self._own.part_in(rule) != ("", False):
            return ""
        if rule.options:
            check_destinations(self._scheduler.app, rule.options)
        server = None if delivery == AT_LEAST_ONCE else self._one_step.server(producer)
        if server is None or not self._one_step.takes(rule.key, rule.task):
            return HOLD
        self._turn.server = server
        return INSIDE

    def _send_early(self) -> None:
        """Send up to two turns of runs that were decided early and are due."""
        for _ in range(2):
            if not (self._early.runs and self.lead.keep()):
                return
            try:
                due = self._early.due(self._turn.time(), MOST_CHANGES, self._scheduler.producer)
            except Exception:  # they are decided again, and then it's told
                self._early.clear()
                return
            for change, run in due:
                if self._logs_each and run.stage == INSIDE:
                    self._log_sending(run)
                self._turn.add(change, run)
            self._turn.send()
            self._publish_ready(wait=False)  # of the turn before, while Redis works on this one

    # -- deciding ------------------------------------------------------------------------------

    def _decide_all(self, rows: Sequence[Row], reply: Reply) -> None:
        """Decide about rows. Whatever a failing broker leaves over stays due."""
        if reply.version != self._outcome.version:
            self.rules.use_calendars(self._store.calendars())
            self._outcome.version = reply.version
        started = self._clock()
        producer = None
        # What a turn in flight holds is published in this round as well.
        if len(rows) + len(self._ready) + len(self._turn.owners) >= message.FEWEST_RUNS:
            with suppress(Exception):  # without a broker, the first run says so
                producer = self._scheduler.producer
        self._messages.begin(producer)
        number = 0
        while number < len(rows):
            for run in self._begun(rows[number : number + MOST_CHANGES], reply.now, producer):
                number += 1
                if run is not None:
                    self._carry_out_one(run)
                if self._turn.is_full():
                    self._publish_ready()
                    self._turn.send(self._look_ahead(rows[number:], reply))
                over = self._clock() - started > LONGEST_LOOK
                if over or self._broker.failed or self._stop.pending:
                    return

    def _begun(self, rows: Sequence[Row], now: float, producer: Any) -> list[Run | None]:
        """Load, judge and render what can be sent together, until that takes long.

        A processor does one step for many rows a third faster than all steps for each row. None
        stands for a row about which there is nothing more to do.
        """
        end = self._clock() + LONGEST_BLOCK
        runs = self._load(rows, now, end)
        for number, run in enumerate(runs):
            if self._clock() > end:
                break
            if run is not None:
                runs[number] = self._judge(run)
        if self._messages.renders and self._turn.server is not None:
            self._render(runs, producer)
        return runs

    def _look_ahead(self, rest: Sequence[Row], reply: Reply) -> Look | None:
        """The look at what follows the ``rest`` of the rows, None if nothing does.

        Redis works on it while this beat decides about the rest.
        """
        has_more = reply.next is not None and reply.next <= reply.now
        if self._turn.has_looked or not has_more:
            return None
        if not message.FEWEST_RUNS <= len(rest) <= MOST_CHANGES:
            return None
        if not self._may_look_ahead():
            return None
        look = self._next_look()
        limit = min(look.limit, AHEAD_LIMIT)
        return look._replace(limit=limit, in_hand=[row.key for row in rest])

    def _may_look_ahead(self) -> bool:
        is_busy = self.sync.statics.unwritten or self._broker.failures
        return self._suspects.is_idle and not is_busy

    def _load(self, rows: Sequence[Row], now: float, end: float) -> list[Run | None]:
        """The runs of the first rows: of one at least, and of no more after ``end``."""
        runs = list[Run | None]()
        for row in rows:
            run = None
            if self._missing and row.definition is not None:
                self._missing.pop(row.key, None)  # its hash is back
            if row.key in self._suspects.guilty:
                self._turn.add(self._outcome.suspect(row, now), None)
            else:
                try:
                    run = self.rules.run_of(row, now)
                except Exception as error:
                    self._cannot_load(row, error, now)
            runs.append(run)
            if self._clock() > end:
                break
        return runs

    def _judge(self, run: Run) -> Run | None:
        """Give a run its verdict; return None if that fails."""
        row, rule, now = run.row, run.rule, run.now
        try:
            plan = self.rules.plan_of(rule) if rule.policy.exclude else rule.plan
            inbox = self.rules.inbox_of(run) if row.inbox else []
        except Exception as error:
            self._cannot_load(row, error, now)
            return None
        try:
            words = (run.history, run.state, now, float(row.score or now))
            run.verdict = verdicts.judge(verdicts.Known(rule, plan, *words), inbox)
        except Exception as error:
            if isinstance(error, InvalidEntryError) or not rule.asks:
                self._cannot_load(row, error, now)
            else:  # user code failed, perhaps only for a while
                self._turn.add(self._failure(run, error, now), None)
            return None
        return run

    def _render(self, runs: Iterable[Run | None], producer: Any) -> None:
        """Render the messages whose record may carry them, if no foreign code takes part."""
        for run in runs:
            if run is None or run.verdict is UNJUDGED or run.verdict.send is None:
                continue
            try:
                if self._order_of(run.rule, producer) == INSIDE:
                    message.name_run(run, run.verdict.send, self._conf.key_prefix)
                    run.push = self._messages.render(run.rule, run.headers, run.task_id) or []
                    run.plain = True
            except Exception:  # carrying it out raises it again
                continue

    def _carry_out_one(self, run: Run) -> None:
        if run.verdict is UNJUDGED and self._judge(run) is None:
            return
        try:
            if run.plain:
                self._push(run, self._scheduler.producer, own=False)
            else:
                self._carry_out(run)
        except errors.ConfigurationError:
            raise
        except Exception as error:
            self._failed(run, error)

    def _cannot_load(self, row: Row, error: BaseException, now: float) -> None:
        if row.definition is None and not row.problem:
            self._await_hash(row, now)
        elif isinstance(error, CannotRunHereError):
            if self._skip.add(row.key, digest_of(row), str(error) or repr(error), self._clock()):
                self._outcome.left_to_others(row.key, error)
        else:
            reason = f"definition.schedule: cannot compute the next run: {errors.described(error)}"
            if isinstance(error, (DecodeError, InvalidEntryError)):
                reason = str(error)
            self._turn.add(self._outcome.quarantine(row, reason, now), None)

    def _await_hash(self, row: Row, now: float) -> None:
        first = self._missing.setdefault(row.key, now)
        if now - first < MISSING_FOR:
            later = Change(row.key, expect=digest_of(row), score=first + MISSING_FOR)
            self._turn.add(later, None)
            return
        del self._missing[row.key]
        if self._store.keys.name_of(row.key) in self.sync.statics.names:
            logger.warning("beat: Static entry %s vanished, so the beat writes it again", row.key)
            self.sync.statics.unwritten = True
            return
        logger.error("beat: Entry %s is removed from the schedule: its hash is gone", row.key)
        self._turn.add(Change(row.key, expect=digest_of(row), delete=True), None)

    # -- sending -------------------------------------------------------------------------------

    def _carry_out(self, run: Run) -> None:
        """Add a run's first change, which depends on its delivery and on what is to leave."""
        if self._own.entries_decide and (asked := verdicts.asked(run.verdict)):
            run.verdict, run.asks = asked, True
        rule, send = run.rule, run.verdict.send
        if send is None:
            self._turn.add(self._outcome.rest(run), run)
            return
        if rule.options:
            check_destinations(self._scheduler.app, rule.options)
        message.name_run(run, send, self._conf.key_prefix)
        delivery = rule.policy.delivery or self._conf.delivery
        if delivery == AT_MOST_ONCE:
            self._scheduler.check_broker()
            self._turn.add(self._outcome.first(run), run)
            return
        producer = self._scheduler.producer
        server = None if delivery == AT_LEAST_ONCE else self._one_step.server(producer)
        self._turn.server = server or self._turn.server
        takes = server is not None and self._one_step.takes(rule.key, rule.task)
        method, own = self._own.part_in(rule)
        if method or not takes:
            if method and server is not None:
                self._one_step.told(method)
            self._turn.add(self._outcome.hold(run), run)
            return
        self._push(run, producer, own=own)

    def _push(self, run: Run, producer: Any, *, own: bool) -> None:
        """Add the change that carries the message itself, rendered or as Celery makes it."""
        if not own:
            if self._logs_each:
                self._log_sending(run)
            # If it isn't rendered yet, an earlier run of the same block may have taught how.
            push = run.push or self._messages.render(run.rule, run.headers, run.task_id)
            if push is not None:
                run.push, run.left = push, True
                self._turn.add(self._outcome.inside(run), run)
                return
        call = self._call_of(run, producer)
        if not self._one_step.capture(run, producer, call, own=own):
            self._turn.add(self._outcome.record(run), run)
        elif run.error is not None:
            raise run.error
        elif run.declined:
            self._turn.add(self._outcome.decline(run), run)
        else:
            self._turn.add(self._outcome.inside(run), run)
        if not own:
            self._learn(run, run.push)

    def _captured(self, run: Run, producer: Any) -> bool:
        """Let Celery make the message of a run that isn't due, to learn from it or to compare it.

        Returns False without a message, and if it left: then the run is recorded.
        """
        is_inside = self._one_step.capture(run, producer, self._call_of(run, producer))
        if not is_inside:
            self._turn.add(self._outcome.record(run), run)
        self._learn(run, run.push)
        return is_inside and run.left and run.error is None

    def _learn(self, run: Run, commands: list[list[Any]]) -> None:
        """Render the next messages like this one of Celery's, or compare the two."""
        if self._messages.learn(run.rule, run.headers, run.task_id, commands):
            self.counters.mismatched()

    def _log_sending(self, run: Run) -> None:
        send = run.verdict.send
        assert send is not None
        kind = "due" if send.kind == "scheduled" else send.kind
        words = kind, run.rule.name, run.rule.task, run.task_id
        logger.info("Scheduler: Sending %s task %s (%s), id %s", *words)

    def _call_of(self, run: Run, producer: Any) -> Callable[[], Any]:
        rule = run.rule
        producer.host_ahead = self._turn.host_ahead
        if self._own.makes_entries:
            run.own = self._own.call(run, producer)
            return run.own
        once = run.stage == FIRST
        options = message.options_of(rule.options, run.headers, run.task_id, once)
        return partial(message.publish, self._scheduler, rule, options, producer)

    def _publish_ready(self, *, wait: bool = True) -> None:
        """Publish what is held or recorded, and record what was published.

        It comes before the next turn, so that a killed beat loses at most one turn's runs. Without
        ``wait``, the turn in flight is left out.
        """
        if wait:
            self._turn.finish()
        self._handle_answers()
        stalled = False
        # Whatever isn't tried is given back.
        while self._ready and not self._stop.pending and not self._broker.failed:
            run = self._ready.pop(0)
            if run.hold_ends and self._clock() >= run.hold_ends:
                self._give_back(run)
                stalled = True
                continue
            try:
                self._publish(run)
            except Exception as error:
                run.left = run.left and run.stage == HOLD  # an earlier attempt may have left
                self._failed(run, error)
                break
            if run.error is not None:  # perhaps the broker is down
                self._settle(wait=True)
        if stalled:
            logger.warning("beat: This beat stalled past the time of its holds; they go back")
        self._settle()

    def _publish(self, run: Run) -> None:
        rule, producer, once = run.rule, self._scheduler.producer, run.stage == FIRST
        _, own = self._own.part_in(rule)
        may_render = not (own or once) and self._sender.collects(run, producer)
        if self._logs_each and not (own and self._own.makes_entries):
            self._log_sending(run)
        if may_render:
            push = self._messages.render(rule, run.headers, run.task_id)
            if push is not None:
                self._sender.push(run, push)
                return
        call = self._call_of(run, producer)
        self._sender.publish(run, call, producer, once=once, own=own)
        if may_render:
            self._learn(run, self._sender.made)

    def _settle(self, *, wait: bool = False) -> None:
        """Record what the broker has confirmed; with ``wait``, all that was published."""
        if not self._sender.busy:
            return
        for run in self._sender.finish() if wait else self._sender.settle():
            if run.error is not None:
                self._failed(run, run.error)
            elif run.declined:
                self._turn.add(self._outcome.decline(run), run)
            else:
                self._sent(run)

    def _sent(self, run: Run) -> None:
        if self._broker.failures:
            self._broker.answered()
        if run.stage == HOLD:
            self._turn.add(self._outcome.record(run), run)
        else:
            self._outcome.announce(run)

    def _give_back(self, run: Run) -> Row:
        """Give back a run that is held, or recorded and never tried; return its row after that."""
        change = self._outcome.put_back(run, float(run.row.score or run.now))
        self._turn.add(change, run)
        return run.row._replace(state=change.set[STATE])

    def _lose(self, run: Run, error: Exception) -> None:
        self._outcome.lost(run, f"a retry might send it twice: {errors.described(error)}", error)
        self._turn.add(self._outcome.failed_for_good(run, error), run)

    def _failed(self, run: Run, error: Exception) -> None:
        """Note a run that could not be sent: the broker is down, or only this entry fails."""
        now = self._turn.time()
        run.error = None
        cause = error.__cause__ if isinstance(error, SharedError) else error
        down = isinstance(cause, Exception) and self._broker.is_down(cause)
        is_waiting = run.stage in (FIRST, HOLD)
        if isinstance(cause_of(error), CannotRunHereError):
            row = self._give_back(run) if is_waiting else run.row
            self._cannot_load(row, cause_of(error), now)
        elif run.seen and is_waiting and not down and not isinstance(error, StoppedError):
            logger.error(
                "beat: The run of %s was sent, and then failed: %s",
                *(run.row.key, error),
                exc_info=error,
            )
            self._sent(run)
        elif run.stage == FIRST and run.left:
            self._lose(run, error)
        elif isinstance(error, SharedError) and not down:
            self._ready.append(run)
        elif down and run.stage != FIRST:  # shown as failing, and due as before
            self._turn.add(self._outcome.failure(run, error, float(run.row.score or now)), run)
        elif down or isinstance(error, StoppedError):
            if is_waiting:
                self._give_back(run)
        else:
            self._turn.add(self._failure(run, error, now), run)

    def _failure(self, run: Run, error: Exception, now: float) -> Change:
        attempts = run.state.failing.attempts if run.state.failing else 0
        wait = trouble.ENTRY_WAIT.after(attempts + 1)
        if attempts & (attempts + 1) == 0:
            logger.error(
                "beat: Could not send %s, attempt %d, trying again in %.0f s: %s",
                *(run.row.key, attempts + 1, wait, error),
                exc_info=error if not attempts else None,
            )
        return self._outcome.failure(run, error, now + wait)

    # -- answers -------------------------------------------------------------------------------

    def _handle_answers(self) -> None:
        answered, self._turn.answered = self._turn.answered, []
        for run, answer, repeated, sent_at in answered:
            if run is None:
                self._again += [answer.row] if answer.row is not None else []
                continue
            after = self._outcome.after(run, answer, repeated)
            if run.stage == INSIDE and answer.word == DONE:
                if self._broker.failures:
                    self._broker.answered()
                self._edited.discard(run.row.key)
            if after == outcome.PUBLISH:
                run.hold_ends = sent_at + outcome.MAY_PUBLISH if run.stage == HOLD else 0.0
                self._ready.append(run)
            elif after:
                self._go_on(run, answer.row, after, answer.why)

    def _go_on(self, run: Run, row: Row | None, after: str, why: str) -> None:
        if after == outcome.AGAIN:
            self._decide_again(run, row)
        elif after == outcome.OTHER_ORDER:
            self._one_step.elsewhere(self._turn.server)
            self._turn.server = None
        elif after == outcome.RECORD_OVER and row is not None:
            self._record_over(run, row)
        elif after == outcome.FAILED and not self._one_step.refused(run.row.key, why):
            self._failed(run, run.error or RuntimeError(why))

    def _decide_again(self, run: Run, row: Row | None) -> None:
        """Decide again about a changed entry; if it's the second time in a row, hold the run.

        If its score was moved to later, a look finds it then.
        """
        is_sending = run.stage in (INSIDE, HOLD)
        if row is not None and (not is_sending or is_due(row, self._turn.time())):
            self._again.append(row)
        if run.stage == INSIDE:
            if run.row.key in self._edited:
                self._one_step.bypassed(run)
            self._edited ^= {run.row.key}

    def _record_over(self, run: Run, row: Row) -> None:
        try:
            now = self.rules.run_of(row, self._turn.time())
        except Exception as error:
            self._outcome.announce(run)
            self._cannot_load(row, error, self._turn.time())
            return
        self._turn.add(self._outcome.record_over(run, now), run)

    def _entry_of(self, run: Run) -> Any:
        """The entry object of a run, for receivers of signals."""
        return self._own.call(run, None).entry


def is_due(row: Row, now: float) -> bool:
    return row.score != "" and 0 <= float(row.score) <= now


def is_late(row: Row, now: float) -> bool:
    """Whether a look counts a row as late: by more than a second."""
    return row.score != "" and 0 <= float(row.score) < now - 1
