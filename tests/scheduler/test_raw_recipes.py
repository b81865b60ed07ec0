"""Entries that other programs write with plain Redis commands, as the manual shows."""

from __future__ import annotations

import json

import pytest

from redbeat import RedBeatSchedulerEntry
from tests.deployments import PREFIX

from .conftest import SCHEDULE, World, interval_json


@pytest.mark.parametrize("member", [f"{PREFIX}new", "new"])
def test_an_entry_written_with_hset_and_zadd_0_runs(world: World, member: str) -> None:
    """#106: the command `zadd redbeat::schedule 0 new-task-name` works without the key prefix."""
    text = '{"name":"new","task":"t","schedule":{"__type__":"interval","every":5}}'
    world.client.hset(f"{PREFIX}new", "definition", text)
    world.client.zadd(SCHEDULE, {member: 0})
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["new"]
    members = world.client.zrange(SCHEDULE, 0, -1)
    assert f"{PREFIX}new" in members
    assert "new" not in members


def test_both_members_make_one_run(world: World) -> None:
    world.put("new")
    world.client.zadd(SCHEDULE, {"new": 0})
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["new"]


def test_entries_with_names_of_any_kind_run(world: World) -> None:
    names = ["a b", "a/b", "a:b", f"{PREFIX}x", "ünï", "{x}", "☃", "a\nb", '"', "*", "%s"]
    for name in names:
        world.put(name)
    scheduler = world.scheduler()
    scheduler.tick()
    assert sorted(scheduler.names) == sorted(names)


def test_fields_of_other_programs_survive(world: World) -> None:
    world.put("a", interval_json(60), world.ago(90))
    world.client.hset(f"{PREFIX}a", "note", "keep me")
    scheduler = world.scheduler()
    scheduler.tick()
    RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app).save()
    assert world.client.hget(f"{PREFIX}a", "note") == "keep me"


def test_the_record_of_a_run_is_readable_by_redbeat_2(world: World) -> None:
    world.put("a", interval_json(60), world.ago(90))
    before = world.client.hget(f"{PREFIX}a", "definition")
    world.scheduler().tick()
    assert world.client.hget(f"{PREFIX}a", "definition") == before
    meta = world.field("a", "meta")
    assert set(meta) == {"last_run_at", "total_run_count"}
    assert meta["last_run_at"]["timezone"] == "UTC"


@pytest.mark.standalone
def test_a_schedule_with_another_prefix(world: World) -> None:
    world.app.conf.redbeat_key_prefix = "x:"
    definition = {"name": "a", "task": "t", "schedule": interval_json(60)}
    world.client.hset("x:a", "definition", json.dumps(definition))
    world.client.zadd("x::schedule", {"a": 0})
    world.put("other", score=0)
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.score("other") == 0


@pytest.mark.standalone
def test_the_data_of_redisbeater_runs_under_its_prefix(world: World) -> None:
    """redisbeater omits seconds and time zone in ``last_run_at``, and the prefix in a member."""
    prefix = PREFIX.replace("redbeat", "redisbeater")
    world.app.conf.redbeat_key_prefix = prefix
    ran = {"year": 2015, "month": 12, "day": 29, "hour": 16, "minute": 45, "microsecond": 231}
    for name, member in (("full", f"{prefix}full"), ("bare", "bare")):
        text = {"name": name, "task": "t", "schedule": interval_json(60), "args": [1]}
        meta = {"last_run_at": {"__type__": "datetime", **ran}, "total_run_count": 23}
        fields = {"definition": json.dumps(text), "meta": json.dumps(meta)}
        world.client.hset(f"{prefix}{name}", mapping=fields)
        world.client.zadd(f"{prefix}:schedule", {member: 1451407500})
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert sorted(scheduler.names) == ["bare", "full"]
    assert scheduler.lock_key == f"{prefix}:lock"
    entry = RedBeatSchedulerEntry.from_key(f"{prefix}full", app=world.app)
    assert entry.total_run_count == 24
