"""Claims on entries, and changes of an entry while it is claimed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.session import LONGEST_LEASE as LEASE
from redbeat.beat.session import USABLE_LEASE_PART
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.store import store_of
from tests.deployments import PREFIX
from tests.workers import reporting

from .clients import Wire
from .conftest import (
    SCHEDULE,
    Clock,
    RecordingScheduler,
    World,
    datetime_json,
    end_run,
    interval_json,
    once,
    void,
)


def during_run(scheduler: RecordingScheduler, action: Callable[[], Any]) -> None:
    """Let the scheduler call ``action`` once, while it sends the first message."""
    scheduler.before_send = once(action)


class DeadError(BaseException):
    """An exception that no handler of a beat catches. It simulates SIGKILL."""


def die_after_publishing(world: World, wire: Wire) -> RecordingScheduler:
    """Return a scheduler that dies in its next tick, after sending and before recording."""
    scheduler = world.scheduler()
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
        assert heir.sent == []  # the claims of the dead beat have not expired yet
        world.expire_claim("a")
        world.expire_claim("new")
        heir.tick()
        assert {m.id for m in heir.sent} == {m.id for m in dead.sent}
        assert len(heir.sent) == 2
        assert world.run_count("a") == world.run_count("new") == 1

    def test_claims_last_for_the_lease(self, world: World, wire: Wire) -> None:
        dead = die_after_publishing(world, wire)
        world.put("a")
        with pytest.raises(DeadError):
            dead.tick()
        assert world.score("a") == world.later(LEASE)

    def test_completion_of_a_replaced_claim_is_refused(self, world: World) -> None:
        """A beat that stalled longer than its lease resumes after another beat ran the entry."""
        world.app.conf.redbeat_lock_key = None
        world.put("a", interval_json(60), world.ago(90))
        slow, quick = world.scheduler(), world.scheduler()

        def overtaken() -> None:
            world.expire_claim("a")
            quick.tick()

        during_run(slow, overtaken)
        slow.tick()
        assert [m.id for m in slow.sent] == [m.id for m in quick.sent]
        assert world.run_count("a") == 1
        assert not world.is_claimed("a")

    def test_completion_under_a_claim_of_another_beat_is_refused(
        self, world: World, wire: Wire
    ) -> None:
        world.app.conf.redbeat_lock_key = None
        slow, quick = world.scheduler(), die_after_publishing(world, wire)
        slow.tick()
        world.put("a", interval_json(60), world.ago(90))

        def overtaken() -> None:
            world.expire_claim("a")
            with pytest.raises(DeadError):
                quick.tick()

        during_run(slow, overtaken)
        slow.tick()
        assert [m.id for m in slow.sent] == [m.id for m in quick.sent]
        assert world.run_count("a") == 0
        assert world.is_claimed("a")

    def test_a_stalled_beat_puts_its_claims_back(
        self, world: World, clock: Clock, log: pytest.LogCaptureFixture
    ) -> None:
        for name in "abc":
            world.put(name)
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        during_run(scheduler, lambda: clock.advance(LEASE * USABLE_LEASE_PART))
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert "This beat stalled past the " in log.text
        scheduler.tick()
        assert scheduler.names == ["a", "b", "c"]

    def test_a_run_is_decided_when_it_is_claimed(self, world: World, clock: Clock) -> None:
        """The beat sends the occurrence that was due at the claim, even if it publishes later."""
        ran = world.ago(2)
        for name in "ab":
            world.put(name, interval_json(1), ran)
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        during_run(scheduler, lambda: clock.advance(3))
        scheduler.tick()
        first, second = scheduler.sent
        assert second.scheduled_at == first.scheduled_at

    def test_claims_whose_reply_came_late_are_put_back(
        self, world: World, wire: Wire, clock: Clock
    ) -> None:
        scheduler = world.scheduler_of(RecordingScheduler, clock)
        scheduler.tick()
        world.put("a")
        wire.after_reply(
            lambda: clock.advance(LEASE * USABLE_LEASE_PART), lambda: world.is_claimed("a")
        )
        scheduler.tick()
        assert scheduler.names == []
        scheduler.tick()
        assert scheduler.names == ["a"]


def die_after_sending(world: World, wire: Wire, **policy: Any) -> RecordingScheduler:
    """Return a beat that died after it sent ``a`` and before it recorded the run."""
    dead = die_after_publishing(world, wire)
    key = world.put("a", interval_json(60), world.ago(130))
    world.client.hset(key, "policy", json.dumps(policy))
    with pytest.raises(DeadError):
        dead.tick()
    world.expire_claim("a")
    world.client.delete(f"{PREFIX}:lock")
    return dead


def decided_before(world: World, seconds: float) -> None:
    """Move the decision about the run of ``a`` back by ``seconds``, which is an occurrence."""
    state = world.client.hget(f"{PREFIX}a", "beat_state")
    if state is not None:
        fields = json.loads(state)
        fields["hold"][1] -= 60
        fields["hold"][5] = 0
        world.client.hset(f"{PREFIX}a", "beat_state", json.dumps(fields))
        return
    text = str(world.client.hget(f"{PREFIX}a", "claim"))
    since = text.split(" ")[3]
    world.client.hset(f"{PREFIX}a", "claim", text.replace(since, f"{float(since) - seconds:.6f}"))


class TestPerhapsSent:
    """A beat died after it sent the message and before it recorded the run."""

    def test_the_next_beat_sends_the_same_occurrence(self, world: World, wire: Wire) -> None:
        """A later occurrence, which was not due yet at the first claim, is not sent instead."""
        dead = die_after_sending(world, wire)
        decided_before(world, 30)
        heir = world.scheduler()
        heir.tick()
        assert heir.sent[0].scheduled_at == dead.sent[0].scheduled_at - timedelta(seconds=60)

    def test_a_possibly_sent_run_is_not_sent_again_when_it_is_too_late(
        self, world: World, wire: Wire, log: pytest.LogCaptureFixture
    ) -> None:
        """The beat records the late occurrence as a run, and sends the next occurrence."""
        dead = die_after_sending(world, wire, misfire_grace_time=50)
        decided_before(world, 30)
        heir = world.scheduler()
        heir.tick()
        assert "may have been sent" in log.text
        assert [sent.scheduled_at for sent in heir.sent] == [dead.sent[0].scheduled_at]
        assert world.run_count("a") == 2

    def test_a_run_whose_beat_ends_while_sending_keeps_its_occurrence(self, world: World) -> None:
        def end() -> None:
            raise SystemExit

        world.put("a", interval_json(60), world.ago(130))
        scheduler = world.scheduler()
        during_run(scheduler, end)
        with pytest.raises(SystemExit):
            scheduler.tick()
        words = str(world.client.hget(f"{PREFIX}a", "claim")).split(" ", 4)
        assert (words[0], words[2]) == ('["-', "0")
        assert float(words[3]) == pytest.approx(world.now(), abs=30)

    def test_a_possibly_sent_run_does_not_wait_for_the_end_of_itself(
        self, world: World, wire: Wire
    ) -> None:
        """The run may be sent again although ``overlap`` is "skip": it has the same task id."""
        dead = die_after_sending(world, wire, overlap="skip")
        world.client.hset(f"{PREFIX}a", "running", f'"another {world.now() + 600:.6f}"')
        heir = world.scheduler()
        heir.tick()
        assert [sent.id for sent in heir.sent[:1]] == [dead.sent[0].id]

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

    def test_after_a_run_that_is_too_late_to_repeat_the_next_run_does_not_overlap(
        self, world: World, wire: Wire
    ) -> None:
        """Setup: ``overlap`` is "skip", and the run may be active in a worker."""
        dead = die_after_sending(world, wire, overlap="skip", misfire_grace_time=50)
        decided_before(world, 30)
        heir = world.scheduler()
        heir.tick()
        heir.tick()
        assert (len(dead.sent), heir.sent) == (1, [])

    def test_after_the_reported_end_of_such_a_run_the_next_run_is_sent(
        self, world: World, wire: Wire
    ) -> None:
        dead = die_after_sending(world, wire, overlap="skip", misfire_grace_time=50)
        decided_before(world, 30)
        world.client.hset(f"{PREFIX}a", "ended", f'"{dead.sent[0].id}"')
        with reporting(world.app):
            end_run(world.app, dead.sent[0])
        heir = world.scheduler()
        heir.tick()
        heir.tick()
        assert len(heir.sent) == 1

    def test_a_trigger_that_may_have_been_sent_counts_as_an_active_run(
        self, world: World, wire: Wire
    ) -> None:
        """Setup: a trigger and a run are due, ``overlap`` is "skip", and the trigger was sent."""
        dead = die_after_publishing(world, wire)
        key = world.put("a", interval_json(60), world.ago(70))
        policy, trigger = json.dumps({"overlap": "skip"}), f'"t1:{world.now():.6f}"'
        world.client.hset(key, mapping={"policy": policy, "trigger": trigger})
        with pytest.raises(DeadError):
            dead.tick()
        world.expire_claim("a")
        world.client.delete(f"{PREFIX}:lock")
        heir = world.scheduler()
        heir.tick()
        heir.tick()
        assert [sent.id for sent in heir.sent] == [sent.id for sent in dead.sent]

    @pytest.mark.parametrize("how", ["nothing", "args", "schedule as before", "clock"])
    def test_a_save_keeps_the_id_of_a_possibly_sent_run(
        self, world: World, wire: Wire, how: str
    ) -> None:
        """The last run of an entry, although a later occurrence is due now."""
        dead = die_after_sending(world, wire, max_runs=1)
        decided_before(world, 60)
        first = dead.sent[0].scheduled_at - timedelta(seconds=60)
        if how == "clock":  # what a beat does after the clock of Redis went back
            store_of(world.app).save(f"{PREFIX}a", seen=None)
        else:
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

    def test_a_save_with_another_schedule_decides_again(self, world: World, wire: Wire) -> None:
        dead = die_after_sending(world, wire, max_runs=1)
        decided_before(world, 60)
        entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app)
        entry.schedule = schedule(50, app=world.app)
        entry.save()
        heir = world.scheduler()
        heir.tick()
        (sent,) = heir.sent
        assert sent.scheduled_at == dead.sent[0].scheduled_at - timedelta(seconds=20)

    def test_a_pause_of_a_possibly_sent_run_counts_it(self, world: World, wire: Wire) -> None:
        die_after_sending(world, wire, max_runs=3)
        RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app).pause()
        heir = world.scheduler()
        heir.tick()
        assert (heir.sent, world.run_count("a"), world.score("a")) == ([], 1, -2)

    def test_a_pause_and_a_resume_keep_the_id_of_a_possibly_sent_run(
        self, world: World, wire: Wire
    ) -> None:
        dead = die_after_sending(world, wire, max_runs=1)
        decided_before(world, 60)
        entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app)
        entry.pause()
        entry.resume()
        heir = world.scheduler()
        heir.tick()
        first = dead.sent[0].scheduled_at - timedelta(seconds=60)
        assert [sent.scheduled_at for sent in heir.sent] == [first]

    def test_a_save_keeps_the_id_of_a_run_that_was_put_back(self, world: World) -> None:
        """The broker did not confirm the message, so the run may have been sent."""

        def lost(_task: str) -> None:
            raise ConnectionError("the reply is lost")

        key = world.put("a", interval_json(60), world.ago(130))
        world.client.hset(key, "policy", json.dumps({"max_runs": 1}))
        scheduler = world.scheduler()
        scheduler.before_send = lost
        scheduler.tick()
        decided_before(world, 60)
        entry = RedBeatSchedulerEntry.from_key(key, world.app)
        entry.args = [1]
        entry.save()
        heir = world.scheduler()
        world.client.delete(f"{PREFIX}:lock")
        heir.tick()
        heir.tick()
        (sent,) = heir.sent
        assert sent.scheduled_at < world.ago(60)


@pytest.mark.standalone
class TestOneStep:
    """If broker and schedule share a server, a run is sent and recorded in one step."""

    def test_the_message_of_an_edited_entry_is_built_again(
        self, world: World, wire: Wire, redis_url: str
    ) -> None:
        world.app.conf.broker_url = redis_url
        key = world.put("a", interval_json(600), world.ago(900), args=["before"])
        scheduler = world.scheduler_of(RedBeatScheduler)
        edited = {**world.field("a", "definition"), "args": ["after"]}
        wire.after_reply(
            lambda: world.client.hset(key, "definition", json.dumps(edited)),
            lambda: world.is_claimed("a"),
        )
        scheduler.tick()
        scheduler.tick()
        (message,) = world.client.lrange("celery", 0, -1)
        assert json.loads(message)["headers"]["argsrepr"] == "['after']"

    def test_a_run_whose_claim_ended_before_its_record_is_decided_again(
        self, world: World, wire: Wire, redis_url: str, log: pytest.LogCaptureFixture
    ) -> None:
        """Setup: the beat has built the message and is frozen before it sends the record.

        Fault: when it goes on, its claim has ended, and the run is too late by its policy.
        Invariant: the run is missed, the next one is sent.
        """
        world.app.conf.broker_url = redis_url
        scheduler = world.scheduler_of(RedBeatScheduler)
        scheduler.tick()
        key = world.put("a", interval_json(60), world.ago(90))
        policy = json.dumps({"misfire_grace_time": 40})
        world.client.hset(key, "policy", policy)

        def freeze() -> None:
            """End the claim; the run that was due 30 s ago is now due 45 s ago."""
            meta = world.field("a", "meta")
            meta["last_run_at"] = datetime_json(world.ago(105))
            claim = str(world.client.hget(key, "claim"))
            old, new = str(world.client.hget(key, "meta")), json.dumps(meta)
            world.client.hset(key, mapping={"meta": new, "claim": claim.replace(old, new)})
            world.expire_claim("a")

        wire.before_command(freeze, lambda: world.is_claimed("a"))
        scheduler.tick()
        assert "its claim ended first" in log.text
        assert not world.client.exists("celery")
        assert "missed 1 run" in log.text


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
            assert world.is_claimed("a")

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

    def test_raw_edit_during_the_run_takes_effect_at_once(self, world: World) -> None:
        world.put("a", interval_json(86400), world.ago(86400))
        scheduler = world.scheduler()
        new = {"name": "a", "task": "t", "schedule": interval_json(10)}
        during_run(
            scheduler, lambda: world.client.hset(f"{PREFIX}a", "definition", json.dumps(new))
        )
        scheduler.tick()
        assert world.score("a") == world.later(10)

    def test_disabling_during_the_run_parks_after_it(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler()

        def disable() -> None:
            entry = RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app)
            entry.enabled = False
            entry.save()

        during_run(scheduler, disable)
        scheduler.tick()
        scheduler.tick()
        assert world.run_count("a") == 1
        assert world.score("a") == -2

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

    def test_history_written_by_an_application_during_the_run_counts(self, world: World) -> None:
        """Some applications write the finish time as the last run. The next run counts from it."""
        finished = world.ago(-30)
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler()
        during_run(scheduler, lambda: world.put_meta("a", finished))
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1
        assert world.score("a") == pytest.approx(finished.timestamp() + 60, abs=1e-5)
        assert not world.is_claimed("a")

    def test_an_unreadable_history_written_during_the_run_is_quarantined(
        self, world: World
    ) -> None:
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler()
        during_run(scheduler, lambda: world.client.hset(f"{PREFIX}a", "meta", "{"))
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert (world.run_count("a"), world.quarantine()) == (1, {})

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
    def test_script_cache_flushed(self, world: World) -> None:
        for name in "abc":
            world.put(name)
        scheduler = world.scheduler()
        scheduler.before_send = lambda _task: void(world.client.script_flush())
        scheduler.tick()
        assert scheduler.names == ["a", "b", "c"]
        assert [world.run_count(name) for name in "abc"] == [1, 1, 1]

    def test_reply_to_a_completion_lost(
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

    def test_reply_to_a_claim_lost(self, world: World, wire: Wire) -> None:
        """A run whose claim reply was lost is sent late, for the same occurrence."""
        scheduler = world.scheduler()
        scheduler.tick()
        ran = world.ago(90)
        world.put("a", interval_json(60), ran)
        wire.lose()
        scheduler.tick()
        if world.is_claimed("a"):
            world.expire_claim("a")
        scheduler.tick()
        assert [m.scheduled_at for m in scheduler.sent] == [ran + timedelta(seconds=60)]
        assert world.run_count("a") == 1
