"""What ticks, starts and saves ask of Redis. These numbers do not vary; they may only fall.

A change that makes one of them smaller fails as well where it is exact: write the smaller one down,
so that it stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from math import ceil

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.beat import session
from redbeat.beat.session import RIPE_RUNS
from redbeat.storage.store import BATCH
from tests.deployments import PREFIX
from tests.samples import long

from .clients import CountingRedis
from .conftest import SCHEDULE, Clock, RecordingScheduler, World, datetime_json, interval_json
from .costs import Cost, Meter

#: What a server counts by itself depends on its kind: a master talks to its replica.
pytestmark = pytest.mark.standalone

HOUR = 3600.0

#: Entries of which each count is tried.
COUNTS = (1, 500, pytest.param(5000, marks=pytest.mark.long))

#: Bytes of one round trip that carries no entry: the names of keys, and where the lock stands.
TRIP = 1000

#: Kinds of what one turn may count.
COUNTED = 8


@pytest.fixture(autouse=True)
def fast_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, batches are as large as may be."""
    monkeypatch.setattr(session, "MOST_WORK", 10.0)


@pytest.fixture
def meter(redis_url: str, counting: CountingRedis) -> Iterator[Meter]:
    """What counts the costs on the server."""
    meter = Meter(redis_url, counting)
    yield meter
    meter.close()


def leading(world: World) -> RecordingScheduler:
    """Return a scheduler that has had its first tick; however slow it is, no time passes for it."""
    scheduler = world.scheduler(clock=Clock())
    scheduler.tick()
    return scheduler


def seed(world: World, count: int) -> None:
    """Store entries of the usual size that are due: their last run was an hour ago."""
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


def expect(cost: Cost, trips: int, commands: int, sent: int = 0, received: int = 0) -> None:
    """Fail where it is more, or less, than these; bytes are those beyond :data:`TRIP` at most.

    What was counted for the metrics is as many commands as there were kinds of it, which depends on
    how late runs were.
    """
    counted = cost.calls["hincrby"]
    assert cost.trips == trips, cost
    assert cost.commands - counted == commands, cost
    assert counted <= COUNTED * trips, cost
    assert cost.sent <= trips * TRIP + sent, cost
    assert cost.received <= trips * TRIP + received, cost


def batches(count: int) -> int:
    """Return in how many parts so many entries travel."""
    return ceil(count / BATCH)


# -- ticks ----------------------------------------------------------------------------------------


#: Commands of a tick that are not for one entry, for each count.
AROUND = {1: 32, 500: 166, 5000: 1642}


@pytest.mark.parametrize("count", COUNTS)
def test_a_tick_with_entries_due(world: World, meter: Meter, count: int) -> None:
    scheduler = leading(world)
    seed(world, count)

    cost = meter.cost(scheduler.tick)

    assert len(scheduler.sent) == count
    trips = batches(count) + ceil(count / RIPE_RUNS)
    expect(cost, trips, 5 * count + AROUND[count], sent=375 * count, received=467 * count)


def test_the_second_run_costs_no_more_commands(world: World, meter: Meter) -> None:
    """There is a history by then, and the texts of the run before."""
    scheduler = leading(world)
    for _ in range(3):
        seed(world, 500)
        cost = meter.cost(scheduler.tick)
        expect(
            cost, 1 + 500 // RIPE_RUNS, 5 * 500 + AROUND[500], sent=375 * 500, received=530 * 500
        )


@pytest.mark.parametrize("count", [0, long(10_000)])
def test_an_idle_tick(world: World, meter: Meter, count: int) -> None:
    world.put_many(count, score=world.now() + HOUR)
    scheduler = leading(world)

    expect(meter.cost(scheduler.tick), trips=1, commands=14)


# -- starts ---------------------------------------------------------------------------------------


#: Commands of a start and an end that are not for one entry, for each count.
AROUND_START = {1: 42, 500: 42, 5000: 78}


def start(app: Celery, world: World, count: int) -> None:
    """Start a beat with static entries and end it."""
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

    trips = 12 + batches(count)  # two replies come in one round trip
    size = {"sent": 245 * count, "received": 21 * count}
    expect(cold, trips, 7 * count + AROUND_START[count], **size)
    expect(unchanged, trips, 2 * count + AROUND_START[count], **size)


# -- saves ----------------------------------------------------------------------------------------


@pytest.fixture
def entries(app: Celery, counting: CountingRedis) -> list[RedBeatSchedulerEntry]:
    """Entries that are not stored; the scripts are loaded."""
    assert app.redbeat_redis is counting
    entries = [RedBeatSchedulerEntry(f"e{number}", "t", 60.0, app=app) for number in range(501)]
    entries[-1].save()
    entries[-1].delete()
    return entries


def test_a_save(app: Celery, entries: list[RedBeatSchedulerEntry], meter: Meter) -> None:
    same = RedBeatSchedulerEntry("e0", entries[0].task, entries[0].schedule, app=app)
    changed = RedBeatSchedulerEntry("e0", "t", 30.0, args=[1], app=app)

    expect(meter.cost(entries[0].save), trips=1, commands=8)
    expect(meter.cost(entries[0].save), trips=1, commands=7)
    expect(meter.cost(same.save), trips=1, commands=6, received=300)
    expect(meter.cost(changed.save), trips=2, commands=12)  # looks at the history that is stored


def test_a_delete(entries: list[RedBeatSchedulerEntry], meter: Meter) -> None:
    entries[0].save()

    expect(meter.cost(entries[0].delete), trips=1, commands=4)


@pytest.mark.parametrize("count", [1, 500])
def test_many_saves(
    app: Celery, entries: list[RedBeatSchedulerEntry], meter: Meter, count: int
) -> None:
    schedule = Schedule(app)

    cost = meter.cost(lambda: schedule.save_all(entries[:count]))

    expect(cost, trips=1, commands=3 * count + 5, sent=425 * count, received=3 * count)
