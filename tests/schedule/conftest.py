"""Fixtures for the ``Schedule`` API, and for beats that record their messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.config import get_redis
from redbeat.storage.scripts import load_script
from tests.scheduler.conftest import World, clock, log, wire, world
from tests.storage.conftest import store

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
    """Counts the requests that the app's client sends to Redis.

    Each use of a connection counts as one request, even if the client reads the reply later.
    """

    def __init__(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        pool = client.connection_pool
        get_connection = pool.get_connection

        def counted(*command: Any, **options: Any) -> Any:
            connection = get_connection(*command, **options)
            self._count += 1  # not counted if get_connection raises an error
            return connection

        monkeypatch.setattr(pool, "get_connection", counted)

    def take(self) -> int:
        """Return the number of requests since the last call."""
        count, self._count = self._count, 0
        return count


@pytest.fixture
def no_lock(app: Celery) -> None:
    """Let several beats share the work; request this fixture before all others."""
    app.conf.redbeat_lock_key = None


@pytest.fixture
def schedule(world: World) -> Schedule:
    """The ``Schedule`` of the app."""
    return Schedule(world.app)


@pytest.fixture
def make(world: World) -> Make:
    """A function that creates an unsaved entry, by default an hourly one."""

    def make(name: str = "a", **fields: Any) -> RedBeatSchedulerEntry:
        arguments = {"task": f"tasks.{name}", "schedule": 3600, "app": world.app, **fields}
        return RedBeatSchedulerEntry(name, **arguments)

    return make


@pytest.fixture
def trips(world: World, monkeypatch: pytest.MonkeyPatch) -> RoundTrips:
    """The counter of round trips. Redis has already loaded the scripts."""
    for script in ("turn", "inbox", "page", "count"):
        world.client.script_load(load_script(script).text)
    return RoundTrips(get_redis(world.app), monkeypatch)


def overdue(seconds: float = 5000) -> timedelta:
    """Return the age of the last run of an overdue hourly entry: ``seconds`` as a timedelta."""
    return timedelta(seconds=seconds)
