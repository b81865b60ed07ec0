"""Reports how another RedBeat version reads and runs a schedule.

The interpreter of this other version runs this file. ``python judge.py URL ZONE`` prints JSON. For
each entry, the JSON contains the content or the error, and whether the entry is due. It also
contains the names and arguments that one tick sends, in order, and the error of the tick.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from celery import Celery

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatJSONEncoder, get_redis


class Scheduler(RedBeatScheduler):
    """A scheduler that records its messages and does not send them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[list[Any]] = []
        super().__init__(*args, **kwargs)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the name of the entry."""
        self.sent.append([entry.name])
        return super().apply_async(entry, *args, **kwargs)

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> None:
        """Record the message without sending it."""
        del options
        self.sent[-1] += [name, args, kwargs]


def reading(app: Celery, key: str) -> dict[str, Any]:
    """Return an entry as this version reads it, or the error."""
    try:
        entry = RedBeatSchedulerEntry.from_key(key, app=app)
        due_at, (is_due, seconds) = entry.due_at, entry.is_due()
    except Exception as error:
        return {"error": repr(error)}
    return {
        "args": entry.args,
        "kwargs": entry.kwargs,
        "options": entry.options,
        "runs": entry.total_run_count,
        "last_run_at": entry.last_run_at and entry.last_run_at.timestamp(),
        "due_at": due_at and due_at.timestamp(),
        "is_due": bool(is_due),
        "seconds": seconds,
    }


def judge(url: str, zone: str) -> dict[str, Any]:
    """Return how this version reads and runs the schedule."""
    app = Celery("judge", broker="memory://")
    app.conf.update(redbeat_redis_url=url, redbeat_lock_key=None, timezone=zone)
    app.conf.result_expires = None  # otherwise Celery adds an entry
    scheduler = Scheduler(app=app, lazy=True)
    client: Any = get_redis(app)
    keys = client.zrange("redbeat::schedule", 0, -1)
    found = {key.removeprefix("redbeat:"): reading(app, key) for key in keys}
    error = None
    try:
        scheduler.tick()
    except Exception as raised:
        error = repr(raised)
    return {"entries": found, "sent": scheduler.sent, "error": error}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(judge(*sys.argv[1:]), cls=RedBeatJSONEncoder))
