"""The extension points that users of RedBeat 2 override with their own code."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery.schedules import BaseSchedule, schedstate

from redbeat import RedBeatSchedulerEntry
from tests.deployments import PREFIX

from .conftest import SCHEDULE, Clock, RecordingScheduler, World, interval_json


class TestScheduler:
    def test_maybe_due_that_loads_the_entry_again(self, world: World) -> None:
        class Own(RecordingScheduler):
            def maybe_due(self, entry: Any, **kwargs: Any) -> float | None:
                fresh = self.Entry.from_key(entry.key, app=self.app)
                return super().maybe_due(fresh, **kwargs)

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1
        assert world.score("a") == world.later(30)

    def test_a_rewritten_maybe_due_sends_and_the_run_is_recorded(self, world: World) -> None:
        """The user's ``maybe_due`` sends with ``apply_async``, and RedBeat records the run."""

        class Own(RecordingScheduler):
            def maybe_due(self, entry: Any, **kwargs: Any) -> float | None:
                is_due, seconds = entry.is_due()
                if is_due:
                    self.apply_async(entry, **kwargs)
                return float(seconds)

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1

    def test_maybe_due_that_swallows_errors_loses_nothing(self, world: World) -> None:
        class Own(RecordingScheduler):
            def maybe_due(self, entry: Any, **kwargs: Any) -> float | None:
                is_due, seconds = entry.is_due()
                try:
                    if is_due:
                        self.apply_async(entry, **kwargs)
                except Exception:
                    pass
                return float(seconds)

        def refuse(_task: str) -> None:
            raise ValueError("no")

        world.put("a", interval_json(3600), world.ago(3700))
        scheduler = world.scheduler_of(Own)
        scheduler.before_send = refuse
        scheduler.tick()
        assert world.run_count("a") == 0
        assert world.backs_off("a")

    def test_maybe_due_that_reserves_and_sends_by_itself(self, world: World) -> None:
        sent: list[str] = []

        class Own(RecordingScheduler):
            def maybe_due(self, entry: Any, **_kwargs: Any) -> float | None:
                is_due, seconds = entry.is_due()
                if is_due:
                    self.reserve(entry)
                    sent.append(entry.name)
                return float(seconds)

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        scheduler.tick()
        assert sent == ["a"]
        assert world.run_count("a") == 1

    def test_setup_schedule_without_super_removes_nothing(self, world: World) -> None:
        class Own(RecordingScheduler):
            def setup_schedule(self) -> None:
                pass

        world.scheduler_of(RecordingScheduler).tick()
        world.schedulers[0].close()
        before = world.dump()
        world.scheduler_of(Own).tick()
        assert world.dump() == before

    def test_schedule_shows_what_is_due_and_the_next(self, world: World) -> None:
        world.put("due", interval_json(60), world.ago(90))
        world.put("next", interval_json(60), world.ago(50), score=world.now() + 10)
        world.put("later", interval_json(60), world.ago(1), score=world.now() + 59)
        scheduler = world.scheduler()
        assert list(scheduler.schedule) == ["due", "next"]


class TestEntry:
    def test_an_entry_class_whose_from_key_cannot_reach_redis(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        class Own(RedBeatSchedulerEntry):
            away = True

            @classmethod
            def from_key(cls, key: Any, app: Any = None) -> Any:
                if cls.away:
                    raise redis.ConnectionError("gone")
                return super().from_key(key, app=app)

        class Scheduler(RecordingScheduler):
            Entry = Own

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(Scheduler)
        scheduler.tick()
        assert not world.quarantine()
        assert "trying again" in log.text
        Own.away = False
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 1})
        scheduler.tick()
        assert scheduler.names == ["a"]

    def test_an_entry_whose_is_due_is_early_runs_early(self, world: World) -> None:
        class Eager(RedBeatSchedulerEntry):
            def is_due(self) -> schedstate:
                return schedstate(True, 5.0)

        class Own(RecordingScheduler):
            Entry = Eager

        world.put("a", interval_json(3600), world.ago(10))
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.score("a") == world.later(5)

    def test_an_entry_class_with_its_own_save(self, world: World) -> None:
        saved: list[str] = []

        class Noting(RedBeatSchedulerEntry):
            def save(self, if_unchanged: bool = False) -> Any:
                saved.append(str(self.name))
                return super().save(if_unchanged)

        class Own(RecordingScheduler):
            Entry = Noting

        world.app.conf.beat_schedule = {"s": {"task": "t", "schedule": 3600}}
        world.scheduler_of(Own).tick()
        assert "s" in saved
        assert world.field("s", "definition")["task"] == "t"
        assert "s" in world.client.smembers(f"{PREFIX}:statics")


def with_schedule(schedule: BaseSchedule) -> type[RecordingScheduler]:
    """Return a scheduler class in which every entry has this schedule."""

    class Own(RecordingScheduler):
        class Entry(RedBeatSchedulerEntry):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.schedule = schedule

    return Own


class Fickle(BaseSchedule):
    """A schedule whose ``is_due`` returns the given results in order, and logs its calls."""

    def __init__(self, *answers: tuple[bool, float | None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.answers = list(answers)
        self.calls: list[str] = []

    def is_due(self, _last_run_at: datetime) -> Any:
        self.calls.append("asked")
        return self.answers.pop(0)

    def remaining_estimate(self, _last_run_at: datetime) -> timedelta:
        return timedelta(seconds=1)


class TestSchedule:
    def test_a_schedule_class_of_the_user_is_used(self, world: World) -> None:
        """The beat calls the ``is_due`` method of the user's schedule object."""
        fickle = Fickle((True, 30.0), (False, 12.0), (False, None), app=world.app)
        world.put("a", interval_json(60))
        scheduler = world.scheduler_of(with_schedule(fickle))
        for seconds in (30.0, 12.0):
            scheduler.tick()
            assert world.score("a") == world.later(seconds)
            world.client.zadd(SCHEDULE, {f"{PREFIX}a": 0})
        scheduler.tick()
        assert world.score("a") == -1
        assert scheduler.names == ["a"]

    def test_is_due_is_called_once_for_a_run_and_before_it(
        self, world: World, clock: Clock
    ) -> None:
        fickle = Fickle((True, 30.0), (True, 30.0), app=world.app)

        def send_slowly(_task: str) -> None:
            fickle.calls.append("sent")
            clock.advance(1)

        for name in ("a", "b"):
            world.put(name, interval_json(60))
        scheduler = world.scheduler_of(with_schedule(fickle), clock=clock)
        scheduler.before_send = send_slowly
        scheduler.tick()
        assert sorted(fickle.calls) == ["asked"] * 2 + ["sent"] * 2
        assert fickle.calls[::3] == ["asked", "sent"]
