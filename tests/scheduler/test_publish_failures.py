"""Messages that cannot be sent are retried, and do not delay other entries."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.exceptions import OperationalError

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.trouble import BROKER_WAIT, CHECKED_EVERY, ENTRY_WAIT
from redbeat.errors import LONGEST_REASON, reason_of
from redbeat.management.status import status_of
from redbeat.schedulers import RedBeatScheduler
from redbeat.settings import AT_MOST_ONCE
from tests.deployments import PREFIX
from tests.workers import reporting

from .conftest import SCHEDULE, Clock, RecordingScheduler, World, interval_json


class Breaker:
    """A ``before_send`` function that raises an error for some tasks until ``error`` is None."""

    def __init__(self, scheduler: RecordingScheduler, error: BaseException, *tasks: str) -> None:
        self.error: BaseException | None = error
        self.tasks = tasks
        self.attempts: list[str] = []
        scheduler.before_send = self

    def __call__(self, task: str) -> None:
        self.attempts.append(task)
        if self.error is not None and (not self.tasks or task in self.tasks):
            raise self.error


ENTRY_ERRORS = [
    ValueError("cannot be serialised"),
    OSError("file of the user not found"),
    FileNotFoundError(2, "no such file"),
    PermissionError(13, "not allowed"),
    KeyError("x"),
    RuntimeError("boom"),
]
BROKER_ERRORS = [
    OperationalError("broker away"),
    ConnectionRefusedError(111, "refused"),
    TimeoutError(),
]


class TestOneEntry:
    @pytest.mark.parametrize("error", ENTRY_ERRORS, ids=repr)
    def test_a_failing_entry_backs_off_and_the_others_are_sent(
        self, world: World, log: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        for name in "abc":
            world.put(name, interval_json(60), world.ago(90))
        scheduler = world.scheduler()
        Breaker(scheduler, error, "tasks.b")
        assert scheduler.tick() > 0
        assert scheduler.names == ["a", "c"]
        assert world.run_count("b") == 0
        assert world.score("b") == world.later(ENTRY_WAIT.first)
        assert f"{PREFIX}b" in log.text
        assert "broker" not in log.text

    def test_waits_longer_each_time_and_recovers(self, world: World) -> None:
        ran = world.ago(90)
        world.put("a", interval_json(60), ran)
        scheduler = world.scheduler()
        breaker = Breaker(scheduler, ValueError("x"))
        for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
            before = world.now()
            scheduler.tick()
            score = world.score("a")
            assert score is not None
            assert before < score - seconds < world.now()
            world.make_due("a")
        breaker.error = None
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1

    @pytest.mark.parametrize("delivery", [None, AT_MOST_ONCE])
    def test_attempts_add_up_with_each_delivery(self, world: World, delivery: str | None) -> None:
        world.app.conf.update(broker_url="memory://", redbeat_delivery=delivery)
        world.put("a", interval_json(60), world.ago(90), options={"compression": "none such"})
        scheduler = world.scheduler_of(RedBeatScheduler)
        for _ in range(4):
            scheduler.tick()
            world.make_due("a")
        failing = RedBeatSchedulerEntry.from_key(f"{PREFIX}a", world.app).status.failing
        assert failing is not None
        assert failing.attempts == 4

    def test_first_run_keeps_its_identity(self, world: World) -> None:
        """The retries of a first run send the same occurrence."""
        first = world.now() - 5
        world.put("a", score=first)
        scheduler = world.scheduler()
        breaker = Breaker(scheduler, ValueError("x"))
        for _ in range(3):
            scheduler.tick()
            world.make_due("a")
        breaker.error = None
        scheduler.tick()
        assert scheduler.sent[0].scheduled_at.timestamp() == pytest.approx(first, abs=1e-5)

    def test_a_schedule_of_the_user_that_raises_backs_off(self, world: World) -> None:
        class Angry(RecordingScheduler):
            def is_due(self, entry: Any) -> Any:
                if entry.name == "b":
                    raise RuntimeError("no")
                return super().is_due(entry)

        for name in "abc":
            world.put(name)
        scheduler = world.scheduler_of(Angry)
        scheduler.tick()
        assert scheduler.names == ["a", "c"]
        assert world.backs_off("b")


class TestBroker:
    @pytest.mark.parametrize("error", BROKER_ERRORS, ids=repr)
    def test_a_broker_error_stops_the_batch_and_puts_the_rest_back(
        self, world: World, clock: Clock, log: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        names = [f"n{number:02}" for number in range(20)]
        for name in names:
            world.put(name, interval_json(60), world.ago(90), score=1)
        scheduler = world.scheduler(clock=clock)
        breaker = Breaker(scheduler, error, *(f"tasks.{name}" for name in names[3:]))
        assert 0 < scheduler.tick() <= BROKER_WAIT.longest
        assert scheduler.names == names[:3]
        assert len(breaker.attempts) == 4
        assert not any(world.is_held(name) and world.score(name) != 1 for name in names[4:])
        for _ in range(3):
            assert 0 < scheduler.tick() <= BROKER_WAIT.longest
        assert len(breaker.attempts) == 7  # one attempt per tick
        breaker.error = None
        world.make_due(*names)
        scheduler.tick()
        scheduler.tick()
        assert sorted(scheduler.names) == names
        assert all(world.run_count(name) == 1 for name in names)
        assert log.text.count("The broker is not available") == 1
        assert log.text.count("The broker is back") == 1

    def test_a_broker_error_of_a_triggered_run_counts_despite_earlier_successes(
        self, world: World, clock: Clock, log: pytest.LogCaptureFixture
    ) -> None:
        for number, name in enumerate("abcd"):
            world.put(name, interval_json(3600), score=number + 1)
        world.put_waiting("c", "x:1")
        scheduler = world.scheduler(clock=clock)
        breaker = Breaker(scheduler, OperationalError("away"), "tasks.c")
        assert 0 < scheduler.tick() <= BROKER_WAIT.longest
        assert breaker.attempts == ["tasks.a", "tasks.b", "tasks.c"]
        assert scheduler.names == ["a", "b"]
        assert "The broker is back" not in log.text

    def test_idle_ticks_do_not_connect_to_the_broker(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(1), score=world.now() + 59)
        scheduler = world.scheduler()
        scheduler.tick()
        assert "connection" not in scheduler.__dict__


class TestFailing:
    """An entry whose run cannot be sent is in the state ``failing``."""

    FAILING = f".{PREFIX}:failing"

    @staticmethod
    def entry(world: World) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry.from_key(f"{PREFIX}a", app=world.app)

    def test_two_beats_count_the_attempts_of_one_run(self, world: World) -> None:
        due = world.now() - 100
        world.put("a", score=due)
        for error in (ValueError("first"), KeyError("second"), TypeError("x" * 9000)):
            scheduler = world.scheduler()
            Breaker(scheduler, error)
            scheduler.tick()
            world.client.zadd(SCHEDULE, {f"{PREFIX}a": world.now()})
            scheduler.close()
        status = self.entry(world).status
        assert status.state == "failing"
        assert status.due_at is not None
        assert status.due_at.timestamp() == pytest.approx(due, abs=1e-5)
        failing = status.failing
        assert failing is not None
        assert failing.attempts == 3
        assert failing.first_error == "ValueError: first"
        assert failing.last_error.startswith("TypeError: xxx")
        assert len(failing.last_error) == LONGEST_REASON
        assert failing.first_at < failing.last_at
        assert "3 attempts" in (status.reason or "")
        counted = status_of(world.app)
        assert (counted.due_now, counted.entries["failing"]) == (1, 1)
        assert counted.entries["scheduled"] == 0
        assert counted.most_late == pytest.approx(100, abs=30)
        outcomes = [run.outcome for run in self.entry(world).history]
        assert outcomes == ["failed:TypeError:3", "failed:ValueError"]

    def test_a_reason_can_be_encoded(self) -> None:
        assert reason_of(ValueError("a\ud800\nb")) == r"ValueError: a\ud800 b"

    def test_the_first_success_ends_it(self, world: World, log: pytest.LogCaptureFixture) -> None:
        world.put("a")
        scheduler = world.scheduler()
        breaker = Breaker(scheduler, ValueError("x"))
        for _ in range(5):
            scheduler.tick()
            world.make_due("a")
        assert log.text.count("Could not send") == 3, "it is logged at the attempts 1, 2 and 4"
        breaker.error = None
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert self.entry(world).status.state == "scheduled"
        assert "failing" not in world.field("a", "beat_state")
        assert not world.client.exists(self.FAILING)
        assert f"Entry {PREFIX}a can be sent again, after 5 failed attempts" in log.text

    def test_a_triggered_run_ends_it_although_the_next_run_waits(self, world: World) -> None:
        with reporting(world.app):
            entry = RedBeatSchedulerEntry(
                "a", "tasks.a", 60, overlap="buffer_one", last_run_at=world.ago(90), app=world.app
            ).save()
            entry.trigger()
            scheduler = world.scheduler()
            breaker = Breaker(scheduler, ValueError("x"))
            scheduler.tick()
            assert self.entry(world).status.state == "failing"
            breaker.error = None
            world.make_due("a")
            scheduler.tick()
            assert scheduler.names == ["a"], "the run of the schedule waits for the end of this one"
            assert self.entry(world).status.failing is None

    @pytest.mark.parametrize("how", ["deleted", "paused"])
    def test_what_ends_it_besides(self, world: World, how: str) -> None:
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler()
        Breaker(scheduler, ValueError("x"))
        scheduler.tick()
        entry = self.entry(world)
        assert entry.status.state == "failing"
        if how == "deleted":
            entry.delete()
        else:
            entry.pause()
            scheduler.tick()  # counts the run, which may have been sent
        found = status_of(world.app)
        assert found.entries["failing"] == 0
        assert found.due_now == 0
        assert found.most_late is None
        if how != "deleted":
            assert self.entry(world).status.state == "paused"
        assert not world.client.exists(self.FAILING)

    def test_a_broker_that_is_back_is_noticed_without_a_run(self, world: World) -> None:
        clock = Clock()
        world.put("a")
        scheduler = world.scheduler(clock=clock)
        Breaker(scheduler, OperationalError("gone"))
        scheduler.tick()
        assert "gone" in status_of(world.app).problem
        self.entry(world).delete()
        scheduler.tick()  # within the interval of the check
        clock.advance(CHECKED_EVERY)
        scheduler.tick()
        assert status_of(world.app).problem == ""
