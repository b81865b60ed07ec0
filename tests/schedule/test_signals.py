"""Tests of the signals that a beat sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery.utils.dispatch import Signal
from kombu.exceptions import OperationalError

from redbeat import signals
from tests.scheduler.clients import Wire
from tests.scheduler.conftest import SCHEDULE, World, once, void

from .conftest import Make

NAMES = [name for name, value in vars(signals).items() if isinstance(value, Signal)]


NO_TASKS: dict[str, str] = {}


class Received(list[tuple[str, dict[str, Any]]]):
    """A list of received signals. Each item is a name and the arguments."""

    @property
    def names(self) -> list[str]:
        """The names of the received signals, in order."""
        return [name for name, _ in self]

    def one(self, name: str) -> dict[str, Any]:
        """Return the arguments of the only received signal with this name."""
        (arguments,) = (arguments for said, arguments in self if said == name)
        return arguments


@pytest.fixture
def received() -> Iterator[Received]:
    """The signals that are sent during the test."""
    received = Received()

    def receive(signal: Any, **arguments: Any) -> None:
        received.append((signal.name, arguments))

    for name in NAMES:
        getattr(signals, name).connect(receive)
    yield received
    for name in NAMES:
        getattr(signals, name).disconnect(receive)


def test_a_beat_that_starts(world: World, received: Received) -> None:
    world.app.conf.beat_schedule = {"a": {"task": "t", "schedule": 3600}}
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert received.names == ["lock_acquired", "statics_synced"]
    assert received.one("lock_acquired") == {"sender": scheduler}
    arguments = {"added": 1, "changed": 0, "removed": 0}
    assert received.one("statics_synced") == {"sender": scheduler, **arguments}


def test_a_beat_that_loses_the_lock(world: World, received: Received) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    world.client.set("redbeat::lock", "another")
    scheduler.tick()
    scheduler.tick()
    assert received.names == ["lock_acquired", "statics_synced", "lock_lost"]
    assert received.one("lock_lost") == {"sender": scheduler, "holder": "another"}
    world.client.delete("redbeat::lock")
    scheduler.tick()
    assert received.names[3:] == ["lock_acquired", "statics_synced"]


def test_a_standby_sends_no_signal(world: World, received: Received) -> None:
    world.client.set("redbeat::lock", "another")
    world.scheduler().tick()
    assert received == []


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_signals_of_runs(make: Make, world: World, received: Received, delivery: str) -> None:
    entry = make("a", last_run_at=world.ago(5000), delivery=delivery).save()
    scheduler = world.scheduler()
    scheduler.tick()
    arguments = received.one("entry_dispatched")
    (sent,) = scheduler.sent
    assert (arguments["task_id"], arguments["scheduled_at"]) == (sent.id, sent.scheduled_at)
    assert (arguments["entry"].name, arguments["triggered"], arguments["sender"]) == (
        "a",
        False,
        scheduler,
    )
    received.clear()
    task_id = entry.trigger()
    scheduler.tick()
    arguments = received.one("entry_dispatched")
    assert (arguments["task_id"], arguments["triggered"]) == (task_id, True)
    assert arguments["scheduled_at"] == scheduler.sent[1].scheduled_at


def test_signals_of_failures(make: Make, world: World, received: Received) -> None:
    make("a", last_run_at=world.ago(5000)).save()
    make("b", last_run_at=world.ago(5000), delivery="at_most_once").save()
    scheduler = world.scheduler()
    scheduler.before_send = lambda task: void(NO_TASKS[task])
    scheduler.tick()
    arguments = {
        arguments["name"]: arguments for name, arguments in received if name == "entry_failed"
    }
    assert {name: found["lost"] for name, found in arguments.items()} == {"a": False, "b": True}
    assert all("tasks." in repr(found["error"]) for found in arguments.values())
    assert "entry_dispatched" not in received.names


def test_an_entry_that_is_quarantined(world: World, received: Received) -> None:
    world.put("bad", schedule={"__type__": "crontab", "minute": "nonsense"})
    scheduler = world.scheduler()
    scheduler.tick()
    arguments = received.one("entry_quarantined")
    assert (arguments["name"], arguments["sender"]) == ("bad", scheduler)
    assert "definition.schedule" in arguments["reason"]


def test_signals_of_missed_runs(make: Make, world: World, received: Received) -> None:
    ran = world.ago(3 * 3600 + 1800)
    make("late", last_run_at=ran).save()
    make("old", last_run_at=ran, misfire_grace_time=60).save()
    world.client.zadd(SCHEDULE, {"redbeat:old": 1})
    world.scheduler().tick()
    arguments = {
        arguments["entry"].name: arguments["count"]
        for name, arguments in received
        if name == "entry_missed"
    }
    assert arguments == {"late": 2, "old": 3}


def test_signals_of_finished_entries(make: Make, world: World, received: Received) -> None:
    make("a", max_runs=1, last_run_at=world.ago(5000)).save()
    world.scheduler().tick()
    assert received.one("entry_finished")["entry"].name == "a"


def test_an_outage_of_redis(world: World, received: Received, wire: Wire) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    received.clear()
    error = redis.ConnectionError("gone")

    def fail() -> None:
        raise error

    for _ in range(3):
        wire.before_command(fail)
        scheduler.tick()
    scheduler.tick()
    assert received.names == ["redis_lost", "redis_back"]
    assert received.one("redis_lost") == {"sender": scheduler, "error": error}
    assert received.one("redis_back") == {"sender": scheduler, "failures": 3}


def test_an_outage_of_the_broker(make: Make, world: World, received: Received) -> None:
    make("a", last_run_at=world.ago(5000)).save()
    scheduler, errors = world.scheduler(), [OperationalError(str(number)) for number in range(3)]
    first = errors[0]

    def fail(_task: str) -> None:
        if errors:
            raise errors.pop(0)

    scheduler.before_send = fail
    for _ in range(4):
        scheduler.tick()
        world.client.zadd(SCHEDULE, {"redbeat:a": 1})
    outage = [name for name in received.names if name.startswith("broker")]
    assert outage == ["broker_lost", "broker_back"]
    assert received.one("broker_lost") == {"sender": scheduler, "error": first}
    assert received.one("broker_back") == {"sender": scheduler, "failures": 3}


def test_a_lost_schedule_can_be_saved_again(make: Make, world: World, received: Received) -> None:
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
    assert received.one("schedule_lost") == {"sender": scheduler, "count": 2}
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


def test_a_receiver_gets_only_signals_of_its_sender(make: Make, world: World) -> None:
    make("a", last_run_at=world.ago(5000)).save()
    scheduler, other, received = world.scheduler(), world.scheduler(), []

    def receive(**arguments: Any) -> None:
        received.append(arguments["entry"].name)

    signals.entry_dispatched.connect(receive, sender=other)
    scheduler.tick()
    assert (scheduler.names, received) == (["a"], [])
    signals.entry_dispatched.disconnect(receive, sender=other)
