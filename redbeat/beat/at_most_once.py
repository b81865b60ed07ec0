"""Runs that are sent at most once: recorded first, in small groups, and published then."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.connection.client import client_of, unretried
from redbeat.entry import RedBeatSchedulerEntry, store_of
from redbeat.errors import described
from redbeat.metrics.counters import Counters
from redbeat.signals import emit, entry_failed
from redbeat.storage.records import CHANGED, RECORDED, Claim, Completion, Result

from .completions import Outcomes
from .retries import Failures
from .scheduler_protocol import Hooks, publish
from .session import Exchange

__all__ = ("AtMostOnce", "Promise")

logger = get_logger("celery.beat")

#: Runs recorded in one go, at the cost of a round trip: a beat that dies loses so many at most.
GROUP = 50


@dataclass(frozen=True, slots=True)
class Promise:
    """A run that is published once it is recorded, and never again."""

    entry: RedBeatSchedulerEntry
    claim: Claim
    done: Completion

    def report(self, what: str) -> None:
        """Say what became of a run that was not published."""
        run = self.entry.run
        logger.error("beat: The run of %s at %s %s", self.entry.name, run and run.instant, what)


class AtMostOnce:
    """What one beat has promised to publish at most once."""

    def __init__(
        self,
        hooks: Hooks,
        exchange: Exchange,
        failures: Failures,
        outcomes: Outcomes,
        counters: Counters,
    ) -> None:
        self._hooks = hooks
        self._exchange = exchange
        self._failures = failures
        self._outcomes = outcomes
        self._counters = counters
        self._made: list[Promise] = []
        self._owed: deque[Promise] = deque()

    def add(self, promise: Promise) -> None:
        """Take a promise; a full group is kept at once, in one round trip."""
        self._made.append(promise)
        if len(self._made) >= GROUP:
            self.keep()

    def keep(self) -> None:
        """Record what was promised and publish what was recorded.

        No round trip when nothing is new, else one. What the broker could not even be offered is
        kept for the next call; so is what Redis did not answer, until the record is known.
        """
        made, self._made = self._made, []
        for promise in made:
            self._exchange.record(promise.done, partial(self._heard, promise))
        if made:
            self._exchange.turn(0)
        self.publish()

    def publish(self) -> None:
        """Publish what was promised and is recorded, as far as the broker takes it."""
        while self._owed:
            promise = self._owed.popleft()
            if not self._publish(promise):
                self._owed.appendleft(promise)
                break

    def _heard(self, promise: Promise, result: Result) -> None:
        """Take note of whether a run is recorded: only then it is published."""
        if result.code == RECORDED:
            self._owed.append(promise)
            if promise.done.end:
                self._outcomes.finished(promise.entry)
        elif result.code == CHANGED:
            self._exchange.record(promise.claim.put_back(self._exchange.time()))
        else:
            promise.report("is lost: beat learned too late that it was recorded, if it was")

    def withdraw(self) -> list[Claim]:
        """Return the claims of promises that are not recorded, and forget these."""
        made, self._made = self._made, []
        return [promise.claim for promise in made]

    def forsake(self) -> None:
        """Report what is recorded and will not be published any more.

        A round trip for each whose end is waited for.
        """
        while self._owed:
            self._lost(self._owed.popleft(), "is lost: beat stops and the broker is away")

    def _publish(self, promise: Promise) -> bool:
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
            publish(self._hooks, entry, producer)
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
            self._outcomes.announce(entry)
        return True

    def _lost(self, promise: Promise, what: str) -> None:
        promise.report(what)
        run = promise.entry.run
        name, error = str(promise.entry.name), run and run.error
        self._counters.failed(name, lost=True)
        emit(entry_failed, self._hooks, name=name, error=error, lost=True)
        if promise.done.running:
            self._forget_run(promise)

    def _forget_run(self, promise: Promise) -> None:
        """Have nobody wait for the end of a run that was not published."""
        run = promise.entry.run
        assert run is not None
        try:
            store = store_of(self._hooks.app, unretried(client_of(self._hooks.app)))
            store.end_run(promise.claim.key, run.task_id)
        except (RedisError, OSError) as error:
            logger.warning(
                "beat: Entry %s waits for overlap_timeout: %s",
                *(promise.entry.name, described(error)),
            )
