"""Tests of manually triggered runs."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.beat import BeatLazyFunc
from kombu.exceptions import OperationalError

import redbeat.worker
from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.errors import InvalidEntryError
from redbeat.schedulers import RedBeatScheduler
from tests.scheduler.conftest import SCHEDULE, Clock, RecordingScheduler, World, end_run, once, void

from .conftest import Make, RoundTrips


def stored_without_history(world: World) -> dict[str, Any]:
    found = dict(world.client.hgetall("redbeat:a"))
    return {name: text for name, text in found.items() if name not in ("history", "beat_state")}


def test_a_triggered_run_is_sent_at_once_and_changes_nothing(make: Make, world: World) -> None:
    entry = make("a", args=[1], options={"queue": "q"}).save()
    scheduler = world.scheduler()
    scheduler.tick()
    before, score = stored_without_history(world), world.score("a")
    task_id = entry.trigger()
    scheduler.tick()
    (sent,) = scheduler.sent
    assert (sent.id, sent.args, sent.task) == (task_id, [1], "tasks.a")
    assert sent.options["queue"] == "q"
    assert sent.options["headers"]["triggered"] is True
    assert abs(sent.scheduled_at - datetime.now(timezone.utc)) < timedelta(seconds=30)
    assert stored_without_history(world) == before
    assert world.score("a") == score
    scheduler.tick()
    assert len(scheduler.sent) == 1


def test_a_trigger_takes_one_round_trip(make: Make, trips: RoundTrips) -> None:
    entry = make("a").save()
    trips.take()
    entry.trigger()
    assert trips.take() == 1


@pytest.mark.parametrize("first", ["pause", "trigger"])
def test_a_paused_entry_runs_and_stays_paused(make: Make, world: World, first: str) -> None:
    entry = make("a", last_run_at=world.ago(5000)).save()
    for verb in (first, "pause" if first == "trigger" else "trigger"):
        getattr(entry, verb)()
    scheduler = world.scheduler()
    scheduler.tick()
    (sent,) = scheduler.sent
    assert sent.options["headers"]["triggered"] is True
    assert (world.score("a"), entry.status.state) == (-2, "paused")


def test_a_trigger_while_the_entry_is_claimed(make: Make, world: World) -> None:
    entry = make("a", last_run_at=world.ago(5000)).save()
    scheduler = world.scheduler()
    scheduler.before_send = once(entry.trigger)
    scheduler.tick()
    natural, triggered = scheduler.sent
    assert "triggered" not in natural.options["headers"]
    assert triggered.options["headers"]["triggered"] is True
    assert world.run_count("a") == 1


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_save_while_the_triggered_run_is_sent(make: Make, world: World, delivery: str) -> None:
    entry = make("a", delivery=delivery).save()
    entry.trigger()
    make("a", args=[1], delivery=delivery).save()
    scheduler = world.scheduler()
    scheduler.before_send = once(make("a", args=[2], delivery=delivery).save)
    scheduler.tick()
    (sent,) = scheduler.sent
    assert sent.args == [1]
    assert world.waiting("a") == 0


def test_a_delete_while_the_triggered_run_is_sent(make: Make, world: World) -> None:
    entry = make("a").save()
    entry.trigger()
    scheduler = world.scheduler()
    scheduler.before_send = once(entry.delete)
    scheduler.tick()
    assert len(scheduler.sent) == 1
    assert not world.client.exists("redbeat:a", SCHEDULE)


def test_a_publish_that_fails_is_tried_again_with_the_same_id(make: Make, world: World) -> None:
    entry = make("a").save()
    task_id = entry.trigger()
    scheduler = world.scheduler()
    scheduler.before_send = once(lambda: void(1 / 0))
    scheduler.tick()
    assert scheduler.sent == []
    assert world.waiting("a") == 1
    assert world.now() < float(world.score("a") or 0) < world.now() + 60
    assert world.run_count("a") == 0
    world.client.zadd(SCHEDULE, {"redbeat:a": 1})
    scheduler.tick()
    assert [sent.id for sent in scheduler.sent] == [task_id]
    assert [run.outcome for run in entry.history] == ["triggered", "failed:ZeroDivisionError"]


def test_a_trigger_of_a_dead_beat_is_sent_by_another_beat(make: Make, world: World) -> None:
    class Dead(RecordingScheduler):
        def send_task(self, *args: Any, **kwargs: Any) -> None:
            super().send_task(*args, **kwargs)
            raise SystemExit

    entry = make("a").save()
    task_id = entry.trigger()
    dead = world.scheduler_of(Dead)
    with pytest.raises(SystemExit):
        dead.tick()
    world.client.delete("redbeat::lock")
    world.make_due("a")
    other = world.scheduler()
    other.tick()
    assert [sent.id for sent in (*dead.sent, *other.sent)] == [task_id, task_id]


def test_an_at_most_once_trigger_that_fails_is_lost_and_logged(
    make: Make, world: World, log: pytest.LogCaptureFixture
) -> None:
    entry = make("a", delivery="at_most_once").save()
    entry.trigger()
    scheduler = world.scheduler()

    def fail(_task: str) -> None:
        raise OperationalError("away")

    scheduler.before_send = fail
    scheduler.tick()
    scheduler.before_send = lambda _task: None
    scheduler.tick()
    assert scheduler.sent == []
    assert "is lost: a retry might send it twice" in log.text


def test_an_at_most_once_trigger_waits_for_an_unavailable_broker(make: Make, world: World) -> None:
    class Away(RecordingScheduler):
        away = True

        def check_broker(self) -> None:
            if self.away:
                raise ConnectionRefusedError(111, "away")
            super().check_broker()

    entry = make("a", delivery="at_most_once").save()
    task_id = entry.trigger()
    scheduler = world.scheduler_of(Away)
    scheduler.tick()
    assert scheduler.sent == []
    scheduler.away = False
    world.client.zadd(SCHEDULE, {"redbeat:a": 1})
    scheduler.tick()
    assert [sent.id for sent in scheduler.sent] == [task_id]


@pytest.mark.usefixtures("no_lock")
def test_beats_without_a_lock_send_a_trigger_once(make: Make, world: World) -> None:
    beats = [world.scheduler(clock=Clock()) for _ in range(2)]
    for beat in beats:
        beat.tick()
    entries = [make(f"e{number}").save() for number in range(40)]
    ids = [entry.trigger() for entry in entries]
    threads = [threading.Thread(target=beat.tick) for beat in beats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sent.id for beat in beats for sent in beat.sent) == sorted(ids)


def test_a_task_id_of_the_user_is_kept(make: Make, world: World) -> None:
    entry = make("a", options={"task_id": "mine"}).save()
    assert entry.trigger() == "mine"
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.sent[0].id == "mine"


def test_the_hooks_of_a_subclass_are_used(make: Make, world: World) -> None:
    class Mine(RecordingScheduler):
        seen: list[tuple[str, bool]]

        def apply_async(self, entry: RedBeatSchedulerEntry, *args: Any, **more: Any) -> Any:
            self.seen.append((str(entry.name), more["advance"]))
            return super().apply_async(entry, *args, **more)

    make("a").save().trigger()
    scheduler = world.scheduler_of(Mine)
    scheduler.seen = []
    scheduler.tick()
    assert scheduler.seen == [("a", False)]


def test_a_static_entry_with_a_function_among_its_arguments(
    world: World, schedule: Schedule
) -> None:
    world.app.conf.beat_schedule = {
        "a": {"task": "t", "schedule": 3600, "args": (BeatLazyFunc(lambda: 7),)}
    }
    scheduler = world.scheduler()
    scheduler.tick()
    schedule["a"].trigger()
    scheduler.tick()
    assert [sent.args for sent in scheduler.sent] == [[7]]


def test_runs_that_must_not_overlap_wait_for_each_other(make: Make, world: World) -> None:
    redbeat.worker.enable(world.app)
    entry = make("a", overlap="skip").save()
    first, second = entry.trigger(), entry.trigger()
    scheduler = world.scheduler()
    scheduler.tick()
    assert [sent.id for sent in scheduler.sent] == [first]
    assert entry.status.state == "running"
    scheduler.tick()
    assert len(scheduler.sent) == 1
    end_run(world.app, scheduler.sent[0])
    scheduler.tick()
    assert [sent.id for sent in scheduler.sent] == [first, second]
    assert isinstance(scheduler, RedBeatScheduler)


def test_an_entry_that_is_not_scheduled_is_not_triggered(make: Make, world: World) -> None:
    """A program took the entry out of the sorted set, so nothing may bring it back by the way."""
    entry = make("a", last_run_at=world.ago(5000)).save()
    world.client.zrem(SCHEDULE, "redbeat:a")
    with pytest.raises(InvalidEntryError, match="not scheduled: celery redbeat resume a schedules"):
        entry.trigger()
    scheduler = world.scheduler()
    scheduler.tick()
    assert (scheduler.sent, world.score("a")) == ([], None)
    assert world.waiting("a") == 0
    entry.resume()
    entry.trigger()
    scheduler.tick()
    assert len(scheduler.sent) == 2
