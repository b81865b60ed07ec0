"""At-most-once delivery: runs are recorded first, in small groups, and published after."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.entry import RedBeatSchedulerEntry, store_of
from redbeat.errors import described
from redbeat.metrics.counters import Counters
from redbeat.signals import emit, entry_failed
from redbeat.storage.client import client_of, unretried
from redbeat.storage.records import CHANGED, RECORDED, Claim, Completion, Result

from .completions import Completions
from .publisher import publish
from .retries import Retries
from .scheduler_protocol import SchedulerProtocol
from .session import Session

__all__ = ("AtMostOnce", "PendingRun")

logger = get_logger("celery.beat")

#: Runs recorded in one round trip. A beat that dies loses at most this number of runs.
GROUP = 50


@dataclass(frozen=True, slots=True)
class PendingRun:
    """A run that is published once, after it is recorded."""

    entry: RedBeatSchedulerEntry
    claim: Claim
    completion: Completion

    def report(self, outcome: str) -> None:
        """Log what happened to a run that was not published."""
        run = self.entry.run
        logger.error("beat: The run of %s at %s %s", self.entry.name, run and run.instant, outcome)


class AtMostOnce:
    """The runs of one beat that are recorded before they are published."""

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        session: Session,
        retries: Retries,
        completions: Completions,
        counters: Counters,
    ) -> None:
        self._scheduler = scheduler
        self._session = session
        self._retries = retries
        self._completions = completions
        self._counters = counters
        self._unrecorded: list[PendingRun] = []
        self._recorded: deque[PendingRun] = deque()

    def add(self, pending: PendingRun) -> None:
        """Add a run; a full group is recorded at once, in one round trip."""
        self._unrecorded.append(pending)
        if len(self._unrecorded) >= GROUP:
            self.record()

    def record(self) -> None:
        """Record the added runs, and publish the recorded ones.

        A run stays for the next call while no broker connection can be made, or while Redis has not
        confirmed its record. No round trip without new runs, else one.
        """
        unrecorded, self._unrecorded = self._unrecorded, []
        for pending in unrecorded:
            self._session.record(pending.completion, partial(self._on_result, pending))
        if unrecorded:
            self._session.request(0)
        self.publish()

    def publish(self) -> None:
        """Publish recorded runs, until the broker is not available."""
        while self._recorded:
            pending = self._recorded.popleft()
            if not self._publish(pending):
                self._recorded.appendleft(pending)
                break

    def _on_result(self, pending: PendingRun, result: Result) -> None:
        """Mark a run as recorded, or put it back or report it as lost."""
        if result.code == RECORDED:
            self._recorded.append(pending)
            if pending.completion.end:
                self._completions.announce_finished(pending.entry)
        elif result.code == CHANGED:
            self._session.record(pending.claim.put_back(self._session.time()))
        else:
            pending.report("is lost: Redis refused its record or confirmed it too late")

    def withdraw(self) -> list[Claim]:
        """Remove the runs that are not recorded, and return their claims."""
        unrecorded, self._unrecorded = self._unrecorded, []
        return [pending.claim for pending in unrecorded]

    def report_lost(self) -> None:
        """Report recorded runs that this beat will not publish any more.

        One round trip for each run that later runs must not overlap.
        """
        while self._recorded:
            self._report_lost_run(
                self._recorded.popleft(), "is lost: beat stops and the broker is not available"
            )

    def _publish(self, pending: PendingRun) -> bool:
        """Publish a recorded run; return False if there is no connection to the broker."""
        entry, run = pending.entry, pending.entry.run
        assert run is not None
        try:
            producer = self._scheduler.producer
        except Exception as error:
            self._retries.count_if_broker_failed(error)
            return False
        run.successor = None
        try:
            publish(self._scheduler, entry, producer)
        except Exception as error:
            run.error = error
        if run.error is not None:
            self._scheduler.broker_failed(run.error)
            self._report_lost_run(pending, f"is lost, it must not be sent twice: {run.error!r}")
        elif not run.sent and run.successor is None:
            self._report_lost_run(
                pending, "is lost: is_due() returned true before its record and false after it"
            )
        else:
            self._retries.broker_answered()
            self._completions.announce_sent(entry)
        return True

    def _report_lost_run(self, pending: PendingRun, outcome: str) -> None:
        pending.report(outcome)
        run = pending.entry.run
        name, error = str(pending.entry.name), run and run.error
        self._counters.failed(name, lost=True)
        emit(entry_failed, self._scheduler, name=name, error=error, lost=True)
        if pending.completion.running:
            self._clear_running(pending)

    def _clear_running(self, pending: PendingRun) -> None:
        """Remove the ``running`` marker of an unpublished run: no run needs to wait for its end."""
        run = pending.entry.run
        assert run is not None
        try:
            store = store_of(self._scheduler.app, unretried(client_of(self._scheduler.app)))
            store.end_run(pending.claim.key, run.task_id)
        except (RedisError, OSError) as error:
            logger.warning(
                "beat: Could not end the lost run of %s, its entry waits for overlap_timeout: %s",
                *(pending.entry.name, described(error)),
            )
