"""An entry that is deleted and saved again is a new entry, with other task ids."""

from __future__ import annotations

import copy
import pickle
from datetime import datetime, timedelta
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.management.prefixes import copy_prefix
from tests.scheduler.clients import Wire
from tests.scheduler.conftest import SCHEDULE, RecordingScheduler, World, interval_json

from .conftest import Make

HOUR = 3600.0


@pytest.fixture
def ran(world: World) -> datetime:
    """A last run 4000 s ago, after which an hourly entry has been due for a few minutes."""
    return world.ago(4000)


def send(scheduler: RecordingScheduler) -> str:
    """Tick, assert that one run is sent, and return its task id."""
    count = len(scheduler.sent)
    scheduler.tick()
    assert len(scheduler.sent) == count + 1
    return scheduler.sent[-1].id


@pytest.fixture
def beat(world: World, wire: Wire) -> RecordingScheduler:  # noqa: ARG001
    """A leading beat whose client can lose replies."""
    scheduler = world.scheduler()
    scheduler.tick()
    return scheduler


def test_an_entry_without_an_identity_that_is_saved_keeps_its_ids(
    world: World, beat: RecordingScheduler, ran: datetime
) -> None:
    key = world.put("a", interval_json(HOUR), ran)
    entry = RedBeatSchedulerEntry.from_key(key, app=world.app)
    unnamed = entry.own_task_id(ran + timedelta(seconds=HOUR))
    entry.args = [1]
    entry.save()
    assert send(beat) == unnamed


@pytest.mark.parametrize("way", ["another object", "the same object", "raw delete", "loaded"])
def test_an_entry_deleted_and_saved_again_has_new_ids(
    make: Make, world: World, beat: RecordingScheduler, ran: datetime, way: str
) -> None:
    entry = make("a", last_run_at=ran).save()
    first = send(beat)
    if way == "loaded":
        entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app)
    if way == "raw delete":
        world.client.delete("redbeat:a", SCHEDULE)
    else:
        entry.delete()
    entry = make("a") if way == "another object" else entry
    entry.last_run_at = ran
    entry.save()
    second = send(beat)
    assert first != second
    assert [run.task_id for run in entry.history] == [second]
    assert beat.sent[0].scheduled_at == beat.sent[1].scheduled_at


def test_entries_of_raw_writers(world: World, beat: RecordingScheduler, ran: datetime) -> None:
    """A raw entry that is written again keeps its task ids if its definition is the same."""
    ids = []
    for task in ("tasks.a", "tasks.a", "tasks.b"):
        world.put("a", interval_json(HOUR), ran, task=task)
        ids.append(send(beat))
        world.client.delete("redbeat:a")
        world.client.zrem(SCHEDULE, "redbeat:a")
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("flush", [False, True])
def test_static_entries_keep_their_ids(world: World, ran: datetime, flush: bool) -> None:
    world.app.conf.beat_schedule = {"a": {"task": "t", "schedule": HOUR}}
    ids = []
    for _ in range(2):
        scheduler = world.scheduler()
        scheduler.tick()
        world.put_meta("a", ran)
        world.client.zadd(SCHEDULE, {"redbeat:a": 1})
        scheduler.tick()
        ids += [sent.id for sent in scheduler.sent]
        scheduler.close()
        if flush:
            world.client.flushall()
        else:
            world.client.delete("redbeat:a")
            world.client.zrem(SCHEDULE, "redbeat:a")
    assert len(ids) == 2
    assert ids[0] == ids[1]


def test_a_run_that_is_held_again_has_the_same_id(
    world: World, wire: Wire, beat: RecordingScheduler, ran: datetime
) -> None:
    world.put("a", interval_json(HOUR), ran)
    wire.lose(lambda: world.is_held("a"))
    beat.tick()
    assert beat.sent == []
    identity = world.identity("a")
    entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=world.app)
    assert send(beat) == entry.history[0].task_id
    assert world.identity("a") == identity


def test_every_way_to_load_an_entry_knows_its_ids(
    make: Make, schedule: Schedule, world: World, beat: RecordingScheduler, ran: datetime
) -> None:
    saved = make("a", last_run_at=ran).save()
    upserted = make("a", args=[1]).save()
    task_id = send(beat)
    instant = beat.sent[0].scheduled_at
    (found,) = schedule.find()
    (record,) = schedule.records()
    assert record.entry is not None
    loaded = schedule["a"]
    entries = [
        *(saved, upserted, loaded, found, record.entry),
        *(copy.copy(loaded), copy.deepcopy(loaded)),
    ]
    for entry in entries:
        assert entry.task_id_of(instant) == task_id
    again = pickle.loads(pickle.dumps(loaded))
    again.app = world.app
    assert again.task_id_of(instant) == task_id
    assert make("a").history[0].task_id == task_id


def test_entries_saved_in_bulk_have_different_ids(
    schedule: Schedule, make: Make, world: World, ran: datetime
) -> None:
    entries = [make(f"e{number}", last_run_at=ran) for number in range(3)]
    schedule.save_all(entries)
    stored = [world.identity(f"e{number}") for number in range(3)]
    assert len({*stored}) == 3
    schedule.save_all(entries)
    assert [world.identity(f"e{number}") for number in range(3)] == stored
    entries[0].pause()
    entries[0].resume()
    assert world.identity("e0") == stored[0]


def test_a_copy_under_another_prefix_keeps_the_ids_of_old_runs(
    make: Make, world: World, beat: RecordingScheduler, ran: datetime
) -> None:
    entry: Any = make("a", last_run_at=ran).save()
    send(beat)
    before = entry.history
    copy_prefix(world.client, "redbeat:", "new:")
    world.app.conf.redbeat_key_prefix = "new:"
    del world.app.redbeat_conf
    assert RedBeatSchedulerEntry.from_key("new:a", app=world.app).history == before
