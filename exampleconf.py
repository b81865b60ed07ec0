"""A Celery configuration for trying RedBeat, with two example tasks.

Start Redis on localhost or set `REDIS_URL`, then run these commands in two terminals::

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

# The example has its own queue and key prefix, apart from other programs in the same Redis.
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
    """Print the name of the entry, its scheduled time and its lateness."""
    _print_run(self.request, text)


@shared_task(bind=True, name="exampleconf.add")
def add(self: Any, left: int, right: int) -> int:
    """Add two numbers; print the sum, the entry name, the scheduled time and the lateness."""
    total = left + right
    _print_run(self.request, f"{left} + {right} = {total}")
    return total


def _print_run(request: Any, text: str) -> None:
    now = dt.datetime.now(dt.timezone.utc)
    name = _header(request, "periodic_task_name") or "called manually"
    scheduled_at = _header(request, "scheduled_at")
    lateness = _lateness(scheduled_at, now) if scheduled_at else ""
    line = f"{now:%H:%M:%S} {name:<20} {lateness:<34} {text}".rstrip()
    # Tasks run in threads, so a single write prints the text together with its line end.
    print(f"{line}\n", end="", flush=True)


def _header(request: Any, name: str) -> str | None:
    """Return a message header that beat has set, or None if the task was called manually."""
    value = request.get(name) or (request.headers or {}).get(name)
    return None if value is None else str(value)


def _lateness(scheduled_at: str, now: dt.datetime) -> str:
    instant = dt.datetime.fromisoformat(scheduled_at.replace("Z", "+00:00"))
    late = (now - instant).total_seconds() * 1000
    return f"due at {instant:%H:%M:%S}.{instant.microsecond // 1000:03d}, {late:.0f} ms late"
