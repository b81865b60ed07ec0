"""Dispatches claimed entries: each is sent, put back, parked or quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redbeat.calendar.zones import UTC
from redbeat.codec.stored import instant_in, seconds_in
from redbeat.config import RedBeatConfig
from redbeat.entries.backfill import Backfill, first_ready, is_backfill
from redbeat.entries.calendars import decode_calendars
from redbeat.entries.decide import DISABLED, Run, Trigger
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
from redbeat.printing import encodable, get_logger
from redbeat.schedules.calendars import Calendar
from redbeat.schedules.next_run import asks_itself
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE
from redbeat.signals import emit, entry_quarantined
from redbeat.storage.checks import REFUSAL
from redbeat.storage.quarantine import LONGEST_REASON, Quarantine
from redbeat.storage.records import (
    BEFORE_RECORD,
    CHANGED,
    ELSEWHERE,
    EXPIRED,
    NOT_SENT,
    OUTDATED,
    OVERTAKEN,
    RECORDED,
    REFUSED,
    RETRY,
    SKIP,
    WAITS,
    WITH_RECORD,
    Broker,
    Claim,
    Completion,
    Result,
    calendars_read,
)

from .at_most_once import AtMostOnce, PendingRun
from .broker import is_about_one_message
from .completions import Completions, custom_score, is_running, running_marker, score_of_not_due
from .exactly_once import Capture, CommonServer
from .publisher import InFlightMessage, Publisher, publish
from .retries import RecentEntries, Retries
from .scheduler_protocol import SchedulerProtocol, name_of
from .session import CLAIM_ENDED, Response, Session
from .statics import StaticEntries

__all__ = (
    "CallerEntry",
    "Dispatcher",
    "Loaded",
)

logger = get_logger("celery.beat")


#: An entry, or the error of loading it.
Loaded = RedBeatSchedulerEntry | Exception

#: Entries that are loaded before the first of them is dispatched.
LOAD_AHEAD: Final = 50

#: Seconds after which loaded entries are dispatched before more are loaded.
LOAD_SECONDS: Final = 0.1

#: Seconds for which the decision on a run stays valid. A beat that waits longer for the broker
#: checks again whether the run is too late.
DECISION_VALID_FOR: Final = 0.1


class CallerEntry(NamedTuple):
    """The entry object and the options that a program's own tick passed to ``maybe_due``."""

    entry: RedBeatSchedulerEntry
    options: dict[str, Any]


class Dispatcher:
    """Decides and publishes, one claim at a time, and adds the completions to the session.

    Makes no round trip to Redis, except for a lost run whose end other runs wait for. ``statics``
    hold the functions among the arguments of static entries, ``publisher`` holds unconfirmed
    messages.
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
        #: The order of message and record that the claims at hand were given for.
        self._claimed_for = BEFORE_RECORD
        self._isolated: RecentEntries[bool] = RecentEntries()
        #: The calendars, name -> JSON; None before an entry of the reply needed one.
        self._calendar_texts: dict[str, str] | None = None
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

    def load_all(
        self, response: Response, caller_entry: CallerEntry | None = None
    ) -> Iterator[Loaded]:
        """Yield the entry of each claim with its decision, or the error of loading it.

        Loads and decides several entries in a row, which takes less time than one at a time between
        two messages. ``caller_entry`` is the object that a program passed to ``maybe_due``.
        """
        claims, self._claimed_for = response.reply.claims, response.request.way
        self._calendar_texts = None
        first, now = 0, datetime.fromtimestamp(response.reply.now, UTC)
        while first < len(claims):
            self._prototypes.refresh()
            started = self._session.time()
            entries: list[Loaded] = []
            for claim in claims[first : first + LOAD_AHEAD]:
                entry = self._load(claim, caller_entry)
                entries.append(entry)
                if not isinstance(entry, Exception):
                    self._decide_early(entry, now, claim)
                    if caller_entry is not None and entry.run is not None:
                        entry.run.options = caller_entry.options
                if self._session.time() - started > LOAD_SECONDS:
                    break
            yield from entries
            first += len(entries)

    def _decide_early(self, entry: RedBeatSchedulerEntry, now: datetime, claim: Claim) -> None:
        """Decide on an entry before its turn; after an error, decide again at its turn.

        Skips schedules with user code, which must be called only once, at the time of the run.
        """
        decided_at = instant_in(claim.since) or now
        entry.run = Run(now, datetime.fromtimestamp(claim.due, UTC), decided_at)
        if asks_itself(entry.schedule):
            return
        try:
            entry.decision()
        except Exception as error:
            logger.debug("beat: Could not decide yet on %s: %r", claim.key, error)

    def _load(self, claim: Claim, caller_entry: CallerEntry | None = None) -> Loaded:
        if claim.problem or claim.definition is None:
            return DecodeError("definition", claim.problem)
        entry_class = self._scheduler.Entry
        try:
            if caller_entry and caller_entry.entry.is_of(claim.key, claim.definition, claim.policy):
                loaded = caller_entry.entry
                entry = loaded.with_history(claim.meta, claim.runtime, claim.identity)
            elif entry_class.loads_itself():
                entry = entry_class.from_key(claim.key, app=self._scheduler.app)
                entry.saved_state = entry.saved_state._replace(identity=claim.identity)
            else:
                entry = self._prototypes.get(claim.key, claim.definition, claim.policy)
                history = (claim.meta, claim.runtime, claim.identity)
                self._histories.give(entry, claim.key, *history)
            self._statics.restore_schedule(entry)
            if entry.policy_field("exclude"):
                entry.use_calendars(self._calendars(entry.policy.exclude))
        except Exception as error:
            return error
        return entry

    def _calendars(self, names: Iterable[str]) -> dict[str, Calendar]:
        """Return the calendars with these names; reads all calendars once per reply."""
        if self._calendar_texts is None:
            self._calendar_texts = self._session.read_calendars()
        return decode_calendars(self._calendar_texts, names)

    def dispatch(self, entry: Loaded, claim: Claim, now: float) -> None:
        """Run a claimed entry that was loaded, and record the result.

        ``now`` is the Redis time, UNIX seconds.
        """
        if isinstance(entry, Exception):
            self._handle_load_error(entry, claim, now)
            return
        run = entry.run
        assert run is not None
        if entry.policy_field("exclude"):
            read = calendars_read(self._calendar_texts or {}, entry.policy.exclude)
            claim = claim._replace(calendars=read)
        run.now = datetime.fromtimestamp(now, UTC)
        run.at_most_once = (entry.policy_field("delivery") or self._delivery) == AT_MOST_ONCE
        waiting = claim.trigger and first_ready(claim.trigger, now, entry.enabled)
        if not waiting:
            self._dispatch(entry, run, claim, now)
        elif is_backfill(waiting):
            self._backfill(entry, run, claim, now, waiting)
        else:
            self._triggered(entry, run, claim, now, waiting)

    def _handle_load_error(self, error: Exception, claim: Claim, now: float) -> None:
        if isinstance(error, (DecodeError, InvalidEntryError)) and not isinstance(
            error, CannotRunHereError
        ):
            self._quarantine_entry(claim, str(error), now)
        elif isinstance(error, (RedisError, OSError)):  # from an overridden from_key()
            self._retry(claim, now, error)
        else:
            self.deliver()
            self._session.record(self.retries.leave_to_others(claim, now, error))

    def _dispatch(self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float) -> None:
        perhaps_sent = bool(claim.since) and not run.at_most_once
        if not entry.enabled and not perhaps_sent:
            self._session.record(claim.done(SKIP, DISABLED))
            return
        try:
            due = entry.decision().due
        except Exception as error:
            self._handle_decision_error(entry, claim, now, error)
            return
        if due and perhaps_sent and (not entry.enabled or entry.is_too_late):
            self._record_without_run(entry, self._completions.perhaps_sent(entry, claim, now))
        elif not entry.enabled:
            self._session.record(claim.done(SKIP, DISABLED))
        elif due and not perhaps_sent and is_running(entry, claim, now):
            self._record_without_run(entry, self._completions.overlapping(entry, claim, now))
        elif due and self._became_too_late(entry, run):
            self._session.record(claim.put_back(now))  # the next claim decides again
        else:
            self._send(entry, run, claim, now, due)

    def _handle_decision_error(
        self, entry: RedBeatSchedulerEntry, claim: Claim, now: float, error: Exception
    ) -> None:
        if isinstance(error, InvalidEntryError):
            self._quarantine_entry(claim, f"policy.{error}", now)
        elif asks_itself(entry.schedule):  # an error of user code may pass
            self._retry(claim, now, error)
        else:
            reason = f"definition.schedule: cannot compute when it is due: {error!r}"
            self._quarantine_entry(claim, reason, now)

    def _became_too_late(self, entry: RedBeatSchedulerEntry, run: Run) -> bool:
        return (run.now - run.decided_at).total_seconds() > DECISION_VALID_FOR and entry.is_too_late

    def _send(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float, due: bool
    ) -> None:
        if due:
            try:
                self._statics.restore_functions(entry)
            except LazyArgumentError as error:
                self._retry(claim, now, error)
                return
        if run.at_most_once:
            self._prepare_at_most_once(entry, run, claim, now)
        else:
            self._publish(entry, run, claim, now)

    # -- sending: with the record, before it, or after it ------------------------------------------

    def _capture_for(
        self, entry: RedBeatSchedulerEntry, claim: Claim, producer: Any
    ) -> Capture | None:
        """Return a capture for a message that leaves with its record, None if it cannot do so."""
        if entry.policy_field("delivery") == AT_LEAST_ONCE:
            return None
        session = self._session
        session.broker = self._server.broker_of(producer)
        safe = (
            session.broker
            and not self._scheduler.overrides_sending
            and self._server.sends_in_one_step
        )
        session.way = WITH_RECORD if safe else BEFORE_RECORD
        if self._server.problem:
            raise ConnectionError(self._server.problem)
        if session.broker is None or not self._server.may_send(claim.key):
            return None
        if self._capture is None or self._capture.channel is not producer.channel:
            self._capture = Capture(producer.channel)
        return self._capture

    def _was_claimed_for_capture(self, entry: RedBeatSchedulerEntry) -> bool:
        """Whether the claim says that the message leaves with its record.

        Published before its record, the run could get another id if this beat dies: the next beat
        decides again on a run that cannot have left.
        """
        at_least_once = entry.policy_field("delivery") == AT_LEAST_ONCE
        return self._claimed_for == WITH_RECORD and not at_least_once

    def _publish(self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float) -> None:
        capture, unsure = None, False  # type: Capture | None, bool | None
        try:
            producer = self._scheduler.producer
            capture = self._capture_for(entry, claim, producer)
            if capture is None and self._was_claimed_for_capture(entry):
                self._session.record(claim.put_back(now))
                return
            unsure = self._scheduler.overrides_sending
            if capture is not None:
                with capture:
                    seconds = publish(self._scheduler, entry, producer)
            else:
                outgoing = self._publisher.publishing(producer, bool(self._isolated.get(claim.key)))
                try:
                    with outgoing:
                        seconds = publish(self._scheduler, entry, producer)
                        if run.sent:
                            outgoing.add(InFlightMessage(entry, claim, seconds, now))
                            return
                finally:
                    unsure = unsure or outgoing.sent_anything
        except Exception as error:
            self._retry(claim, now, error, unsure)
            return
        self._handle_published(entry, run, claim, now, seconds, capture, unsure)

    def _handle_published(
        self,
        entry: RedBeatSchedulerEntry,
        run: Run,
        claim: Claim,
        now: float,
        seconds: float | None,
        capture: Capture | None,
        unsure: bool | None,
    ) -> None:
        """Record a run that was published or captured, or retry it after an error."""
        if run.error is not None:
            shared = capture is None and self._publisher.shares_errors
            self.deliver()
            self._handle_publish_error(claim, now, run.error, shared, unsure)
        elif run.sent and capture is not None and capture.commands:
            completion = self._completion(entry, claim, seconds, now)._replace(
                messages=capture.messages
            )
            self._send_with_record(InFlightMessage(entry, claim, seconds, now), completion)
        elif run.sent or run.successor is not None:
            if capture is not None:
                self._server.note_bypass(entry)
            self._settle(InFlightMessage(entry, claim, seconds, now))
        else:
            score = score_of_not_due(entry, run, seconds, now)
            self._record_without_run(entry, self._completions.not_sent(entry, claim, score, now))

    def _completion(
        self, entry: RedBeatSchedulerEntry, claim: Claim, seconds: float | None, now: float
    ) -> Completion:
        return self._completions.sent(entry, claim, custom_score(entry, seconds, now), now)

    def _send_with_record(self, message: InFlightMessage, completion: Completion) -> None:
        """Add a completion that sends its message in the same step."""
        self._session.record(
            completion,
            partial(self._on_sent_with_record, message, completion, self._session.broker),
        )

    def _on_sent_with_record(
        self,
        message: InFlightMessage,
        completion: Completion,
        broker: Broker | None,
        result: Result,
    ) -> None:
        """Handle the result of a completion that was to send its message in the same step."""
        entry, claim = message.entry, message.claim
        if result.code in (RECORDED, OVERTAKEN):
            self._server.note_sent(claim.key)
            self._report_sent(entry, claim, completion)
        elif result.code == CHANGED:
            definition, policy, _ = result.texts
            if (definition, policy) == (claim.definition, claim.policy):
                merged = self._merge(entry, claim, completion, result.texts)
                self._send_with_record(message, merged)
            else:
                self._session.record(claim.put_back(self._session.time()))
        elif result.code == ELSEWHERE:
            self._server.script_ran_elsewhere(broker)
            self._session.record(claim.put_back(self._session.time()))
        elif result.code == OUTDATED:
            self._session.record(claim.put_back(self._session.time()))
        elif result.code == NOT_SENT:
            self._on_message_refused(claim, result.texts[0])
        elif result.code == EXPIRED:
            logger.info(CLAIM_ENDED, claim.key)
        else:
            logger.info(
                "beat: The run of %s is not sent: the entry was deleted or claimed by another beat",
                claim.key,
            )

    def _on_message_refused(self, claim: Claim, why: str) -> None:
        """Put back a run whose message the script could not send.

        A refused queue affects only its entry. With any other missing right, no script can send.
        """
        now = self._session.time()
        refused = REFUSAL.search(why) is not None
        error = NoPermissionError(why) if refused else ResponseError(why)
        one_queue = refused and is_about_one_message(error)
        if not refused or (one_queue and self._server.demanded):
            self._handle_publish_error(claim, now, error, shared=False)
            return
        if not one_queue or not self._server.note_refused_queue(claim.key, why):
            self._server.refuse(f"the Redis user of the schedule may not send messages: {why}")
        self._session.record(claim.put_back(now))

    def _report_sent(
        self, entry: RedBeatSchedulerEntry, claim: Claim, completion: Completion
    ) -> None:
        self._isolated.forget(claim.key)
        self.retries.sent(claim)
        self._completions.announce_sent(entry)
        if completion.end:
            self._completions.announce_finished(entry)

    def _record_without_run(self, entry: RedBeatSchedulerEntry, completion: Completion) -> None:
        """Add a completion that records no run."""

        def on_result(result: Result) -> None:
            if result.code == RECORDED:
                self._completions.announce_finished(entry)

        self._session.record(completion, on_result if completion.end else None)

    def advance(self) -> None:
        """Flush the collected messages, and record the runs of the previous flush."""
        for message in self._publisher.advance():
            self._settle(message)

    def deliver(self) -> None:
        """Wait until the broker has confirmed all messages, and record their runs.

        Called before any error of a later run is handled. Waits for earlier records first, so that
        few sent runs are unrecorded if this beat dies.
        """
        if self._publisher.is_busy:
            with suppress(RedisError, OSError):  # the next request repeats these records
                self._session.wait_for_reply()
        for message in self._publisher.deliver():
            self._settle(message)

    def _settle(self, message: InFlightMessage) -> None:
        """Record a run whose message the broker has confirmed, or retry it after an error."""
        entry, claim, now = message.entry, message.claim, message.now
        if message.error is not None:
            self._handle_publish_error(claim, now, message.error, message.shared, unsure=True)
            return
        completion = self._completion(entry, claim, message.seconds, now)
        self._report_sent(entry, claim, completion._replace(end=""))
        self._session.record(completion, partial(self._on_recorded, message, completion))

    def _on_recorded(
        self, message: InFlightMessage, completion: Completion, result: Result
    ) -> None:
        """Handle the result of the record of a run that was published before."""
        entry, claim = message.entry, message.claim
        if result.code == CHANGED:
            merged = self._merge(entry, claim, completion, result.texts)
            self._session.record(merged, partial(self._on_recorded, message, merged))
        elif result.code == REFUSED:
            logger.info("beat: Entry %s was deleted or replaced during its run", claim.key)
        elif completion.end:
            self._completions.announce_finished(entry)

    def _merge(
        self,
        entry: RedBeatSchedulerEntry,
        claim: Claim,
        completion: Completion,
        texts: tuple[str, ...],
    ) -> Completion:
        """Return the completion of a run during which an application changed the entry."""
        definition, policy, meta = texts
        now = self._session.time()
        if not completion.meta:  # a triggered run does not change the last run
            return completion._replace(score=now, seen=(definition, policy, meta))
        run_history = History.read(completion.meta, completion.runtime)
        history = merged_history(claim.meta, meta, run_history)
        history = after_saved_anew(
            history,
            (claim.definition or "", claim.policy),
            (definition, policy),
            datetime.fromtimestamp(now, UTC),
            rewritten=history.scheduled_at is None and run_history.scheduled_at is not None,
            foreign=entry.foreign_fields,
        )
        last_run_at, count, scheduled_at = history
        runtime = ""
        if last_run_at is not None and scheduled_at is not None:
            runtime = encode_runtime(nominal(scheduled_at), last_run_at)
        return completion._replace(
            score=now,
            meta=encode_meta(last_run_at, count),
            runtime=runtime,
            seen=(definition, policy, meta),
            end="",
            definition="",
        )

    def _handle_publish_error(
        self,
        claim: Claim,
        now: float,
        error: Exception,
        shared: bool,
        unsure: bool | None = False,
    ) -> None:
        """Retry a run whose publish failed.

        If another message may have caused the error, the run is put back at once and then published
        by itself.
        """
        own_fault = self._isolated.get(claim.key) or not shared
        if (
            own_fault
            or self.retries.count_if_broker_failed(error, now)
            or not self._isolated.keep(claim.key, True, now)
        ):
            self._session.record(self.retries.retry(claim, now, error, unsure))
        else:
            self._session.record(claim.put_back(now, unsure is not False))

    def _retry(
        self, claim: Claim, now: float, error: Exception, unsure: bool | None = False
    ) -> None:
        """Put a failed run back with a back-off, after earlier messages are recorded.

        Raises the error if it is a :exc:`ConfigurationError`, because then no run of any entry can
        be sent.
        """
        self.deliver()
        if isinstance(error, ConfigurationError):
            raise error
        self._session.record(self.retries.retry(claim, now, error, unsure))

    def _quarantine_entry(self, claim: Claim, reason: str, now: float) -> None:
        self._quarantine.add(claim, reason, now)
        name = name_of(self._scheduler, claim)
        self._counters.add("quarantined", name)
        emit(entry_quarantined, self._scheduler, name=encodable(name), reason=reason)

    def _prepare_at_most_once(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float
    ) -> None:
        """Decide as :meth:`_publish` does and check the broker, but record the run first."""
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
            self._retry(claim, now, error)
            return
        if is_due:
            self.retries.forget(claim)
            self.at_most_once.add(
                PendingRun(entry, claim, self._completion(entry, claim, seconds, now))
            )
        else:
            score = score_of_not_due(entry, run, seconds, now)
            self._record_without_run(entry, self._completions.not_sent(entry, claim, score, now))

    def _backfill(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float, waiting: str
    ) -> None:
        """Send the next run of a backfill, unless a run of the schedule comes first."""
        try:
            decision = entry.decision()
            missed = decision.anchor is not None and entry.last_run_at is not None
            first = decision.due or missed
        except Exception:
            first = True
        if first:
            self._dispatch(entry, run, claim, now)
            return
        try:
            backfill = Backfill.read(waiting)
            instants = backfill.instants(entry.occurrences_from)
            instant, following = next(instants, None), next(instants, None)
        except (ValueError, OverflowError, OSError) as error:
            self._drop_waiting(entry, claim, now, waiting, error)
            return
        # Name the waiting run as it was read, so that the script always finds and replaces it.
        ended = claim.done(SKIP, now)
        if instant is None:  # the schedule was changed
            after = backfill.after_run(None, now, sent=0)
            self._session.record(ended._replace(trigger=f"{waiting} {after.token}"))
        elif is_running(entry, claim, now):
            self._wait_for_earlier_run(claim)
        else:
            run.trigger, task_id = Trigger(backfill.id, instant, True), entry.task_id_of(instant)
            after = backfill.after_run(following, now)
            # No history line: a long backfill would replace the runs of the schedule there.
            completion = ended._replace(trigger=f"{waiting} {after.token}")
            self._send_waiting(entry, run, claim, now, task_id, completion)

    def _drop_waiting(
        self,
        entry: RedBeatSchedulerEntry,
        claim: Claim,
        now: float,
        waiting: str,
        error: Exception,
    ) -> None:
        logger.error(
            "beat: Entry %s: removed the waiting run %a, which is not valid: %s",
            *(entry.name, waiting[:LONGEST_REASON], error),
        )
        self._session.record(claim.put_back(now)._replace(trigger=waiting))

    def _wait_for_earlier_run(self, claim: Claim) -> None:
        until = seconds_in(claim.running_until) or self._session.time()
        self._session.record(claim.put_back(until)._replace(running=WAITS))

    def _triggered(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, now: float, waiting: str
    ) -> None:
        """Send a run that was triggered manually.

        The entry is due again at once, for the next waiting run or for its schedule.
        """
        try:
            trigger = Trigger.read(waiting)
        except (ValueError, OverflowError, OSError) as error:
            self._drop_waiting(entry, claim, now, waiting, error)
            return
        if is_running(entry, claim, now):
            self._wait_for_earlier_run(claim)
            return
        run.trigger, task_id = trigger, entry.task_id_of(trigger.id)
        line = run_line(nominal(trigger.at), now, TRIGGERED, task_id)
        completion = claim.put_back(now)._replace(trigger=trigger.id, history=line)
        if trigger.at.timestamp() <= (seconds_in(claim.since) or 0.0):
            # The trigger waited already when this claim's occurrence was first claimed. So only the
            # triggered run can have been sent, and the next claim decides on the occurrence.
            completion = completion._replace(operation=RETRY)
        self._send_waiting(entry, run, claim, now, task_id, completion)

    def _send_waiting(
        self,
        entry: RedBeatSchedulerEntry,
        run: Run,
        claim: Claim,
        now: float,
        task_id: str,
        completion: Completion,
    ) -> None:
        """Send a run outside the schedule, and record it with ``completion``."""
        completion = completion._replace(running=running_marker(entry, task_id))
        try:
            self._statics.restore_functions(entry)
            if run.at_most_once:
                self._scheduler.check_broker()
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = task_id
                self.at_most_once.add(PendingRun(entry, claim, completion))
                return
            producer = self._scheduler.producer
            capture = self._capture_for(entry, claim, producer)
            with capture or nullcontext():
                publish(self._scheduler, entry, producer)
        except Exception as error:
            self._retry(claim, now, error)
            return
        if capture is not None and capture.commands:
            completion = completion._replace(messages=capture.messages)
            self._send_with_record(InFlightMessage(entry, claim, None, now), completion)
        else:
            if capture is not None:
                self._server.note_bypass(entry)
            self._report_sent(entry, claim, completion)
            self._session.record(completion)
