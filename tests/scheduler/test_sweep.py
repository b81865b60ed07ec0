"""The sweep puts back what was lost with the sorted set, and leaves out what a program took out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.beat.beat import Beat
from redbeat.beat.upkeep import INTERVAL
from redbeat.entries.decide import DISABLED
from redbeat.schedules.rule import clocked
from tests.deployments import PREFIX
from tests.scheduler.conftest import SCHEDULE, Clock, RecordingScheduler, World, interval_json

NOT_SCHEDULED = "stored, but not scheduled"


@pytest.fixture
def scheduler(world: World, clock: Clock) -> RecordingScheduler:
    """A leading beat."""
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    return scheduler


def members(world: World) -> set[str]:
    """Return the names of all members of the sorted set of the schedule."""
    return {key.removeprefix(PREFIX) for key in world.client.zrange(SCHEDULE, 0, -1)}


def save(world: World, *names: str, every: float = 3600, **fields: Any) -> None:
    """Save entries as a program does that uses this version."""
    for name in names:
        fields = {"schedule": timedelta(seconds=every), **fields}
        RedBeatSchedulerEntry(name, f"tasks.{name}", app=world.app, **fields).save()


def look(scheduler: RecordingScheduler, clock: Clock) -> None:
    """Let the beat look at the whole schedule, as once a second."""
    clock.advance(1)
    scheduler.tick()


def sweep(scheduler: RecordingScheduler, clock: Clock, times: int = 2) -> None:
    """Let the beat sweep ``times`` times."""
    for _ in range(times):
        clock.advance(INTERVAL)
        scheduler.tick()


# -- a program takes out members -------------------------------------------------------------------


@pytest.mark.parametrize(("count", "taken"), [(1, 1), (2, 1), (9, 8), (10, 8), (12, 10)])
def test_an_entry_taken_out_by_a_program_does_not_run(
    world: World, clock: Clock, scheduler: RecordingScheduler, count: int, taken: int
) -> None:
    names = [f"e{number}" for number in range(count)]
    save(world, *names)
    look(scheduler, clock)
    world.client.zrem(SCHEDULE, *(f"{PREFIX}{name}" for name in names[:taken]))
    sweep(scheduler, clock, 20)
    assert members(world) == set(names[taken:])
    assert scheduler.sent == []


def test_an_entry_that_a_program_puts_back_runs_at_once(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    key = world.put("a", interval_json(60), world.ago(90))
    world.client.zrem(SCHEDULE, key)
    sweep(scheduler, clock)
    assert scheduler.names == []
    world.client.zadd(SCHEDULE, {key: world.now() - 30})
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_saving_again_schedules_an_entry(world: World) -> None:
    save(world, "a")
    world.client.zrem(SCHEDULE, f"{PREFIX}a")
    RedBeatSchedulerEntry.from_key(f"{PREFIX}a", app=world.app).save()
    assert members(world) == {"a"}


def test_a_static_entry_comes_back_at_the_next_start(world: World, clock: Clock) -> None:
    world.app.conf.beat_schedule = {name: {"task": "t", "schedule": 3600.0} for name in ("a", "b")}
    first = world.scheduler(clock=clock)
    first.tick()
    world.client.zrem(SCHEDULE, f"{PREFIX}a")
    sweep(first, clock)
    assert members(world) == {"b"}
    first.close()
    world.scheduler(clock=clock).tick()
    assert members(world) == {"a", "b"}


def test_a_calendar_does_not_bring_an_entry_back(world: World) -> None:
    Schedule(world.app).save_calendar(Calendar("holidays"))
    save(world, "a", exclude="holidays")
    world.client.zrem(SCHEDULE, f"{PREFIX}a")
    Schedule(world.app).save_calendar(Calendar("holidays", [date(2030, 1, 1)]))
    assert members(world) == set()


# -- the first start -------------------------------------------------------------------------------


def test_the_first_start_counts_what_an_earlier_version_left_out(
    world: World, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    """Later starts are silent."""
    for name in ("a", "b", "c"):
        world.put(name, interval_json(60), world.ago(90))
    world.client.zrem(SCHEDULE, f"{PREFIX}a", f"{PREFIX}b")
    first = world.scheduler(clock=clock)
    sweep(first, clock, 3)
    assert first.names == ["c"]
    told = [record.message for record in log.records if NOT_SCHEDULED in record.message]
    assert len(told) == 1
    assert told[0].startswith("beat: 2 entries are stored, but not scheduled")
    assert "celery redbeat resume NAME" in told[0]
    first.close()
    log.clear()
    sweep(world.scheduler(clock=clock), clock, 3)
    assert NOT_SCHEDULED not in log.text


@pytest.mark.parametrize(
    ("key", "definition"),
    [
        ("sur", {"name": "sur", "args": ["\ud800", "\\ud800"]}),
        ("12345", {"name": 12345}),
        ("1234567890123456789", {"name": 1234567890123456789}),
    ],
)
def test_an_odd_text_does_not_hide_an_entry(
    world: World, clock: Clock, log: pytest.LogCaptureFixture, key: str, definition: dict[str, Any]
) -> None:
    """JSON of Python may have half a surrogate pair, and RedBeat 2 stores numbers as names."""
    whole = {"task": "tasks.a", "schedule": interval_json(600), **definition}
    world.client.hset(f"{PREFIX}{key}", mapping={"definition": json.dumps(whole), "meta": "{}"})
    sweep(world.scheduler(clock=clock), clock)
    assert "1 entry is stored, but not scheduled" in log.text


@pytest.mark.parametrize(
    "definition",
    [
        json.dumps({"name": "inner", "task": "t", "schedule": interval_json(1)}),
        json.dumps({"task": "t"}),
        json.dumps(["a"]),
        "not JSON",
        "[" * 5000,
    ],
    ids=["name of another schedule", "no name", "no object", "no JSON", "too deep"],
)
def test_keys_of_others_under_the_prefix_are_left_alone(
    world: World, clock: Clock, log: pytest.LogCaptureFixture, definition: str
) -> None:
    scheduler = world.scheduler(clock=clock)
    save(world, "a", "b")
    scheduler.tick()
    look(scheduler, clock)
    others = {"definition": definition, "identity": '"x"'}
    world.client.hset(f"{PREFIX}other:inner", mapping=others)
    world.client.hset(f"{PREFIX}notes", "text", "x")
    world.client.set(f"{PREFIX}text", "x")
    world.client.delete(SCHEDULE)
    sweep(scheduler, clock, 3)
    assert members(world) == {"a", "b"}
    assert NOT_SCHEDULED not in log.text


def test_a_member_that_is_a_name_is_not_reported(
    world: World, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    """A program may add the name of an entry instead of its key."""
    world.client.zrem(SCHEDULE, world.put("a"))
    world.client.zadd(SCHEDULE, {"a": world.now() + 600})
    scheduler = world.scheduler(clock=clock)
    sweep(scheduler, clock, 2)
    assert NOT_SCHEDULED not in log.text
    assert Schedule(world.app)["a"].status.state == "scheduled"


# -- the sorted set is lost ------------------------------------------------------------------------


def lose(world: World, *left: str) -> None:
    """Delete the sorted set, except for the entries in ``left``."""
    scores = {f"{PREFIX}{name}": world.client.zscore(SCHEDULE, f"{PREFIX}{name}") for name in left}
    world.client.delete(SCHEDULE)
    if scores:
        world.client.zadd(SCHEDULE, scores)


@pytest.mark.parametrize(("count", "left"), [(2, 0), (9, 0), (10, 1), (12, 1), (30, 3)])
def test_a_lost_set_is_put_back(
    world: World, clock: Clock, scheduler: RecordingScheduler, count: int, left: int
) -> None:
    """All entries get the scores of their histories again, and no run is sent."""
    names = [f"e{number}" for number in range(count)]
    save(world, *names)
    look(scheduler, clock)
    scores = [world.score(name) for name in names]
    lose(world, *names[:left])
    sweep(scheduler, clock)
    assert [world.score(name) for name in names] == pytest.approx(scores)
    assert scheduler.sent == []


def test_each_entry_that_comes_back_is_logged(
    world: World, clock: Clock, scheduler: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    save(world, *(f"e{number}" for number in range(1200)))
    look(scheduler, clock)
    lose(world)
    look(scheduler, clock)
    assert "all 1200 entries are gone" in log.text
    sweep(scheduler, clock, 1)
    assert len(members(world)) == 1200
    assert log.text.count("was missing in the sorted set") == 1200


def test_an_entry_of_an_earlier_version_is_not_put_back(
    world: World, clock: Clock, scheduler: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    """Only a beat or a save of this version shows that the entry had a score."""
    save(world, "saved")
    world.put("ran", interval_json(3600), world.ago(90))
    world.put("later", interval_json(3600), world.ago(90), score=world.now() + 3510)
    scheduler.tick()  # the beat sets the score of "ran"
    look(scheduler, clock)
    lose(world)
    sweep(scheduler, clock)
    assert members(world) == {"saved", "ran"}
    assert "1 entry is stored, but not scheduled" in log.text


def test_paused_finished_and_bad_entries_come_back_without_a_run(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    save(world, "paused", "ends", "triggered", every=1)
    save(world, "limited", every=1, max_runs=1, total_run_count=1)
    save(world, "once", schedule=clocked(world.ago(60)), last_run_at=world.ago(30))
    Schedule(world.app)["paused"].pause()
    bad = world.put("bad", {"__type__": "interval", "every": "x"})
    scheduler.tick()
    scores = {name: world.score(name) for name in ("paused", "limited", "once", "bad")}
    assert set(scores.values()) <= {-1, DISABLED}
    since, scheduler.sent = world.quarantine()[bad], []
    lose(world)
    sweep(scheduler, clock)
    assert {name: world.score(name) for name in scores} == scores
    assert not scores.keys() & set(scheduler.names)
    assert world.quarantine()[bad] == since


def test_a_waiting_trigger_of_a_paused_entry_survives_a_loss(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    save(world, "a", "b")
    Schedule(world.app)["a"].pause()
    look(scheduler, clock)
    Schedule(world.app)["a"].trigger()
    lose(world)
    sweep(scheduler, clock)
    assert scheduler.names == ["a"]
    assert world.score("a") == DISABLED


@pytest.mark.long
def test_a_lost_set_is_put_back_as_fast_as_the_manual_says(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    """10,000 entries are back after about 5 seconds; a slow machine may take four times as long."""
    count = 2000
    save(world, *(f"e{number}" for number in range(count)))
    look(scheduler, clock)
    lose(world)
    clock.advance(INTERVAL)
    started = time.monotonic()
    scheduler.tick()
    seconds = time.monotonic() - started
    assert len(members(world)) == count
    assert seconds * 10_000 / count < 4 * 5


@pytest.mark.parametrize("writes", ["save", "static", "both"])
def test_a_write_after_the_loss_does_not_hide_it(
    world: World, clock: Clock, scheduler: RecordingScheduler, writes: str
) -> None:
    """The other beat starts before this beat looks again."""
    save(world, "a", "b", "c")
    look(scheduler, clock)
    scheduler.close()
    lose(world)
    if writes != "static":
        save(world, "d")
    if writes != "save":
        world.app.conf.beat_schedule = {"s": {"task": "t", "schedule": 3600.0}}
    sweep(world.scheduler(clock=clock), clock)
    assert members(world) >= {"a", "b", "c"}


@pytest.mark.parametrize("takes_lock_first", [False, True])
def test_a_set_lost_without_a_beat_is_put_back_by_the_next_one(
    world: World, clock: Clock, scheduler: RecordingScheduler, takes_lock_first: bool
) -> None:
    save(world, "a", "b")
    look(scheduler, clock)
    scheduler.close()
    lose(world)
    successor = world.scheduler(clock=clock)
    if takes_lock_first:  # as on `beat_init`; this look is told of the loss
        assert isinstance(successor.beat, Beat)
        successor.beat.take_lock()
    sweep(successor, clock)
    assert members(world) == {"a", "b"}


def test_beats_without_a_lock_put_a_lost_set_back(world: World, clock: Clock) -> None:
    world.app.conf.redbeat_lock_key = None
    beats = [world.scheduler(clock=clock) for _ in range(2)]
    names = {f"e{number}" for number in range(50)}
    save(world, *names)
    for beat in beats * 2:
        look(beat, clock)
    lose(world)
    for beat in beats:
        look(beat, clock)
    for beat in beats:
        sweep(beat, clock)
    assert members(world) == names
    assert [beat.sent for beat in beats] == [[], []]


def delete_each(world: World, _scheduler: RecordingScheduler, names: list[str]) -> None:
    for name in names:
        Schedule(world.app)[name].delete()


def end_all(world: World, scheduler: RecordingScheduler, names: list[str]) -> None:
    """Let entries delete themselves after a run."""
    save(world, *names, schedule=clocked(world.ago(-0.01)), on_finish="delete")
    while members(world):
        scheduler.tick()
    assert len(scheduler.sent) == len(names)


def delete_hashes(world: World, scheduler: RecordingScheduler, names: list[str]) -> None:
    """Delete the hashes only, as some programs do; the beat removes the members."""
    world.client.delete(*(f"{PREFIX}{name}" for name in names))
    for _ in range(2):
        world.make_due(*names)
        scheduler.tick()
    assert members(world) == set()


DELETES: dict[str, Callable[[World, RecordingScheduler, list[str]], object]] = {
    "delete": delete_each,
    "pop": lambda world, _, names: [Schedule(world.app).pop(name) for name in names],
    "delete_all": lambda world, _, names: Schedule(world.app).delete_all(names),
    "clear": lambda world, _scheduler, _names: Schedule(world.app).clear(),
    "themselves": end_all,
    "hashes": delete_hashes,
}


@pytest.mark.parametrize("how", DELETES)
def test_deletes_are_no_loss(
    world: World,
    clock: Clock,
    scheduler: RecordingScheduler,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """An entry that a program took out earlier stays out."""
    monkeypatch.setattr("redbeat.beat.beat.MISSING_FOR", 0.0)
    names = [f"e{number}" for number in range(12)]
    save(world, *names, "out")
    look(scheduler, clock)
    world.client.zrem(SCHEDULE, f"{PREFIX}out")
    look(scheduler, clock)
    DELETES[how](world, scheduler, names)
    sweep(scheduler, clock, 3)
    assert members(world) == set()


def test_removed_static_entries_are_no_loss(world: World, clock: Clock) -> None:
    world.app.conf.beat_schedule = {
        f"s{number}": {"task": "t", "schedule": 3600.0} for number in range(20)
    }
    save(world, "out", "stays")
    first = world.scheduler(clock=clock)
    look(first, clock)
    world.client.zrem(SCHEDULE, f"{PREFIX}out")
    look(first, clock)
    first.close()
    world.app.conf.beat_schedule = {}
    sweep(world.scheduler(clock=clock), clock, 3)
    assert members(world) == {"stays"}


@pytest.mark.standalone
def test_a_user_without_rights_on_the_note(world: World, clock: Clock) -> None:
    """Without the note nothing is put back, and nothing fails."""
    client = world.client
    rights = (f"~{PREFIX}*", "&*", "+@all")
    client.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", *rights)
    try:
        url = world.app.conf.redbeat_redis_url.replace("redis://", "redis://narrow:x@")
        world.app.conf.redbeat_redis_url = url
        scheduler = world.scheduler(clock=clock)
        save(world, "a", "b")
        look(scheduler, clock)
        lose(world)
        sweep(scheduler, clock, 3)
        assert members(world) == set()
        save(world, "a", every=1, last_run_at=world.ago(5))
        scheduler.tick()
        assert scheduler.names == ["a"]
        Schedule(world.app)["a"].delete()
        assert Schedule(world.app).pop("b").name == "b"
    finally:
        client.execute_command("ACL", "DELUSER", "narrow")


# -- the cost --------------------------------------------------------------------------------------


@pytest.mark.standalone
def test_special_characters_in_the_prefix(
    world: World, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    prefix = "a[b]*?\\:"
    world.app.conf.redbeat_key_prefix = prefix
    scheduler = world.scheduler(clock=clock)
    definition = {"name": "a", "task": "t", "schedule": interval_json(60)}
    world.client.hset(f"{prefix}a", "definition", json.dumps(definition))
    sweep(scheduler, clock)
    assert "1 entry is stored, but not scheduled" in log.text
    scheduler.close()


# -- programs that enable entries ------------------------------------------------------------------


def test_a_disabled_entry_with_half_a_surrogate_pair_stays_disabled(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    whole = {"name": "a", "task": "tasks.a", "schedule": interval_json(600), "enabled": False}
    text = json.dumps({**whole, "args": ["\ud800"]})
    world.client.hset(f"{PREFIX}a", mapping={"definition": text, "meta": "{}"})
    world.client.zadd(SCHEDULE, {f"{PREFIX}a": DISABLED})
    sweep(scheduler, clock, 3)
    assert world.score("a") == DISABLED


def test_an_entry_enabled_by_another_program_runs(
    world: World, clock: Clock, scheduler: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    world.put("a", interval_json(60), world.ago(90), enabled=False)
    world.put("b", interval_json(60), world.ago(90), enabled=False, kwargs={"enabled": True})
    scheduler.tick()
    assert (world.score("a"), world.score("b")) == (-2, -2)
    definition = world.field("a", "definition")
    world.client.hset(f"{PREFIX}a", "definition", json.dumps({**definition, "enabled": True}))
    sweep(scheduler, clock, 1)
    assert scheduler.names == ["a"]
    assert world.score("b") == -2
    assert f"Entry {PREFIX}a was enabled by another program" in log.text


def test_disabled_entries_are_looked_at_in_turns(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    for number in range(450):
        world.put(f"e{number:03}", interval_json(60), world.ago(90), enabled=False)
    scheduler.tick()
    definition = world.field("e449", "definition")
    world.client.hset(f"{PREFIX}e449", "definition", json.dumps({**definition, "enabled": True}))
    sweep(scheduler, clock, 2)
    assert scheduler.names == []
    sweep(scheduler, clock, 1)
    assert scheduler.names == ["e449"]


def test_entries_that_were_enabled_hide_no_others(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    """The entries that leave the first page move those of the next page forward."""
    for number in range(450):
        world.put(f"e{number:03}", interval_json(60), world.ago(90), enabled=False)
    scheduler.tick()
    names = [f"e{number:03}" for number in (0, 1, 2, 200, 201, 202)]
    for name in names:
        definition = {**world.field(name, "definition"), "enabled": True}
        world.client.hset(f"{PREFIX}{name}", "definition", json.dumps(definition))
    sweep(scheduler, clock, 2)
    assert sorted(scheduler.names) == names


@pytest.mark.standalone
def test_a_user_who_may_not_scan(world: World, clock: Clock, log: pytest.LogCaptureFixture) -> None:
    client = world.client
    client.execute_command("ACL", "SETUSER", "careful", "on", "nopass", "~*", "+@all", "-scan")
    try:
        url = world.app.conf.redbeat_redis_url.replace("redis://", "redis://careful:x@")
        world.app.conf.redbeat_redis_url = url
        world.put("a")
        scheduler = world.scheduler(clock=clock)
        scheduler.tick()
        sweep(scheduler, clock, 3)
        assert scheduler.names == ["a"]
        assert log.text.count("Cannot scan for lost entries") == 1
    finally:
        client.execute_command("ACL", "DELUSER", "careful")
