"""Measures a scheduler other than RedBeat, without a broker.

Run this file as a script, in the virtual environment of the measured scheduler::

    python peerload.py PEER URL tick --entries 1000 --seconds 30

``PEER`` is ``celery``, ``django`` or ``redisbeat``. The script may delete all data of the Redis
server at ``URL``. The script prints one JSON object, metric -> number. For the workload ``tick``,
the metric ``each`` is the number of seconds per entry, and ``sent`` is the number of entries that
were sent within the time limit. For the workload ``idle``, ``each`` is the number of seconds per
tick. The exit code is 3 if the entries cannot be stored within the time limit.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler

Metrics = dict[str, float]

#: The interval of the entries, and the time since the last run of a due entry, in seconds.
EVERY = 3600
OVERDUE = EVERY + 1

#: Exit code if the entries cannot be stored within the time limit.
TOO_SLOW = 3

#: Maximum number of idle ticks to measure.
IDLE_TICKS = 20


def last_run(due: bool) -> datetime:
    """Return the time of the last run of an entry that is due, or not due if ``due`` is false."""
    return datetime.now(timezone.utc) - timedelta(seconds=OVERDUE if due else 1)


def unsent(scheduler: type) -> Any:
    """Return a subclass of ``scheduler`` that counts messages instead of publishing them."""

    def send_task(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        self.sent += 1
        return SimpleNamespace(id="")

    return type("Unsent", (scheduler,), {"send_task": send_task, "sent": 0})


def celery_peer(url: str, count: int, due: bool) -> Any:
    """Return Celery's own scheduler, which stores its entries in a shelve file."""
    app = Celery("peer", broker="memory://", set_as_current=False)
    app.conf.update(timezone="UTC", result_expires=None, redbeat_redis_url=url)
    directory = tempfile.mkdtemp(prefix="redbeat-benchmark-")
    app.conf.beat_schedule = {
        f"entry-{index}": {
            "task": "unknown",
            "schedule": timedelta(seconds=EVERY),
            "args": (index,),
            "kwargs": {"three": 3},
            "last_run_at": last_run(due),
        }
        for index in range(count)
    }
    return unsent(PersistentScheduler)(app, schedule_filename=f"{directory}/schedule")


def django_peer(url: str, count: int, due: bool) -> Any:
    """Return the scheduler of django-celery-beat, which stores its entries in SQLite."""
    name = Path(tempfile.mkdtemp(prefix="redbeat-benchmark-")) / "db.sqlite3"
    import_module("django.conf").settings.configure(
        INSTALLED_APPS=["django_celery_beat"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}},
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    import_module("django").setup()
    import_module("django.core.management").call_command("migrate", verbosity=0)
    models = import_module("django_celery_beat.models")
    every = models.IntervalSchedule.objects.create(every=EVERY, period="seconds")
    last_run_at = last_run(due)
    models.PeriodicTask.objects.bulk_create(
        (
            models.PeriodicTask(
                name=f"entry-{index}",
                task="unknown",
                interval=every,
                args=f"[{index}]",
                kwargs='{"three": 3}',
                last_run_at=last_run_at,
            )
            for index in range(count)
        ),
        batch_size=5000,
    )
    app = Celery("peer", broker="memory://", set_as_current=False)
    app.conf.update(timezone="UTC", result_expires=None, redbeat_redis_url=url)
    return unsent(import_module("django_celery_beat.schedulers").DatabaseScheduler)(app)


def redisbeat_peer(url: str, count: int, due: bool) -> Any:
    """Return the scheduler of redisbeat, which stores its entries in Redis."""
    app = Celery("peer", broker="memory://")  # redisbeat needs a current Celery app
    app.conf.update(timezone="UTC", result_expires=None, CELERY_REDIS_SCHEDULER_URL=url)
    import_module("redis").Redis.from_url(url, socket_timeout=120).flushall()
    scheduler = unsent(import_module("redisbeat.scheduler").RedisScheduler)(app=app)
    for index in range(count):
        scheduler.add(
            name=f"entry-{index}",
            task="unknown",
            schedule=timedelta(seconds=EVERY),
            args=(index,),
            kwargs={"three": 3},
            last_run_at=last_run(due),
        )
    if due:
        make_due(url)
    return scheduler


def make_due(url: str) -> None:
    """Set the scores of all entries to an instant in the past."""
    client: Any = import_module("redis").Redis.from_url(url)
    for key in client.scan_iter(_type="zset"):
        members = client.zrange(key, 0, -1)
        for start in range(0, len(members), 1000):
            client.zadd(key, dict.fromkeys(members[start : start + 1000], time.time() - 1))


PEERS = {"celery": celery_peer, "django": django_peer, "redisbeat": redisbeat_peer}


def run_tick(scheduler: Any, options: argparse.Namespace) -> Metrics:
    """Tick until all entries are sent or the time limit is reached; return metrics."""
    started = time.perf_counter()
    while scheduler.sent < options.entries:
        scheduler.tick()
        if time.perf_counter() - started > options.seconds:
            break
    seconds = time.perf_counter() - started
    return {"each": seconds / max(scheduler.sent, 1), "sent": scheduler.sent}


def run_idle(scheduler: Any, options: argparse.Namespace) -> Metrics:
    """Tick while no entry is due; return the mean time of a tick.

    The first tick is not measured, because it loads the entries.
    """
    scheduler.tick()
    ticks, started = 0, time.perf_counter()
    while ticks < IDLE_TICKS and time.perf_counter() - started < options.seconds:
        scheduler.tick()
        ticks += 1
    return {"each": (time.perf_counter() - started) / max(ticks, 1), "sent": scheduler.sent}


def too_slow(*_signal: Any) -> None:
    """Exit with the exit code ``TOO_SLOW``."""
    print("the entries could not be stored within the time limit", file=sys.stderr)
    sys.exit(TOO_SLOW)


def main(argv: list[str]) -> None:
    """Store entries, run a workload and print its metrics."""
    parser = argparse.ArgumentParser(prog="peerload", description=__doc__)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("url")
    parser.add_argument("workload", choices=("idle", "tick"))
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(options.seconds)
    scheduler = PEERS[options.peer](options.url, options.entries, options.workload == "tick")
    signal.alarm(0)
    work = run_tick if options.workload == "tick" else run_idle
    print(json.dumps(work(scheduler, options)))


if __name__ == "__main__":
    main(sys.argv[1:])
