"""Functions that send the signals of a Celery worker without a worker."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.signals import task_postrun
from celery.states import SUCCESS

__all__ = ("Sender", "end_run")


class Sender:
    """A fake signal sender: a task or a consumer with the attributes that the receivers read."""

    def __init__(self, app: Celery, request: Any = None) -> None:
        self.app = app
        self.request = request


def end_run(app: Celery, task_id: str, headers: dict[str, Any]) -> None:
    """Send the ``task_postrun`` signal for a task whose message had these headers."""
    task = Sender(app, Context(id=task_id, headers=headers))
    task_postrun.send(sender=task, task_id=task_id, task=task, state=SUCCESS, retval=None)
