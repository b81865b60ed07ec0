"""A Celery configuration to try RedBeat with, and the tasks that it schedules.

With a Redis on localhost (or `REDIS_URL` set), in two terminals::

    celery --config exampleconf worker
    celery --config exampleconf beat --loglevel info
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

from celery import shared_task
from celery.schedules import crontab

broker_url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
broker_connection_retry_on_startup = True
imports = ("exampleconf",)
task_ignore_result = True

# Names of its own, so that trying it on a Redis that is in use touches nobody else's schedule.
task_default_queue = "redbeat-example"
redbeat_key_prefix = "redbeat-example:"

beat_scheduler = "redbeat.RedBeatScheduler"
beat_schedule = {
    "every-second": {
        "task": "exampleconf.show",
        "schedule": 1.0,
    },
    "every-5-seconds": {
        "task": "exampleconf.add",
        "schedule": 5.0,
        "args": (16, 26),
    },
    "every-minute": {
        "task": "exampleconf.show",
        "schedule": crontab(minute="*"),
        "kwargs": {"text": "on the minute"},
    },
}

worker_log_format = "%(asctime)s %(message)s"
worker_redirect_stdouts = False


@shared_task(bind=True, name="exampleconf.show")
def show(self: Any, text: str = "") -> None:
    """Print which entry ran, when it was meant to run, and how late it is."""
    _say(self.request, text)


@shared_task(bind=True, name="exampleconf.add")
def add(self: Any, left: int, right: int) -> int:
    """Add two numbers and print the sum, with what `show` prints."""
    total = left + right
    _say(self.request, f"{left} + {right} = {total}")
    return total


def _say(request: Any, text: str) -> None:
    now = dt.datetime.now(dt.timezone.utc)
    name = _header(request, "periodic_task_name") or "called by hand"
    planned = _header(request, "scheduled_at")
    when = _lateness(planned, now) if planned else ""
    line = f"{now:%H:%M:%S} {name:<20} {when:<34} {text}".rstrip()
    # One write for line and end: tasks run in threads, and lines must not mix.
    print(f"{line}\n", end="", flush=True)


def _header(request: Any, name: str) -> str | None:
    """Return a header that beat put into the message, or None for a task called by hand."""
    value = request.get(name) or (request.headers or {}).get(name)
    return None if value is None else str(value)


def _lateness(planned: str, now: dt.datetime) -> str:
    instant = dt.datetime.fromisoformat(planned.replace("Z", "+00:00"))
    late = (now - instant).total_seconds() * 1000
    return f"due {instant:%H:%M:%S}.{instant.microsecond // 1000:03d}, {late:.0f} ms late"
