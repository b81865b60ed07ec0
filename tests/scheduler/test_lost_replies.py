"""Faults in which Redis executes a request, but the beat never gets the reply."""

from __future__ import annotations

import pytest

from redbeat.settings import AT_LEAST_ONCE, AT_MOST_ONCE

from .clients import Wire
from .conftest import (
    LOCK,
    SCHEDULE,
    Clock,
    RecordingScheduler,
    World,
    datetime_json,
    interval_json,
    once,
)

DELIVERIES = (AT_LEAST_ONCE, AT_MOST_ONCE)


def lose_holds(world: World, wire: Wire, name: str = "a", times: int = 1) -> None:
    """Lose the next replies that arrive while the run of an entry is held."""
    wire.lose(lambda: world.is_held(name), times)


@pytest.fixture
def scheduler(world: World, clock: Clock, wire: Wire) -> RecordingScheduler:  # noqa: ARG001
    """A leading beat whose client can lose replies."""
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    return scheduler


def test_a_request_that_never_arrived_is_repeated(
    world: World, wire: Wire, scheduler: RecordingScheduler
) -> None:
    world.put("a")
    wire.cut()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_lost_holds_that_expired_are_taken_over_by_any_beat(
    world: World, wire: Wire, clock: Clock, scheduler: RecordingScheduler
) -> None:
    world.put("a", interval_json(60), world.ago(90))
    lose_holds(world, wire)
    scheduler.tick()
    assert wire.lost == 1
    world.end_hold("a")
    world.client.delete(LOCK)
    heir = world.scheduler()
    heir.tick()
    clock.advance(60)
    scheduler.tick()
    assert (heir.names, scheduler.names) == (["a"], [])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_request_for_later_runs_that_never_arrived_is_repeated(
    world: World, wire: Wire, delivery: str
) -> None:
    """Setup: more entries are due than one look returns.

    Fault: a later request never arrives. Invariant: each run is sent once.
    """
    world.app.conf.redbeat_delivery = delivery
    scheduler = world.scheduler(clock=Clock())
    scheduler.tick()
    world.put_many(700)
    wire.cut(lambda: world.client.zcount(SCHEDULE, world.now(), "+inf") >= 500)
    for _ in range(4):
        scheduler.tick()
    assert sorted(scheduler.names) == sorted(f"e{n}" for n in range(700))


def test_a_history_written_by_an_application_survives_a_lost_refusal(
    world: World, wire: Wire, scheduler: RecordingScheduler
) -> None:
    """The lost reply contains the application's history. Repeating the request returns it again."""
    world.put("a", interval_json(600), world.ago(900))
    written = world.ago(5)
    scheduler.before_send = once(lambda: world.put_meta("a", written))
    wire.lose(lambda: scheduler.sent)
    for _ in range(3):
        scheduler.tick()
    assert world.field("a", "meta")["last_run_at"] == datetime_json(written)
    assert world.run_count("a") == 1
    assert scheduler.names == ["a"]


def test_a_beat_whose_lock_reply_was_lost_leads(world: World, wire: Wire) -> None:
    """A beat that acquired the lock leads, even if the reply was lost."""
    world.put("a")
    scheduler = world.scheduler()
    wire.lose(lambda: world.client.exists(LOCK))
    scheduler.tick()
    assert wire.lost == 1
    assert world.client.get(LOCK) == scheduler.lock.token
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_a_stopping_beat_gives_back_holds_whose_reply_was_lost(
    world: World, wire: Wire, scheduler: RecordingScheduler
) -> None:
    world.put("a", interval_json(60), world.ago(90))
    lose_holds(world, wire)
    scheduler.tick()
    assert world.is_held("a")
    scheduler.close()
    heir = world.scheduler()
    heir.tick()
    assert heir.names == ["a"]
