"""A Celery project as a user would write it; its tasks record every run in Redis."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery

from tests.acceptance.ledger import LEDGER

URL = os.environ["PROJECT_REDIS_URL"]

app = Celery("project", broker=URL)
app.conf.update(
    {
        "broker_connection_retry_on_startup": True,
        "task_ignore_result": True,
        # Otherwise Celery adds an entry that runs at 4:00 and disturbs the tests at that time.
        "result_expires": None,
        "beat_schedule": json.loads(os.environ.get("PROJECT_SCHEDULE", "{}")),
        **json.loads(os.environ.get("PROJECT_SETTINGS", "{}")),
    }
)


@app.task(bind=True)
def note(self: Any, *args: Any, **kwargs: Any) -> None:
    """Record the scheduled time and the headers of this run."""
    request = self.request
    headers = request.headers or {}
    line = {
        "entry": request.get("periodic_task_name") or headers.get("periodic_task_name"),
        "scheduled_at": request.get("scheduled_at") or headers.get("scheduled_at"),
        "task_id": request.id,
        "args": args,
        "kwargs": kwargs,
    }
    with redis.Redis.from_url(URL) as client:
        client.rpush(LEDGER, json.dumps(line))
