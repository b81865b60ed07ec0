"""A beat supports values of settings and entries that RedBeat 2 accepted."""

from __future__ import annotations

import json
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.beat.upkeep import INTERVAL
from redbeat.entries.decide import DISABLED
from tests.deployments import PREFIX

from .conftest import Clock, World, interval_json

SHORTEST = timedelta(milliseconds=10)
TOO_SHORT: list[Any] = [
    *(0, 0.0, -5, 0.001, timedelta(0), timedelta(days=-1)),
    *(schedule(0), schedule(-5), schedule(0, relative=True)),
]
TRUE: list[Any] = [True, 1, 1.0, -1, "true", "false", [0], {"a": 0}]
FALSE: list[Any] = [False, 0, 0.0, None, "", [], {}]


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


def save(world: World, every: Any) -> None:
    RedBeatSchedulerEntry("a", "t", every, app=world.app).save()


def static(world: World, every: Any) -> None:
    world.app.conf.beat_schedule = {"a": {"task": "t", "schedule": every}}


def raw(world: World, every: Any) -> None:
    seconds = schedule(every.run_every if isinstance(every, schedule) else every).run_every
    text = interval_json(seconds.total_seconds())
    world.put("a", text, last_run_at=world.ago(0))


@pytest.mark.parametrize("make", [save, static, raw])
@pytest.mark.parametrize("every", TOO_SHORT, ids=repr)
def test_an_interval_of_0_runs_at_once_and_then_at_the_shortest_interval(
    world: World, log: pytest.LogCaptureFixture, make: Any, every: Any
) -> None:
    make(world, every)
    scheduler = world.scheduler()
    while len(scheduler.sent) < 3:
        scheduler.tick()
    instants = [message.scheduled_at for message in scheduler.sent]
    assert world.began <= instants[0].timestamp() <= world.now()
    for earlier, later in pairwise(instants):
        assert later - earlier >= SHORTEST
    assert [record.levelname for record in log.records].count("WARNING") == 1
    assert "beat: Entry a runs every 0.01 s, the shortest interval" in log.text


@pytest.mark.parametrize("enabled", [*TRUE, *FALSE, Fraction(0), Fraction(1)], ids=repr)
def test_the_truth_of_enabled_counts_when_a_program_saves(world: World, enabled: Any) -> None:
    entry = RedBeatSchedulerEntry("a", "t", 60, enabled=enabled, app=world.app).save()
    changed = RedBeatSchedulerEntry("b", "t", 60, enabled=not enabled, app=world.app).save()
    changed.enabled = enabled
    changed.save()
    world.app.conf.beat_schedule = {"c": {"task": "t", "schedule": 60, "enabled": enabled}}
    scheduler = world.scheduler()
    scheduler.tick()
    for name in "abc":
        text = world.client.hget(f"{PREFIX}{name}", "definition")
        assert json.loads(text)["enabled"] is bool(enabled)
        assert (world.score(name) == DISABLED) is not bool(enabled)
    assert (entry.score == DISABLED) is not bool(enabled)


@pytest.mark.parametrize("enabled", [*TRUE, *FALSE], ids=repr)
def test_the_truth_of_a_stored_enabled_counts(world: World, enabled: Any) -> None:
    key = world.put("a", enabled=enabled)
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"] * bool(enabled)
    assert RedBeatSchedulerEntry.from_key(key, app=world.app).enabled is bool(enabled)
    [record] = Schedule(world.app).find(enabled=bool(enabled))
    assert record.name == "a"


@pytest.mark.parametrize("enabled", [*TRUE, *FALSE], ids=repr)
def test_a_scan_finds_entries_that_were_enabled_with_any_true_value(
    world: World, clock: Clock, log: pytest.LogCaptureFixture, enabled: Any
) -> None:
    world.put("a", enabled=enabled, score=DISABLED)
    scheduler = world.scheduler(clock=clock)
    for _ in range(2):
        scheduler.tick()
        clock.advance(INTERVAL)
    assert ("was enabled by another program" in log.text) is bool(enabled)
    assert (world.score("a") == DISABLED) is not bool(enabled)
