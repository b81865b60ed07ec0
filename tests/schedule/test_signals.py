"""Signals of a beat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redbeat import signals
from tests.scheduler.clients import Wire
from tests.scheduler.conftest import SCHEDULE, World, once, void

from .conftest import Make

NAMES = [name for name in signals.__all__ if name != "emit"]


NO_TASKS: dict[str, str] = {}


class Heard(list[tuple[str, dict[str, Any]]]):
    """What was said: the name of the signal, and what it told."""

    @property
    def names(self) -> list[str]:
        """The names of the signals, in order."""
        return [name for name, _ in self]

    def one(self, name: str) -> dict[str, Any]:
        """Return what the only signal of this name told."""
        (told,) = (told for said, told in self if said == name)
        return told


@pytest.fixture
def heard() -> Iterator[Heard]:
    """All that is said."""
    heard = Heard()

    def receive(signal: Any, **told: Any) -> None:
        heard.append((signal.name, told))

    for name in NAMES:
        getattr(signals, name).connect(receive)
    yield heard
    for name in NAMES:
        getattr(signals, name).disconnect(receive)


def test_a_beat_that_starts(world: World, heard: Heard) -> None:
    world.app.conf.beat_schedule = {"a": {"task": "t", "schedule": 3600}}
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert heard.names == ["lock_acquired", "statics_synced"]
    assert heard.one("lock_acquired") == {"sender": scheduler}
    told = {"added": 1, "changed": 0, "removed": 0}
    assert heard.one("statics_synced") == {"sender": scheduler, **told}


def test_a_beat_that_loses_the_lock(world: World, heard: Heard) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    world.client.set("redbeat::lock", "another")
    scheduler.tick()
    scheduler.tick()
    assert heard.names == ["lock_acquired", "statics_synced", "lock_lost"]
    assert heard.one("lock_lost") == {"sender": scheduler, "holder": "another"}
    world.client.delete("redbeat::lock")
    scheduler.tick()
    assert heard.names[3:] == ["lock_acquired", "statics_synced"]


def test_a_beat_that_stands_by_says_nothing(world: World, heard: Heard) -> None:
    world.client.set("redbeat::lock", "another")
    world.scheduler().tick()
    assert heard == []


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_runs(make: Make, world: World, heard: Heard, delivery: str) -> None:
    entry = make("a", last_run_at=world.ago(5000), delivery=delivery).save()
    scheduler = world.scheduler()
    scheduler.tick()
    told = heard.one("entry_dispatched")
    (sent,) = scheduler.sent
    assert (told["task_id"], told["scheduled_at"]) == (sent.id, sent.scheduled_at)
    assert (told["entry"].name, told["triggered"], told["sender"]) == ("a", False, scheduler)
    heard.clear()
    task_id = entry.trigger()
    scheduler.tick()
    told = heard.one("entry_dispatched")
    assert (told["task_id"], told["triggered"]) == (task_id, True)
    assert told["scheduled_at"] == scheduler.sent[1].scheduled_at


def test_failures(make: Make, world: World, heard: Heard) -> None:
    make("a", last_run_at=world.ago(5000)).save()
    make("b", last_run_at=world.ago(5000), delivery="at_most_once").save()
    scheduler = world.scheduler()
    scheduler.before_send = lambda task: void(NO_TASKS[task])
    scheduler.tick()
    told = {told["name"]: told for name, told in heard if name == "entry_failed"}
    assert {name: found["lost"] for name, found in told.items()} == {"a": False, "b": True}
    assert all("tasks." in repr(found["error"]) for found in told.values())
    assert "entry_dispatched" not in heard.names


def test_what_is_set_aside(world: World, heard: Heard) -> None:
    world.put("bad", schedule={"__type__": "crontab", "minute": "nonsense"})
    scheduler = world.scheduler()
    scheduler.tick()
    told = heard.one("entry_quarantined")
    assert (told["name"], told["sender"]) == ("bad", scheduler)
    assert "definition.schedule" in told["reason"]


def test_runs_that_were_missed(make: Make, world: World, heard: Heard) -> None:
    ran = world.ago(3 * 3600 + 1800)
    make("late", last_run_at=ran).save()
    make("old", last_run_at=ran, misfire_grace_time=60).save()
    world.client.zadd(SCHEDULE, {"redbeat:old": 1})
    world.scheduler().tick()
    told = {told["entry"].name: told["count"] for name, told in heard if name == "entry_missed"}
    assert told == {"late": 2, "old": 3}


def test_entries_that_finish(make: Make, world: World, heard: Heard) -> None:
    make("a", max_runs=1, last_run_at=world.ago(5000)).save()
    world.scheduler().tick()
    assert heard.one("entry_finished")["entry"].name == "a"


def test_redis_that_is_away(world: World, heard: Heard, wire: Wire) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    heard.clear()
    error = redis.ConnectionError("gone")

    def fail() -> None:
        raise error

    for _ in range(3):
        wire.before_command(fail)
        scheduler.tick()
    scheduler.tick()
    assert heard.names == ["redis_lost", "redis_back"]
    assert heard.one("redis_lost") == {"sender": scheduler, "error": error}
    assert heard.one("redis_back") == {"sender": scheduler, "failures": 3}


def test_a_lost_schedule_can_be_saved_again(make: Make, world: World, heard: Heard) -> None:
    make("a").save()
    make("b").save()
    scheduler = world.scheduler()
    scheduler.tick()

    def restore(**_told: Any) -> None:
        make("a").save()

    signals.schedule_lost.connect(restore)
    world.client.flushall()
    try:
        scheduler.tick()
    finally:
        signals.schedule_lost.disconnect(restore)
    assert heard.one("schedule_lost") == {"sender": scheduler, "count": 2}
    assert world.score("a") is not None


def test_a_receiver_that_raises_harms_nothing(
    make: Make, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(**_told: Any) -> None:
        raise ValueError("a bad receiver")

    for name in NAMES:
        getattr(signals, name).connect(bad)
    try:
        make("a", last_run_at=world.ago(5000), max_runs=1).save()
        world.put("bad", schedule={"__type__": "crontab", "minute": "nonsense"})
        make("c", last_run_at=world.ago(50000)).save()
        scheduler = world.scheduler()
        scheduler.before_send = once(lambda: void(1 / 0))
        scheduler.tick()
        world.client.zadd(SCHEDULE, {"redbeat:a": 1, "redbeat:c": 1})
        scheduler.tick()
    finally:
        for name in NAMES:
            getattr(signals, name).disconnect(bad)
    assert sorted(scheduler.names) == ["a", "c"]
    assert "a bad receiver" in caplog.text


def test_only_the_sender_that_is_asked_for(make: Make, world: World) -> None:
    make("a", last_run_at=world.ago(5000)).save()
    scheduler, other, heard = world.scheduler(), world.scheduler(), []

    def receive(**told: Any) -> None:
        heard.append(told["entry"].name)

    signals.entry_dispatched.connect(receive, sender=other)
    scheduler.tick()
    assert (scheduler.names, heard) == (["a"], [])
    signals.entry_dispatched.disconnect(receive, sender=other)
