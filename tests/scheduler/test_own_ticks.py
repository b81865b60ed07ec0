"""User-defined schedulers that replace ``tick()``, the mapping of entries or the lock."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import schedstate
from redis.exceptions import LockError, LockNotOwnedError

from redbeat import ConfigurationError, RedBeatSchedulerEntry
from redbeat.signals import lock_lost
from tests.deployments import PREFIX
from tests.waiting import wait_until

from .clients import CountingRedis
from .conftest import LOCK, RecordingScheduler, World, heard, interval_json, once, void

HOUR = 3600.0

#: The key of a user-defined lock, in the hash slot of the schedule.
MINE = f".{PREFIX}:mine"


class OwnTick(RecordingScheduler):
    """A scheduler that replaces ``tick()``, as some programs for RedBeat 2 do."""

    def tick(self, **_kwargs: Any) -> float:
        """Extend the lock, then call ``maybe_due()`` for each entry of the schedule."""
        if self.lock is not None:
            self.lock.extend(int(self.lock_timeout or 1))
        waits = [
            self.maybe_due(entry, **self._maybe_due_kwargs) for entry in self.schedule.values()
        ]
        return min([wait for wait in waits if wait is not None], default=self.max_interval)


class TestOwnTick:
    def test_sends_records_and_reschedules(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(90))
        world.put("later", interval_json(60), world.ago(10), score=world.now() + 50)
        scheduler = world.scheduler_of(OwnTick)
        assert 0 < scheduler.tick() <= 50
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.run_count("a") == 1
        assert world.score("a") == world.later(30)
        assert not world.is_held("a")

    def test_static_entries_are_written_again_after_a_loss(self, world: World) -> None:
        world.app.conf.beat_schedule = {"s": {"task": "t", "schedule": HOUR}}
        scheduler = world.scheduler_of(OwnTick)
        scheduler.tick()
        world.client.flushall()
        scheduler.tick()
        assert world.score("s") == pytest.approx(world.now() + HOUR, abs=30)

    def test_several_beats_send_each_run_once(self, world: World) -> None:
        world.app.conf.redbeat_lock_key = None
        world.put("a", interval_json(60), world.ago(90))
        one, other = world.scheduler_of(OwnTick), world.scheduler_of(OwnTick)
        one.before_send = once(other.tick)
        one.tick()
        other.tick()
        assert one.names + other.names == ["a"]

    def test_a_standby_sends_nothing(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(90))
        world.client.set(LOCK, "another", px=60_000)
        scheduler = world.scheduler_of(OwnTick)
        assert scheduler.tick() <= 1
        assert scheduler.names == []
        world.client.delete(LOCK)
        scheduler.tick()
        assert scheduler.names == ["a"]

    def test_a_triggered_run_goes_out(self, world: World, app: Celery) -> None:
        RedBeatSchedulerEntry("a", "t", HOUR, app=app).save().trigger()
        scheduler = world.scheduler_of(OwnTick)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert scheduler.sent[0].options["headers"]["triggered"] is True

    def test_changes_of_the_entry_object_are_sent(self, world: World) -> None:
        class Own(OwnTick):
            def maybe_due(self, entry: Any, **kwargs: Any) -> float | None:
                entry.kwargs["tenant"] = 7
                return super().maybe_due(entry, **kwargs)

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        assert [message.kwargs for message in scheduler.sent] == [{"tenant": 7}]

    def test_an_edit_before_the_run_is_obeyed(self, world: World, app: Celery) -> None:
        class Own(OwnTick):
            def maybe_due(self, entry: Any, **kwargs: Any) -> float | None:
                changed = RedBeatSchedulerEntry.from_key(entry.key, app=app)
                changed.args = ["new"]
                changed.save()
                return super().maybe_due(entry, **kwargs)

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        assert [message.args for message in scheduler.sent] == [["new"]]

    def test_a_publish_that_fails_is_tried_again(self, world: World) -> None:
        def refuse() -> None:
            raise ValueError("no")

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(OwnTick)
        scheduler.before_send = once(refuse)
        assert scheduler.tick() == pytest.approx(1, abs=0.5)
        assert world.run_count("a") == 0
        assert world.backs_off("a")
        world.make_due("a")
        scheduler.tick()
        assert scheduler.names == ["a"]

    def test_round_trips(self, world: World, counting: CountingRedis) -> None:
        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(OwnTick)
        scheduler.tick()
        world.put_meta("a", world.ago(90))
        world.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}a": 1})
        trips = counting.trips
        scheduler.tick()
        # One round trip for the lock, four to read the schedule, and three to load the entry and
        # to store the run before and after its message.
        assert counting.trips - trips <= 8

    def test_a_run_that_is_not_due_by_the_clock_of_redis_is_waited_for(self, world: World) -> None:
        class Own(OwnTick):
            def is_due(self, entry: Any) -> Any:
                """Return the result for a host whose clock is ahead of the clock of Redis."""
                return schedstate(True, HOUR) if entry.run is None else entry.is_due()

        last = world.ago(58)
        world.put("a", interval_json(60), last, score=last.timestamp() + 60)
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        assert scheduler.tick() == pytest.approx(2, abs=1)
        assert scheduler.names == []


class TestOwnMapping:
    def test_an_old_entry_that_never_ran_runs_once(self, world: World) -> None:
        """The entry runs once for all missed occurrences. The next run keeps the phase."""

        class Own(RecordingScheduler):
            @property
            def schedule(self) -> Any:
                return self.get_schedule()

        world.put("a", interval_json(60), score=world.now() - 1000)
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert world.score("a") == world.later(20)

    def test_redis_that_goes_away_while_it_is_read(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        class Own(RecordingScheduler):
            away = True

            @property
            def schedule(self) -> Any:
                if self.away:
                    raise redis.ConnectionError("gone")
                return self.get_schedule()

        world.put("a", interval_json(60), world.ago(90))
        scheduler = world.scheduler_of(Own)
        assert 0 < scheduler.tick() <= 2
        assert "Redis is not available" in log.text
        scheduler.away = False
        scheduler.tick()
        assert scheduler.names == ["a"]


class Mapped(RecordingScheduler):
    """A scheduler whose ``schedule`` is a mapping of its own, as Celery's guide shows it."""

    entries: dict[str, Any]

    @property
    def schedule(self) -> Any:
        """Return the stored entries, and those of the program."""
        return {**self.get_schedule(), **self.entries}


class Daily(ScheduleEntry):
    """An entry of a program, which itself decides when it is due."""

    due = True

    def is_due(self) -> schedstate:
        """Return whether the entry is due, and 3 seconds."""
        return schedstate(self.due, 3.0)


class Broken(ScheduleEntry):
    """An entry that cannot decide."""

    def is_due(self) -> schedstate:
        """Fail."""
        raise ValueError("no table of holidays")


def celery_entry(world: World, name: str, cls: type[ScheduleEntry] = ScheduleEntry) -> Any:
    """Return an entry of Celery's that is due since a second."""
    last = world.ago(HOUR + 1)
    return cls(name, f"tasks.{name}", last, schedule=HOUR, args=[1], app=world.app)


class TestEntriesOfOtherClasses:
    """2.4.2 asks an entry of a mapping for no more than Celery does."""

    def test_a_class_of_entries_that_cannot_be_stored_is_named(self, world: World) -> None:
        class Plain(RecordingScheduler):
            Entry = ScheduleEntry

        with pytest.raises(ConfigurationError, match=r"Plain\.Entry is ScheduleEntry, .* use"):
            world.scheduler_of(Plain)

    def test_its_own_is_due_decides(self, world: World) -> None:
        scheduler = world.scheduler_of(Mapped)
        entry = celery_entry(world, "b", Daily)
        scheduler.entries = {"b": entry}
        assert scheduler.tick() == 3
        scheduler.tick()
        entry.due = False
        scheduler.tick()
        assert scheduler.names == ["b", "b"]

    def test_an_entry_with_the_name_of_a_stored_one(self, world: World) -> None:
        world.put("b", interval_json(60), world.ago(90), args=["stored"])
        scheduler = world.scheduler_of(Mapped)
        scheduler.entries = {"b": celery_entry(world, "b")}
        scheduler.tick()
        assert [message.args for message in scheduler.sent] == [[1]]

    def test_an_entry_without_a_base_class(self, world: World) -> None:
        class Plain:
            name, task, args, kwargs, options = "b", "tasks.b", (1,), {"x": 2}, {"queue": "fast"}

            def is_due(self) -> tuple[bool, float]:
                return True, 2

            def __next__(self) -> Any:
                return self

        scheduler = world.scheduler_of(Mapped)
        wait_until(lambda: scheduler.tick() > 0)  # the first scan of the schedule is over
        scheduler.entries = {"b": Plain()}
        assert scheduler.tick() == 2
        (message,) = scheduler.sent
        assert (message.args, message.kwargs) == ([1], {"x": 2})
        assert message.options["queue"] == "fast"

    @pytest.mark.parametrize("broken", [None, 5, {"task": "broken", "schedule": 60}, Broken])
    def test_an_object_that_is_no_entry(
        self, world: World, broken: Any, log: pytest.LogCaptureFixture
    ) -> None:
        scheduler = world.scheduler_of(Mapped)
        if broken is Broken:
            broken = celery_entry(world, "broken", Broken)
        scheduler.entries = {"broken": broken, "b": celery_entry(world, "b")}
        for _ in range(3):
            scheduler.tick()
        assert scheduler.names == ["b"]
        errors = [record for record in log.records if record.levelname == "ERROR"]
        (line,) = [record.getMessage() for record in errors]
        assert str(getattr(broken, "name", broken)) in line
        assert "RedBeatSchedulerEntry" in line

    def test_a_message_that_cannot_be_sent_is_sent_later(self, world: World) -> None:
        scheduler = world.scheduler_of(Mapped)
        scheduler.entries = {"b": celery_entry(world, "b")}
        scheduler.before_send = once(lambda: void(int("x")))
        scheduler.tick()
        assert scheduler.names == []
        scheduler.tick()
        assert scheduler.names == ["b"]

    def test_a_standby_sends_none(self, world: World) -> None:
        world.client.set(LOCK, "another", px=60_000)
        scheduler = world.scheduler_of(Mapped)
        scheduler.entries = {"b": celery_entry(world, "b")}
        scheduler.tick()
        scheduler.maybe_due(scheduler.entries["b"])
        assert scheduler.names == []

    def test_each_method_accepts_one(self, world: World) -> None:
        scheduler = world.scheduler()
        entry = celery_entry(world, "b")
        assert scheduler.reserve(entry).total_run_count == 1
        scheduler.apply_async(entry, producer=scheduler.producer, advance=False)
        assert entry.total_run_count == 0
        scheduler.apply_async(entry, producer=scheduler.producer)
        assert entry.total_run_count == 1
        assert scheduler.maybe_due(entry) == pytest.approx(HOUR, abs=5)
        assert scheduler.names == ["b", "b"]

    def test_only_allowed_tasks_are_sent(self, world: World) -> None:
        world.app.conf.redbeat_task_allowlist = ["tasks.a"]
        scheduler = world.scheduler_of(Mapped)
        scheduler.entries = {name: celery_entry(world, name) for name in "ab"}
        scheduler.tick()
        assert scheduler.names == ["a"]

    def test_functions_among_the_arguments(self, world: World) -> None:
        scheduler = world.scheduler()
        entry = celery_entry(world, "b")
        entry.kwargs = {"at": BeatLazyFunc(lambda: 7)}
        scheduler.apply_async(entry, producer=scheduler.producer)
        assert scheduler.sent[0].kwargs == {"at": 7}


class Gate:
    """A user-defined lock class, unrelated to the locks of redis-py and RedBeat."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.held = True

    def extend(self, additional_time: int) -> None:
        """Record the call, and raise ``LockError`` if the lock is not held."""
        self.calls.append(f"extend {additional_time}")
        if not self.held:
            raise LockError("not held")

    def acquire(self, blocking: bool = True) -> bool:
        """Record the call, and return whether the lock was acquired."""
        self.calls.append(f"acquire {blocking}")
        return self.held

    def release(self) -> None:
        """Record the call."""
        self.calls.append("release")


class TestOwnLock:
    def test_a_lock_that_lives_for_less_than_a_second_is_not_deleted(
        self, world: World, redis_client: redis.Redis, log: pytest.LogCaptureFixture
    ) -> None:
        world.app.conf.redbeat_lock_timeout = 0.5
        scheduler = world.scheduler()
        lock = redis_client.lock(MINE, timeout=5)
        assert lock.acquire()
        scheduler.lock = lock
        scheduler.tick()
        assert "Lost the lock" not in log.text

    def test_a_lock_that_raises_counts_as_lost(
        self, world: World, log: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()
        scheduler = world.scheduler()
        scheduler.lock = gate
        scheduler.tick()
        gate.held = False
        world.put("a", interval_json(60), world.ago(90))
        assert scheduler.tick() <= 1
        assert scheduler.names == []
        assert "Lost the lock Gate" in log.text
        gate.held = True
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert gate.calls[0] == "extend 1500"
        assert "acquire False" in gate.calls

    def test_a_beat_whose_own_lock_is_lost_does_not_lead(self, world: World) -> None:
        gate = Gate()
        scheduler = world.scheduler()
        scheduler.lock = gate
        scheduler.tick()
        gate.held = False
        with heard(lock_lost) as lost:
            scheduler.tick()
        assert [one["holder"] for one in lost] == ["another"]

    def test_a_lost_own_lock_ends_a_beat_with_exit_on_loss(self, world: World) -> None:
        world.app.conf.redbeat_on_lock_lost = "exit"
        gate = Gate()
        scheduler = world.scheduler()
        scheduler.lock = gate
        scheduler.tick()
        gate.held = False
        with pytest.raises(LockNotOwnedError):
            scheduler.tick()

    def test_no_run_is_sent_twice_under_an_own_lock(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(90))
        one, other = world.scheduler(), world.scheduler()
        one.lock, other.lock = Gate(), Gate()
        one.before_send = lambda _task: void(other.tick())
        one.tick()
        assert one.names + other.names == ["a"]

    def test_the_lock_of_an_own_tick_is_released_too(
        self, world: World, redis_client: redis.Redis
    ) -> None:
        scheduler = world.scheduler_of(OwnTick)
        lock = redis_client.lock("mine", timeout=60)
        assert lock.acquire()
        scheduler.lock = lock
        scheduler.tick()
        world.put("a", interval_json(60), world.ago(90))
        scheduler.tick()
        assert scheduler.names == ["a"]
        scheduler.close()
        assert not world.client.exists("mine")

    def test_an_own_lock_replaces_the_beat_lock(self, world: World) -> None:
        scheduler = world.scheduler()
        scheduler.tick()
        assert world.client.exists(LOCK)
        scheduler.lock = Gate()
        scheduler.tick()
        assert not world.client.exists(LOCK)

    def test_a_lock_of_none_switches_the_lock_off(self, world: World) -> None:
        world.put("a", interval_json(60), world.ago(90))
        world.client.set(LOCK, "another", px=60_000)
        scheduler = world.scheduler()
        scheduler.lock = None
        scheduler.tick()
        assert scheduler.names == ["a"]
