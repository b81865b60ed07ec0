"""Reports completed runs from workers, for entries whose runs must not overlap.

Enable this in the module that makes the app, which beat and workers import::

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

    One round trip at the end of each task of such an entry, none for other tasks. A second call
    does nothing.
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
    """Record the completion of a run in the process that ran the task.

    A retried or requeued task is not completed. Without a state, the process is about to die or
    Celery had an internal error; another signal then reports the completion, if any.
    """
    requeued = state == states.REJECTED and getattr(retval, "requeue", False)
    if state is not None and state != states.RETRY and not requeued:
        _record_completion(task.app, task.request, task_id)


def _lost(task_id: str = "", sender: Any = None, exception: Any = None, **_kwargs: Any) -> None:
    """Record the completion of a run whose worker process died or exceeded its time limit.

    The process that ran the task reports any other failure.
    """
    if isinstance(exception, (WorkerLostError, TimeLimitExceeded)):
        request = getattr(sender, "request", None)
        if request is not None and request.id == task_id:
            _record_completion(sender.app, request, task_id)


def _broken(task_id: str = "", sender: Any = None, request: Any = None, **_kwargs: Any) -> None:
    """Record the completion of a run whose result caused an error in Celery."""
    _record_completion(sender.app, request, task_id)


def _revoked(request: Any = None, sender: Any = None, **_kwargs: Any) -> None:
    """Record that a run does not begin, because it was revoked or expired, or was terminated."""
    _record_completion(sender.app, request, request.id)


def _refused(sender: Any = None, message: Any = None, **_kwargs: Any) -> None:
    """Record that a run does not begin: its task is unknown, or its message is not a task."""
    headers = getattr(message, "headers", None) or {}
    _record_completion(sender.app, headers, headers.get("id"))


def _record_completion(app: Any, request: Any, task_id: str | None) -> None:
    """Record that a run has completed; an error is logged and does not affect the task."""
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
    """Return a header of a message, from the task's request or from the message headers."""
    get = getattr(request, "get", None)
    if get is None:
        return None
    return get(name) or (get("headers") or {}).get(name)
