"""How late runs are at a steady pace, with nothing travelling to a broker.

``python -m benchmarks.paced URL --entries 1000 --seconds 60``: entries that run every second,
evenly spread over it, in a beat service of this process. Prints one JSON object, metric -> number;
late are the seconds from the nominal instant to the call that would send the task.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from datetime import datetime, timezone
from typing import Any

import redis
from celery import Celery
from celery.beat import Service

from redbeat import RedBeatScheduler

from .beats import quantile
from .workload import Metrics, definition_of, stored_datetime

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


def put(client: Any, count: int, begin: float) -> None:
    """Store entries whose first run is at ``begin``, or up to a second later."""
    definition = definition_of("second")
    pipe = client.pipeline(transaction=False)
    for index in range(count):
        first, key = begin + index / count, f"redbeat:entry-{index}"
        ran = datetime.fromtimestamp(first - 1, timezone.utc)
        meta = json.dumps({"last_run_at": stored_datetime(ran), "total_run_count": 1})
        fields = {"definition": definition.replace("@", str(index)), "meta": meta}
        pipe.hset(key, mapping=fields)
        pipe.zadd("redbeat::schedule", {key: first})
    pipe.execute()


def watch(url: str, count: int, seconds: int) -> Metrics:
    """Run the beat and return what it did within the seconds after its lead."""
    client = redis.Redis.from_url(url)
    client.flushall()
    app = Celery("paced", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=url, timezone="UTC", result_expires=None)
    begin = time.time() + 1
    put(client, count, begin)
    service = Service(app, scheduler_cls=NotingScheduler)
    service.scheduler.runs = []
    opens = begin + LEAD
    timer = threading.Timer(opens + seconds + 1 - time.time(), service.stop)
    timer.start()
    service.start()
    timer.cancel()
    return metrics_of(service.scheduler.runs, count, opens, opens + seconds)


def metrics_of(
    runs: list[tuple[float, str, float]], count: int, opens: float, closes: float
) -> Metrics:
    """Return lateness and what was lost among the runs that were due between two instants."""
    watched = [run for run in runs if opens <= run[0] < closes]
    different = {(round(due, 3), name) for due, name, _ in watched}
    late = [late for _, _, late in watched]
    return {
        "runs": len(watched),
        "lost": count * round(closes - opens) - len(different),
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
    options = parser.parse_args(argv)
    print(json.dumps(watch(options.url, options.entries, options.seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
