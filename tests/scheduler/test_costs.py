"""The cost of starts and saves in Redis: round trips, commands and bytes.

The expected numbers of round trips and commands are upper bounds. If your change lowers one, lower
the number in the test too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import ceil

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.storage.reading import BATCH

from .clients import CountingRedis
from .conftest import Clock, RecordingScheduler, World
from .costs import Cost, Meter

#: Some counters depend on the kind of server. For example, a master also sends data to replicas.
pytestmark = pytest.mark.standalone

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
    """Return the number of batches in which ``count`` entries are read or saved."""
    return ceil(count / BATCH)


# -- starts ---------------------------------------------------------------------------------------


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

    size = 1100 * count
    # All are read at setup, and not again at the first tick; 2000 names are read at once.
    trips = 18 + batches(count) + count // 2000
    assert_cost(unchanged, trips, 6 * count + 120, sent=size // 20, received=1200 * count)
    trips = 16 + 2 * batches(count) + count // 2000  # reads, writes, and notes that it wrote
    assert_cost(cold, trips, 13 * count + 147, sent=size, received=650 * count)


# -- saves ----------------------------------------------------------------------------------------


@pytest.fixture
def entries(app: Celery, counting: CountingRedis) -> list[RedBeatSchedulerEntry]:
    """Entries that are not stored. Redis has loaded the scripts that save and delete entries."""
    assert app.redbeat_redis is counting
    entries = [RedBeatSchedulerEntry(f"e{number}", "t", 60.0, app=app) for number in range(501)]
    entries[-1].save()
    entries[-1].delete()
    return entries
