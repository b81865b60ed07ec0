"""The cost of ticks, starts and saves in Redis: round trips, commands and bytes.

The expected numbers of round trips and commands are upper bounds. If your change lowers one, lower
the number in the test too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from math import ceil

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.beat.session import MAX_PENDING_RUNS
from redbeat.storage.reading import BATCH
from tests.deployments import PREFIX
from tests.samples import long

from .clients import CountingRedis
from .conftest import SCHEDULE, Clock, RecordingScheduler, World, datetime_json, interval_json
from .costs import Cost, Meter

#: Some counters depend on the kind of server. For example, a master also sends data to replicas.
pytestmark = pytest.mark.standalone

HOUR = 3600.0

#: Each cost is measured with these numbers of entries.
COUNTS = (1, 500, pytest.param(5000, marks=pytest.mark.long))

#: Maximum bytes of a round trip without entries. It contains key names and the lock state.
TRIP = 1200

#: Maximum number of metrics counters that one request may increment.
COUNTED = 8


@pytest.fixture
def meter(redis_url: str, counting: CountingRedis) -> Iterator[Meter]:
    """A meter for the requests of the app's client."""
    meter = Meter(redis_url, counting)
    yield meter
    meter.close()


def leading(world: World) -> RecordingScheduler:
    """Return a scheduler after its first tick. Its clock never advances."""
    scheduler = world.scheduler(clock=Clock())
    scheduler.tick()
    return scheduler


def seed(world: World, count: int) -> None:
    """Store due entries of a typical size. Their last run was an hour ago."""
    meta = json.dumps({"last_run_at": datetime_json(world.ago(HOUR + 1)), "total_run_count": 1})
    score = world.now() - 1
    pipeline = world.client.pipeline(transaction=False)
    for number in range(count):
        definition = {
            "name": f"entry-{number:06}",
            "task": "tasks.report",
            "args": [number],
            "kwargs": {"three": 3},
            "options": {},
            "schedule": interval_json(HOUR),
            "enabled": True,
        }
        key = f"{PREFIX}entry-{number:06}"
        pipeline.hset(key, mapping={"definition": json.dumps(definition), "meta": meta})
        pipeline.zadd(SCHEDULE, {key: score})
    pipeline.execute()


def assert_cost(cost: Cost, trips: int, commands: int, sent: int = 0, received: int = 0) -> None:
    """Assert the cost of an operation.

    All numbers are upper bounds. :data:`TRIP` is added to the bytes for each round trip.
    ``commands`` excludes ``HINCRBY``, whose number depends on how late runs were, and ``TIME``, by
    which a script measures its run time on some servers.
    """
    counted = cost.calls["hincrby"]
    assert 0 < cost.trips <= trips, cost
    assert 0 < cost.commands - counted - cost.calls["time"] <= commands, cost
    assert counted <= COUNTED * trips, cost
    assert cost.sent <= trips * TRIP + sent, cost
    assert cost.received <= trips * TRIP + received, cost


def batches(count: int) -> int:
    """Return the number of batches in which ``count`` entries are claimed or saved."""
    return ceil(count / BATCH)


# -- ticks ----------------------------------------------------------------------------------------


#: Commands of a tick in addition to 5 per entry, keyed by the number of entries.
AROUND = {1: 30, 500: 156, 5000: 1542}


@pytest.mark.parametrize("count", COUNTS)
def test_a_tick_with_entries_due(world: World, meter: Meter, count: int) -> None:
    scheduler = leading(world)
    seed(world, count)

    cost = meter.cost(scheduler.tick)

    assert len(scheduler.sent) == count
    trips = batches(count) + ceil(count / MAX_PENDING_RUNS)
    assert_cost(cost, trips, 5 * count + AROUND[count], sent=384 * count, received=467 * count)


def test_the_second_run_costs_no_more_commands(world: World, meter: Meter) -> None:
    """In the second run, each entry has a history, and the beat has cached its definition."""
    scheduler = leading(world)
    for _ in range(3):
        seed(world, 500)
        cost = meter.cost(scheduler.tick)
        assert_cost(
            cost,
            1 + 500 // MAX_PENDING_RUNS,
            5 * 500 + AROUND[500],
            sent=384 * 500,
            received=530 * 500,
        )


@pytest.mark.parametrize("count", [0, long(10_000)])
def test_an_idle_tick(world: World, meter: Meter, count: int) -> None:
    world.put_many(count, score=world.now() + HOUR)
    scheduler = leading(world)

    # With an entry that is due later, see also test_quick.py.
    assert_cost(meter.cost(scheduler.tick), trips=1, commands=5 if count else 13)


# -- starts ---------------------------------------------------------------------------------------


#: Commands of a start and a stop in addition to the commands per entry, keyed by the number of
#: entries. Two of them ask whether the empty schedule was lost; each batch counts the members.
AROUND_START = {1: 40, 500: 40, 5000: 79}


def start(app: Celery, world: World, count: int) -> None:
    """Start a beat with ``count`` static entries, then stop it."""
    app.conf.beat_schedule = {
        f"entry-{number:06}": {"task": "t", "schedule": timedelta(hours=1), "args": (number,)}
        for number in range(count)
    }
    leading(world).close()


@pytest.mark.parametrize("count", COUNTS)
def test_a_start(app: Celery, world: World, meter: Meter, count: int) -> None:
    start(app, world, 1)
    start(app, world, 0)  # loads the scripts

    cold = meter.cost(lambda: start(app, world, count))
    unchanged = meter.cost(lambda: start(app, world, count))

    # Two replies arrive in one round trip. A part of a scan has 2000 names.
    trips = 12 + batches(count) + count // 2000
    size = {"sent": 245 * count, "received": 21 * count}
    assert_cost(cold, trips, 7 * count + AROUND_START[count], **size)
    assert_cost(unchanged, trips, 2 * count + AROUND_START[count], **size)


# -- saves ----------------------------------------------------------------------------------------


@pytest.fixture
def entries(app: Celery, counting: CountingRedis) -> list[RedBeatSchedulerEntry]:
    """Entries that are not stored. Redis has loaded the scripts that save and delete entries."""
    assert app.redbeat_redis is counting
    entries = [RedBeatSchedulerEntry(f"e{number}", "t", 60.0, app=app) for number in range(501)]
    entries[-1].save()
    entries[-1].delete()
    return entries


def test_a_save(app: Celery, entries: list[RedBeatSchedulerEntry], meter: Meter) -> None:
    same = RedBeatSchedulerEntry("e0", entries[0].task, entries[0].schedule, app=app)
    changed = RedBeatSchedulerEntry("e0", "t", 30.0, args=[1], app=app)

    # In an empty schedule, one more command asks whether the schedule was lost.
    assert_cost(meter.cost(entries[0].save), trips=1, commands=8)
    assert_cost(meter.cost(entries[0].save), trips=1, commands=6)
    assert_cost(meter.cost(same.save), trips=1, commands=5, received=300)
    assert_cost(meter.cost(changed.save), trips=2, commands=10)  # reads the stored history


def test_a_delete(entries: list[RedBeatSchedulerEntry], meter: Meter) -> None:
    entries[0].save()

    # One of the commands asks whether a beat has noted the number of entries.
    assert_cost(meter.cost(entries[0].delete), trips=1, commands=5)


@pytest.mark.parametrize("count", [1, 500])
def test_many_saves(
    app: Celery, entries: list[RedBeatSchedulerEntry], meter: Meter, count: int
) -> None:
    schedule = Schedule(app)

    cost = meter.cost(lambda: schedule.save_all(entries[:count]))

    assert_cost(cost, trips=1, commands=3 * count + 5, sent=425 * count, received=3 * count)
