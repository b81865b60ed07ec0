"""Measures the lateness of runs at a steady rate, without a broker.

``python -m benchmarks.paced URL --entries 1000 --seconds 60`` runs a beat in this process. Each
entry runs every second, and the runs of all entries are evenly distributed over the second. With
``--every N``, all entries run at the same instant, every N seconds. The command prints one JSON
object, metric -> number. Lateness is the time in seconds from the nominal instant of a run to the
call that would publish the task.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from datetime import datetime
from typing import Any

from celery import Celery
from celery.beat import Service

from redbeat import RedBeatScheduler

from .beats import quantile
from .metering import Metrics
from .prepared import emptied, seed_spread

#: Seconds from the first run to the start of the measurement.
WARM_UP = 3.0


class RecordingScheduler(RedBeatScheduler):
    """A scheduler that records the lateness of each run instead of publishing the task."""

    runs: list[tuple[float, str, float]]

    def send_task(self, *_args: Any, **options: Any) -> None:
        """Record a run. Celery calls ``send_task`` for a task that the app does not have."""
        now, headers = time.time(), options["headers"]
        due = datetime.fromisoformat(headers["scheduled_at"]).timestamp()
        self.runs.append((due, headers["periodic_task_name"], now - due))


def watch(url: str, count: int, seconds: int, every: float | None = None) -> Metrics:
    """Run a beat; return metrics of the ``seconds`` seconds after the warm-up."""
    client = emptied(url)
    app = Celery("paced", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=url, timezone="UTC", result_expires=None)
    begin = round(time.time() + 1, 3)
    seed_spread(client, count, begin, every)
    service = Service(app, scheduler_cls=RecordingScheduler)
    service.scheduler.runs = []
    opens = begin + WARM_UP
    timer = threading.Timer(opens + seconds + 1 - time.time(), service.stop)
    timer.start()
    service.start()
    timer.cancel()
    pace = count if every is None else round(count / every)
    # The measurement starts and ends half a millisecond early, in order to include a first run
    # whose due time was rounded down.
    return metrics_of(service.scheduler.runs, pace, opens - 0.000_5, opens + seconds - 0.000_5)


def metrics_of(
    runs: list[tuple[float, str, float]], pace: int, opens: float, closes: float
) -> Metrics:
    """Return metrics of the runs that were due from ``opens`` to ``closes``.

    The metrics are the number of runs, the number of lost runs, and quantiles of lateness in
    seconds. ``pace`` is the number of runs that are due per second.
    """
    in_window = [run for run in runs if opens <= run[0] < closes]
    distinct = {(round(due, 3), name) for due, name, _ in in_window}
    late = [late for _, _, late in in_window]
    return {
        "runs": len(in_window),
        "lost": pace * round(closes - opens) - len(distinct),
        "p50": quantile(late, 0.5),
        "p99": quantile(late, 0.99),
        "max": max(late),
    }


def main(argv: list[str]) -> None:
    """Run the measurement and print its metrics."""
    parser = argparse.ArgumentParser(prog="paced", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--every", type=float, help="seconds between two runs of an entry")
    options = parser.parse_args(argv)
    print(json.dumps(watch(options.url, options.entries, options.seconds, options.every)))


if __name__ == "__main__":
    main(sys.argv[1:])
