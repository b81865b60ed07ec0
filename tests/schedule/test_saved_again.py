"""Tests of saving a finished entry again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import time_machine
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry, Schedule, clocked, rrule
from tests.deployments import PREFIX
from tests.samples import long
from tests.scheduler.conftest import SCHEDULE, RecordingScheduler, World

UTC = timezone.utc
HOUR = 3600.0
PARKED = -1.0

Save = Callable[[World, dict[str, Any]], object]


def make(world: World, when: Any = HOUR, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("once", "t", when, app=world.app, **{"max_runs": 1, **fields})


def load(world: World) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry.from_key(f"{PREFIX}once", app=world.app)


def finish(world: World, when: Any = HOUR, **fields: Any) -> RecordingScheduler:
    """Save an entry, let a beat send its only run, and return the beat."""
    make(world, when, **{"last_run_at": world.ago(2 * HOUR), **fields}).save()
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["once"]
    assert load(world).runs_left in (0, None)
    scheduler.sent.clear()
    return scheduler


def assert_runs_once_in(world: World, scheduler: RecordingScheduler, seconds: float) -> None:
    """Assert that the entry is due in ``seconds``, and then runs once."""
    scheduler.tick()
    assert scheduler.sent == []
    assert world.score("once") == pytest.approx(world.now() + seconds, abs=5)
    entry = load(world)
    assert entry.total_run_count == 0
    entry.last_run_at = world.ago(seconds + 1)
    entry.save()
    for _ in range(3):
        scheduler.tick()
    assert scheduler.names == ["once"]
    assert world.score("once") == PARKED
    assert load(world).total_run_count == 1


def loaded(world: World, changes: dict[str, Any]) -> RedBeatSchedulerEntry:
    entry = load(world)
    for name, value in changes.items():
        setattr(entry, name, value)
    return entry


def new_object(world: World, changes: dict[str, Any]) -> RedBeatSchedulerEntry:
    fields = {**changes}
    return make(world, fields.pop("schedule", HOUR), **fields)


def definition(world: World, changes: dict[str, Any]) -> dict[str, Any]:
    assert world.app
    return {"task": "t", "schedule": HOUR, "max_runs": 1, **changes}


SAVES: dict[str, Save] = {
    "loaded": lambda world, changes: loaded(world, changes).save(),
    "if unchanged": lambda world, changes: loaded(world, changes).save(if_unchanged=True),
    "new object": lambda world, changes: new_object(world, changes).save(),
    "mapping": lambda world, changes: Schedule(world.app).update(
        {"once": new_object(world, changes)}
    ),
    "many": lambda world, changes: Schedule(world.app).save_all([new_object(world, changes)]),
    "many loaded": lambda world, changes: Schedule(world.app).save_all([loaded(world, changes)]),
    "apply": lambda world, changes: Schedule(world.app).apply({"once": definition(world, changes)}),
    "dict": lambda world, changes: world.scheduler().update_from_dict(
        {"once": definition(world, changes)}
    ),
}


#: The short run tests only these ways to save an entry.
SHORT = {"loaded", "new object", "apply"}


@pytest.fixture(params=[name if name in SHORT else long(name) for name in SAVES])
def save(request: pytest.FixtureRequest) -> Save:
    """A function that saves the entry with changes, for each way to save an entry."""
    return SAVES[request.param]


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"schedule": schedule(60)}, 60),
        ({"schedule": schedule(60), "args": [1]}, 60),
        ({"timezone": "Asia/Tokyo"}, HOUR),
        ({"end_time": datetime(2100, 1, 1, tzinfo=UTC)}, HOUR),
    ],
)
def test_another_schedule_zone_or_window_restarts_it(
    world: World, save: Save, changes: dict[str, Any], seconds: float
) -> None:
    scheduler = finish(world)
    save(world, changes)
    assert_runs_once_in(world, scheduler, seconds)


def test_other_arguments_do_not_restart_it(
    world: World, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = finish(world)
    meta = world.field("once", "meta")
    save(world, {"args": [1], "jitter": 5.0})
    scheduler.tick()
    assert (scheduler.sent, world.score("once")) == ([], PARKED)
    assert (world.field("once", "meta"), load(world).args) == (meta, [1])
    (line,) = [line for line in caplog.messages if "stays finished" in line]
    assert line == (
        "Entry once stays finished: nothing is left to run. To run the entry again, save it with "
        "another schedule, max_runs or last_run_at, or with total_run_count = 0"
    )


@pytest.mark.parametrize(
    ("history", "count", "in_seconds"),
    [
        ({"total_run_count": 0}, 0, HOUR),
        ({"last_run_at": "now"}, 0, HOUR),
        ({"last_run_at": None}, 0, 0),
    ],
)
def test_a_written_history_restarts_it(
    world: World, history: dict[str, Any], count: int, in_seconds: float
) -> None:
    finish(world)
    if history.get("last_run_at"):
        history = {"last_run_at": world.ago(1)}
    loaded(world, history).save()
    assert load(world).total_run_count == count
    assert world.score("once") == pytest.approx(world.now() + in_seconds, abs=5)


def test_reschedule_restarts_it(world: World) -> None:
    scheduler = finish(world)
    load(world).reschedule(world.ago(1))
    assert_runs_once_in(world, scheduler, HOUR)


@pytest.mark.parametrize("many", [False, True])
def test_saves_by_several_processes_at_once_make_one_run(world: World, many: bool) -> None:
    scheduler = finish(world)
    entries = [
        (loaded if number % 2 else new_object)(world, {"schedule": schedule(60)})
        for number in range(6)
    ]
    begin = threading.Barrier(len(entries))

    def save(entry: RedBeatSchedulerEntry) -> None:
        begin.wait()
        Schedule(world.app).save_all([entry]) if many else entry.save()

    threads = [threading.Thread(target=save, args=(entry,)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_runs_once_in(world, scheduler, 60)
    for entry in entries:
        entry.save()
    scheduler.tick()
    assert scheduler.names == ["once"]


@pytest.mark.parametrize("ahead", [600.0, -30.0])
def test_a_host_with_a_wrong_clock_saves_it(world: World, save: Save, ahead: float) -> None:
    """The next run counts from the earlier of the host's time and the time of Redis."""
    scheduler = finish(world)
    with time_machine.travel(time.time() + ahead, tick=True):
        save(world, {"schedule": schedule(60)})
    scheduler.tick()
    assert scheduler.sent == []
    assert world.score("once") == pytest.approx(world.now() + 60 + min(ahead, 0), abs=5)
    assert load(world).runs_left == 1


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (clocked, lambda at: clocked(at + timedelta(hours=1))),
        (lambda at: rrule("DAILY", at, count=1), lambda at: rrule("DAILY", at, count=2)),
        (lambda at: rrule("DAILY", at, count=1), lambda _: schedule(26 * HOUR)),
    ],
)
@pytest.mark.parametrize("limit", [None, 1])
def test_an_ended_rule_is_restarted_by_a_later_rule(
    world: World, save: Save, first: Any, then: Any, limit: int | None
) -> None:
    at = world.ago(HOUR).replace(microsecond=0)
    finish(world, first(at), max_runs=limit)
    assert world.score("once") == PARKED
    save(world, {"schedule": then(at), "max_runs": limit})
    score = world.score("once")
    assert score is not None
    assert score > world.now() - 60
    assert load(world).runs_left in (None, 1)


def test_an_entry_disabled_at_its_end_is_restarted_and_runs_when_resumed(
    world: World,
) -> None:
    scheduler = finish(world, on_finish="disable")
    loaded(world, {"schedule": schedule(60)}).save()
    assert load(world).enabled is False
    load(world).resume()
    entry = load(world)
    assert (entry.enabled, entry.total_run_count) == (True, 0)
    assert world.score("once") == pytest.approx(world.now() + 60, abs=5)
    scheduler.tick()
    assert scheduler.sent == []


def test_resume_alone_leaves_it_finished_and_logs_that(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = finish(world, on_finish="disable")
    load(world).resume()
    assert "Entry once stays finished" in caplog.text
    scheduler.tick()
    assert scheduler.sent == []


def test_new_and_unfinished_entries_log_nothing(
    world: World, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    make(world, max_runs=2).save()
    save(world, {"args": [1]})
    assert "finished" not in caplog.text


# -- beat_schedule -------------------------------------------------------------------------------


def declared(world: World, **fields: Any) -> RecordingScheduler:
    """Return a beat after its first tick, with the entry ``once`` in ``beat_schedule``."""
    for scheduler in world.schedulers:
        scheduler.close()
    once = {"task": "t", "schedule": HOUR, "max_runs": 1, **fields}
    world.app.conf.beat_schedule = {"once": once}
    scheduler = world.scheduler()
    scheduler.tick()
    return scheduler


def finish_static(world: World, **fields: Any) -> None:
    declared(world, **fields)
    world.put_meta("once", world.ago(2 * HOUR))
    world.client.zadd(SCHEDULE, {f"{PREFIX}once": 0})
    scheduler = declared(world, **fields)
    assert scheduler.names == ["once"]
    assert load(world).runs_left == 0


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"schedule": 60.0}, 60),
        ({"timezone": "Asia/Tokyo"}, HOUR),
        ({"end_time": datetime(2100, 1, 1, tzinfo=UTC)}, HOUR),
    ],
)
@pytest.mark.parametrize("on_finish", ["keep", "disable"])
def test_a_static_entry_is_restarted_by_another_schedule_zone_or_window(
    world: World, changes: dict[str, Any], seconds: float, on_finish: str
) -> None:
    finish_static(world, on_finish=on_finish)
    scheduler = declared(world, on_finish=on_finish, **changes)
    assert scheduler.sent == []
    assert load(world).runs_left == 1
    assert world.score("once") == pytest.approx(world.now() + seconds, abs=5)
    armed = world.field("once", "meta")
    declared(world, on_finish=on_finish, **changes)
    assert world.field("once", "meta") == armed


@pytest.mark.parametrize("changes", [{}, {"args": [1]}, {"jitter": 5}, {"on_finish": "disable"}])
def test_a_static_entry_is_not_restarted_by_other_changes(
    world: World, changes: dict[str, Any]
) -> None:
    finish_static(world)
    scheduler = declared(world, **changes)
    assert scheduler.sent == []
    assert (world.score("once") or 0) < 0
    assert load(world).total_run_count == 1


@pytest.mark.parametrize(("later", "runs"), [(-1800, []), (1800, ["once"])])
def test_a_static_instant_counts_from_its_last_run(
    world: World, later: float, runs: list[str]
) -> None:
    at = world.ago(HOUR)
    assert declared(world, schedule=clocked(at)).names == ["once"]
    moved = at + timedelta(seconds=later)
    scheduler = declared(world, schedule=clocked(moved))
    scheduler.tick()
    assert scheduler.names == runs
    assert load(world).total_run_count == len(runs)


# -- triggers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_finish", ["keep", "disable"])
def test_a_trigger_of_a_finished_entry_is_sent(world: World, on_finish: str) -> None:
    scheduler = finish(world, on_finish=on_finish)
    score = world.score("once")
    task_id = load(world).trigger()
    scheduler.tick()
    assert [sent.id for sent in scheduler.sent] == [task_id]
    scheduler.tick()
    assert len(scheduler.sent) == 1
    assert (world.score("once"), load(world).total_run_count) == (score, 1)


def test_a_waiting_trigger_is_sent_when_the_entry_is_restarted(world: World, save: Save) -> None:
    scheduler = finish(world)
    task_id = load(world).trigger()
    save(world, {"schedule": schedule(60)})
    scheduler.tick()
    assert [sent.id for sent in scheduler.sent] == [task_id]
    scheduler.sent.clear()
    assert_runs_once_in(world, scheduler, 60)
