"""``python -m benchmarks.shards`` measures how much CPU time a run costs with several shards.

The schedule is in a Redis Cluster with three masters, and the broker is another Redis server. A
beat in this process sends the runs of all entries, which are due at once. The table shows the CPU
time of the beat and of the servers per run, because CPU time varies less than elapsed time on a
busy machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import redis
from celery import Celery
from celery.schedules import schedule

import redbeat
from redbeat.beat.parts import PartedBeat
from redbeat.config import get_redis
from redbeat.storage.store import store_of
from tests.schedulers import Scheduler
from tests.servers import RedisServer
from tests.topologies.groups import ClusterGroup

from .scale import server_cpu

__all__ = ("Cost", "main", "measure")

#: Seconds after which a measurement counts as failed.
DEADLINE = 300.0


class Cost(NamedTuple):
    """The CPU seconds per run of the beat, the broker, all masters and the busiest master."""

    shards: int
    beat: float
    broker: float
    masters: float
    busiest: float

    @property
    def line(self) -> str:
        """The costs as a row of the table."""
        costs = "  ".join(f"{cost * 1e6:8.1f} us" for cost in self[1:])
        return f"{self.shards:6}  {costs}"


def app_for(group: ClusterGroup, broker: RedisServer, shards: int) -> Celery:
    """Return an app whose schedule has ``shards`` shards."""
    app = Celery("shards", broker=broker.url, set_as_current=False)
    app.conf.update(
        redbeat_redis_url=group.url,
        redbeat_redis_options={"startup_nodes": group.addresses},
        redbeat_shards=shards,
        redbeat_log_dispatch="summary",
        result_expires=None,
        timezone="UTC",
    )
    return app


def save(app: Any, count: int) -> None:
    """Save entries that run every hour and are first due an hour from now."""
    entries = (
        redbeat.RedBeatSchedulerEntry(
            f"tenant-{number // 100:04}:entry-{number % 100}",
            "proj.task",
            schedule(3600),
            kwargs={"number": number},
            app=app,
        )
        for number in range(count)
    )
    redbeat.Schedule(app).save_all(entries)


def make_due(client: Any, app: Any) -> None:
    """Make all entries due immediately, with raw Redis commands."""
    for part in store_of(app).parts:
        pipe = client.pipeline(transaction=False)
        for key in client.zrange(part.keys.schedule, 0, -1):
            pipe.zadd(part.keys.schedule, {key: 1.0})
            pipe.hdel(key, "meta", "beat_state")
        pipe.execute()


def wake(scheduler: Scheduler) -> None:
    """Wake each shard, as a message on the wake-up channel of the shard does."""
    beat = scheduler.beat
    for channel in beat.channels if isinstance(beat, PartedBeat) else ():
        beat.wake(channel)


def measure(group: ClusterGroup, broker: RedisServer, count: int, shards: int, rounds: int) -> Cost:
    """Return the lowest costs per run in ``rounds`` rounds, each with ``count`` runs."""
    cluster, queue = group.client(), redis.Redis.from_url(broker.url)
    nodes = [redis.Redis(port=node.port) for node in group.nodes]
    servers = [queue, *nodes]
    app = app_for(group, broker, shards)
    cluster.flushall()
    save(app, count)
    scheduler = Scheduler(app)
    _send_all(scheduler, queue, 0)
    found = []
    for _ in range(rounds):
        make_due(cluster, app)
        wake(scheduler)
        queue.flushall()
        before, began = [server_cpu(server) for server in servers], time.process_time()
        _send_all(scheduler, queue, count)
        beat = time.process_time() - began
        each = [server_cpu(server) - cpu for server, cpu in zip(servers, before, strict=True)]
        totals = (beat, each[0], sum(each[1:]), max(each[1:]))
        found.append([total / count for total in totals])
    scheduler.close()
    get_redis(app).close()
    return Cost(shards, *(min(column) for column in zip(*found, strict=True)))


def _send_all(scheduler: Scheduler, queue: Any, count: int) -> None:
    """Tick until the queue has ``count`` messages, or for 3 seconds if ``count`` is 0."""
    until = time.monotonic() + DEADLINE
    begin = time.monotonic()
    while time.monotonic() < until:
        seconds = scheduler.tick()
        sent = queue.llen("celery")
        if sent >= count and (count or time.monotonic() - begin > 3):
            return
        time.sleep(min(seconds, 0.05))
    raise RuntimeError("the beat did not send all runs in time")


def rows(count: int, numbers: Sequence[int], rounds: int) -> Iterator[Cost]:
    """Yield the costs for each number of shards in ``numbers``."""
    with ClusterGroup(replicas=False) as group, RedisServer() as broker:
        for shards in numbers:
            yield measure(group, broker, count, shards, rounds)


def main(argv: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 64])
    options = parser.parse_args(argv)
    print("shards  beat         broker       masters      busiest master (per run)", flush=True)
    for cost in rows(options.entries, options.shards, options.rounds):
        print(cost.line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
