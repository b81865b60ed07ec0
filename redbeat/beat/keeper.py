"""Runs that are sent at most once: published after they were recorded, or reported as lost."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.connection.client import client_of, unretried
from redbeat.entry import RedBeatSchedulerEntry, store_of
from redbeat.errors import described
from redbeat.metrics.counters import Counters
from redbeat.signals import emit, entry_failed

from .failures import Failures
from .hooks import Hooks, Promise
from .outcomes import Outcomes

__all__ = ("Keeper", "publish")

logger = get_logger("celery.beat")


def publish(hooks: Hooks, entry: RedBeatSchedulerEntry, producer: Any) -> float | None:
    """Send an entry for what it is due for, or for its trigger; return what ``is_due`` says."""
    run = entry.run
    if run is not None and run.trigger is None and run.options is not None:
        return hooks.send_if_due(entry, **run.options)
    if run is None or run.trigger is None:
        return hooks.maybe_due(entry, producer=producer)
    logger.info("Scheduler: Sending triggered task %s (%s)", entry.name, entry.task)
    hooks.apply_async(entry, producer=producer, advance=False)
    run.sent = True
    return None


class Keeper:
    """Keeps promises. No round trips of its own, but for a lost run whose end is waited for."""

    def __init__(
        self, hooks: Hooks, failures: Failures, outcomes: Outcomes, counters: Counters
    ) -> None:
        self._hooks = hooks
        self._failures = failures
        self._outcomes = outcomes
        self._counters = counters

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

    def forsake(self, promise: Promise) -> None:
        """Report a run that will not be published. A round trip where its end is waited for."""
        self._lost(promise, "is lost: beat stops and the broker is away")

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
                promise.entry.name,
                described(error),
            )
