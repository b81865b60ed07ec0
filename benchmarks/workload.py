"""One measurement of whichever RedBeat the interpreter that runs this file has installed.

A script, not a module of the package: it runs under two interpreters, one with this project and
one with the release it is compared to, so it uses nothing but what both offer::

    python workload.py URL tick --entries 1000

``URL`` is a Redis that may be emptied. Prints one JSON object, metric -> number. Times are seconds
for the whole operation, unless a name ends in ``_each``.
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

# What lies beside a script is in no package.
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

#: Ticks that may be needed for what is due at once.
MAX_TICKS = 1000

#: The schedules that entries may have, as Python objects.
SCHEDULES: dict[str, Callable[[], Any]] = {
    "interval": lambda: schedule(EVERY),
    "crontab": lambda: crontab(minute="0"),
}


def run_tick(client: Any, options: argparse.Namespace) -> Metrics:
    """Ticks with entries due: the first one a beat sees, and the median of the later ones.

    ``redis_each`` is the CPU that Redis took per entry, all ticks together. The messages are sent
    where there is a broker to send them to.
    """
    meter, costs, redis_cpu = Meter(), [], 0.0
    kind = CountingScheduler if options.broker else UnsentScheduler
    with beat(make_app(options.url, options.broker), kind) as scheduler:
        for turn in range(1, options.repeat + 2):
            seed_due(client, options.entries, options.schedule)
            before = server_cpu(client)
            costs.append(meter.cost(partial(tick_until, scheduler, turn * options.entries)))
            redis_cpu += server_cpu(client) - before
            expect(scheduler.sent, turn * options.entries, "entries were sent")
    later = median(costs[1:])
    return {
        "first_each": costs[0].seconds / options.entries,
        "later_each": later.seconds / options.entries,
        "redis_each": redis_cpu / (options.entries * (options.repeat + 1)),
        "round_trips": later.round_trips,
    }


def tick_until(scheduler: CountingScheduler, sent: int) -> None:
    """Tick until so many entries were sent, in all: one tick ends after a while."""
    for _ in range(MAX_TICKS):
        scheduler.tick()
        if scheduler.sent >= sent:
            return


def server_cpu(client: Any) -> float:
    """Return the seconds of CPU that the server has used."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def run_startup(client: Any, options: argparse.Namespace) -> Metrics:
    """Starts with static entries, none of them in Redis, then all of them; and each one's end."""
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
    """Make a beat, let it lead and tick once, and end it."""
    with beat(app):
        pass


def run_idle(client: Any, options: argparse.Namespace) -> Metrics:
    """Ticks with nothing due, in turn with those of a beat for which nothing is stored.

    Commands are those that Redis ran, in scripts or not.
    """
    now = datetime.now(timezone.utc)
    seed(client, options.entries, options.schedule, now, int(now.timestamp()) + EVERY)
    meter, costs, others = Meter(), [], []
    own, other = make_app(options.url), make_app(options.url, redbeat_key_prefix="another:")
    with beat(own) as scheduler, beat(other) as empty:
        client.config_resetstat()
        for _ in range(options.repeat):
            scheduler.tick()
        ran = client.info("commandstats")
        for _ in range(options.repeat):
            costs.append(meter.cost(scheduler.tick))
            others.append(meter.cost(empty.tick))
    idle, left_out = median(costs), ("cmdstat_info", "cmdstat_config|resetstat", "cmdstat_config")
    commands = sum(stats["calls"] for name, stats in ran.items() if name not in left_out)
    return {
        "each": idle.seconds,
        "none": median(others).seconds,
        "round_trips": idle.round_trips,
        "commands": commands / options.repeat,
    }


def run_save(client: Any, options: argparse.Namespace) -> Metrics:
    """Saves of new entries, and of new objects under the same names."""
    app, meter = make_app(options.url), Meter()
    in_one_go = saver(app)
    in_one_go(make_entries(app, 1, options.schedule))  # connects
    client.flushdb()
    new, again = (
        meter.cost(partial(save_all, make_entries(app, options.entries, options.schedule)))
        for _ in range(2)
    )
    others = make_entries(app, options.entries, options.schedule)
    for entry in others:
        entry.name = f"other-{entry.name}"
    together = meter.cost(partial(in_one_go, others))
    return {
        "all_each": together.seconds / options.entries,
        "new_each": new.seconds / options.entries,
        "again_each": again.seconds / options.entries,
        "new_round_trips": new.round_trips / options.entries,
        "again_round_trips": again.round_trips / options.entries,
    }


def make_entries(app: Celery, count: int, kind: str) -> list[RedBeatSchedulerEntry]:
    """Return entries that do not know what is stored."""
    make = SCHEDULES[kind]
    return [
        RedBeatSchedulerEntry(f"entry-{index}", "unknown", make(), args=[1, "two"], app=app)
        for index in range(count)
    ]


def save_all(entries: list[RedBeatSchedulerEntry]) -> None:
    """Save the entries, one by one."""
    for entry in entries:
        entry.save()


def saver(app: Celery) -> Callable[[list[RedBeatSchedulerEntry]], Any]:
    """Return what saves entries in one go; the release has nothing for it but one by one."""
    try:
        from redbeat import Schedule  # noqa: PLC0415 - the release has none
    except ImportError:
        return save_all
    return Schedule(app).save_all


def expect(found: int, wanted: int, what: str) -> None:
    """End the measurement when it measured something else."""
    if found != wanted:
        raise SystemExit(f"{found} of {wanted} {what}")


def run_memory(client: Any, options: argparse.Namespace) -> Metrics:
    """Bytes per entry: saved, and after it ran once."""
    app = make_app(options.url)
    make_entries(app, 1, options.schedule)[0].save()
    start(app)
    client.flushdb()  # what stays is the text of the scripts
    before = used_memory(client)
    save_all(make_entries(app, options.entries, options.schedule))
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
    """Return the bytes that Redis uses for its data set, when no table is moved to a larger one.

    Each look at a table moves a part of it.
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
    """Return the options of one measurement."""
    parser = argparse.ArgumentParser(prog="workload", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="interval")
    parser.add_argument("--broker", metavar="URL", help="tick: send the messages there")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Empty the Redis, run a workload, print its metrics."""
    options = arguments(argv)
    Meter.profile = cProfile.Profile() if options.profile else None
    client = emptied(options.url, decode_responses=True)
    print(json.dumps(WORKLOADS[options.workload](client, options)))
    if Meter.profile is not None:
        pstats.Stats(Meter.profile).sort_stats("tottime").print_stats(50)


if __name__ == "__main__":
    main(sys.argv[1:])
