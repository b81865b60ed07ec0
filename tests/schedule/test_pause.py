"""Tests of pausing and resuming dynamic and static entries."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from redbeat import Schedule
from redbeat.entries.state import Pause
from tests.scheduler.conftest import SCHEDULE, World, once

from .conftest import Make


def test_pause_and_resume(schedule: Schedule, make: Make, world: World) -> None:
    entry = make("a", jitter=3).save()
    before = world.dump()
    entry.pause("the disk is full")
    enabled = entry.enabled
    assert world.field("a", "definition")["enabled"] is False
    assert world.score("a") == -2
    status = entry.status
    assert (status.state, status.note, status.due_at) == ("paused", "the disk is full", None)
    pause = Pause.of_entry(schedule["a"])
    assert pause is not None
    assert abs(pause.since - datetime.now(timezone.utc).timestamp()) < 30
    entry.resume()
    assert (enabled, entry.enabled) == (False, True)
    assert world.dump() == before
    assert entry.status.state == "scheduled"
    assert schedule["a"].enabled is True


def test_a_paused_entry_does_not_run(make: Make, world: World) -> None:
    make("a", last_run_at=world.ago(5000)).save().pause()
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.sent == []
    make("a").resume()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_pausing_a_claimed_entry(make: Make, world: World) -> None:
    make("a", last_run_at=world.ago(5000)).save()
    scheduler = world.scheduler()
    scheduler.before_send = once(lambda: make("a").pause("stop"))
    scheduler.tick()
    assert len(scheduler.sent) == 1
    assert (world.score("a"), world.run_count("a")) == (-2, 1)
    assert make("a").status.note == "stop"


def test_an_unknown_entry_has_no_status(make: Make, world: World) -> None:
    with pytest.raises(KeyError, match="a"):
        _ = make("a").status
    assert make("a").history == []
    assert world.dump() == {}


def test_the_note_of_a_pause_can_be_replaced(make: Make) -> None:
    entry = make("a").save()
    entry.pause("one")
    entry.pause("two")
    assert entry.status.note == "two"
    entry.pause()
    assert entry.status.state == "paused"
    assert entry.status.note is None


def test_an_entry_disabled_by_a_definition_is_paused_too(make: Make) -> None:
    entry = make("a", enabled=False).save()
    assert (entry.status.state, entry.status.reason) == ("paused", None)
    entry.resume()
    assert entry.status.state == "scheduled"


@pytest.mark.parametrize(
    ("definition", "policy"),
    [
        ('{"name": "a", "n": 1.10, "big": 123456789012345678901, "enabled": true}', ""),
        ('{"name": "\\u00e9", "enabled": true, "owner": "me"}', '{"jitter": 1.5}'),
        ('{"name": "a"}', ""),
    ],
)
def test_resume_restores_the_texts(
    schedule: Schedule, world: World, definition: str, policy: str
) -> None:
    key = world.put("a")
    texts = {"definition": definition, "policy": policy} if policy else {"definition": definition}
    world.client.hset(key, mapping=texts)
    schedule.pause_all(["a"], "x")
    schedule.pause_all(["a"], "y")
    assert world.field("a", "definition")["enabled"] is False
    schedule.resume_all(["a"])
    assert world.field("a", "definition") == {**json.loads(definition), "enabled": True}
    assert world.client.hget(key, "policy") == (policy or None)


# -- static entries --------------------------------------------------------------------------------

STATIC: dict[str, Any] = {"task": "t", "schedule": 3600, "kwargs": {"a": "é"}}


def start_beat(world: World, **fields: Any) -> None:
    """Start a beat with the entry ``a`` in its ``beat_schedule``, then stop the beat."""
    world.app.conf.beat_schedule = {"a": {**STATIC, **fields}}
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.close()


@pytest.mark.parametrize("fields", [{}, {"jitter": 5.0}, {"enabled": False}])
def test_a_pause_of_a_static_entry_survives_restarts(
    schedule: Schedule, world: World, fields: dict[str, Any]
) -> None:
    start_beat(world, **fields)
    schedule["a"].pause("until Monday")
    before = world.dump()
    for _ in range(2):
        start_beat(world, **fields)
        assert world.dump() == before
    schedule["a"].resume()
    start_beat(world, **fields)
    assert schedule["a"].enabled is fields.get("enabled", True)


@pytest.mark.parametrize("changed", [{"args": [1]}, {"jitter": 2}])
def test_a_changed_static_entry_ends_its_pause(
    schedule: Schedule, world: World, changed: dict[str, Any]
) -> None:
    start_beat(world, jitter=1)
    schedule["a"].pause()
    start_beat(world, **{"jitter": 1, **changed})
    entry = schedule["a"]
    assert entry.enabled is True
    assert (entry.args, entry.jitter) == (changed.get("args"), changed.get("jitter", 1))


def test_a_static_entry_disabled_without_a_pause_is_enabled_again(
    schedule: Schedule, world: World
) -> None:
    start_beat(world)
    found = schedule["a"]
    found.enabled = False
    found.save()
    start_beat(world)
    assert schedule["a"].enabled is True
    assert world.client.zscore(SCHEDULE, "redbeat:a") > 0


def test_resume_schedules_an_entry_that_a_program_took_out(make: Make, world: World) -> None:
    """It was enabled all the time, so its definition does not change."""
    entry = make("a").save()
    score = world.score("a")
    world.client.zrem(SCHEDULE, "redbeat:a")
    assert entry.status.state == "not scheduled"
    entry.resume()
    assert (entry.status.state, world.score("a")) == ("scheduled", score)


def test_an_entry_of_redbeat_2_gets_an_identity_when_it_is_resumed(world: World) -> None:
    """The identity shows that this version gave the entry its score."""
    world.client.zrem(SCHEDULE, world.put("a"))
    Schedule(world.app)["a"].resume()
    assert world.identity("a")
