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
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import redis
import redis.connection
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.schedulers import acquire_distributed_beat_lock

Metrics = dict[str, float]

#: Set by ``--profile``: sees what is measured, and nothing of its preparation.
PROFILE: cProfile.Profile | None = None

#: Entries written at once while a workload is prepared.
SEED_BATCH = 10_000

#: Ticks that may be needed for what is due at once.
MAX_TICKS = 1000

#: Seconds between two runs of an entry, and how long ago its last run was when it is due.
EVERY = 3600
OVERDUE = EVERY + 1

#: The schedules that entries may have, as stored.
STORED = {
    "interval": {"__type__": "interval", "every": float(EVERY), "relative": False},
    "second": {"__type__": "interval", "every": 1.0, "relative": False},
    "crontab": {
        "__type__": "crontab",
        "minute": "0",
        "hour": "*",
        "day_of_week": "*",
        "day_of_month": "*",
        "month_of_year": "*",
    },
}

#: The same as Python objects.
SCHEDULES: dict[str, Callable[[], Any]] = {
    "interval": lambda: schedule(EVERY),
    "crontab": lambda: crontab(minute="0"),
}


class UnsentScheduler(RedBeatScheduler):
    """The stock scheduler, except that nothing travels to a broker."""

    sent = 0

    def send_task(self, *_args: Any, **_kwargs: Any) -> None:
        """Take the message of an entry whose task this app does not know, and count it."""
        self.sent += 1


# -- Redis ------------------------------------------------------------------------------------


class RoundTrips:
    """Counts what is written to Redis sockets: a command, a script or a pipeline is one."""

    def __init__(self) -> None:
        self.count = 0
        connection: Any = redis.connection.AbstractConnection
        send = connection.send_packed_command

        def counted(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return send(this, *args, **kwargs)

        connection.send_packed_command = counted


@dataclass(frozen=True)
class Cost:
    """What a piece of work took: seconds, and round trips to Redis."""

    seconds: float
    round_trips: int


def cost(trips: RoundTrips, work: Callable[[], Any]) -> Cost:
    """Do the work and return what it took."""
    before, started = trips.count, time.perf_counter()
    if PROFILE is None:
        work()
    else:
        PROFILE.runcall(work)
    return Cost(time.perf_counter() - started, trips.count - before)


def median(costs: list[Cost]) -> Cost:
    """Return the medians of several pieces of work."""
    seconds = statistics.median(each.seconds for each in costs)
    return Cost(seconds, statistics.median_high(each.round_trips for each in costs))


def stored_datetime(instant: datetime) -> dict[str, Any]:
    """Return an instant in UTC as RedBeat stores it."""
    fields = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    parts = {name: getattr(instant, name) for name in fields}
    return {"__type__": "datetime", **parts, "timezone": "UTC"}


#: Stores entries from one index up to another; the index takes the place of @ in a definition.
SEED = """
local definition, meta, score = ARGV[3], ARGV[4], ARGV[5]
for index = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local number = string.format('%d', index)
  local key = 'redbeat:entry-' .. number
  local text = string.gsub(definition, '@', number)
  redis.call('HSET', key, 'definition', text, 'meta', meta)
  redis.call('ZADD', 'redbeat::schedule', score, key)
end
"""


def definition_of(kind: str) -> str:
    """Return the definition of an entry whose task no app knows, with @ in place of its index."""
    fields = {"args": ["@"], "kwargs": {"three": 3}, "options": {}, "enabled": True}
    named = {"name": "entry-@", "task": "unknown"}
    return json.dumps({**named, **fields, "schedule": STORED[kind]})


def seed(client: Any, count: int, kind: str, last_run_at: datetime, score: float) -> None:
    """Store entries as any program may; those that exist keep all but history and score."""
    meta = json.dumps({"last_run_at": stored_datetime(last_run_at), "total_run_count": 1})
    for start in range(0, count, SEED_BATCH):
        last = min(start + SEED_BATCH, count) - 1
        client.eval(SEED, 0, start, last, definition_of(kind), meta, score)


def seed_due(client: Any, count: int, kind: str) -> None:
    """Store entries that are due now."""
    now = datetime.now(timezone.utc)
    seed(client, count, kind, now - timedelta(seconds=OVERDUE), int(now.timestamp()) - 1)


def used_memory(client: Any) -> int:
    """Return the bytes that Redis uses for its data set."""
    return int(client.info("memory")["used_memory_dataset"])


# -- beats ------------------------------------------------------------------------------------


def make_app(url: str, **settings: Any) -> Celery:
    """Return an app with its schedule in Redis and its broker in memory."""
    app = Celery("benchmark", broker="memory://", set_as_current=False)
    # No result back end: the clean-up entry that Celery adds would be one more.
    app.conf.update(redbeat_redis_url=url, timezone="UTC", result_expires=None, **settings)
    return app


@contextmanager
def beat(app: Celery) -> Iterator[UnsentScheduler]:
    """Start the beat of ``app``: make it, let it lead, let it tick once; release its lock."""
    scheduler = UnsentScheduler(app)
    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
    try:
        scheduler.tick()
        yield scheduler
    finally:
        scheduler.close()


def start(app: Celery) -> None:
    """Make a beat, let it lead and tick once, and end it."""
    with beat(app):
        pass


# -- workloads --------------------------------------------------------------------------------


def run_tick(client: Any, options: argparse.Namespace) -> Metrics:
    """Ticks with entries due: the first one a beat sees, and the median of the later ones.

    ``redis_each`` is the CPU that Redis took per entry, all ticks together.
    """
    trips, costs, redis_cpu = RoundTrips(), [], 0.0
    with beat(make_app(options.url)) as scheduler:
        for turn in range(1, options.repeat + 2):
            seed_due(client, options.entries, options.schedule)
            before = server_cpu(client)
            costs.append(cost(trips, partial(tick_until, scheduler, turn * options.entries)))
            redis_cpu += server_cpu(client) - before
            expect(scheduler.sent, turn * options.entries, "entries were sent")
    later = median(costs[1:])
    return {
        "first_each": costs[0].seconds / options.entries,
        "later_each": later.seconds / options.entries,
        "redis_each": redis_cpu / (options.entries * (options.repeat + 1)),
        "round_trips": later.round_trips,
    }


def tick_until(scheduler: UnsentScheduler, sent: int) -> None:
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
    trips = RoundTrips()
    cold, warm = (
        cost(trips, partial(start, make_app(options.url, beat_schedule=dict(statics))))
        for _ in range(2)
    )
    expect(client.zcard("redbeat::schedule"), options.entries, "static entries were stored")
    return {
        "cold": cold.seconds,
        "warm": warm.seconds,
        "cold_round_trips": cold.round_trips,
        "warm_round_trips": warm.round_trips,
    }


def run_idle(client: Any, options: argparse.Namespace) -> Metrics:
    """Ticks with nothing due; commands are those that Redis ran, in scripts or not."""
    now = datetime.now(timezone.utc)
    seed(client, options.entries, options.schedule, now, int(now.timestamp()) + EVERY)
    trips = RoundTrips()
    with beat(make_app(options.url)) as scheduler:
        client.config_resetstat()
        costs = [cost(trips, scheduler.tick) for _ in range(options.repeat)]
        ran = client.info("commandstats")
    idle, own = median(costs), ("cmdstat_info", "cmdstat_config|resetstat", "cmdstat_config")
    commands = sum(stats["calls"] for name, stats in ran.items() if name not in own)
    return {
        "each": idle.seconds,
        "round_trips": idle.round_trips,
        "commands": commands / options.repeat,
    }


def run_save(client: Any, options: argparse.Namespace) -> Metrics:
    """Saves of new entries, and of new objects under the same names."""
    app, trips = make_app(options.url), RoundTrips()
    in_one_go = saver(app)
    in_one_go(make_entries(app, 1, options.schedule))  # connects
    client.flushdb()
    new, again = (
        cost(trips, partial(save_all, make_entries(app, options.entries, options.schedule)))
        for _ in range(2)
    )
    together = cost(trips, partial(save_together, app, options, in_one_go))
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


def save_together(
    app: Celery,
    options: argparse.Namespace,
    save: Callable[[list[RedBeatSchedulerEntry]], Any],
) -> None:
    """Make new entries and save them in one go."""
    entries = make_entries(app, options.entries, options.schedule)
    for entry in entries:
        entry.name = f"other-{entry.name}"
    save(entries)


def expect(found: int, wanted: int, what: str) -> None:
    """End the measurement when it measured something else."""
    if found != wanted:
        raise SystemExit(f"{found} of {wanted} {what}")


def run_memory(client: Any, options: argparse.Namespace) -> Metrics:
    """Bytes per entry: saved, and after it ran once."""
    app = make_app(options.url)
    client.set("warm", "1")
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
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Empty the Redis, run a workload, print its metrics."""
    global PROFILE  # noqa: PLW0603 - the one thing that spans a whole measurement
    options = arguments(argv)
    PROFILE = cProfile.Profile() if options.profile else None
    client: Any = redis.Redis.from_url(options.url, decode_responses=True)
    client.flushall()
    print(json.dumps(WORKLOADS[options.workload](client, options)))
    if PROFILE is not None:
        pstats.Stats(PROFILE).sort_stats("tottime").print_stats(50)


if __name__ == "__main__":
    main(sys.argv[1:])
