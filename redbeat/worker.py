"""The worker's side of ``overlap``: it tells Redis when a run has ended.

In the module that makes the app, which beat and workers share::

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
    """Have the workers of ``app`` report the end of runs, so that entries may forbid an overlap.

    One round trip at the end of each task of such an entry, none for any other. A second call does
    nothing.
    """
    app.redbeat_tracks_runs = True
    signals.task_postrun.connect(_ended)
    signals.task_failure.connect(_lost)
    signals.task_internal_error.connect(_broken)
    signals.task_revoked.connect(_revoked)
    signals.task_unknown.connect(_refused)
    signals.task_rejected.connect(_refused)


def _ended(
    task_id: str = "", task: Any = None, state: str | None = "", retval: Any = None, **_more: Any
) -> None:
    """Note the end of a run in the process that ran it.

    One that is retried or put back into its queue goes on. Without a state the process is about to
    die, or Celery met an error of its own: another signal tells the end, if it is one.
    """
    requeued = state == states.REJECTED and getattr(retval, "requeue", False)
    if state is not None and state != states.RETRY and not requeued:
        _note(task.app, task.request, task_id)


def _lost(task_id: str = "", sender: Any = None, exception: Any = None, **_more: Any) -> None:
    """Note the end of a run whose process died: the worker tells it, with the request at hand.

    Any other failure is told by the process that ran the task.
    """
    if isinstance(exception, (WorkerLostError, TimeLimitExceeded)):
        request = getattr(sender, "request", None)
        if request is not None and request.id == task_id:
            _note(sender.app, request, task_id)


def _broken(task_id: str = "", sender: Any = None, request: Any = None, **_more: Any) -> None:
    """Note the end of a run whose outcome Celery could not deal with."""
    _note(sender.app, request, task_id)


def _revoked(request: Any = None, sender: Any = None, **_more: Any) -> None:
    """Note that a run never begins, because it is revoked or expired, or that it was terminated."""
    _note(sender.app, request, request.id)


def _refused(sender: Any = None, message: Any = None, **_more: Any) -> None:
    """Note that a run never begins: its task is not known here, or its message is no task."""
    headers = getattr(message, "headers", None) or {}
    _note(sender.app, headers, headers.get("id"))


def _note(app: Any, request: Any, task_id: str | None) -> None:
    """Tell Redis; whatever comes of it, the task does not suffer."""
    key = _header(request, OVERLAP_HEADER)
    if not key or not task_id:
        return
    try:
        store_of(app, unretried(client_of(app))).end_run(str(key), str(task_id))
    except Exception as error:
        logger.warning(
            "The end of %s is not noted, its entry waits for overlap_timeout: %r", key, error
        )


def _header(request: Any, name: str) -> Any:
    """Return a header of a message, from a task's request or from the message's own headers."""
    get = getattr(request, "get", None)
    if get is None:
        return None
    return get(name) or (get("headers") or {}).get(name)
