"""Programs that scan the key prefix find only the keys of RedBeat 2, and JSON in all fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

import redbeat.worker
from redbeat import RedBeatSchedulerEntry, Schedule
from tests.cli.commands import run_command
from tests.deployments import PREFIX
from tests.samples import one_in
from tests.scheduler.conftest import (
    HANDS,
    LOCK,
    SCHEDULE,
    STATICS,
    RecordingScheduler,
    Sent,
    World,
    end_run,
    interval_json,
)

HOUR = 3600.0

#: A task id with characters that JSON escapes, and characters that look like an escape sequence.
ODD_ID = 'a "b" \\n\\\\n \t c\u00fc \\'


def entry_keys(world: World) -> list[str]:
    """Return the keys with the prefix, except the schedule, the static names and the lock."""
    found = world.client.scan_iter(PREFIX.replace("[", r"\[") + "*")
    return sorted(set(found) - {SCHEDULE, STATICS, LOCK})


def read_all(world: World) -> dict[str, dict[str, Any]]:
    """Return all hash fields of all entries, decoded from JSON."""
    return {
        key.removeprefix(PREFIX): {
            field: json.loads(text) for field, text in world.client.hgetall(key).items()
        }
        for key in entry_keys(world)
    }


def message_of(scheduler: RecordingScheduler, name: str) -> Sent:
    """Return the first message of an entry."""
    return next(sent for sent in scheduler.sent if sent.name == name)


#: Invalid values of the field ``trigger`` that look like an empty list of waiting triggers.
WRITTEN = ("", " ", '"', '""', '" "', '"\u00a0"', "7", ":7", '":7 :8"')


@pytest.fixture
def scheduler(world: World) -> RecordingScheduler:
    """A beat with due entries of every kind."""
    app = world.app
    redbeat.worker.enable(app)
    app.conf.beat_schedule = {"static": {"task": "t", "schedule": HOUR}}
    scheduler = world.scheduler()
    scheduler.tick()
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "long": {"args": ["x" * 600]},
        "odd": {"options": {"task_id": ODD_ID}},
        "running": {"overlap": "skip", "options": {"task_id": ODD_ID}},
        "once": {"delivery": "at_most_once"},
        "policy": {"jitter": 2.0, "max_runs": 9},
    }
    for name, more in kinds.items():
        RedBeatSchedulerEntry(
            name, "t", HOUR, app=app, last_run_at=world.ago(HOUR + 5), **more
        ).save()
    RedBeatSchedulerEntry("paused", "t", HOUR, app=app).save().pause("a note")
    world.put("raw")
    world.put("quarantined", {"__type__": "interval", "every": "1"})
    return scheduler


def test_every_field_is_json_at_every_moment(world: World, scheduler: RecordingScheduler) -> None:
    seen: set[str] = set()

    def look(_task: str = "") -> None:
        for fields in read_all(world).values():
            seen.update(fields)

    scheduler.before_send = look
    for _ in range(3):
        schedule = Schedule(world.app)
        schedule["paused"].trigger()
        schedule["paused"].trigger()
        look()
        scheduler.tick()
        end_run(world.app, message_of(scheduler, "running"))
        look()
        for name in ("plain", "odd", "running"):
            world.client.zadd(SCHEDULE, {f"{PREFIX}{name}": 0})
            world.put_meta(name, world.ago(HOUR + 5))
    assert seen >= {"definition", "meta", "policy", "history", "results"}
    assert seen >= {"beat_state", "inbox"}
    assert [run.task_id for run in Schedule(world.app)["odd"].history] == [ODD_ID] * 3


def test_the_end_of_a_run_is_found_under_any_id(
    world: World, scheduler: RecordingScheduler
) -> None:
    scheduler.tick()
    running = world.running("running")
    assert running is not None
    assert running[0] == ODD_ID
    end_run(world.app, message_of(scheduler, "running"))
    assert world.running("running") is None


def test_a_scan_finds_nothing_but_entries(world: World, scheduler: RecordingScheduler) -> None:
    scheduler.tick()
    names = ["long", "odd", "once", "paused", "plain", "policy", "quarantined", "raw", "running"]
    expected = [PREFIX + name for name in (*names, "static")]
    assert [key for key in entry_keys(world) if "backend_cleanup" not in key] == expected
    assert "quarantined" in Schedule(world.app).quarantine()


@pytest.mark.parametrize("field", [
    *("claim", "running", "ended", "trigger", "history", "results", "beat_state", "inbox", "waits"),
])  # fmt: skip
@pytest.mark.parametrize(
    "text", one_in(3, [*WRITTEN, "null", "[]", "{}", "x", '"x', "a\nb", "[" * 5000])
)
def test_values_that_other_programs_write_stop_nothing(world: World, field: str, text: str) -> None:
    key = world.put("a", last_run_at=world.ago(100))
    world.client.hset(key, field, text)
    entry = RedBeatSchedulerEntry.from_key(key, app=world.app)
    assert isinstance(entry.history, list)
    assert entry.status.state
    scheduler = world.scheduler()
    scheduler.tick()
    waits = [scheduler.tick() for _ in range(2)]
    assert waits[-1] > 0, "there is always more to do"
    assert "a" in scheduler.names
    assert len(scheduler.names) <= 2
    assert entry.history[0].outcome in ("sent", "triggered")
    entry.trigger()
    scheduler.tick()
    assert entry.history[0].outcome == "triggered"
    json.loads(world.client.hget(key, "history"))


# -- keys aside of the schedule --------------------------------------------------------------------


#: The token of a beat that has vanished.
VANISHED = "redbeat3:gone:1:1:a"


@pytest.mark.parametrize("side", ["quarantine", "failing", "expected", "beats", "stats"])
def test_a_side_key_of_a_wrong_type_stops_nothing(world: World, side: str) -> None:
    key = f".{PREFIX}:{side}"
    world.client.lpush(key, "x")
    world.put("a", interval_json(60), world.ago(90))
    scheduler = world.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert key in run_command(world.app, "doctor").out
    assert run_command(world.app, "list").code == 0
    assert run_command(world.app, "delete", "a", "--yes").code == 0


@pytest.mark.parametrize("note", ["not JSON", "[", "5", "{}", "[1]", '["\\ud800"]'])
def test_an_odd_note_of_a_vanished_beat_stops_nothing(
    world: World, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.client.hset(HANDS, VANISHED, note)
    world.put("a", interval_json(60), world.ago(90))
    scheduler = world.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert "Traceback" not in caplog.text
    assert not world.client.hexists(HANDS, VANISHED)


@pytest.mark.parametrize("others", [[], ["b"], ["gone", "b"]])
def test_a_suspect_that_another_beat_has_set_aside_is_not_loaded(
    world: World, others: list[str]
) -> None:
    later = world.now() + 3600
    key = world.put("odd", {"__type__": "interval", "every": "x"}, score=later)
    world.put("b", interval_json(60), world.ago(90))
    keys = [f"{PREFIX}{name}" for name in others]
    world.client.hset(HANDS, VANISHED, json.dumps([*keys, key]))
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["b"], "the look at the suspect alone delays no other"
    scheduler.tick()
    assert world.score("odd") == later
    assert not world.client.exists(f".{PREFIX}:quarantine")
    assert not world.client.hexists(HANDS, VANISHED)
