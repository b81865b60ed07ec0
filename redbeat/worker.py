"""Lets workers report completed runs, for entries whose runs must not overlap.

Call ``enable`` in the module that creates the app, which the beat and the workers import::

    import redbeat.worker

    redbeat.worker.enable(app)
"""

from __future__ import annotations

from typing import Any

from celery import signals, states
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger

from redbeat.beat.publisher import OVERLAP_HEADER
from redbeat.storage.client import client_of, unretried

from .entry import store_of

__all__ = ("enable",)

logger = get_logger(__name__)


def enable(app: Any) -> None:
    """Make the workers of ``app`` report completed runs, so that entries can set ``overlap``.

    A worker makes one round trip to Redis when a run of an entry with ``overlap`` ends, and none
    for other tasks. A second call does nothing.
    """
    app.redbeat_tracks_runs = True
    signals.task_postrun.connect(_ended)
    signals.task_failure.connect(_lost)
    signals.task_internal_error.connect(_broken)
    signals.task_revoked.connect(_revoked)
    signals.task_unknown.connect(_refused)
    signals.task_rejected.connect(_refused)


def _ended(
    task_id: str = "", task: Any = None, state: str | None = "", retval: Any = None, **_kwargs: Any
) -> None:
    """Record the completion of a run in the process that executed the task.

    A retried or requeued task is not completed. If the state is None, the process is about to die
    or Celery had an internal error; then another signal may report the completion.
    """
    requeued = state == states.REJECTED and getattr(retval, "requeue", False)
    if state is not None and state != states.RETRY and not requeued:
        _record_completion(task.app, task.request, task_id)


def _lost(task_id: str = "", sender: Any = None, exception: Any = None, **_kwargs: Any) -> None:
    """Record the completion of a run if its worker process died or it exceeded its time limit.

    The process that executed the task reports all other failures.
    """
    if isinstance(exception, (WorkerLostError, TimeLimitExceeded)):
        request = getattr(sender, "request", None)
        if request is not None and request.id == task_id:
            _record_completion(sender.app, request, task_id)


def _broken(task_id: str = "", sender: Any = None, request: Any = None, **_kwargs: Any) -> None:
    """Record the completion of a run after an internal error of Celery."""
    _record_completion(sender.app, request, task_id)


def _revoked(request: Any = None, sender: Any = None, **_kwargs: Any) -> None:
    """Record the completion of a run that was revoked, has expired or was terminated."""
    _record_completion(sender.app, request, request.id)


def _refused(sender: Any = None, message: Any = None, **_kwargs: Any) -> None:
    """Record the completion of a run that a worker refused: an unknown task or invalid message."""
    headers = getattr(message, "headers", None) or {}
    _record_completion(sender.app, headers, headers.get("id"))


def _record_completion(app: Any, request: Any, task_id: str | None) -> None:
    """Record that a run has completed; if this fails, log the error and do not affect the task."""
    key = _header(request, OVERLAP_HEADER)
    if not key or not task_id:
        return
    try:
        store_of(app, unretried(client_of(app))).end_run(str(key), str(task_id))
    except Exception as error:
        logger.warning(
            "Could not record the completion of %s, its next run waits for overlap_timeout: %r",
            *(key, error),
        )


def _header(request: Any, name: str) -> Any:
    """Return a header of a message; ``request`` is a task's request, or the message headers."""
    get = getattr(request, "get", None)
    if get is None:
        return None
    return get(name) or (get("headers") or {}).get(name)
