"""Lets workers report the results of the runs that a beat sent.

Call ``enable`` in the module that creates your app, which the beat and all workers must import::

    import redbeat.worker

    redbeat.worker.enable(app)
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

from celery import Celery, signals, states
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from redis import ConnectionPool, Redis, exceptions

from redbeat.beat.message import OVERLAP_HEADER
from redbeat.codec.stored import moment_in
from redbeat.config import App, client_of, unretried
from redbeat.entries.history import RunResult, RunState
from redbeat.entries.state import end_line
from redbeat.errors import described, reason_of
from redbeat.printing import get_logger, plural, printable
from redbeat.signals import emit, run_failed, run_succeeded
from redbeat.storage.store import store_of
from redbeat.storage.words import END

__all__ = ("enable",)

logger = get_logger(__name__)

NAME_HEADER: Final = "periodic_task_name"

#: Each message of a beat has at least one of these headers.
RUN_HEADERS: Final = (NAME_HEADER, OVERLAP_HEADER)

#: The attribute of a task's request with the start of its run, in monotonic seconds.
STARTED: Final = "redbeat_started"

#: Seconds to connect to Redis, and to wait for a reply.
TIMEOUT: Final = 1.0

#: Seconds for which all reports of a process wait if Redis does not answer.
BACK_OFF: Final = 30.0

#: How many reports of one process can wait for Redis.
MAX_WAITING: Final = 1000


def enable(app: App) -> None:
    """Make the workers of ``app`` report the result of each run that a beat sent.

    Entries can set ``overlap``, ``pause_after_failures`` and ``expect_within`` only if workers
    report results. Each report adds the result of a run to the entry's history.

    A worker makes one round trip to Redis when a run ends, and none for other tasks. A failed
    report never makes the task fail. If Redis does not answer within two seconds, the worker sends
    the report again when another run ends, at least 30 seconds later. With Sentinel or a cluster,
    the timeouts of the Redis client replace the limit of two seconds.

    A second call does nothing.
    """
    app.redbeat_tracks_runs = True
    signals.task_prerun.connect(_started)
    signals.task_postrun.connect(_ended)
    signals.task_failure.connect(_lost)
    signals.task_internal_error.connect(_broken)
    signals.task_revoked.connect(_revoked)
    signals.task_unknown.connect(_refused)
    signals.task_rejected.connect(_refused)


# -- receivers of Celery's signals -----------------------------------------------------------------


def _started(task: Any, **_event: Any) -> None:
    """Celery calls this for each task, also for those of no beat."""
    request = task.request
    if any(_header(request, name) for name in RUN_HEADERS):
        setattr(request, STARTED, time.monotonic())


STATES: Final[dict[str, RunState]] = {
    states.SUCCESS: "succeeded",
    states.FAILURE: "failed",
    states.RETRY: "retried",
    states.REJECTED: "failed",
    states.REVOKED: "revoked",
    states.IGNORED: "ignored",
}


def _ended(task_id: str, task: Any, state: str | None, retval: Any, **_event: Any) -> None:
    """Report the end of a run in the process that executed the task.

    The run of a requeued task has not ended. ``state`` is None if the process is about to exit, or
    if Celery had an internal error; then another signal's receiver may report the end.
    """
    request = task.request
    started = getattr(request, STARTED, None)
    requeued = state == states.REJECTED and getattr(retval, "requeue", False)
    if started is None or state is None or requeued:
        return
    error = retval if isinstance(retval, BaseException) and state != states.IGNORED else None
    if state == states.RETRY:
        error = getattr(retval, "exc", None) or error
    seconds = time.monotonic() - started
    _report(task.app, request, task_id, STATES.get(state, "failed"), error, seconds)


def _lost(task_id: str, sender: Any, exception: Any, **_event: Any) -> None:
    """Report the end of a run whose process died, or whose time limit was exceeded.

    If the process that executed the task still exists, it reports the failure itself.
    """
    is_lost = isinstance(exception, (WorkerLostError, TimeLimitExceeded))
    if is_lost and sender.request.id == task_id:
        _report(sender.app, sender.request, task_id, "failed", exception)


def _broken(task_id: str, sender: Any, request: Any, exception: Any, **_event: Any) -> None:
    _report(sender.app, request, task_id, "failed", exception)


def _revoked(sender: Any, request: Any, terminated: bool, expired: bool, **_event: Any) -> None:
    reason = "expired" if expired else "terminated" if terminated else None
    _report(sender.app, request, request.id, "revoked", reason)


def _refused(sender: Any, message: Any, exc: Any, **_event: Any) -> None:
    """The task is unknown to the worker, or the message is invalid."""
    headers = message.headers or {}
    _report(sender.app, headers, headers.get("id"), "failed", exc)


def _header(request: Any, name: str) -> Any:
    """``request`` is a task's request, or the headers of a message."""
    get = getattr(request, "get", None)
    if get is None:
        return None
    return get(name) or (get("headers") or {}).get(name)


# -- the contents of reports -----------------------------------------------------------------------


class End(NamedTuple):
    """The end of a run that Redis has not recorded yet; ``at`` is in monotonic seconds."""

    name: str
    #: "" if the message does not contain the entry's key.
    key: str
    task_id: str
    scheduled_at: datetime | None
    at: float
    result: RunResult


def _report(
    app: Celery,
    request: Any,
    task_id: str | None,
    state: RunState,
    error: Any,
    seconds: float | None = None,
) -> None:
    """If the report fails, that is logged; the task does not fail."""
    name, key = _header(request, NAME_HEADER), _header(request, OVERLAP_HEADER)
    if not (name or key) or not task_id:
        return
    try:
        retries = getattr(request, "retries", None) or _header(request, "retries") or 0
        result = RunResult(state, None, seconds, int(retries), _text_of(error))
        scheduled_at = moment_in(_header(request, "scheduled_at"))
        texts = (str(name or ""), str(key or ""), str(task_id))
        end = End(*texts, scheduled_at, time.monotonic(), result)
        reports = _reports_of(app)
        if reports is not None:
            reports.add(end)
    except Exception as problem:
        logger.warning(
            "Could not record the end of a run of %s: %s", key or name, described(problem)
        )


def _text_of(error: Any) -> str | None:
    """An error on one line; never raises one."""
    if not isinstance(error, BaseException):
        return error or None
    try:
        return printable(reason_of(error)).removesuffix(":")  # without a message
    except Exception:  # its message cannot be computed
        return type(error).__name__


# -- sending the reports ---------------------------------------------------------------------------


class Reports:
    """Sends the reports of one process to Redis.

    If Redis does not answer, all reports wait until a run ends, at least :data:`BACK_OFF` seconds
    later.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._store = store_of(app, quick(unretried(client_of(app))))
        self._waiting: deque[End] = deque(maxlen=MAX_WAITING)
        self._dropped = 0
        self._not_before = 0.0
        self._is_away = False

    def add(self, end: End) -> None:
        self._dropped += len(self._waiting) == MAX_WAITING
        self._waiting.append(end)
        if time.monotonic() < self._not_before:
            return
        with suppress(IndexError):  # all reports were sent, some perhaps by other threads
            while True:
                first = self._waiting.popleft()
                if not self._is_answered(first):
                    self._waiting.appendleft(first)
                    return
        if self._is_away:
            logger.warning(
                "Redis answers again: the ends of runs are recorded. Lost: %s",
                plural(self._dropped, "report"),
            )
            self._is_away, self._dropped = False, 0

    def _is_answered(self, end: End) -> bool:
        try:
            self._send(end)
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            self._not_before = time.monotonic() + BACK_OFF
            if not self._is_away:
                logger.warning(
                    "Could not record the end of a run of %s, trying again with the first run that "
                    "ends after %d s. Until then, entries that set overlap wait for "
                    "overlap_timeout: %s",
                    *(end.key or end.name, BACK_OFF, described(error)),
                )
            self._is_away = True
            return False
        except Exception as error:
            logger.warning(
                "Could not record the end of the run %s of %s: %s",
                *(end.task_id, end.name or end.key, described(error)),
            )
        return True

    def _send(self, end: End) -> None:
        key = end.key or self._store.keys.entry(end.name)
        run = end.scheduled_at.isoformat() if end.scheduled_at is not None else ""
        result = end.result
        words = (result.state, result.seconds, result.retries, result.error or "")
        # The run's nominal time proves that the task id is one of the entry. The report gets
        # Redis's time, because the clocks of workers may be wrong. A repeated report is another
        # line with the same task id, which counts once.
        line = end_line(end.task_id, *words, run)
        self._store.say(key, line, kind=END, age=time.monotonic() - end.at)
        signal = {"succeeded": run_succeeded, "failed": run_failed}.get(result.state)
        if signal is not None:
            fields = {"scheduled_at": end.scheduled_at, "result": result}
            emit(signal, self._app, name=end.name, task_id=end.task_id, **fields)


def quick(client: Any) -> Any:
    """A copy of ``client`` with timeouts of at most :data:`TIMEOUT` seconds.

    A client of Sentinel, of a cluster or of another class is returned unchanged.
    """
    pool = getattr(client, "connection_pool", None)
    if type(pool) is not ConnectionPool or not isinstance(client, Redis):
        return client
    kwargs = dict(pool.connection_kwargs)
    for name in ("socket_timeout", "socket_connect_timeout"):
        kwargs[name] = min(kwargs.get(name) or TIMEOUT, TIMEOUT)
    own_pool = ConnectionPool(connection_class=pool.connection_class, **kwargs)
    return type(client)(connection_pool=own_pool)


#: An app's attribute with its :class:`Reports`, or None if the settings are invalid.
REPORTS: Final = "_redbeat_reports"


def _reports_of(app: Celery) -> Reports | None:
    """None if the app's settings are invalid, which is logged only once."""
    if REPORTS not in vars(app):
        try:
            setattr(app, REPORTS, Reports(app))
        except Exception as error:
            logger.warning("Could not record the ends of runs: %s", error)
            setattr(app, REPORTS, None)
    reports: Reports | None = getattr(app, REPORTS)
    return reports
