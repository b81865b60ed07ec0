"""The sweep finds entries that are missing in the sorted set."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redbeat.beat.maintenance import PAGE_INTERVAL, SCAN_INTERVAL
from redbeat.entries.decide import CLOCK_STEP, DISABLED
from tests.deployments import PREFIX
from tests.scheduler.conftest import SCHEDULE, Clock, RecordingScheduler, World, interval_json


@pytest.fixture
def scheduler(world: World, clock: Clock) -> RecordingScheduler:
    """A leading beat."""
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    return scheduler


def members(world: World) -> set[str]:
    """Return the members of the sorted set of the schedule."""
    return set(world.client.zrange(SCHEDULE, 0, -1))


def sweep(scheduler: RecordingScheduler, clock: Clock, times: int = 2) -> None:
    """Let the beat sweep ``times`` pages of keys."""
    for _ in range(times):
        clock.advance(PAGE_INTERVAL)
        scheduler.tick()


def test_a_hash_without_a_member_runs_again(
    world: World, clock: Clock, scheduler: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    key = world.put("a", interval_json(60), world.ago(90))
    world.client.zrem(SCHEDULE, key)
    sweep(scheduler, clock)
    assert scheduler.names == ["a"]
    assert f"Entry {key} was missing in the sorted set" in log.text
    assert world.score("a") == world.later(30)


@pytest.mark.parametrize(
    ("key", "definition"),
    [
        ("sur", {"name": "sur", "args": ["\ud800", "\\ud800"]}),
        ("12345", {"name": 12345}),
        ("1234567890123456789", {"name": 1234567890123456789}),
    ],
)
def test_an_odd_text_does_not_hide_a_lost_entry(
    world: World,
    clock: Clock,
    scheduler: RecordingScheduler,
    key: str,
    definition: dict[str, Any],
) -> None:
    """JSON of Python may have half a surrogate pair, and RedBeat 2 stores numbers as names."""
    whole = {"task": "tasks.a", "schedule": interval_json(600), **definition}
    world.client.hset(f"{PREFIX}{key}", mapping={"definition": json.dumps(whole), "meta": "{}"})
    sweep(scheduler, clock, 3)
    assert f"{PREFIX}{key}" in members(world)


def test_a_disabled_entry_with_half_a_surrogate_pair_stays_disabled(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    whole = {"name": "a", "task": "tasks.a", "schedule": interval_json(600), "enabled": False}
    text = json.dumps({**whole, "args": ["\ud800"]})
    world.client.hset(f"{PREFIX}a", mapping={"definition": text, "meta": "{}"})
    world.client.zadd(SCHEDULE, {f"{PREFIX}a": DISABLED})
    sweep(scheduler, clock, 3)
    assert world.score("a") == DISABLED


def test_an_entry_that_is_not_due_gets_the_score_of_its_history(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    key = world.put("a", interval_json(600), world.ago(60))
    world.client.zrem(SCHEDULE, key)
    sweep(scheduler, clock)
    assert scheduler.sent == []
    assert world.score("a") == world.later(540)


def test_a_writer_between_two_commands_is_left_alone(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    """A program may write the hash first and the score later. The sweep keeps this score."""
    key = world.put("a")
    world.client.zrem(SCHEDULE, key)
    sweep(scheduler, clock, 1)
    scheduler.tick()  # it does not sweep, because the clock has not advanced
    assert members(world) == set()
    later = world.now() + 600
    world.client.zadd(SCHEDULE, {key: later})
    sweep(scheduler, clock)
    assert scheduler.sent == []
    assert world.score("a") == pytest.approx(later)


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
def test_hashes_of_others_under_the_prefix_are_left_alone(
    world: World, clock: Clock, scheduler: RecordingScheduler, definition: str
) -> None:
    world.client.hset(f"{PREFIX}other:inner", "definition", definition)
    sweep(scheduler, clock, 3)
    assert members(world) == set()


def test_keys_that_are_not_entries_are_left_alone(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    world.client.hset(f"{PREFIX}notes", "text", "x")
    world.client.set(f"{PREFIX}text", "x")
    world.client.sadd(f"{PREFIX}set", "x")
    sweep(scheduler, clock, 3)
    assert members(world) == set()


def test_the_whole_sorted_set_is_lost(
    world: World, clock: Clock, scheduler: RecordingScheduler, log: pytest.LogCaptureFixture
) -> None:
    """The beat adds all entries again with scores from their history, and sends no run."""
    pipeline = world.client.pipeline(transaction=False)
    writer, ran, score = World(world.app, pipeline), world.ago(60), world.now() + 3540
    for number in range(1200):
        writer.put(f"e{number}", interval_json(3600), ran, score=score)
    pipeline.execute()
    scheduler.tick()
    world.client.delete(SCHEDULE)
    clock.advance(1)
    scheduler.tick()
    sweep(scheduler, clock, 1)
    assert len(members(world)) == 1200
    assert scheduler.sent == []
    assert world.client.zcount(SCHEDULE, world.now(), "+inf") == 1200
    assert "all 1200 entries are gone" in log.text


def test_the_only_member_is_lost(world: World, clock: Clock, scheduler: RecordingScheduler) -> None:
    world.put("a", interval_json(60), world.ago(90))
    scheduler.tick()
    world.client.delete(SCHEDULE)
    clock.advance(1)
    scheduler.tick()
    sweep(scheduler, clock, 1)
    assert world.score("a") is not None


def test_a_pass_over_many_keys_takes_a_page_at_a_time(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    pipeline = world.client.pipeline(transaction=False)
    for number in range(5000):
        pipeline.set(f"foreign{number}{PREFIX}", "x")
    pipeline.execute()
    key = world.put("a", score=world.now() + 600)
    sweep(scheduler, clock, 1)
    before = world.calls()
    sweep(scheduler, clock, 1)
    # One script claims and one reads a page. The other two check the entry and claim again,
    # because the clock of Redis does not advance like the test's clock.
    assert 0 < world.calls() - before <= 2 + 2
    world.client.zrem(SCHEDULE, key)
    sweep(scheduler, clock, int(SCAN_INTERVAL / PAGE_INTERVAL) + 8)
    assert scheduler.names == ["a"]


def test_an_idle_tick_in_between_is_one_round_trip(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    sweep(scheduler, clock)
    before = world.calls()
    clock.advance(CLOCK_STEP / 2)
    scheduler.tick()
    assert world.calls() - before == 1


@pytest.mark.standalone
def test_special_characters_in_the_prefix(world: World, clock: Clock) -> None:
    prefix = "a[b]*?\\:"
    world.app.conf.redbeat_key_prefix = prefix
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    definition = {"name": "a", "task": "t", "schedule": interval_json(60)}
    world.client.hset(f"{prefix}a", "definition", json.dumps(definition))
    sweep(scheduler, clock)
    assert scheduler.names == ["a"]
    scheduler.close()


def test_an_entry_enabled_by_another_program_runs(
    world: World, clock: Clock, scheduler: RecordingScheduler
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


def test_a_finished_entry_stays_finished(
    world: World, clock: Clock, scheduler: RecordingScheduler
) -> None:
    world.put("done", score=-1)
    sweep(scheduler, clock, 3)
    assert scheduler.names == []
    assert world.score("done") == -1


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
