"""The duration of a tick and the memory of a beat are bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from celery.schedules import schedule

from redbeat import register_schedule_type
from tests.deployments import PREFIX
from tests.waiting import wait_until

from .conftest import SCHEDULE, Clock, RecordingScheduler, World, interval_json

#: The time in seconds that a beat takes to read an entry with a schedule of the type ``slow``, and
#: to ask one of the type ``asked``.
SLOW = 0.3


class Slow(schedule):
    """An interval that takes a beat :data:`SLOW` seconds to decode."""


class Asked(schedule):
    """An interval that takes :data:`SLOW` seconds to say whether it is due."""

    def is_due(self, last_run_at: datetime) -> Any:
        _clocks[-1].advance(SLOW)
        return super().is_due(last_run_at)


_clocks: list[Clock] = []


def read_slowly(_fields: object) -> Slow:
    """Advance the clock, then return the schedule."""
    _clocks[-1].advance(SLOW)
    return Slow(3600)


register_schedule_type("slow", Slow, lambda _schedule: {}, read_slowly)
register_schedule_type("asked", Asked, lambda _schedule: {}, lambda _fields: Asked(3600))


@pytest.fixture
def slow_clock(clock: Clock) -> Iterator[Clock]:
    """A clock that advances when a beat decodes a slow schedule."""
    _clocks.append(clock)
    yield clock
    _clocks.pop()


@pytest.mark.parametrize("kind", ["slow", "asked"])
def test_a_slow_batch_is_put_back(world: World, slow_clock: Clock, kind: str) -> None:
    names = [f"slow{number}" for number in range(40)]
    for number, name in enumerate(names):
        world.put(name, {"__type__": kind, "number": number}, score=1)
    scheduler = world.scheduler_of(RecordingScheduler, slow_clock)
    began = slow_clock()
    scheduler.tick()
    assert slow_clock() - began < 3
    sent = len(scheduler.sent)
    assert 0 < sent <= 10
    soon = [name for name in names if (world.score(name) or 0) <= world.now() + 1]
    assert len(soon) == 40 - sent, "another beat can take the rest"
    world.put("good", interval_json(3600), score=0.5)
    scheduler.tick()
    assert scheduler.names[sent] == "good"

    def more_are_sent() -> bool:
        slow_clock.advance(1)
        scheduler.tick()
        return len(scheduler.sent) >= 5

    wait_until(more_are_sent, 20, "more entries are sent")
    assert len(set(scheduler.names)) == len(scheduler.sent)


def test_long_texts_do_not_delay_other_entries(world: World, clock: Clock) -> None:
    for number in range(8):
        minute = ",".join(["0"] * 100_000)
        world.put(f"long{number}", {"__type__": "crontab", "minute": minute}, score=1)
    for number in range(20):
        world.put(f"good{number}", interval_json(3600), score=2)
    scheduler = world.scheduler_of(RecordingScheduler, clock)
    scheduler.tick()
    assert set(scheduler.names[:20]) == {f"good{number}" for number in range(20)}


def test_a_beat_that_is_never_idle_still_maintains_its_schedule(world: World, clock: Clock) -> None:
    world.client.hset(f"{PREFIX}bad", "definition", "{")
    world.client.zadd(SCHEDULE, {f"{PREFIX}bad": 0})
    scheduler = world.scheduler_of(RecordingScheduler, clock)
    scheduler.tick()
    assert f"{PREFIX}bad" in world.quarantine()
    world.client.hset(f"{PREFIX}bad", "definition", _definition("bad"))
    world.client.hset(f"{PREFIX}orphan", "definition", _definition("orphan"))
    world.put("busy")

    def put_another(_task: str) -> None:
        clock.advance(0.2)
        world.put(f"busy{len(scheduler.sent)}", interval_json(3600), score=0.5)

    scheduler.before_send = put_another
    for _ in range(60):
        scheduler.tick()
        if "bad" in scheduler.names:
            break
    assert "bad" in scheduler.names


def _definition(name: str) -> str:
    return json.dumps({"name": name, "task": f"tasks.{name}", "schedule": 3600})


@pytest.mark.long
def test_any_number_of_members_without_a_hash_is_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.beat.beat.MISSING_FOR", 0.0)
    count = 4500
    world.client.zadd(SCHEDULE, {f"{PREFIX}gone{number}": 0 for number in range(count)})
    scheduler = world.scheduler()
    for _ in range(4):
        scheduler.tick()
        left = world.client.zrange(SCHEDULE, 0, -1)
        if left:
            world.client.zadd(SCHEDULE, dict.fromkeys(left, 0))
    assert world.client.zcard(SCHEDULE) == 0
