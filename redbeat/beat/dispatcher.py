"""What becomes of one claimed entry: sent, given back, parked or quarantined."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.calendar.zones import UTC
from redbeat.config import ensure_conf
from redbeat.connection.client import get_redis, unretried
from redbeat.entries.due import DISABLED, PARKED, score_of
from redbeat.entries.history import encode_runtime
from redbeat.entries.lazy import LazyArgumentError, evaluated
from redbeat.entries.occurrences import Run, Trigger
from redbeat.entries.prototypes import Histories, Prototypes
from redbeat.entries.runs import SENT, SKIPPED, TRIGGERED, missed, run_line
from redbeat.entry import RedBeatSchedulerEntry, store_of
from redbeat.errors import DecodeError
from redbeat.metrics.counters import Counters
from redbeat.signals import (
    emit,
    entry_dispatched,
    entry_failed,
    entry_finished,
    entry_missed,
    entry_quarantined,
)
from redbeat.storage.quarantine import Quarantine, shown
from redbeat.storage.records import AGAIN, DELETE, WAITS, Claim, Completion
from redbeat.timing import asks_itself

from .delivery import AT_MOST_ONCE
from .failures import Failures
from .hooks import Hooks, Promise
from .messages import id_of
from .outbox import Letter, Outbox
from .overlap import goes_on, marker, put_off
from .statics import StaticEntries
from .waits import own_wait, score_of_not_due

__all__ = ("Dispatcher",)

logger = get_logger("celery.beat")


class Dispatcher:
    """Decides and publishes, one claim at a time.

    No round trips to Redis of its own, but for a lost run whose end is waited for. ``statics`` hold
    the functions among the arguments of static entries, ``outbox`` what the broker has not
    confirmed yet.
    """

    def __init__(
        self,
        hooks: Hooks,
        quarantine: Quarantine,
        outbox: Outbox,
        statics: StaticEntries | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._outbox = outbox
        self._alone: set[str] = set()
        self._hooks = hooks
        self._counters = Counters(0) if counters is None else counters
        self._statics = StaticEntries() if statics is None else statics
        self._quarantine = quarantine
        self._prototypes = Prototypes(hooks)
        self._histories = Histories()
        self._failures = Failures(hooks, self._counters)

    def dispatch(self, claim: Claim, claim_id: str, now: float) -> Completion | Promise | None:
        """Run a claimed entry and return what to record.

        ``now`` is the time of Redis, UNIX seconds. A run that is to be sent at most once is not
        published but returned as a promise, for :meth:`keep`. None when there is nothing to record
        because the entry is quarantined, or not yet because its message is on its way: then it is
        among what :meth:`delivered` returns.
        """
        try:
            entry = self._load(claim, now)
        except Exception as error:
            self._set_aside(claim, claim_id, str(error) or repr(error), now)
            return None
        return self._dispatch(entry, claim, claim_id, now)

    @property
    def broker_failures(self) -> int:
        """How often the broker failed in a row."""
        return self._failures.of_broker

    def delivered(self, *, wait: bool) -> list[Completion]:
        """Return what to record for messages on their way, once the broker has answered.

        Empty unless it is time to ask, or ``wait`` is true.
        """
        if not (wait or self._outbox.ripe):
            return []
        return [self._settled(letter) for letter in self._outbox.deliver()]

    def _settled(self, letter: Letter) -> Completion:
        entry, claim, claim_id, now = letter.entry, letter.claim, letter.claim_id, letter.now
        error = letter.error
        if error is None:
            self._announce(entry)
            return self._sent(entry, claim, claim_id, own_wait(entry, letter.seconds, now), now)
        return self._failed(claim, claim_id, now, error, shared=letter.shared)

    def _failed(
        self, claim: Claim, claim_id: str, now: float, error: Exception, shared: bool
    ) -> Completion:
        """Return what to record for a run that was not sent, perhaps by the fault of another.

        Then it is tried again at once, and waited for by itself.
        """
        own = claim.key in self._alone or not shared
        if own or self._failures.broker_is_away(error):
            return self._failures.note(claim, claim_id, now, error)
        self._alone.add(claim.key)
        return Completion(claim.key, claim_id, now, runtime=AGAIN)

    def _dispatch(
        self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str, now: float
    ) -> Completion | Promise | None:
        if claim.trigger:
            return self._triggered(entry, claim, claim_id, now)
        if not entry.enabled:
            return Completion(claim.key, claim_id, DISABLED)
        try:
            due = entry.verdict().due
        except Exception as error:
            if asks_itself(entry.schedule):  # the user's own code, which may recover
                return self._failures.note(claim, claim_id, now, error)
            reason = f"definition.schedule: cannot tell when it is due: {error!r}"
            self._set_aside(claim, claim_id, reason, now)
            return None
        if due and goes_on(entry, claim, now):
            return self._put_off(entry, claim, claim_id, now)
        if due:
            try:
                self._statics.give_functions(entry)
            except LazyArgumentError as error:
                return self._failures.note(claim, claim_id, now, error)
        run = self._promise if self._at_most_once(entry) else self._run
        return run(entry, claim, claim_id, now)

    def _set_aside(self, claim: Claim, claim_id: str, reason: str, now: float) -> None:
        self._quarantine.add(claim, claim_id, reason, now)
        self._counters.add("quarantined", self._plain_name(claim))
        emit(entry_quarantined, self._hooks, name=self._name(claim), reason=reason)

    def _name(self, claim: Claim) -> str:
        return shown(self._plain_name(claim))

    def _plain_name(self, claim: Claim) -> str:
        return claim.key.removeprefix(ensure_conf(self._hooks.app).key_prefix)

    def _announce(self, entry: RedBeatSchedulerEntry) -> None:
        """Count a message that is out, and say so."""
        run = entry.run
        if run is None:
            return
        late = None if run.trigger else (run.now - run.due).total_seconds()
        self._counters.dispatched(str(entry.name), late)
        if not entry_dispatched.receivers:
            return
        nominal = run.trigger.at if run.trigger else run.verdict and run.verdict.scheduled_at
        emit(
            entry_dispatched,
            self._hooks,
            entry=entry,
            scheduled_at=nominal or run.due,
            task_id=run.task_id,
            triggered=run.trigger is not None,
        )

    def keep(self, promise: Promise) -> bool:
        """Publish a run that is recorded; False when the broker is away and nothing was tried."""
        entry, run = promise.entry, promise.entry.run
        assert run is not None
        try:
            producer = self._hooks.producer
        except Exception as error:
            self._failures.broker_is_away(error)
            return False
        run.successor = None
        try:
            self._publish(entry, producer)
        except Exception as error:
            run.error = error
        if run.error is not None:
            self._hooks.broker_failed(run.error)
            self._lost(promise, f"is lost, it must not be sent twice: {run.error!r}")
        elif not run.sent and run.successor is None:
            self._lost(
                promise, "is lost: it was due when it was recorded, and not when it was to be sent"
            )
        else:
            self._failures.broker_is_there()
            self._announce(entry)
        return True

    def _publish(self, entry: RedBeatSchedulerEntry, producer: Any) -> float | None:
        run = entry.run
        if run is None or run.trigger is None:
            return self._hooks.maybe_due(entry, producer=producer)
        logger.info("Scheduler: Sending triggered task %s (%s)", entry.name, entry.task)
        self._hooks.apply_async(entry, producer=producer, advance=False)
        run.sent = True
        return None

    def _lost(self, promise: Promise, what: str) -> None:
        promise.report(what)
        run = promise.entry.run
        name, error = str(promise.entry.name), run and run.error
        self._counters.failed(name, lost=True)
        emit(entry_failed, self._hooks, name=name, error=error, lost=True)
        if promise.done.running:
            self._forget_run(promise)

    def forsake(self, promise: Promise) -> None:
        """Report a run that will not be published. A round trip where its end is waited for."""
        self._lost(promise, "is lost: beat stops and the broker is away")

    def _forget_run(self, promise: Promise) -> None:
        """Have nobody wait for the end of a run that was not published."""
        run = promise.entry.run
        assert run is not None
        try:
            store = store_of(self._hooks.app, unretried(get_redis(self._hooks.app)))
            store.end_run(promise.claim.key, run.task_id)
        except (RedisError, OSError) as error:
            logger.warning(
                "beat: Entry %s waits for overlap_timeout: %r", promise.entry.name, error
            )

    def _at_most_once(self, entry: RedBeatSchedulerEntry) -> bool:
        return self._hooks.delivery_of(entry) == AT_MOST_ONCE

    def _promise(
        self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str, now: float
    ) -> Completion | Promise:
        """Decide as :meth:`_run` does, and connect to the broker, but publish nothing."""
        run = entry.run
        assert run is not None
        try:
            self._hooks.check_broker()
            is_due, seconds = self._hooks.is_due(entry)
            if is_due:
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = id_of(entry, entry.verdict().scheduled_at or run.due)
                run.successor = self._hooks.reserve(entry)
        except Exception as error:
            return self._failures.note(claim, claim_id, now, error)
        if not is_due:
            score = score_of_not_due(entry, run, seconds, now)
            return self._not_sent(entry, claim, claim_id, score, now)
        done = self._sent(entry, claim, claim_id, own_wait(entry, seconds, now), now)
        return Promise(entry, claim, done._replace(promised=True))

    def _triggered(
        self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str, now: float
    ) -> Completion | Promise:
        """Send the first of the runs that were asked for beside the schedule.

        The entry is handed out again at once, for the next of them or for what is due.
        """
        again = Completion(claim.key, claim_id, now, runtime=AGAIN)
        try:
            trigger = Trigger.first(claim.trigger)
        except (ValueError, OverflowError, OSError):
            logger.error("beat: Entry %s: %r is no trigger", entry.name, claim.trigger)
            return again._replace(trigger=claim.trigger.split()[0])
        if goes_on(entry, claim, now):
            return again._replace(score=float(claim.running_until), running=WAITS)
        run, task_id = entry.run, id_of(entry, trigger.id)
        assert run is not None
        run.trigger = trigger
        line = run_line(trigger.at.timestamp(), now, TRIGGERED, task_id)
        running = marker(entry, task_id)
        done = again._replace(trigger=trigger.id, history=line, running=running)
        try:
            self._statics.give_functions(entry)
            if self._at_most_once(entry):
                self._hooks.check_broker()
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = task_id
                self._failures.broker_is_there()
                return Promise(entry, claim, done._replace(promised=True))
            self._publish(entry, self._hooks.producer)
        except Exception as error:
            return self._failures.note(claim, claim_id, now, error)
        self._failures.forget(claim)
        self._announce(entry)
        return done

    def _load(self, claim: Claim, now: float) -> RedBeatSchedulerEntry:
        if claim.problem or claim.definition is None:
            raise DecodeError("definition", claim.problem)
        entry = self._prototypes.get(claim.key, claim.definition, claim.policy)
        entry.check_allowed()
        entry.adopt(self._histories.read(claim.key, claim.meta, claim.runtime), claim.meta)
        entry.run = Run(datetime.fromtimestamp(now, UTC), datetime.fromtimestamp(claim.due, UTC))
        return entry

    def _run(
        self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str, now: float
    ) -> Completion | None:
        run, shared = entry.run, self._outbox.shares_errors
        try:
            producer = self._hooks.producer
            with self._outbox.open(producer, claim.key in self._alone) as on_its_way:
                seconds = self._hooks.maybe_due(entry, producer=producer)
                if run is not None and run.sent and on_its_way():
                    self._outbox.add(Letter(entry, claim, claim_id, seconds, now))
                    return None
        except Exception as error:
            return self._failures.note(claim, claim_id, now, error)
        if run is None or run.sent or (run.error is None and run.successor is not None):
            self._alone.discard(claim.key)
            self._announce(entry)
            return self._sent(entry, claim, claim_id, own_wait(entry, seconds, now), now)
        if run.error is not None:
            return self._failed(claim, claim_id, now, run.error, shared)
        score = score_of_not_due(entry, run, seconds, now)
        return self._not_sent(entry, claim, claim_id, score, now)

    def _not_sent(
        self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str, score: float, now: float
    ) -> Completion:
        """Return what to record for an entry that is not due, or whose runs are too old by now."""
        verdict, runtime, line = entry.verdict(), "", ""
        if verdict.missed and not verdict.due and verdict.anchor and entry.last_run_at:
            logger.warning(
                "beat: Entry %s missed %d runs up to that of %s, too old to be made up for",
                *(entry.name, verdict.missed, verdict.anchor),
            )
            self._missed(entry, verdict.missed, verdict.anchor)
            runtime = encode_runtime(verdict.anchor, entry.last_run_at)
            line = run_line(verdict.anchor.timestamp(), now, missed(verdict.missed))
        done = Completion(claim.key, claim_id, score, runtime=runtime, history=line)
        return self._finished(entry, claim, done) if score == PARKED else done

    def _missed(
        self, entry: RedBeatSchedulerEntry, count: int, scheduled_at: datetime | None
    ) -> None:
        self._counters.add("missed", str(entry.name), count)
        emit(entry_missed, self._hooks, entry=entry, count=count, scheduled_at=scheduled_at)

    def _put_off(
        self, entry: RedBeatSchedulerEntry, claim: Claim, claim_id: str, now: float
    ) -> Completion:
        """Return what to record for an occurrence that is due while an earlier run goes on."""
        done, skipped = put_off(entry, claim, claim_id)
        if skipped is not None:
            self._counters.add("skipped", str(entry.name))
            done = done._replace(history=run_line(skipped.timestamp(), now, SKIPPED))
        gone = skipped is not None and done.score == PARKED
        return self._finished(entry, claim, done) if gone else done

    def _finished(self, entry: RedBeatSchedulerEntry, claim: Claim, done: Completion) -> Completion:
        """Return the completion of an entry that has finished, with what becomes of it."""
        logger.info(
            "beat: Entry %s has finished: nothing is left to run (%s)", entry.name, entry.on_finish
        )
        emit(entry_finished, self._hooks, entry=entry)
        if entry.on_finish == "delete":
            return done._replace(finish=DELETE)
        if entry.on_finish == "disable":
            definition = {**json.loads(claim.definition or "{}"), "enabled": False}
            return done._replace(score=DISABLED, finish=json.dumps(definition))
        return done

    def _sent(
        self,
        entry: RedBeatSchedulerEntry,
        claim: Claim,
        claim_id: str,
        own: float | None,
        now: float,
    ) -> Completion:
        self._failures.forget(claim)
        after = (entry.run and entry.run.successor) or entry.next()
        verdict = entry.verdict()
        if verdict.missed:
            logger.warning(
                "beat: Entry %s missed %d runs before that of %s, which makes up for them",
                *(entry.name, verdict.missed, verdict.scheduled_at),
            )
            self._missed(entry, verdict.missed, verdict.scheduled_at)
        score = score_of(verdict.next_at) if own is None else own
        scheduled_at: datetime = after.scheduled_at or datetime.fromtimestamp(claim.due, UTC)
        runtime = encode_runtime(scheduled_at, after.last_run_at or scheduled_at)
        meta = after.history_text()
        if after.scheduled_at is not None:
            self._histories.note(claim.key, meta, runtime, after)
        task_id = entry.run.task_id if entry.run else ""
        running = marker(entry, task_id)
        nominal = verdict.scheduled_at or scheduled_at
        line = run_line(nominal.timestamp(), now, SENT, task_id, entry.own_task_id(nominal))
        done = Completion(claim.key, claim_id, score, meta, runtime, running=running, history=line)
        return self._finished(entry, claim, done) if score == PARKED else done
