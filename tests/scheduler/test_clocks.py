"""Clocks that are wrong: that of the host that saves an entry, and that of Redis for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from redbeat import RedBeatSchedulerEntry, Schedule
from tests.deployments import PREFIX

from .conftest import World

HOUR = 3600.0
#: How far the clock of a host is ahead: by it, the last run that was due is 46 seconds late.
AHEAD = 2 * HOUR + 45
LIMIT = 30.0


def later(world: World, seconds: float) -> Any:
    return world.ago(-seconds)


POLICIES: dict[str, Callable[[World], dict[str, Any]]] = {
    "too late": lambda _world: {"misfire_grace_time": LIMIT},
    "over": lambda world: {"misfire_grace_time": LIMIT, "end_time": later(world, HOUR)},
}


def saved(entry: RedBeatSchedulerEntry) -> None:
    entry.save()


def saved_as_new_object(entry: RedBeatSchedulerEntry) -> None:
    fields = {"end_time": entry.end_time, "misfire_grace_time": entry.misfire_grace_time}
    RedBeatSchedulerEntry("a", "t", 60, kwargs={"x": 1}, app=entry.app, **fields).save()


def rescheduled(entry: RedBeatSchedulerEntry) -> None:
    entry.reschedule(entry.last_run_at)


def resumed(entry: RedBeatSchedulerEntry) -> None:
    entry.pause()
    entry.resume()


def saved_in_bulk(entry: RedBeatSchedulerEntry) -> None:
    Schedule(entry.app).save_all([entry])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("write", [saved, saved_as_new_object, rescheduled, resumed, saved_in_bulk])
def test_a_host_whose_clock_is_ahead_ends_no_entry(
    world: World, policy: str, write: Callable[[RedBeatSchedulerEntry], None]
) -> None:
    """Setup: an interval that is due in 59 s, and by the clock of a host too late, or over. Fault:
    that host writes it. Invariant: its next run stays."""
    ran = world.ago(1)
    fields = POLICIES[policy](world)
    RedBeatSchedulerEntry("a", "t", 60, last_run_at=ran, app=world.app, **fields).save()
    scheduler = world.scheduler()
    scheduler.tick()
    with time_machine.travel(time.time() + AHEAD, tick=True):
        write(RedBeatSchedulerEntry.from_key(f"{PREFIX}a", app=world.app))
    scheduler.tick()
    assert scheduler.sent == []
    next_at = (ran + timedelta(seconds=60)).timestamp()
    assert world.score("a") == pytest.approx(next_at, abs=1e-3)


def test_a_host_whose_clock_is_ahead_ends_nothing_that_never_ran(world: World) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    entry = RedBeatSchedulerEntry("a", "t", 60, end_time=later(world, HOUR), app=world.app)
    entry.last_run_at = None
    with time_machine.travel(time.time() + AHEAD, tick=True):
        entry.save()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_what_has_finished_is_parked_by_the_beat(world: World) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    ran = world.ago(1)
    RedBeatSchedulerEntry(
        "a", "t", 60, max_runs=1, total_run_count=1, last_run_at=ran, app=world.app
    ).save()
    scheduler.tick()
    assert scheduler.sent == []
    assert world.score("a") == -1


def test_a_disabled_entry_needs_no_beat(world: World) -> None:
    RedBeatSchedulerEntry("a", "t", 60, enabled=False, app=world.app).save()
    assert world.score("a") == -2
