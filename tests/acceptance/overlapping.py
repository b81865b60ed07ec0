"""Tasks of the project for entries with runs that must not overlap; see ``project.py``."""

from __future__ import annotations

import json
import time
from typing import Any

import redis

import redbeat.worker
from tests.acceptance.ledger import SPANS
from tests.acceptance.project import URL, app

redbeat.worker.enable(app)


def note(client: Any, what: str, task_id: str) -> None:
    """Record an event with the current time."""
    client.rpush(SPANS, json.dumps({"what": what, "id": task_id, "at": time.time()}))


@app.task(bind=True, max_retries=3)
def take(self: Any, seconds: float, retries: int = 0) -> None:
    """Run for ``seconds``, and for the same time in each retry."""
    with redis.Redis.from_url(URL) as client:
        note(client, "begin", self.request.id)
        time.sleep(seconds)
        note(client, "end", self.request.id)
    if self.request.retries < retries:
        raise self.retry(countdown=0.5)
