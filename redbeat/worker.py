"""The worker's side of ``overlap``: it tells Redis when a run has ended.

In the module that makes the app, which beat and workers share::

    import redbeat.worker

    redbeat.worker.enable(app)
"""

from __future__ import annotations

from typing import Any

from celery import signals, states
from celery.utils.log import get_logger
from redis.exceptions import RedisError

from .entry import store_of
from .messages import OVERLAP_HEADER

__all__ = ("enable",)

logger = get_logger(__name__)


def enable(app: Any) -> None:
    """Have the workers of ``app`` report the end of runs, so that entries may forbid an overlap.

    One round trip at the end of each task of such an entry, none for any other.
    """
    app.redbeat_tracks_runs = True
    signals.task_postrun.connect(_ended)
    signals.task_failure.connect(_lost)
    signals.task_revoked.connect(_revoked)


def _ended(task_id: str = "", task: Any = None, state: str = "", **_more: Any) -> None:
    """Note the end of a run in the process that ran it; one that is retried goes on."""
    if state != states.RETRY:
        _note(task, task.request, task_id)


def _lost(task_id: str = "", sender: Any = None, **_more: Any) -> None:
    """Note the end of a run whose process died, which has no end of its own."""
    request = getattr(sender, "request", None)
    if request is not None and request.id == task_id:
        _note(sender, request, task_id)


def _revoked(request: Any = None, sender: Any = None, **_more: Any) -> None:
    """Note that a run never begins."""
    _note(sender, request, request.id)


def _note(task: Any, request: Any, task_id: str) -> None:
    key = _header(request, OVERLAP_HEADER)
    if not key:
        return
    try:
        store_of(task.app).end_run(str(key), task_id)
    except (RedisError, OSError) as error:
        logger.warning(
            "The end of %s is not noted, its entry waits for overlap_timeout: %r", key, error
        )


def _header(request: Any, name: str) -> Any:
    """Return a header of a message, from a task's request or from the worker's."""
    found = getattr(request, name, None)
    if found is None and hasattr(request, "get"):
        found = request.get(name)
    headers = getattr(request, "headers", None) or {}
    return headers.get(name) if found is None else found
