"""Dispatches claimed entries: sends or postpones their runs, and quarantines invalid entries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redbeat.calendar.zones import UTC
from redbeat.codec.stored import seconds_in
from redbeat.config import RedBeatConfig
from redbeat.entries.backfill import Backfill, first_ready, is_backfill
from redbeat.entries.decide import DISABLED, Trigger
from redbeat.entries.lazy import evaluated
from redbeat.entries.runs import TRIGGERED, nominal, run_line
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import (
    CannotRunHereError,
    ConfigurationError,
    DecodeError,
    InvalidEntryError,
    TooManyStepsError,
)
from redbeat.metrics.counters import Counters
from redbeat.printing import encodable, get_logger
from redbeat.schedules.next_run import asks_itself
from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE
from redbeat.signals import emit, entry_quarantined
from redbeat.storage.checks import REFUSAL
from redbeat.storage.own_keys import check_destinations
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
    WITH_RECORD,
    Broker,
    Claim,
    Completion,
    Result,
)
from redbeat.storage.store import Store

from .at_most_once import AtMostOnce
from .broker import is_about_one_message
from .completions import Completions, is_running, put_back_while_running, running_marker
from .exactly_once import BYPASSED, CHANGES_ENTRY, Capture, CommonServer
from .loading import Attempt, Loaded, Loader
from .publisher import Publisher, publish
from .retries import RecentEntries, Retries
from .scheduler_protocol import SchedulerProtocol, name_of
from .session import CLAIM_ENDED, Session
from .statics import StaticEntries

logger = get_logger("celery.beat")

#: Seconds for which the decision to send a run stays valid.
#: If a decision is older, the beat checks again whether the run is too late.
DECISION_VALID_FOR: Final = 0.1


class Dispatcher:
    """Decides whether claimed entries are due, and publishes their runs, one claim at a time.

    The dispatcher adds the completions to the session, which records them later. :meth:`dispatch`
    takes only these round trips to Redis:

    - one round trip per group of at-most-once runs
    - one round trip if user code, such as a signal handler, saves or deletes the published entry
    - the round trips of :meth:`CommonServer.broker_of`

    ``statics`` contains the functions that ``beat_schedule`` passes to tasks as arguments.
    ``publisher`` tracks the messages that the broker has not confirmed. ``clock`` returns monotonic
    seconds.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        store: Store,
        session: Session,
        publisher: Publisher,
        statics: StaticEntries,
        counters: Counters,
        conf: RedBeatConfig,
        clock: Callable[[], float],
    ) -> None:
        self._publisher = publisher
        self._session = session
        self._capture: Capture | None = None
        #: The entries whose next message must be sent while no other message is in flight.
        self._isolated: RecentEntries[bool] = RecentEntries()
        self._scheduler = scheduler
        self._store = store
        self._counters = counters
        self._statics = statics
        self._delivery = conf.delivery
        self.quarantine = Quarantine(store, clock)
        self.loader = Loader(scheduler, store, statics, clock)
        self.server = CommonServer(store, conf.delivery, clock)
        self.retries = Retries(scheduler, counters)
        self._completions = Completions(scheduler, counters, self.loader.prototypes)
        self.at_most_once = AtMostOnce(scheduler, store, session, self.retries, self._completions)

    # -- deciding ------------------------------------------------------------------------------

    def dispatch(self, loaded: Loaded, claim: Claim, now: float) -> None:
        """Send a run of a claimed entry if a run is due, and add the completion to the session.

        ``loaded`` is the loaded entry, or the error of loading the entry. ``now`` is the time of
        Redis in UNIX seconds.
        """
        if isinstance(loaded, Exception):
            self._handle_load_error(loaded, claim, now)
            return
        entry, run = loaded.entry, loaded.run
        loaded.now, run.now = now, datetime.fromtimestamp(now, UTC)
        run.at_most_once = (entry.policy_field("delivery") or self._delivery) == AT_MOST_ONCE
        waiting = claim.trigger and first_ready(claim.trigger, now, entry.enabled)
        if not waiting:
            self._dispatch_scheduled(loaded)
        elif is_backfill(waiting):
            self._dispatch_backfill(loaded, waiting)
        else:
            self._dispatch_triggered(loaded, waiting)

    def _handle_load_error(self, error: Exception, claim: Claim, now: float) -> None:
        if isinstance(error, (DecodeError, InvalidEntryError)) and not isinstance(
            error, CannotRunHereError
        ):
            claim = claim._replace(calendars=error.calendars)
            self._quarantine_entry(claim, str(error), now)
            return
        self.deliver()
        if isinstance(error, (RedisError, OSError)):  # from_key() or reading a calendar failed
            self._session.record(self.retries.retry(claim, now, error))
        else:
            self._session.record(self.retries.leave_to_others(claim, now, error))

    def _dispatch_scheduled(self, attempt: Attempt) -> None:
        """Send the next run of the entry's schedule if the run is due."""
        entry, claim, run = attempt.entry, attempt.claim, attempt.run
        perhaps_sent = bool(claim.since) and not run.at_most_once
        if not entry.enabled and not perhaps_sent:
            self._session.record(claim.done(SKIP, DISABLED))
            return
        try:
            due = entry.decision().due
        except Exception as error:
            self._handle_decision_error(attempt, error)
            return
        if due and perhaps_sent and (not entry.enabled or entry.is_too_late):
            self._record_without_run(attempt, self._completions.perhaps_sent(attempt))
        elif not entry.enabled:
            self._session.record(claim.done(SKIP, DISABLED))
        elif due and not perhaps_sent and is_running(attempt):
            self._record_without_run(attempt, self._completions.overlapping(attempt))
        elif due and self._became_too_late(attempt):
            self._session.record(claim.put_back(attempt.now))  # the next claim decides on the run
        elif run.at_most_once:
            self._prepare_at_most_once(attempt, due)
        else:
            self._publish(attempt, due)

    def _handle_decision_error(self, attempt: Attempt, error: Exception) -> None:
        if isinstance(error, TooManyStepsError):
            self._quarantine_entry(attempt.claim, str(error), attempt.now)
        elif isinstance(error, InvalidEntryError):
            self._quarantine_entry(attempt.claim, f"policy.{error}", attempt.now)
        elif asks_itself(attempt.entry.schedule):  # an error of user code may be temporary
            self._retry(attempt, error)
        else:
            reason = f"definition.schedule: cannot compute the next run: {error!r}"
            self._quarantine_entry(attempt.claim, reason, attempt.now)

    def _became_too_late(self, attempt: Attempt) -> bool:
        entry, run = attempt.entry, attempt.run
        return (run.now - run.decided_at).total_seconds() > DECISION_VALID_FOR and entry.is_too_late

    # -- sending with the record, before the record, or after the record -----------------------

    def _capture_for(self, attempt: Attempt, producer: Any) -> Capture | None:
        """Return a :class:`Capture` if a Lua script can send and record the run, else None."""
        if attempt.entry.policy_field("delivery") == AT_LEAST_ONCE:
            return None
        session, server = self._session, self.server
        session.broker = server.broker_of(producer)
        # The producer of a program may have no attribute ``own_keys``.
        broker, own_keys = session.broker, getattr(producer, "own_keys", None)
        if own_keys is not None and broker and broker.database == broker.own_database:
            own_keys.shared = True
        safe = session.broker and not self._scheduler.overrides_sending and server.sends_in_one_step
        session.way = WITH_RECORD if safe else BEFORE_RECORD
        if server.problem:
            raise ConnectionError(server.problem)
        if session.broker is None or not server.may_send(attempt.claim.key):
            return None
        if self._capture is None or self._capture.channel is not producer.channel:
            self._capture = Capture(producer.channel)
        return self._capture

    def _publish(self, attempt: Attempt, due: bool) -> None:
        """Publish a run, and record the run in the same step or afterwards."""
        entry, claim, run = attempt.entry, attempt.claim, attempt.run
        try:
            if due:
                self._prepare(entry)
            producer = self._scheduler.producer
            capture = self._capture_for(attempt, producer)
        except Exception as error:
            self._retry(attempt, error)
            return
        at_least_once = entry.policy_field("delivery") == AT_LEAST_ONCE
        if capture is None and attempt.way == WITH_RECORD and not at_least_once:
            # The claim states that a message is sent only together with its record. If this beat
            # sent a message alone and died before the record, the next beat would assume that no
            # message was sent, and might send the run again with another task id.
            self._session.record(claim.put_back(attempt.now))
            return
        alone = bool(self._isolated.get(claim.key))
        try:
            with capture or self._publisher.publishing(producer, alone):
                publish(self._scheduler, attempt, producer)
                if run.sent and capture is None:
                    self._publisher.add(attempt)
                    return
        except Exception as error:
            self._retry(attempt, error, self._may_have_sent(capture))
            return
        if run.error is not None:
            unsure, attempt.error = self._may_have_sent(capture), run.error
            attempt.shared = capture is None and self._publisher.shares_errors
            self.deliver()
            self._handle_publish_error(attempt, unsure)
        elif run.sent or run.successor is not None:
            self._record_sent(attempt, self._completions.sent(attempt), capture)
        else:
            self._record_without_run(attempt, self._completions.not_sent(attempt))

    def _prepare(self, entry: RedBeatSchedulerEntry) -> None:
        """Restore the functions among the arguments, and check the options, before a run."""
        self._statics.restore_functions(entry)
        if entry.options:
            check_destinations(entry.app, entry.options)

    def _may_have_sent(self, capture: Capture | None) -> bool | None:
        """Return whether the broker may have received the last message, None if unknown."""
        sent_anything = capture is None and self._publisher.sent_anything
        return self._scheduler.overrides_sending or sent_anything

    def _prepare_at_most_once(self, attempt: Attempt, due: bool) -> None:
        """Check the broker, and add a due run to the runs that are recorded before publishing."""
        entry, run = attempt.entry, attempt.run
        try:
            if due:
                self._prepare(entry)
            self._scheduler.check_broker()
            is_due, attempt.seconds = self._scheduler.is_due(entry)
            if is_due:
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = entry.task_id_of(run.instant)
                run.own_id = run.task_id == entry.own_task_id(run.instant)
                run.successor = self._scheduler.reserve(entry)
                if not isinstance(run.successor, RedBeatSchedulerEntry):
                    raise TypeError(f"reserve() returned {run.successor!r:.60}, not an entry")
        except Exception as error:
            self._retry(attempt, error)
            return
        if is_due:
            self.retries.forget(attempt.claim)
            self.at_most_once.add(attempt, self._completions.sent(attempt))
        else:
            self._record_without_run(attempt, self._completions.not_sent(attempt))

    # -- recording -----------------------------------------------------------------------------

    def _record_sent(
        self, attempt: Attempt, completion: Completion, capture: Capture | None
    ) -> None:
        """Record the run in the session. If the message was captured, also send the message."""
        if capture is not None and self._leaves_with_record(attempt.claim, capture):
            self._send_with_record(attempt, completion._replace(messages=capture.messages))
            return
        if capture is not None:
            self.server.note_bypass(attempt.entry, CHANGES_ENTRY if capture.commands else BYPASSED)
            error = capture.send()
            if error is not None:
                attempt.error = error
                self.deliver()
                self._handle_publish_error(attempt, unsure=True)
                return
        self._record_published(attempt, completion)

    def _leaves_with_record(self, claim: Claim, capture: Capture) -> bool:
        """Return whether a Lua script can send a captured message and record its run in one step.

        The script sends no message of an entry that was changed after the claim. If user code in
        this beat changes an entry during each publish, the script would never send its message, so
        the result is False. Takes one round trip if user code saved or deleted the entry, else
        none.
        """
        changed = self.retries.is_edited_too_often(claim)
        if not changed and claim.key in capture.changed_keys:
            changed = self._was_changed(claim)
        return bool(capture.commands) and not changed

    def _was_changed(self, claim: Claim) -> bool:
        """Return whether an entry was edited, deleted or claimed again since ``claim`` was made.

        One round trip.
        """
        try:
            row = self._store.read([claim.key]).rows[0]
        except (RedisError, OSError):
            return True
        is_claimed = row.claim.startswith(f"{claim.id} ")
        return not is_claimed or (row.definition, row.policy) != (claim.definition, claim.policy)

    def _send_with_record(self, attempt: Attempt, completion: Completion) -> None:
        """Add a completion with a message; the script sends the message and records the run."""
        self._session.record(
            completion,
            partial(self._on_sent_with_record, attempt, completion, self._session.broker),
        )

    def _on_sent_with_record(
        self, attempt: Attempt, completion: Completion, broker: Broker | None, result: Result
    ) -> None:
        """Handle the result of a completion that contains a message for the script to send."""
        claim, code, texts = attempt.claim, result.code, result.texts
        if code in (RECORDED, OVERTAKEN):
            self.server.note_sent(claim.key)
            self._report_sent(attempt)
            self._completions.announce_end(attempt, completion)
        elif code == CHANGED and texts[:2] == (claim.definition, claim.policy):
            self._send_with_record(attempt, self._merged(attempt, completion, result))
        elif code in (CHANGED, OUTDATED):
            self._session.record(self.retries.put_back_edited(claim, self._session.time()))
        elif code == ELSEWHERE:
            self.server.script_ran_elsewhere(broker)
            self._session.record(claim.put_back(self._session.time()))
        elif code == NOT_SENT:
            self._on_message_refused(attempt, texts[0])
        elif code == EXPIRED:
            logger.info(CLAIM_ENDED, claim.key)
        else:
            logger.info(
                "beat: The run of %s is not sent: the entry was deleted or claimed by another beat",
                claim.key,
            )

    def _on_message_refused(self, attempt: Attempt, why: str) -> None:
        """Make a run due again, because the script could not send the message of the run.

        If the Redis user has no right to a queue, scripts cannot send messages to this queue. If
        the Redis user has no right to a command, scripts cannot send any message.
        """
        claim, attempt.now = attempt.claim, self._session.time()
        refused = REFUSAL.search(why) is not None
        attempt.error = NoPermissionError(why) if refused else ResponseError(why)
        one_queue = refused and is_about_one_message(attempt.error)
        if not refused or (one_queue and self.server.demanded):
            self._handle_publish_error(attempt, unsure=False)
            return
        if not one_queue or not self.server.note_refused_queue(claim.key, why):
            self.server.refuse(
                f"the Redis user of the schedule has no right to send messages: {why}"
            )
        self._session.record(claim.put_back(attempt.now))

    def _report_sent(self, attempt: Attempt) -> None:
        self._isolated.forget(attempt.claim.key)
        self.retries.sent(attempt.claim)
        self._completions.announce_sent(attempt)

    def _record_without_run(self, attempt: Attempt, completion: Completion) -> None:
        """Add the completion of a claimed entry for which this beat sent no run."""

        def on_result(result: Result) -> None:
            if result.code == RECORDED:
                self._completions.announce_end(attempt, completion)

        self._session.record(completion, on_result if completion.end else None)

    def advance(self) -> None:
        """Flush the collected messages, and record the runs of the previous flush."""
        for attempt in self._publisher.advance():
            self._settle(attempt)

    def deliver(self) -> None:
        """Wait until the broker has confirmed all messages, and record their runs.

        Call this method before you handle a failed run, so that earlier runs are recorded first.
        This method also waits until Redis has confirmed the records of earlier runs, so that few
        sent runs are unrecorded if this beat dies.
        """
        if self._publisher.is_busy:
            with suppress(RedisError, OSError):  # the next request sends the records again
                self._session.wait_for_reply()
        for attempt in self._publisher.deliver():
            self._settle(attempt)

    def _settle(self, attempt: Attempt) -> None:
        """Record a run after the broker confirmed its message, or retry the run after an error."""
        if attempt.error is not None:
            self._handle_publish_error(attempt, unsure=True)
        else:
            self._record_published(attempt, self._completions.sent(attempt))

    def _record_published(self, attempt: Attempt, completion: Completion) -> None:
        """Count and announce a run that was sent, and add its completion."""
        self._report_sent(attempt)
        self._session.record(completion, partial(self._on_recorded, attempt, completion))

    def _on_recorded(self, attempt: Attempt, completion: Completion, result: Result) -> None:
        """Handle the result of a completion whose message was already sent."""
        if result.code == CHANGED:
            merged = self._merged(attempt, completion, result)
            self._session.record(merged, partial(self._on_recorded, attempt, merged))
        elif result.code == REFUSED:
            logger.info("beat: Entry %s was deleted or replaced during its run", attempt.claim.key)
        else:
            self._completions.announce_end(attempt, completion)

    def _merged(self, attempt: Attempt, completion: Completion, result: Result) -> Completion:
        return self._completions.merged(attempt, completion, result.texts, self._session.time())

    # -- errors --------------------------------------------------------------------------------

    def _handle_publish_error(self, attempt: Attempt, unsure: bool | None) -> None:
        """Retry a run whose publish failed.

        If another message may have caused the error, the run is due again at once, and the beat
        then sends its message while no other message is in flight.
        """
        claim, now, error = attempt.claim, attempt.now, attempt.error
        assert error is not None
        own_fault = self._isolated.get(claim.key) or not attempt.shared
        if (
            own_fault
            or self.retries.count_if_broker_failed(error, now)
            or not self._isolated.keep(claim.key, True, now)
        ):
            self._session.record(self.retries.retry(claim, now, error, unsure))
        else:
            self._session.record(claim.put_back(now, unsure is not False))

    def _retry(self, attempt: Attempt, error: Exception, unsure: bool | None = False) -> None:
        """Record the runs sent before the failure; make the failed run due again after a back-off.

        Raises ``error`` again if it is a :exc:`ConfigurationError`, because a beat with an invalid
        configuration cannot send any run.
        """
        self.deliver()
        if isinstance(error, ConfigurationError):
            raise error
        self._session.record(self.retries.retry(attempt.claim, attempt.now, error, unsure))

    def _quarantine_entry(self, claim: Claim, reason: str, now: float) -> None:
        self.quarantine.add(claim, reason, now)
        name = name_of(self._scheduler, claim)
        self._counters.add("quarantined", name)
        emit(entry_quarantined, self._scheduler, name=encodable(name), reason=reason)

    # -- runs outside the schedule -------------------------------------------------------------

    def _dispatch_backfill(self, attempt: Attempt, waiting: str) -> None:
        """Send the next run of a backfill, unless a run of the schedule comes first."""
        entry, claim, run, now = attempt.entry, attempt.claim, attempt.run, attempt.now
        try:
            decision = entry.decision()
            missed = decision.anchor is not None and entry.last_run_at is not None
            first = decision.due or missed
        except Exception:
            first = True
        if first:
            self._dispatch_scheduled(attempt)
            return
        try:
            backfill = Backfill.read(waiting)
            instants = backfill.instants(entry.occurrences_from)
            instant, following = next(instants, None), next(instants, None)
        except TooManyStepsError as error:
            self._handle_decision_error(attempt, error)
            return
        except (ValueError, OverflowError, OSError) as error:
            self._drop_waiting(attempt, waiting, error)
            return
        # Pass the text of the waiting run unchanged, because the script finds the waiting run by
        # its text.
        ended = claim.done(SKIP, now)
        if instant is None:  # the schedule was changed, and the backfill has no runs left
            after = backfill.after_run(None, now, sent=0)
            self._session.record(ended._replace(trigger=f"{waiting} {after.token}"))
        elif is_running(attempt):
            self._session.record(put_back_while_running(claim))
        else:
            run.trigger = Trigger(backfill.id, instant, True)
            run.task_id = entry.task_id_of(instant)
            after = backfill.after_run(following, now)
            # Add no history line, because the lines of a long backfill would replace the lines of
            # the schedule's runs.
            self._send_waiting(attempt, ended._replace(trigger=f"{waiting} {after.token}"))

    def _drop_waiting(self, attempt: Attempt, waiting: str, error: Exception) -> None:
        logger.error(
            "beat: Entry %s: removed the waiting run %a, which is not valid: %s",
            *(attempt.entry.name, waiting[:LONGEST_REASON], error),
        )
        self._session.record(attempt.claim.put_back(attempt.now)._replace(trigger=waiting))

    def _dispatch_triggered(self, attempt: Attempt, waiting: str) -> None:
        """Send a run that was triggered manually.

        After a triggered run, the entry is due again at once, because other triggered runs or a run
        of the schedule may be waiting.
        """
        entry, claim, run, now = attempt.entry, attempt.claim, attempt.run, attempt.now
        try:
            trigger = Trigger.read(waiting)
        except (ValueError, OverflowError, OSError) as error:
            self._drop_waiting(attempt, waiting, error)
            return
        if is_running(attempt):
            self._session.record(put_back_while_running(claim))
            return
        run.trigger, run.task_id = trigger, entry.task_id_of(trigger.id)
        line = run_line(nominal(trigger.at), now, TRIGGERED, run.task_id)
        completion = claim.put_back(now)._replace(trigger=trigger.id, history=line)
        if trigger.at.timestamp() <= (seconds_in(claim.since) or 0.0):
            # The trigger was already waiting when a beat first claimed the scheduled run. Triggered
            # runs come first, so a beat can have sent only the triggered run. The next claim of the
            # entry decides whether to send the scheduled run.
            completion = completion._replace(operation=RETRY)
        self._send_waiting(attempt, completion)

    def _send_waiting(self, attempt: Attempt, completion: Completion) -> None:
        """Send a triggered or backfilled run, and record the run with ``completion``."""
        entry, run = attempt.entry, attempt.run
        completion = completion._replace(running=running_marker(entry, run.task_id))
        try:
            self._prepare(entry)
            if run.at_most_once:
                self._scheduler.check_broker()
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                self.at_most_once.add(attempt, completion)
                return
            producer = self._scheduler.producer
            capture = self._capture_for(attempt, producer)
            with capture or nullcontext():
                publish(self._scheduler, attempt, producer)
        except Exception as error:
            self._retry(attempt, error)
            return
        self._record_sent(attempt, completion, capture)
