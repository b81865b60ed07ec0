"""What becomes of one claimed entry: sent, given back, parked or quarantined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from celery.utils.log import get_logger
from redis.exceptions import RedisError, ResponseError

from redbeat.calendar.zones import UTC
from redbeat.config import RedBeatConfig
from redbeat.entries.decide import DISABLED, Run, Trigger, first_word
from redbeat.entries.history import (
    History,
    after_saved_anew,
    encode_meta,
    encode_runtime,
    merged_history,
)
from redbeat.entries.lazy import LazyArgumentError, evaluated
from redbeat.entries.runs import TRIGGERED, nominal, run_line
from redbeat.entries.templates import Histories, Prototypes
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import CannotRunHereError, ConfigurationError, DecodeError, InvalidEntryError
from redbeat.metrics.counters import Counters
from redbeat.schedules.next_run import asks_itself
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE
from redbeat.signals import emit, entry_quarantined
from redbeat.storage.checks import REFUSAL
from redbeat.storage.quarantine import Quarantine, printable
from redbeat.storage.records import (
    BEFORE_RECORD,
    CHANGED,
    ELSEWHERE,
    NOT_SENT,
    OVERTAKEN,
    RECORDED,
    REFUSED,
    SKIP,
    WAITS,
    WITH_RECORD,
    Broker,
    Claim,
    Completion,
    Result,
)

from .at_most_once import AtMostOnce, PendingRun
from .completions import Completions, goes_on, marker, own_wait, score_of_not_due
from .exactly_once import Capture, CommonServer
from .publisher import InFlightMessage, Publisher, publish
from .retries import Recent, Retries
from .scheduler_protocol import SchedulerProtocol, name_of
from .session import Session
from .statics import StaticEntries

__all__ = (
    "Dispatcher",
    "Given",
    "Loaded",
)

logger = get_logger("celery.beat")


#: An entry, or why it cannot be read.
Loaded = RedBeatSchedulerEntry | Exception

#: Entries that are read before the first of them is dispatched.
READ_AHEAD: Final = 50

#: Seconds after which those that were read are dispatched before others are read.
READ_FOR: Final = 0.1

#: Seconds after a claim for which a run is not too old because of them: the broker took its time.
DECIDED_FOR: Final = 0.1


class Given(NamedTuple):
    """What a program's own tick gave to ``maybe_due``: its object of an entry, and options."""

    entry: RedBeatSchedulerEntry
    options: dict[str, Any]


class Dispatcher:
    """Decides and publishes, one claim at a time; what is to be recorded goes to the exchange.

    No round trips to Redis of its own, but for a lost run whose end is waited for. ``statics`` hold
    the functions among the arguments of static entries, ``outbox`` what the broker has not
    confirmed yet.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        quarantine: Quarantine,
        session: Session,
        publisher: Publisher,
        server: CommonServer,
        statics: StaticEntries,
        counters: Counters,
        conf: RedBeatConfig,
    ) -> None:
        self._publisher = publisher
        self._session = session
        self._server = server
        self._capture: Capture | None = None
        self._alone: Recent[bool] = Recent()
        self._scheduler = scheduler
        self._counters = counters
        self._statics = statics
        self._delivery = conf.delivery
        self._quarantine = quarantine
        self._prototypes = Prototypes(scheduler)
        self._histories = Histories()
        self.retries = Retries(scheduler, self._counters)
        self._completions = Completions(scheduler, self._counters, self._histories)
        self.at_most_once = AtMostOnce(
            scheduler, session, self.retries, self._completions, self._counters
        )

    # -- loading and deciding ------------------------------------------------------------------

    def loaded(
        self, claims: Sequence[Claim], claimed_at: float, given: Given | None = None
    ) -> Iterator[Loaded]:
        """Yield the entry of each claim with its run, or why it cannot be read.

        Many are read and decided in a row: that takes less time than one after the other between
        two messages. ``claimed_at`` is the time of Redis, UNIX seconds. ``given`` is what a program
        gave to send of one of them.
        """
        first, now = 0, datetime.fromtimestamp(claimed_at, UTC)
        while first < len(claims):
            self._prototypes.refresh()
            started = self._session.time()
            entries: list[Loaded] = []
            for claim in claims[first : first + READ_AHEAD]:
                entry = self._load(claim, given)
                entries.append(entry)
                if not isinstance(entry, Exception):
                    self._look_at(entry, now, claim)
                    if given is not None and entry.run is not None:
                        entry.run.options = given.options
                if self._session.time() - started > READ_FOR:
                    break
            yield from entries
            first += len(entries)

    def _look_at(self, entry: RedBeatSchedulerEntry, now: datetime, claim: Claim) -> None:
        """Decide on an entry before its turn; where that fails, its turn tells of it.

        Not where code of the user's own decides, which is asked once, and when it is needed.
        """
        decided_at = datetime.fromtimestamp(float(claim.since), UTC) if claim.since else now
        entry.run = Run(now, datetime.fromtimestamp(claim.due, UTC), decided_at)
        if asks_itself(entry.schedule):
            return
        try:
            entry.decision()
        except Exception as error:
            logger.debug("beat: Cannot tell yet when %s is due: %r", printable(claim.key), error)

    def _load(self, claim: Claim, given: Given | None = None) -> Loaded:
        if claim.problem or claim.definition is None:
            return DecodeError("definition", claim.problem)
        make = self._scheduler.Entry
        try:
            if given and given.entry.is_of(claim.key, claim.definition, claim.policy):
                entry = given.entry.with_history(claim.meta, claim.runtime)
            elif make.loads_itself():
                entry = make.from_key(claim.key, app=self._scheduler.app)
            else:
                entry = self._prototypes.get(claim.key, claim.definition, claim.policy)
                self._histories.give(entry, claim.key, claim.meta, claim.runtime)
            entry._identity = claim.identity
            self._statics.give_schedule(entry)
        except Exception as error:
            return error
        return entry

    def dispatch(self, entry: Loaded, claim: Claim, now: float) -> None:
        """Run a claimed entry as it was :meth:`loaded`, and see to its record.

        ``now`` is the time of Redis, UNIX seconds.
        """
        if isinstance(entry, Exception):
            self._not_loaded(entry, claim, now)
            return
        run = entry.run
        assert run is not None
        run.now = datetime.fromtimestamp(now, UTC)
        run.at_most_once = (entry.policy_field("delivery") or self._delivery) == AT_MOST_ONCE
        if claim.trigger:
            self._triggered(entry, run, claim, now)
        else:
            self._dispatch(entry, run, claim, now)

    def _not_loaded(self, error: Exception, claim: Claim, now: float) -> None:
        if isinstance(error, (DecodeError, InvalidEntryError)) and not isinstance(
            error, CannotRunHereError
        ):
            self._set_aside(claim, str(error), now)
        elif isinstance(error, (RedisError, OSError)):  # of a from_key() of the program's
            self._note(claim, now, error)
        else:
            self.deliver()
            self._session.record(self.retries.put_back(claim, now, error))

    def _dispatch(self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float) -> None:
        perhaps_sent = bool(claim.since) and not run.at_most_once
        if not entry.enabled and not perhaps_sent:
            self._session.record(claim.done(SKIP, DISABLED))
            return
        try:
            due = entry.decision().due
        except Exception as error:
            if asks_itself(entry.schedule):  # the user's own code, which may recover
                self._note(claim, now, error)
                return
            reason = f"definition.schedule: cannot tell when it is due: {error!r}"
            self._set_aside(claim, reason, now)
            return
        if due and perhaps_sent and (not entry.enabled or entry.is_too_late):
            self._record(entry, self._completions.perhaps_sent(entry, claim, now))
        elif not entry.enabled:
            self._session.record(claim.done(SKIP, DISABLED))
        elif due and not perhaps_sent and goes_on(entry, claim, now):
            self._record(entry, self._completions.put_off(entry, claim, now))
        elif due and self._waited_too_long(entry, run):
            self._session.record(claim.put_back(now))  # the next claim decides anew
        else:
            self._send(entry, run, claim, now, due)

    def _waited_too_long(self, entry: RedBeatSchedulerEntry, run: Run) -> bool:
        return (run.now - run.decided_at).total_seconds() > DECIDED_FOR and entry.is_too_late

    def _send(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float, due: bool
    ) -> None:
        if due:
            try:
                self._statics.give_functions(entry)
            except LazyArgumentError as error:
                self._note(claim, now, error)
                return
        if run.at_most_once:
            self._promise(entry, run, claim, now)
        else:
            self._publish(entry, run, claim, now)

    # -- sending: with the record, before it, after it -------------------------------------------

    def _capture_for(self, entry: RedBeatSchedulerEntry, producer: Any) -> Capture | None:
        """Return what collects a message that leaves with its record, None where it cannot."""
        if entry.policy_field("delivery") == AT_LEAST_ONCE:
            return None
        session = self._session
        session.broker = self._server.of(producer)
        safe = session.broker and not self._scheduler.sends_itself and not self._server.passed
        session.way = WITH_RECORD if safe else BEFORE_RECORD
        if self._server.problem:
            raise ConnectionError(self._server.problem)
        if session.broker is None:
            return None
        if self._capture is None or self._capture.channel is not producer.channel:
            self._capture = Capture(producer.channel)
        return self._capture

    def _publish(self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float) -> None:
        capture, unsure = None, False  # type: Capture | None, bool | None
        try:
            producer = self._scheduler.producer
            capture = self._capture_for(entry, producer)
            unsure = self._scheduler.sends_itself
            if capture is not None:
                with capture:
                    seconds = publish(self._scheduler, entry, producer)
            else:
                outgoing = self._publisher.publishing(producer, bool(self._alone.get(claim.key)))
                try:
                    with outgoing:
                        seconds = publish(self._scheduler, entry, producer)
                        if run.sent:
                            outgoing.add(InFlightMessage(entry, claim, seconds, now))
                            return
                finally:
                    unsure = unsure or outgoing.carried
        except Exception as error:
            self._note(claim, now, error, unsure)
            return
        if run.error is not None:
            shared = capture is None and self._publisher.shares_errors
            self.deliver()
            self._failed(claim, now, run.error, shared, unsure)
        elif run.sent and capture is not None and capture.commands:
            done = self._done(entry, claim, seconds, now)._replace(messages=capture.messages)
            self._leave(InFlightMessage(entry, claim, seconds, now), done)
        elif run.sent or run.successor is not None:
            if capture is not None:
                self._server.passed_by(entry)
            self._settle(InFlightMessage(entry, claim, seconds, now))
        else:
            score = score_of_not_due(entry, run, seconds, now)
            self._record(entry, self._completions.not_sent(entry, claim, score, now))

    def _done(
        self, entry: RedBeatSchedulerEntry, claim: Claim, seconds: float | None, now: float
    ) -> Completion:
        return self._completions.sent(entry, claim, own_wait(entry, seconds, now), now)

    def _leave(self, message: InFlightMessage, done: Completion) -> None:
        """Have a run leave with its record."""
        self._session.record(done, partial(self._left, message, done, self._session.broker))

    def _left(
        self, message: InFlightMessage, done: Completion, broker: Broker | None, result: Result
    ) -> None:
        """Take note of what became of a run that was to leave with its record."""
        entry, claim = message.entry, message.claim
        if result.code in (RECORDED, OVERTAKEN):
            self._is_out(entry, claim, done)
        elif result.code == CHANGED:
            definition, policy, _ = result.texts
            if (definition, policy) == (claim.definition, claim.policy):
                again = self._merged(entry, claim, done, result.texts)
                self._leave(message, again)
            else:
                self._session.record(claim.put_back(self._session.time()))
        elif result.code == ELSEWHERE:
            self._server.elsewhere(broker)
            self._session.record(claim.put_back(self._session.time()))
        elif result.code == NOT_SENT:
            self._refused(claim, result.texts[0])
        else:
            logger.info(
                "beat: The run of %s is not sent: it was deleted, or another beat claimed it",
                printable(claim.key),
            )

    def _refused(self, claim: Claim, why: str) -> None:
        """See to a run whose message the script could not send."""
        now = self._session.time()
        if REFUSAL.search(why):
            self._server.refuse(f"the Redis user of the schedule may not send messages: {why}")
            self._session.record(claim.put_back(now))
        else:
            self._failed(claim, now, ResponseError(why), shared=False)

    def _is_out(self, entry: RedBeatSchedulerEntry, claim: Claim, done: Completion) -> None:
        self._alone.forget(claim.key)
        self.retries.forget(claim)
        self._completions.announce(entry)
        if done.end:
            self._completions.finished(entry)

    def _record(self, entry: RedBeatSchedulerEntry, done: Completion) -> None:
        """Record what is no run."""

        def on_result(result: Result) -> None:
            if result.code == RECORDED:
                self._completions.finished(entry)

        self._session.record(done, on_result if done.end else None)

    def advance(self) -> None:
        """Have what was published leave, and record that which left before."""
        for message in self._publisher.advance():
            self._settle(message)

    def deliver(self) -> None:
        """Wait for the broker to answer for what is on its way, and record that.

        Also before anything is made of what went wrong after it.
        """
        for message in self._publisher.deliver():
            self._settle(message)

    def _settle(self, message: InFlightMessage) -> None:
        """Record a run that was published before its record."""
        entry, claim, now = message.entry, message.claim, message.now
        if message.error is not None:
            self._failed(claim, now, message.error, message.shared, unsure=True)
            return
        done = self._done(entry, claim, message.seconds, now)
        self._is_out(entry, claim, done._replace(end=""))
        self._session.record(done, partial(self._was_out, message, done))

    def _was_out(self, message: InFlightMessage, done: Completion, result: Result) -> None:
        """Take note of the record of a run that was published before it."""
        entry, claim = message.entry, message.claim
        if result.code == CHANGED:
            again = self._merged(entry, claim, done, result.texts)
            self._session.record(again, partial(self._was_out, message, again))
        elif result.code == REFUSED:
            logger.info(
                "beat: Entry %s was deleted or replaced during its run", printable(claim.key)
            )
        elif done.end:
            self._completions.finished(entry)

    def _merged(
        self,
        entry: RedBeatSchedulerEntry,
        claim: Claim,
        done: Completion,
        texts: tuple[str, ...],
    ) -> Completion:
        """Return the completion of a run during which an application wrote to its entry."""
        definition, policy, meta = texts
        now = self._session.time()
        if not done.meta:  # of a triggered run
            return done._replace(score=now, seen=(definition, policy, meta))
        ran = History.read(done.meta, done.runtime)
        history = merged_history(claim.meta, meta, ran)
        history = after_saved_anew(
            history,
            (claim.definition or "", claim.policy),
            (definition, policy),
            datetime.fromtimestamp(now, UTC),
            rewritten=history.scheduled_at is None and ran.scheduled_at is not None,
            foreign=entry._foreign_fields,
        )
        last_run_at, count, scheduled_at = history
        runtime = ""
        if last_run_at is not None and scheduled_at is not None:
            runtime = encode_runtime(nominal(scheduled_at), last_run_at)
        return done._replace(
            score=now,
            meta=encode_meta(last_run_at, count),
            runtime=runtime,
            seen=(definition, policy, meta),
            end="",
            definition="",
        )

    def _failed(
        self,
        claim: Claim,
        now: float,
        error: Exception,
        shared: bool,
        unsure: bool | None = False,
    ) -> None:
        """See to a run that was not sent, perhaps by the fault of another.

        Then it is tried again at once, and waited for by itself.
        """
        own = self._alone.get(claim.key) or not shared
        if own or self.retries.broker_is_away(error) or not self._alone.keep(claim.key, True, now):
            self._session.record(self.retries.note(claim, now, error, unsure))
        else:
            self._session.record(claim.put_back(now, unsure is not False))

    def _note(
        self, claim: Claim, now: float, error: Exception, unsure: bool | None = False
    ) -> None:
        """Keep a run that could not be sent, after what was published before it is seen to."""
        self.deliver()
        if isinstance(error, ConfigurationError):  # no run of any entry can be sent
            raise error
        self._session.record(self.retries.note(claim, now, error, unsure))

    def _set_aside(self, claim: Claim, reason: str, now: float) -> None:
        self._quarantine.add(claim, reason, now)
        name = name_of(self._scheduler, claim)
        self._counters.add("quarantined", name)
        emit(entry_quarantined, self._scheduler, name=printable(name), reason=reason)

    def _promise(self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float) -> None:
        """Decide as :meth:`_publish` does, and connect to the broker, but publish nothing."""
        try:
            self._scheduler.check_broker()
            is_due, seconds = self._scheduler.is_due(entry)
            if is_due:
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = entry.task_id_of(run.instant)
                run.own_id = run.task_id == entry.own_task_id(run.instant)
                run.successor = self._scheduler.reserve(entry)
                if not isinstance(run.successor, RedBeatSchedulerEntry):
                    raise TypeError(f"reserve() returned {run.successor!r:.60}, not an entry")
        except Exception as error:
            self._note(claim, now, error)
            return
        if is_due:
            self.retries.forget(claim)
            self.at_most_once.add(PendingRun(entry, claim, self._done(entry, claim, seconds, now)))
        else:
            score = score_of_not_due(entry, run, seconds, now)
            self._record(entry, self._completions.not_sent(entry, claim, score, now))

    def _triggered(self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float) -> None:
        """Send the first of the runs that were asked for beside the schedule.

        The entry is handed out again at once, for the next of them or for what is due.
        """
        again = claim.put_back(now)
        try:
            trigger = Trigger.first(claim.trigger)
        except (ValueError, OverflowError, OSError):
            logger.error("beat: Entry %s: %r is no trigger", entry.name, claim.trigger)
            self._session.record(again._replace(trigger=first_word(claim.trigger)))
            return
        if goes_on(entry, claim, now):
            until = float(claim.running_until)
            self._session.record(again._replace(score=until, running=WAITS))
            return
        run.trigger, task_id = trigger, entry.task_id_of(trigger.id)
        line = run_line(nominal(trigger.at), now, TRIGGERED, task_id)
        running = marker(entry, task_id)
        done = again._replace(trigger=trigger.id, history=line, running=running)
        try:
            self._statics.give_functions(entry)
            if run.at_most_once:
                self._scheduler.check_broker()
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = task_id
                self.retries.broker_is_there()
                self.at_most_once.add(PendingRun(entry, claim, done))
                return
            producer = self._scheduler.producer
            capture = self._capture_for(entry, producer)
            with capture or nullcontext():
                publish(self._scheduler, entry, producer)
        except Exception as error:
            self._note(claim, now, error)
            return
        if capture is not None and capture.commands:
            done = done._replace(messages=capture.messages)
            self._leave(InFlightMessage(entry, claim, None, now), done)
        else:
            if capture is not None:
                self._server.passed_by(entry)
            self._is_out(entry, claim, done)
            self._session.record(done)
