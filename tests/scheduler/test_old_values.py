"""A beat supports values of settings that RedBeat 2 accepted."""

from __future__ import annotations

import pytest

from redbeat import RedBeatSchedulerEntry, Schedule

from .conftest import World


def test_a_lock_of_half_a_second_is_kept(world: World) -> None:
    world.app.conf.redbeat_lock_timeout = 0.5
    world.put("a")
    scheduler = world.scheduler()
    assert scheduler.lock_timeout == 0.5
    assert scheduler.tick() <= 0.5 / 3
    assert scheduler.names == ["a"]


def test_an_empty_lock_key_makes_beats_share(world: World) -> None:
    world.app.conf.redbeat_lock_key = ""
    world.put("a")
    scheduler = world.scheduler()
    assert scheduler.lock is None
    scheduler.tick()
    assert scheduler.names == ["a"]


@pytest.mark.standalone
def test_an_empty_prefix_leaves_other_keys_alone(world: World, redis_url: str) -> None:
    app = world.app
    app.conf.update(redbeat_redis_url=redis_url, redbeat_key_prefix="")
    foreign = {"session:1": {"user": "x"}, "cache": {"definition": "of something else"}}
    for key, fields in foreign.items():
        world.client.hset(key, mapping=fields)
    world.client.set("counter", 1)
    entry = RedBeatSchedulerEntry("a", "t", 60, app=app)
    entry.last_run_at = None
    entry.save()
    scheduler = world.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert set(Schedule(app)) <= {"a", "cache"}
    assert world.client.hgetall("session:1") == foreign["session:1"]
    assert world.client.get("counter") == "1"
