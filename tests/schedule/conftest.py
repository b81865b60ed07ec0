"""A schedule as operators see it, beside beats that are looked into."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.storage.client import get_redis
from redbeat.storage.scripts import load_script
from tests.scheduler.conftest import World, clock, log, wire, world
from tests.store.conftest import store

__all__ = (
    "Make",
    "RoundTrips",
    "clock",
    "log",
    "make",
    "schedule",
    "store",
    "trips",
    "wire",
    "world",
)

Make: TypeAlias = Callable[..., RedBeatSchedulerEntry]


class RoundTrips:
    """How often the client of the app asked Redis since the last look.

    Each time it takes a connection, whether it waits for the answer at once or not.
    """

    def __init__(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        pool = client.connection_pool
        get_connection = pool.get_connection

        def counted(*command: Any, **options: Any) -> Any:
            connection = get_connection(*command, **options)
            self._count += 1  # after the call: redis-py 5 refuses one without a command
            return connection

        monkeypatch.setattr(pool, "get_connection", counted)

    def take(self) -> int:
        """Return the number since the last call."""
        count, self._count = self._count, 0
        return count


@pytest.fixture
def schedule(world: World) -> Schedule:
    """The schedule of the app."""
    return Schedule(world.app)


@pytest.fixture
def make(world: World) -> Make:
    """Make an entry, not saved; every hour unless told otherwise."""

    def make(name: str = "a", **fields: Any) -> RedBeatSchedulerEntry:
        given = {"task": f"tasks.{name}", "schedule": 3600, "app": world.app, **fields}
        return RedBeatSchedulerEntry(name, **given)

    return make


@pytest.fixture
def trips(world: World, monkeypatch: pytest.MonkeyPatch) -> RoundTrips:
    """Round trips; the scripts are known to the server already."""
    client = get_redis(world.app)
    for script in ("save", "page", "delete", "count", "trigger"):
        client.script_load(load_script(script).text)
    return RoundTrips(client, monkeypatch)


def overdue(seconds: float = 5000) -> timedelta:
    """Return how long ago an hourly entry ran that is due."""
    return timedelta(seconds=seconds)
