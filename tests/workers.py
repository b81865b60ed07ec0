"""Functions that send the signals of a Celery worker without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, signals
from celery.app.task import Context
from celery.signals import task_postrun, task_prerun
from celery.states import SUCCESS

import redbeat.worker


@contextmanager
def reporting(app: Celery) -> Iterator[Celery]:
    """Make the workers of an app report the ends of runs, until the end of the context."""
    redbeat.worker.enable(app)
    yield app
    for signal in (
        signals.task_prerun,
        signals.task_postrun,
        signals.task_failure,
        signals.task_internal_error,
        signals.task_revoked,
        signals.task_unknown,
        signals.task_rejected,
    ):
        receivers = [function for function in vars(redbeat.worker).values() if callable(function)]
        for function in receivers:
            signal.disconnect(function)


class Sender:
    """A fake signal sender: a task or a consumer with the attributes that the receivers read."""

    def __init__(self, app: Celery, request: Any = None) -> None:
        self.app = app
        self.request = request


def end_run(app: Celery, task_id: str, headers: dict[str, Any]) -> None:
    """Send the ``task_postrun`` signal for a task whose message had these headers."""
    run_task(app, task_id, headers)


def run_task(
    app: Celery,
    task_id: str,
    headers: dict[str, Any],
    state: str | None = SUCCESS,
    retval: Any = None,
    **request: Any,
) -> None:
    """Send the signals of a task that starts and ends in this ``state``."""
    task = Sender(app, Context(id=task_id, headers=headers, **request))
    task_prerun.send(sender=task, task_id=task_id, task=task)
    task_postrun.send(sender=task, task_id=task_id, task=task, state=state, retval=retval)
