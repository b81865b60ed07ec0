"""What ticks cost in Redis: round trips and commands. All numbers are upper bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import ceil
from typing import Any

import pytest
import redis
from celery import Celery

from tests.beat.sending import Clock
from tests.scheduler.clients import CountingRedis
from tests.scheduler.conftest import counting
from tests.scheduler.costs import Meter
from tests.schedulers import Scheduler
from tests.servers import RedisServer

__all__ = ("counting",)

pytestmark = pytest.mark.standalone

SCHEDULE = "redbeat::schedule"

#: The round trips of a tick besides those per fifty runs, and its commands besides those per run.
TRIPS, COMMANDS = 4, 40


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    """A broker on a server of its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def meter(redis_url: str, counting: CountingRedis) -> Iterator[Meter]:
    meter = Meter(redis_url, counting)
    yield meter
    meter.close()


class Still(Scheduler):
    """A scheduler for which no time passes: neither a tick nor a turn ends early."""

    clock = Clock()


def leading(app: Celery) -> Scheduler:
    """Return a beat that leads, and has loaded its script."""
    scheduler = Still(app)
    for _ in range(3):
        scheduler.tick()
    return scheduler


def seed(client: Any, count: int, score: float) -> None:
    """Store hourly entries as a program of RedBeat 2 does."""
    pipeline = client.pipeline(transaction=False)
    every = {"__type__": "interval", "every": 3600.0, "relative": False}
    for number in range(count):
        name = f"e{number}"
        definition = {"name": name, "task": "proj.note", "schedule": every, "enabled": True}
        pipeline.hset(f"redbeat:{name}", "definition", json.dumps(definition))
        pipeline.zadd(SCHEDULE, {f"redbeat:{name}": score})
    pipeline.execute()


def now_of(client: Any) -> float:
    seconds, micros = client.time()
    return float(seconds + micros / 1e6)


@pytest.mark.parametrize("count", [1, 200, pytest.param(1001, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("delivery", "turns", "commands"),
    # At least once holds fifty runs before it publishes them.
    [(None, 1, 12), ("at_least_once", 2, 14), ("at_most_once", 1, 12)],
)
def test_a_tick_with_entries_due(
    app: Celery,
    redis_client: Any,
    broker: RedisServer,
    redis_url: str,
    meter: Meter,
    count: int,
    delivery: str | None,
    turns: int,
    commands: int,
) -> None:
    app.conf.broker_url = broker.url if delivery else redis_url.rsplit("/", 1)[0] + "/5"
    app.conf.redbeat_delivery = delivery
    scheduler = leading(app)
    seed(redis_client, 1, now_of(redis_client) - 1)
    scheduler.tick()  # connects to the broker
    redis_client.delete("redbeat:e0")
    seed(redis_client, count, now_of(redis_client) - 1)

    cost = meter.cost(scheduler.tick)

    scheduler.close()
    with redis.Redis.from_url(str(app.conf.broker_url)) as client:
        assert client.llen("celery") == count + 1
        client.flushdb()
    assert cost.trips <= turns * ceil(count / 50) + ceil(count / 100) + TRIPS, cost
    assert cost.commands <= commands * count + 10 * cost.trips + COMMANDS, cost


@pytest.mark.parametrize("count", [0, 1000])
def test_an_idle_tick(app: Celery, redis_client: Any, meter: Meter, count: int) -> None:
    seed(redis_client, count, now_of(redis_client) + 3600)
    scheduler = leading(app)

    cost = meter.cost(scheduler.tick)

    scheduler.close()
    assert cost.trips == 1
    assert cost.commands <= 20, cost
