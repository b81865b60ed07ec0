"""Without a lock, each beat first takes its share of the due entries."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat.management.status import status_of
from redbeat.storage.reading import PROBLEM
from tests.deployments import PREFIX

from .conftest import SCHEDULE, Clock, RecordingScheduler, World


@pytest.fixture(autouse=True)
def _no_lock(world: World) -> None:
    """Disable the lock."""
    world.app.conf.redbeat_lock_key = None


def present(world: World, count: int) -> list[RecordingScheduler]:
    """Return ``count`` schedulers after their first tick. Their clocks never advance."""
    beats = [world.scheduler(clock=Clock()) for _ in range(count)]
    for beat in beats:
        beat.tick()
    return beats


def test_a_single_beat_sends_all_in_one_tick(world: World) -> None:
    """A beat also takes the share of another beat if that beat does not look first."""
    beats = present(world, 2)
    world.put_many(400)
    beats[0].tick()
    assert len(beats[0].sent) == 400


def test_a_beat_that_starts_removes_the_problem_of_one_that_died(app: Celery, world: World) -> None:
    app.conf.redbeat_lock_key = None
    world.scheduler().tick()
    world.client.hset(f".{PREFIX}:stats", PROBLEM, "the broker is not available")
    assert status_of(app).problem
    world.scheduler().tick()
    assert status_of(app).problem == ""


def test_a_beat_stores_a_problem_again_that_another_beat_removed(
    app: Celery, world: World, clock: Clock
) -> None:
    """The beat does so every 30 seconds."""
    world.put("a")
    # A beat tries its next run, not the connection, if that run is due within ten seconds.
    world.put("soon", last_run_at=world.ago(55), score=world.now() + 5)
    scheduler = world.scheduler(clock=clock)

    def refuse(_task: str) -> None:
        raise OperationalError("gone")

    scheduler.before_send = refuse
    scheduler.tick()
    world.client.hdel(f".{PREFIX}:stats", PROBLEM)
    clock.advance(31)
    world.client.zadd(SCHEDULE, {f"{PREFIX}a": world.now()})
    scheduler.tick()
    assert "gone" in status_of(app).problem
