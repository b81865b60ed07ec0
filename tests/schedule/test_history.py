"""The history lists the last runs of an entry."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.states import FAILURE, SUCCESS

import redbeat.worker
from redbeat.entries.history import Occurrence, read_history, run_line, with_ids
from redbeat.errors import ConfigurationError
from redbeat.schedulers import RedBeatScheduler
from tests.scheduler.conftest import SCHEDULE, RecordingScheduler, World, interval_json, once, void
from tests.stored import put_history, stored_lines
from tests.workers import reporting, run_task

from .conftest import Make

NO_TASKS: dict[str, str] = {}


def run(world: World, scheduler: RecordingScheduler, name: str = "a") -> None:
    """Make an hourly entry due, and let the scheduler run it."""
    world.put_meta(name, world.ago(4000))
    world.client.zadd(SCHEDULE, {f"redbeat:{name}": 1})
    scheduler.tick()


def test_the_fields_of_a_run(make: Make, world: World) -> None:
    ran = world.ago(4000)
    entry = make("a", last_run_at=ran).save()
    scheduler = world.scheduler()
    scheduler.tick()
    (found,) = entry.history
    assert found.scheduled_at == ran + timedelta(seconds=3600)
    assert abs(found.dispatched_at - datetime.now(timezone.utc)) < timedelta(seconds=30)
    assert (found.task_id, found.outcome) == (scheduler.sent[0].id, "sent")


def test_the_history_costs_no_additional_round_trip(make: Make, world: World) -> None:
    scheduler = world.scheduler()
    scheduler.tick()
    costs = []
    for number in range(1, 4):  # in one of these ticks upkeep may cost more
        make("a", last_run_at=world.ago(4000)).save()
        before = world.calls()
        scheduler.tick()
        assert len(scheduler.sent) == number
        costs.append(world.calls() - before)
    assert 0 < min(costs) <= 3, "the run may be held before it is sent"


@pytest.mark.parametrize(("size", "kept"), [(0, 0), (1, 1), (3, 3), (30, 5)])
def test_the_setting_limits_the_history(make: Make, world: World, size: int, kept: int) -> None:
    world.app.conf.redbeat_history_size = size
    entry = make("a").save()
    scheduler = world.scheduler()
    for _ in range(5):
        run(world, scheduler)
    sent = [sent.id for sent in reversed(scheduler.sent)]
    assert [found.task_id for found in entry.history] == sent[:kept]
    assert world.client.hexists("redbeat:a", "history") is bool(size)


@pytest.mark.parametrize("value", [-1, 31, 1.5, True, "10"])
def test_an_impossible_setting_is_refused(world: World, value: Any) -> None:
    world.app.conf.redbeat_history_size = value
    with pytest.raises(ConfigurationError, match="redbeat_history_size"):
        RedBeatScheduler(world.app)


def test_a_smaller_setting_shortens_the_stored_history(make: Make, world: World) -> None:
    entry = make("a").save()
    lines = [run_line(number, number, "sent", f"id{number}") for number in range(20)]
    put_history(world.client, "redbeat:a", lines)
    assert len(entry.history) == 10
    run(world, world.scheduler())
    assert len(stored_lines(world.client, "redbeat:a")) == 10
    assert [found.task_id for found in entry.history[1:3]] == ["id0", "id1"]


def test_the_first_and_the_last_failure_are_recorded(make: Make, world: World) -> None:
    entry = make("a", last_run_at=(ran := world.ago(4000))).save()
    scheduler = world.scheduler()
    scheduler.before_send = lambda task: void(NO_TASKS[task])
    for _ in range(3):
        scheduler.tick()
        world.client.zadd(SCHEDULE, {"redbeat:a": 1})
    last, found = entry.history
    assert (found.outcome, found.task_id) == ("failed:KeyError", None)
    assert (last.outcome, last.task_id) == ("failed:KeyError:3", None)
    assert last.scheduled_at == found.scheduled_at
    assert last.dispatched_at > found.dispatched_at
    assert found.scheduled_at >= ran + timedelta(seconds=3600)
    scheduler.before_send = lambda _task: None
    scheduler.tick()
    outcomes = [found.outcome for found in entry.history]
    assert outcomes == ["sent", "failed:KeyError:3", "failed:KeyError"]


def test_a_result_is_of_the_run_with_its_id_and_not_of_an_attempt_at_the_same_time(
    make: Make, world: World
) -> None:
    entry = make("a", last_run_at=world.ago(4000)).save()
    scheduler = world.scheduler()
    scheduler.before_send = lambda task: void(NO_TASKS[task])
    scheduler.tick()
    scheduler.before_send = lambda _task: None
    world.client.zadd(SCHEDULE, {"redbeat:a": 1})
    scheduler.tick()
    entry.trigger()
    world.take_reports(scheduler)
    states = {"sent": FAILURE, "triggered": SUCCESS}
    with reporting(world.app):
        for sent, state in zip(scheduler.sent, states.values(), strict=True):
            run_task(world.app, sent.id, sent.options["headers"], state)
    found = {run.outcome: run for run in entry.history}
    assert found["sent"].scheduled_at == found["failed:KeyError"].scheduled_at
    told = {outcome: run.result and run.result.state for outcome, run in found.items()}
    assert told == {"triggered": "succeeded", "sent": "failed", "failed:KeyError": None}


def test_runs_that_are_too_old(make: Make, world: World) -> None:
    ran = world.ago(4 * 3600 + 1800)
    entry = make("a", misfire_grace_time=60, last_run_at=ran).save()
    world.client.zadd(SCHEDULE, {"redbeat:a": 1})
    scheduler = world.scheduler()
    scheduler.tick()
    (found,) = entry.history
    assert (found.outcome, found.task_id) == ("missed:4", None)
    assert found.scheduled_at == ran + timedelta(hours=4)
    assert scheduler.sent == []


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("options", [{}, {"task_id": "my own id"}])
def test_a_run_tells_how_many_missed_ones_it_replaces(
    make: Make, world: World, delivery: str, options: dict[str, str]
) -> None:
    ran = world.ago(4 * 3600 + 1800)
    entry = make("a", delivery=delivery, options=options, last_run_at=ran).save()
    world.client.zadd(SCHEDULE, {"redbeat:a": 1})
    scheduler = world.scheduler()
    scheduler.tick()
    (found,), (sent,) = entry.history, scheduler.sent
    assert (found.outcome, found.missed, found.task_id) == ("sent", 3, sent.id)
    assert found.scheduled_at == ran + timedelta(hours=4)
    assert (sent.id in world.client.hget("redbeat:a", "history")) is bool(options)


@pytest.mark.parametrize("missed", [0, 2])
def test_runs_that_are_skipped(make: Make, world: World, missed: int) -> None:
    redbeat.worker.enable(world.app)
    ran = world.ago(3600 * (missed + 1) + 1800)
    entry = make("a", overlap="skip", last_run_at=ran).save()
    world.put_running("a", world.now() + 900)
    world.scheduler().tick()
    (found,) = entry.history
    assert (found.outcome, found.missed, found.task_id) == ("skipped", missed, None)
    assert found.scheduled_at == ran + timedelta(hours=missed + 1)


def test_a_concurrent_write_of_the_application_keeps_the_run_line(world: World) -> None:
    world.put("a", interval_json(3600), world.ago(4000))
    scheduler = world.scheduler()
    scheduler.before_send = once(lambda: world.put_meta("a", world.ago(50)))
    scheduler.tick()
    assert len(scheduler.sent) == 1
    assert len(stored_lines(world.client, "redbeat:a")) == 1


def test_a_deleted_entry_leaves_none(make: Make, world: World) -> None:
    entry = make("a", last_run_at=world.ago(4000)).save()
    world.scheduler().tick()
    entry.delete()
    make("a").save()
    assert entry.history == []


@pytest.mark.parametrize("task_id", ["my id", "two\nlines", ""])
def test_ids_of_the_users_own(task_id: str) -> None:
    lines = run_line(1.5, 2.25, "sent", task_id), run_line(1, 1, "sent", "x")
    first, second = read_history(lines)
    assert first.task_id == (task_id.replace("\n", "") or None)
    assert second == Occurrence(at(1), at(1), "x", "sent")


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def test_ten_runs_cost_little(make: Make, world: World) -> None:
    entry = make("an entry with a long name: " + "x" * 100).save()
    scheduler = world.scheduler()
    for _ in range(11):
        run(world, scheduler, str(entry.name))
    assert len(entry.history) == 10
    assert [found.task_id for found in entry.history] == [
        sent.id for sent in reversed(scheduler.sent[1:])
    ]
    assert len(world.client.hget(entry.key, "history")) < 360


def test_computed_ids_can_be_filled_in() -> None:
    """Files and copies under another prefix have all ids."""
    lines = [run_line(1.5, 2), run_line(1.5, 2, missed=2), run_line(1.5, 2, "sent", "an id")]
    lines += [run_line(1.5, 2, "failed:KeyError"), "no line"]
    filled_in = with_ids(lines, lambda at: f"own-{at.timestamp()}")
    found = [(run.task_id, run.missed) for run in read_history(filled_in)]
    assert found == [("own-1.5", 0), ("own-1.5", 2), ("an id", 0), (None, 0)]
    assert with_ids(filled_in, str) == filled_in


def test_invalid_lines_are_left_out() -> None:
    text = "x\n\n1 2\n1 +\n1 +x\n1 +1e400\n+ +1\n1e400 1 a b\nnan 1 a b\n1 2 a sent\n1 +2 sent a\n"
    assert read_history(text.splitlines()) == read_history(["1 +2 sent a"]) != []
