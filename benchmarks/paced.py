"""How late runs are at a steady pace, with nothing travelling to a broker.

``python -m benchmarks.paced URL --entries 1000 --seconds 60``: entries that run every second,
evenly spread over it, or every ``--every`` seconds and all at the same instant, in a beat service
of this process. Prints one JSON object, metric -> number; late are the seconds from the nominal
instant to the call that would send the task.
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

#: Seconds for the beat to find its pace before it is watched.
LEAD = 3.0


class NotingScheduler(RedBeatScheduler):
    """Notes nominal instant and lateness of each run instead of sending it."""

    runs: list[tuple[float, str, float]]

    def send_task(self, *_args: Any, **options: Any) -> None:
        """Take the message of an entry whose task this app does not know."""
        now, headers = time.time(), options["headers"]
        due = datetime.fromisoformat(headers["scheduled_at"]).timestamp()
        self.runs.append((due, headers["periodic_task_name"], now - due))


def watch(url: str, count: int, seconds: int, every: float | None = None) -> Metrics:
    """Run the beat and return what it did within the seconds after its lead."""
    client = emptied(url)
    app = Celery("paced", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=url, timezone="UTC", result_expires=None)
    begin = round(time.time() + 1, 3)
    seed_spread(client, count, begin, every)
    service = Service(app, scheduler_cls=NotingScheduler)
    service.scheduler.runs = []
    opens = begin + LEAD
    timer = threading.Timer(opens + seconds + 1 - time.time(), service.stop)
    timer.start()
    service.start()
    timer.cancel()
    pace = count if every is None else round(count / every)
    # Half a millisecond earlier: what is due just then is among them, however it is rounded.
    return metrics_of(service.scheduler.runs, pace, opens - 0.000_5, opens + seconds - 0.000_5)


def metrics_of(
    runs: list[tuple[float, str, float]], pace: int, opens: float, closes: float
) -> Metrics:
    """Return lateness and what was lost among the runs that were due between two instants.

    ``pace`` is how many are due in a second.
    """
    watched = [run for run in runs if opens <= run[0] < closes]
    different = {(round(due, 3), name) for due, name, _ in watched}
    late = [late for _, _, late in watched]
    return {
        "runs": len(watched),
        "lost": pace * round(closes - opens) - len(different),
        "p50": quantile(late, 0.5),
        "p99": quantile(late, 0.99),
        "max": max(late),
    }


def main(argv: list[str]) -> None:
    """Run it, and print the metrics."""
    parser = argparse.ArgumentParser(prog="paced", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--every", type=float, help="seconds between two runs of an entry")
    options = parser.parse_args(argv)
    print(json.dumps(watch(options.url, options.entries, options.seconds, options.every)))


if __name__ == "__main__":
    main(sys.argv[1:])
