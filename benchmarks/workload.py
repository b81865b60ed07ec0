"""Runs one workload with the version of RedBeat that the running interpreter imports.

The script uses only functions that RedBeat 3 and RedBeat 2 have. Run the script in the Python
environment of RedBeat 3 or RedBeat 2::

    python workload.py URL tick --entries 1000

The script deletes all data of the Redis server at ``URL``. The script prints one JSON object,
metric -> number. Times are in seconds per operation, or in seconds per entry if the name of the
metric ends in ``_each``.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any

from celery import Celery
from celery.schedules import crontab, schedule

# A script imports the modules in its own directory without a package.
from metering import Meter, Metrics, median  # type: ignore[import-not-found,unused-ignore]
from prepared import (  # type: ignore[import-not-found,unused-ignore]
    EVERY,
    CountingScheduler,
    UnsentScheduler,
    beat,
    emptied,
    make_app,
    seed,
    seed_due,
)

from redbeat import RedBeatSchedulerEntry

#: Maximum number of ticks in which all due entries must be sent.
MAX_TICKS = 1000

#: Number of idle ticks during which the commands and the CPU time of Redis are measured.
#: Many ticks are necessary, because the CPU time of Redis is precise to only a few milliseconds.
IDLE_TICKS = 2000

#: Name of a kind of schedule -> a function that returns a schedule.
SCHEDULES: dict[str, Callable[[], Any]] = {
    "interval": lambda: schedule(EVERY),
    "crontab": lambda: crontab(minute="0"),
}


def run_tick(client: Any, options: argparse.Namespace) -> Metrics:
    """Measure ticks with due entries: the first tick, and the median of all later ticks.

    ``redis_each`` is the mean CPU time of Redis per entry. Messages are published only with the
    option ``--broker``.
    """
    meter, costs, redis_cpu = Meter(), [], 0.0
    kind = CountingScheduler if options.broker else UnsentScheduler
    with beat(make_app(options.url, options.broker), kind) as scheduler:
        for number in range(1, options.repeat + 2):
            seed_due(client, options.entries, options.schedule)
            before = server_cpu(client)
            costs.append(meter.cost(partial(tick_until, scheduler, number * options.entries)))
            redis_cpu += server_cpu(client) - before
            expect(scheduler.sent, number * options.entries, "entries were sent")
    later = median(costs[1:])
    return {
        "first_each": costs[0].seconds / options.entries,
        "later_each": later.seconds / options.entries,
        "redis_each": redis_cpu / (options.entries * (options.repeat + 1)),
        "round_trips": later.round_trips,
    }


def tick_until(scheduler: CountingScheduler, sent: int) -> None:
    """Tick until ``sent`` messages were sent in total; one tick may not be enough."""
    for _ in range(MAX_TICKS):
        scheduler.tick()
        if scheduler.sent >= sent:
            return


def server_cpu(client: Any) -> float:
    """Return the CPU seconds that the Redis server has used."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def run_startup(client: Any, options: argparse.Namespace) -> Metrics:
    """Measure two starts of a beat with static entries.

    At the first start (cold), no entry is stored. At the second start (warm), all entries are
    stored. The times include the shutdown of the beat.
    """
    make = SCHEDULES[options.schedule]
    statics = {
        f"entry-{index}": {"task": "unknown", "schedule": make(), "args": (1, "two")}
        for index in range(options.entries)
    }
    meter = Meter()
    cold, warm = (
        meter.cost(partial(start, make_app(options.url, beat_schedule=dict(statics))))
        for _ in range(2)
    )
    expect(client.zcard("redbeat::schedule"), options.entries, "static entries were stored")
    return {
        "cold": cold.seconds,
        "warm": warm.seconds,
        "cold_round_trips": cold.round_trips,
        "warm_round_trips": warm.round_trips,
    }


def start(app: Celery) -> None:
    """Start a beat, tick once, and stop it."""
    with beat(app):
        pass


def run_idle(client: Any, options: argparse.Namespace) -> Metrics:
    """Measure idle ticks of two beats; the schedule of the second beat is empty.

    The ticks of the two beats alternate. ``commands`` is the number of Redis commands per tick,
    including the commands in scripts, and ``redis_each`` is the mean CPU time of Redis per tick.
    With the option ``--no-lock``, the beats use no lock.
    """
    now = datetime.now(timezone.utc)
    seed(client, options.entries, options.schedule, now, int(now.timestamp()) + EVERY)
    meter, costs, empty_costs = Meter(), [], []
    settings = {"redbeat_lock_key": None} if options.no_lock else {}
    full_app = make_app(options.url, **settings)
    empty_app = make_app(options.url, redbeat_key_prefix="another:", **settings)
    with beat(full_app) as scheduler, beat(empty_app) as empty:
        client.config_resetstat()
        before = server_cpu(client)
        for _ in range(IDLE_TICKS):
            scheduler.tick()
        redis_cpu, ran = server_cpu(client) - before, client.info("commandstats")
        for _ in range(options.repeat):
            costs.append(meter.cost(scheduler.tick))
            empty_costs.append(meter.cost(empty.tick))
    idle, ignored = median(costs), ("cmdstat_info", "cmdstat_config|resetstat", "cmdstat_config")
    commands = sum(stats["calls"] for name, stats in ran.items() if name not in ignored)
    return {
        "each": idle.seconds,
        "none": median(empty_costs).seconds,
        "round_trips": idle.round_trips,
        "commands": commands / IDLE_TICKS,
        "redis_each": redis_cpu / IDLE_TICKS,
    }


def run_save(client: Any, options: argparse.Namespace) -> Metrics:
    """Measure the time to save new entries, stored entries, and many entries at once."""
    app, meter = make_app(options.url), Meter()
    save_together = bulk_saver(app)
    save_together(make_entries(app, 1, options.schedule))  # connects to Redis
    client.flushdb()
    new, again = (
        meter.cost(partial(save_each, make_entries(app, options.entries, options.schedule)))
        for _ in range(2)
    )
    others = make_entries(app, options.entries, options.schedule)
    for entry in others:
        entry.name = f"other-{entry.name}"
    together = meter.cost(partial(save_together, others))
    return {
        "all_each": together.seconds / options.entries,
        "new_each": new.seconds / options.entries,
        "again_each": again.seconds / options.entries,
        "new_round_trips": new.round_trips / options.entries,
        "again_round_trips": again.round_trips / options.entries,
    }


def make_entries(app: Celery, count: int, kind: str) -> list[RedBeatSchedulerEntry]:
    """Return new entry objects, without reading stored entries."""
    make = SCHEDULES[kind]
    return [
        RedBeatSchedulerEntry(f"entry-{index}", "unknown", make(), args=[1, "two"], app=app)
        for index in range(count)
    ]


def save_each(entries: list[RedBeatSchedulerEntry]) -> None:
    """Save the entries one by one."""
    for entry in entries:
        entry.save()


def bulk_saver(app: Celery) -> Callable[[list[RedBeatSchedulerEntry]], Any]:
    """Return a function that saves many entries; RedBeat 2 can only save them one by one."""
    try:
        from redbeat import Schedule  # noqa: PLC0415 - missing in RedBeat 2
    except ImportError:
        return save_each
    return Schedule(app).save_all


def expect(actual: int, expected: int, what: str) -> None:
    """Exit with an error if a count differs from the expected count."""
    if actual != expected:
        raise SystemExit(f"{actual} instead of {expected} {what}")


def run_memory(client: Any, options: argparse.Namespace) -> Metrics:
    """Measure the memory of Redis per entry in bytes, after a save and after one run."""
    app = make_app(options.url)
    make_entries(app, 1, options.schedule)[0].save()
    start(app)
    client.flushdb()  # FLUSHDB keeps loaded scripts, so their memory is not measured
    before = used_memory(client)
    save_each(make_entries(app, options.entries, options.schedule))
    saved = used_memory(client)
    with beat(app) as scheduler:
        seed_due(client, options.entries, options.schedule)
        scheduler.tick()
    ran = used_memory(client)
    return {
        "saved_each": (saved - before) / options.entries,
        "ran_each": (ran - before) / options.entries,
    }


def used_memory(client: Any) -> int:
    """Return the size of the data in Redis in bytes.

    Redis resizes a hash table in small steps, one step per access. This function first accesses all
    keys, so that Redis finishes resizing its hash tables.
    """
    members = client.zrange("redbeat::schedule", 0, -1)
    pipe = client.pipeline(transaction=False)
    for member in members * 2:
        pipe.zscore("redbeat::schedule", member)
        pipe.exists(member)
    pipe.execute()
    return int(client.info("memory")["used_memory_dataset"])


WORKLOADS: dict[str, Callable[[Any, argparse.Namespace], Metrics]] = {
    "idle": run_idle,
    "memory": run_memory,
    "save": run_save,
    "startup": run_startup,
    "tick": run_tick,
}


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(prog="workload", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="interval")
    parser.add_argument(
        "--broker", metavar="URL", help="publish the messages of the workload tick to this broker"
    )
    parser.add_argument(
        "--no-lock", action="store_true", help="run the beats of the workload idle without a lock"
    )
    parser.add_argument("--profile", action="store_true", help="print a profile")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Delete all data of the Redis server, run a workload and print its metrics."""
    options = arguments(argv)
    Meter.profile = cProfile.Profile() if options.profile else None
    client = emptied(options.url, decode_responses=True)
    print(json.dumps(WORKLOADS[options.workload](client, options)))
    if Meter.profile is not None:
        pstats.Stats(Meter.profile).sort_stats("tottime").print_stats(50)


if __name__ == "__main__":
    main(sys.argv[1:])
