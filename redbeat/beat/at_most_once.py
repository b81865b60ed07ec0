"""At-most-once delivery: a beat first records a group of runs, and then publishes these runs."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from redbeat.errors import described
from redbeat.printing import get_logger
from redbeat.storage.records import (
    CHANGED,
    EXPIRED,
    FIRST,
    OUTDATED,
    RAN,
    RECORDED,
    Claim,
    Completion,
    Result,
)
from redbeat.storage.store import Store

from .completions import Completions, running_marker
from .loading import Attempt
from .publisher import publish
from .retries import Retries
from .scheduler_protocol import SchedulerProtocol
from .session import CLAIM_ENDED, Session

logger = get_logger("celery.beat")

#: The number of runs that are recorded in one round trip.
#: A beat that dies loses at most ``GROUP`` runs.
GROUP = 50


def _log_lost(attempt: Attempt, outcome: str) -> None:
    """Log that a run was not published; ``outcome`` is the end of the log line, with the reason."""
    logger.error("beat: The run of %s at %s %s", attempt.entry.name, attempt.run.instant, outcome)


class AtMostOnce:
    """Records and then publishes the at-most-once runs of one beat."""

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        store: Store,
        session: Session,
        retries: Retries,
        completions: Completions,
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._session = session
        self._retries = retries
        self._completions = completions
        self._unrecorded: list[tuple[Attempt, Completion]] = []
        self._recorded: deque[Attempt] = deque()
        #: Whether the broker refused a message in the current tick.
        self._refused = False

    def begin_tick(self) -> None:
        """Let :meth:`publish` send runs again if the broker refused a message in the last tick."""
        self._refused = False

    def add(self, attempt: Attempt, completion: Completion) -> None:
        """Add a run to the group of unrecorded runs; call :meth:`record` if the group is full.

        Takes one round trip if the group is full, else none.
        """
        if completion.operation == RAN:
            completion = completion._replace(operation=FIRST)
        self._unrecorded.append((attempt, completion))
        if len(self._unrecorded) >= GROUP:
            self.record()

    def record(self) -> None:
        """Record the runs that :meth:`add` has collected, and publish the recorded runs.

        A run is published only when the broker is available and Redis has confirmed the record of
        the run. Takes one round trip if there are unrecorded runs, else none.
        """
        unrecorded, self._unrecorded = self._unrecorded, []
        for attempt, completion in unrecorded:
            self._record(attempt, completion)
        if unrecorded:
            self._session.request(0)
        self.publish()

    def _record(self, attempt: Attempt, completion: Completion) -> None:
        self._session.record(completion, partial(self._on_result, attempt, completion))

    def publish(self) -> None:
        """Publish the recorded runs.

        If the broker refuses a run, the refused run is lost, and all later runs wait for the next
        tick.
        """
        while self._recorded and not self._refused:
            try:
                producer = self._scheduler.producer
            except Exception as error:
                self._retries.count_if_broker_failed(error, self._session.time())
                break
            self._publish(self._recorded.popleft(), producer)

    def _on_result(self, attempt: Attempt, completion: Completion, result: Result) -> None:
        """Handle the result of recording a run: the run is recorded, due again, or lost."""
        if result.code == RECORDED:
            self._recorded.append(attempt)
            self._retries.forget_edits(attempt.claim)
            self._completions.announce_end(attempt, completion)
        elif result.code in (CHANGED, OUTDATED):
            self._put_back_edited(attempt, completion, result)
        elif result.code == EXPIRED:
            logger.info(CLAIM_ENDED, attempt.claim.key)
        else:
            _log_lost(attempt, "is lost: Redis refused its record or confirmed it too late")

    def _put_back_edited(self, attempt: Attempt, completion: Completion, result: Result) -> None:
        """Make a run due again, because its entry or a calendar was edited after the claim.

        If edits of an entry have delayed its run too often, record the run in spite of the last
        edit.
        """
        now, claim = self._session.time(), attempt.claim
        if result.code == CHANGED and self._retries.is_edited_too_often(claim):
            merged = self._completions.merged(attempt, completion, result.texts, now)
            self._record(attempt, merged)
        else:
            self._session.record(self._retries.put_back_edited(claim, now))

    def withdraw(self) -> list[Claim]:
        """Discard the runs that are not recorded yet, and return their claims."""
        unrecorded, self._unrecorded = self._unrecorded, []
        return [attempt.claim for attempt, _ in unrecorded]

    def report_lost(self) -> None:
        """Log the recorded runs as lost, because this beat stops before it can publish them.

        Takes one round trip for each lost run of an entry whose runs must not overlap.
        """
        while self._recorded:
            self._report_lost_run(
                self._recorded.popleft(), "is lost: beat stops and the broker is not available"
            )

    def _publish(self, attempt: Attempt, producer: Any) -> None:
        """Publish a recorded run, or report the run as lost."""
        run = attempt.run
        run.successor = None
        try:
            publish(self._scheduler, attempt, producer)
        except Exception as error:
            run.error = error
        if run.error is not None:
            self._report_lost_run(attempt, f"is lost: a retry might send it twice: {run.error!r}")
            self._refused = self._retries.count_if_broker_failed(run.error, self._session.time())
        elif not run.sent and run.successor is None:
            self._report_lost_run(
                attempt, "is lost: is_due() returned true before the record and false afterwards"
            )
        else:
            self._retries.broker_answered()
            self._completions.announce_sent(attempt)

    def _report_lost_run(self, attempt: Attempt, outcome: str) -> None:
        """Log and count a lost run, and remove its ``running`` marker.

        If the ``running`` marker remained, later runs would wait for the end of the lost run.
        """
        run = attempt.run
        _log_lost(attempt, outcome)
        self._retries.count_failure(attempt.claim, run.error, lost=True)
        if not running_marker(attempt.entry, run.task_id):
            return
        try:
            self._store.end_run(attempt.claim.key, run.task_id)
        except (RedisError, OSError) as error:
            logger.warning(
                "beat: Could not end the lost run of %s, so later runs wait until "
                "overlap_timeout: %s",
                *(attempt.entry.name, described(error)),
            )
