"""Runs that are sent at most once: recorded first, in small groups, and published then."""

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

#: Runs recorded in one go, at the cost of a round trip: a beat that dies loses so many at most.
GROUP = 50


@dataclass(frozen=True, slots=True)
class PendingRun:
    """A run that is published once it is recorded, and never again."""

    entry: RedBeatSchedulerEntry
    claim: Claim
    completion: Completion

    def report(self, outcome: str) -> None:
        """Say what became of a run that was not published."""
        run = self.entry.run
        logger.error("beat: The run of %s at %s %s", self.entry.name, run and run.instant, outcome)


class AtMostOnce:
    """What one beat has promised to publish at most once."""

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
        """Take a promise; a full group is kept at once, in one round trip."""
        self._unrecorded.append(pending)
        if len(self._unrecorded) >= GROUP:
            self.record()

    def record(self) -> None:
        """Record what was promised and publish what was recorded.

        No round trip when nothing is new, else one. What the broker could not even be offered is
        kept for the next call; so is what Redis did not answer, until the record is known.
        """
        unrecorded, self._unrecorded = self._unrecorded, []
        for pending in unrecorded:
            self._session.record(pending.completion, partial(self._on_result, pending))
        if unrecorded:
            self._session.request(0)
        self.publish()

    def publish(self) -> None:
        """Publish what was promised and is recorded, as far as the broker takes it."""
        while self._recorded:
            pending = self._recorded.popleft()
            if not self._publish(pending):
                self._recorded.appendleft(pending)
                break

    def _on_result(self, pending: PendingRun, result: Result) -> None:
        """Take note of whether a run is recorded: only then it is published."""
        if result.code == RECORDED:
            self._recorded.append(pending)
            if pending.completion.end:
                self._completions.announce_finished(pending.entry)
        elif result.code == CHANGED:
            self._session.record(pending.claim.put_back(self._session.time()))
        else:
            pending.report("is lost: beat learned too late that it was recorded, if it was")

    def withdraw(self) -> list[Claim]:
        """Return the claims of promises that are not recorded, and forget these."""
        unrecorded, self._unrecorded = self._unrecorded, []
        return [pending.claim for pending in unrecorded]

    def report_lost(self) -> None:
        """Report what is recorded and will not be published any more.

        A round trip for each whose end is waited for.
        """
        while self._recorded:
            self._report_lost_run(
                self._recorded.popleft(), "is lost: beat stops and the broker is away"
            )

    def _publish(self, pending: PendingRun) -> bool:
        """Publish a run that is recorded; False when the broker is away and nothing was tried."""
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
                pending, "is lost: it was due when it was recorded, and not when it was to be sent"
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
        """Have nobody wait for the end of a run that was not published."""
        run = pending.entry.run
        assert run is not None
        try:
            store = store_of(self._scheduler.app, unretried(client_of(self._scheduler.app)))
            store.end_run(pending.claim.key, run.task_id)
        except (RedisError, OSError) as error:
            logger.warning(
                "beat: Entry %s waits for overlap_timeout: %s",
                *(pending.entry.name, described(error)),
            )
