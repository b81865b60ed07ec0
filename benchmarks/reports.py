"""Measures the time of a task with and without the reports that workers send to RedBeat.

Tasks that do not use Redis are measured in CPU time, which other programs disturb less than elapsed
time.

Run ``python -m benchmarks.reports REDIS_URL``; entries are stored with the key prefix
``bench-reports:``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from celery import Celery

import redbeat.worker
from redbeat import RedBeatSchedulerEntry
from redbeat.config import get_redis

__all__ = ("main",)

ROUNDS, TASKS = 40, 200


def microseconds(
    call: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the mean time of a call in microseconds, in the fastest of several rounds."""
    times = []
    for _ in range(ROUNDS):
        begun = clock()
        for _ in range(TASKS):
            call()
        times.append((clock() - begun) / TASKS)
    return min(times) * 1e6


def main(url: str) -> dict[str, float]:
    """Print and return the microseconds per task, for each kind of task."""
    app = Celery("reports", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=url, redbeat_key_prefix="bench-reports:", result_expires=None)

    @app.task(name="nothing", shared=False)
    def nothing() -> None:
        """Return."""

    headers = {"periodic_task_name": "a", "scheduled_at": "2026-01-01T00:00:00+00:00"}
    app.finalize()
    found = {"without reports": microseconds(nothing.apply, time.thread_time)}
    redbeat.worker.enable(app)
    entry = RedBeatSchedulerEntry("a", "nothing", 60, app=app).save()
    found["a task that no beat sent, with reports"] = microseconds(nothing.apply, time.thread_time)
    found["a task that a beat sent, with reports"] = microseconds(
        lambda: nothing.apply(headers=headers)
    )
    entry.delete()
    found["for comparison, a PING"] = microseconds(get_redis(app).ping)
    for kind, time_of_task in found.items():
        print(f"{time_of_task:8.1f} us  {kind}")
    return found


if __name__ == "__main__":
    main(sys.argv[1])
