"""Runs that a beat holds while it publishes them, and changes of their entries in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.outcome import HELD, MAY_PUBLISH
from tests.deployments import PREFIX
from tests.workers import reporting

from .clients import Wire
from .conftest import (
    SCHEDULE,
    Clock,
    RecordingScheduler,
    World,
    end_run,
    interval_json,
    once,
)


def during_run(scheduler: RecordingScheduler, action: Callable[[], Any]) -> None:
    """Let the scheduler call ``action`` once, while it sends the first message."""
    scheduler.before_send = once(action)


class DeadError(BaseException):
    """An exception that no handler of a beat catches. It simulates SIGKILL."""


def die_after_publishing(world: World, wire: Wire) -> RecordingScheduler:
    """Return a scheduler that dies in its next tick, after sending and before recording."""
    # A turn goes out early if time passes, before the other entries are held.
    scheduler = world.scheduler_of(RecordingScheduler, clock=Clock())
    scheduler.tick()

    def die() -> None:
        raise DeadError

    world.schedulers.remove(scheduler)  # a killed beat does not close its scheduler
    wire.before_command(die, lambda: scheduler.sent)
    return scheduler


class TestExpiry:
    def test_after_a_death_the_same_task_id_is_sent_again(self, world: World, wire: Wire) -> None:
        dead = die_after_publishing(world, wire)
        world.put("a", interval_json(60), world.ago(90))
        world.put("new")
        with pytest.raises(DeadError):
            dead.tick()
        world.client.delete(f"{PREFIX}:lock")
        heir = world.scheduler()
        heir.tick()
        assert heir.sent == []  # the dead beat's holds have not expired yet
        world.end_hold("a")
        world.end_hold("new")
        heir.tick()
        assert {m.id for m in heir.sent} == {m.id for m in dead.sent}
        assert len(heir.sent) == 2
        assert world.run_count("a") == world.run_count("new") == 1

    def test_a_hold_lasts_for_thirty_seconds(self, world: World, wire: Wire) -> None:
        dead = die_after_publishing(world, wire)
        world.put("a")
        with pytest.raises(DeadError):
            dead.tick()
        assert world.score("a") == world.later(HELD)

    def test_a_record_after_the_hold_was_taken_over_counts_once(self, world: World) -> None:
        """A beat that stalled longer than its hold resumes after another beat ran the entry."""
        world.app.conf.redbeat_lock_key = None
        world.put("a", interval_json(60), world.ago(90))
        slow, quick = world.scheduler(), world.scheduler()

        def overtaken() -> None:
            world.end_hold("a")
            quick.tick()

        during_run(slow, overtaken)
        slow.tick()
        assert [m.id for m in slow.sent] == [m.id for m in quick.sent]
        assert world.run_count("a") == 1
        assert not world.is_held("a")

    def test_a_record_while_another_beat_holds_the_run_is_refused(
        self, world: World, wire: Wire
    ) -> None:
        world.app.conf.redbeat_lock_key = None
        slow, quick = world.scheduler(), die_after_publishing(world, wire)
        slow.tick()
        world.put("a", interval_json(60), world.ago(90))

        def overtaken() -> None:
            world.end_hold("a")
            with pytest.raises(DeadError):
                quick.tick()

        during_run(slow, overtaken)
        slow.tick()
        assert [m.id for m in slow.sent] == [m.id for m in quick.sent]
        assert world.run_count("a") == 0
        assert world.is_held("a")

    def test_a_stalled_beat_gives_its_holds_back(
        self, world: World, clock: Clock, log: pytest.LogCaptureFixture
    ) -> None:
        for name in "abc":
            world.put(name)
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        during_run(scheduler, lambda: clock.advance(MAY_PUBLISH))
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert "This beat stalled past the " in log.text
        scheduler.tick()
        assert scheduler.names == ["a", "b", "c"]

    def test_a_run_is_decided_when_it_is_held(self, world: World, clock: Clock) -> None:
        """The beat sends the occurrence that was due at the look, even if it publishes later."""
        ran = world.ago(2)
        for name in "ab":
            world.put(name, interval_json(1), ran)
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        during_run(scheduler, lambda: clock.advance(3))
        scheduler.tick()
        first, second = scheduler.sent
        assert second.scheduled_at == first.scheduled_at


def die_after_sending(world: World, wire: Wire, **policy: Any) -> RecordingScheduler:
    """Return a beat that died after it sent ``a`` and before it recorded the run."""
    dead = die_after_publishing(world, wire)
    key = world.put("a", interval_json(60), world.ago(130))
    world.client.hset(key, "policy", json.dumps(policy))
    with pytest.raises(DeadError):
        dead.tick()
    world.end_hold("a")
    world.client.delete(f"{PREFIX}:lock")
    return dead


def decided_before(world: World) -> None:
    """Change the held run of ``a`` to the occurrence before it."""
    state = world.field("a", "beat_state")
    state["hold"][1] -= 60
    state["hold"][5] = 0
    world.client.hset(f"{PREFIX}a", "beat_state", json.dumps(state))


class TestPerhapsSent:
    """A beat died after it sent the message and before it recorded the run."""

    def test_the_next_beat_sends_the_same_occurrence(self, world: World, wire: Wire) -> None:
        """A later occurrence, which was not due yet at the first look, is not sent instead."""
        dead = die_after_sending(world, wire)
        decided_before(world)
        heir = world.scheduler()
        heir.tick()
        assert heir.sent[0].scheduled_at == dead.sent[0].scheduled_at - timedelta(seconds=60)

    def test_a_possibly_sent_run_is_not_sent_again_when_it_is_too_late(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        """The beat records the late occurrence as a run, and sends the next occurrence."""
        dead = die_after_sending(world, wire, misfire_grace_time=50)
        decided_before(world)
        heir = world.scheduler()
        heir.tick()
        assert "may have been sent" in log.text
        assert [sent.scheduled_at for sent in heir.sent] == [dead.sent[0].scheduled_at]
        assert world.run_count("a") == 2

    def test_a_possibly_sent_run_of_a_paused_entry_counts_and_is_not_sent_again(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        dead = die_after_sending(world, wire, max_runs=3)
        definition = {**world.field("a", "definition"), "enabled": False}
        world.client.hset(f"{PREFIX}a", "definition", json.dumps(definition))
        heir = world.scheduler()
        heir.tick()
        assert (heir.sent, world.run_count("a"), world.score("a")) == ([], 1, -2)
        assert f"may have been sent with id {dead.sent[0].id}" in log.text

    def test_after_the_reported_end_of_such_a_run_the_next_run_is_sent(
        self, world: World, wire: Wire
    ) -> None:
        dead = die_after_sending(world, wire, overlap="skip", misfire_grace_time=50)
        decided_before(world)
        with reporting(world.app):
            end_run(world.app, dead.sent[0])
        heir = world.scheduler()
        heir.tick()
        heir.tick()
        assert len(heir.sent) == 1

    @pytest.mark.parametrize("how", ["nothing", "args", "schedule as before"])
    def test_a_save_keeps_the_id_of_a_possibly_sent_run(
        self, world: World, wire: Wire, how: str
    ) -> None:
        """The last run of an entry, although a later occurrence is due now."""
        dead = die_after_sending(world, wire, max_runs=1)
        decided_before(world)
        first = dead.sent[0].scheduled_at - timedelta(seconds=60)
        entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app)
        if how == "args":
            entry.args = [1]
        elif how != "nothing":
            entry.schedule = schedule(60, app=world.app)
        entry.save()
        heir = world.scheduler()
        heir.tick()
        heir.tick()
        assert [sent.scheduled_at for sent in heir.sent] == [first]
        assert world.run_count("a") == 1


class TestEdits:
    def test_save_during_the_run_takes_effect_at_once(self, world: World) -> None:
        """#221: an entry whose interval changes to 10 s during its run is due in 10 s."""
        ran = world.ago(86400)
        world.put("a", interval_json(86400), ran)
        scheduler = world.scheduler()

        def edit() -> None:
            entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app)
            entry.schedule = schedule(10, app=world.app)
            entry.save()
            assert world.is_held("a")

        during_run(scheduler, edit)
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1
        assert world.score("a") == world.later(10)

    def test_another_schedule_during_the_last_run_restarts_the_entry(self, world: World) -> None:
        key = world.put("a", interval_json(60), world.ago(90))
        world.client.hset(key, "policy", '{"max_runs": 1}')
        scheduler = world.scheduler()

        def edit() -> None:
            entry = RedBeatSchedulerEntry.from_key(key, world.app)
            entry.schedule = schedule(600, app=world.app)
            entry.save()

        during_run(scheduler, edit)
        scheduler.tick()
        assert (scheduler.names, world.run_count("a")) == (["a"], 0)
        assert world.score("a") == world.later(600)

    @pytest.mark.parametrize("how", ["entry", "raw"])
    def test_a_deleted_entry_never_comes_back(self, world: World, how: str) -> None:
        """#197: an entry that is deleted during its run is not stored again, not even its hash."""
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler()

        def delete() -> None:
            if how == "entry":
                RedBeatSchedulerEntry(name="a", app=world.app).delete()
            else:
                world.client.delete(f"{PREFIX}a")
                world.client.zrem(SCHEDULE, f"{PREFIX}a")

        during_run(scheduler, delete)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert not world.client.exists(f"{PREFIX}a")
        assert world.score("a") is None

    def test_an_entry_recreated_during_the_run_inherits_nothing(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler()

        def replace() -> None:
            RedBeatSchedulerEntry(name="a", app=world.app).delete()
            RedBeatSchedulerEntry("a", "tasks.a", 3600, app=world.app).save()

        during_run(scheduler, replace)
        scheduler.tick()
        assert world.run_count("a") == 0
        assert world.score("a") == world.later(3600)

    def test_zadd_0_during_the_run_sends_no_second_message(self, world: World) -> None:
        world.app.conf.redbeat_lock_key = None
        world.put("a", interval_json(60), world.ago(90))
        scheduler, other = world.scheduler(), world.scheduler()
        other.tick()
        other.sent.clear()
        world.put_meta("a", world.ago(90))
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})

        def disturb() -> None:
            world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
            other.tick()

        during_run(scheduler, disturb)
        scheduler.tick()
        assert (scheduler.names, other.names) == (["a"], [])
        score = world.score("a")
        assert score is not None
        assert score > world.now()


class TestRedisInBetween:
    def test_reply_to_a_record_lost(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler()
        during_run(scheduler, wire.lose)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1
        assert "deleted or replaced" not in log.text
