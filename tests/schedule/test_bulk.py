"""Methods that save, delete, pause or apply many entries at once."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest
import redis
from celery.schedules import crontab
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.errors import InvalidEntryError
from redbeat.storage.reading import MOST_WRITTEN
from tests.samples import long
from tests.scheduler.clients import Wire
from tests.scheduler.conftest import SCHEDULE, World

from .conftest import Make, RoundTrips


def test_save_all_stores_what_save_does(schedule: Schedule, make: Make, world: World) -> None:
    last = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    kinds: list[dict[str, Any]] = [
        {"schedule": crontab(hour=3), "last_run_at": last},
        {"enabled": False, "last_run_at": last},
        {"jitter": 5, "max_runs": 3, "last_run_at": last, "total_run_count": 1},
        {"max_runs": 1, "last_run_at": last, "total_run_count": 1},
        {"args": ["é"], "kwargs": {"a": 1}, "schedule": 1e8, "last_run_at": last},
    ]
    for number, fields in enumerate(kinds):
        make(f"e{number}", **fields).save()
    singly = world.dump()
    world.client.flushdb()
    assert schedule.save_all(make(f"e{n}", **kind) for n, kind in enumerate(kinds)) == 5
    together = world.dump()
    for dump in (singly, together):
        dump[SCHEDULE] = [
            (key, score if score < 0 else score // 100) for key, score in dump[SCHEDULE]
        ]
        for number in range(5):
            assert dump[f"redbeat:e{number}"]["beat_state"].pop("id")
    assert together == singly


def test_save_all_checks_all_before_it_writes_one(
    schedule: Schedule, make: Make, world: World
) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"args": [object()]}, r"bad: args\[0\]"),
        ({"max_runs": 0}, "bad: max_runs"),
        ({"total_run_count": -1}, "bad: total_run_count"),
    ]
    for fields, message in bad:
        entries = [make(f"e{number}") for number in range(600)]
        with pytest.raises(InvalidEntryError, match=message):
            schedule.save_all([*entries, make("bad", **fields)])
        assert world.dump() == {}
    with pytest.raises(InvalidEntryError, match="RedBeat uses itself"):
        schedule.save_all([make("good"), make(":statics")])
    assert world.dump() == {}


@pytest.mark.parametrize("used", [long(0), 700, long(1200)])
def test_save_all_stops_at_the_batch_where_a_key_is_in_use(
    schedule: Schedule, make: Make, world: World, used: int
) -> None:
    """A failed save returns its connections to the pool, so the next save can use them."""
    world.app.redbeat_redis = few_connections(world)
    entries = [make(f"e{number}") for number in range(1300)]
    world.client.set(f"redbeat:e{used}", "not mine")
    for _ in range(3):
        with pytest.raises(InvalidEntryError, match=f"'redbeat:e{used}' is not an entry"):
            schedule.save_all(entries)
    assert used // 500 * 500 <= world.client.zcard(SCHEDULE) < (used // 500 + 1) * 500
    assert schedule.save_all([make("a")]) == 1


class Unready(RedBeatSchedulerEntry):
    """An entry whose score raises an error."""

    @property
    def score(self) -> float:
        raise LookupError(self.name)


def few_connections(world: World) -> redis.Redis:
    """Return a client whose pool has only the three connections that one save needs."""
    return redis.Redis.from_url(world.app.conf.redbeat_redis_url, max_connections=3)


def test_save_all_waits_for_batches_in_flight_when_the_next_fails(
    schedule: Schedule, make: Make, world: World
) -> None:
    world.app.redbeat_redis = few_connections(world)
    entries = [make(f"e{number}") for number in range(500)]
    for _ in range(3):
        with pytest.raises(LookupError, match="bad"):
            schedule.save_all([*entries, Unready("bad", "t", 60, app=world.app)])
    assert world.client.zcard(SCHEDULE) == 500
    for entry in entries[::50]:
        entry.save(if_unchanged=True)  # no conflict, because the entry knows its stored state


def test_save_all_survives_the_loss_of_its_connections(
    schedule: Schedule, make: Make, world: World, wire: Wire
) -> None:
    """Fault: the replies to three batches are lost. Invariant: all entries are stored."""

    def are_stored(count: int) -> bool:
        return bool(world.client.zcard(SCHEDULE) >= count)

    wire.set_retry(Retry(NoBackoff(), 1))
    for count in (500, 1000, 1300):
        wire.lose(partial(are_stored, count))
    assert schedule.save_all(make(f"e{number}") for number in range(1300)) == 1300
    assert wire.lost == 3
    assert world.client.zcard(SCHEDULE) == 1300


def test_save_all_with_a_pool_that_has_no_connection_to_spare(
    schedule: Schedule, make: Make, world: World
) -> None:
    """Each batch needs the only connection."""
    with redis.Redis.from_url(world.app.conf.redbeat_redis_url, max_connections=1) as client:
        world.app.redbeat_redis = client
        assert schedule.save_all(make(f"e{number}") for number in range(1001)) == 1001
        assert len(schedule) == 1001


def test_save_all_writes_large_entries_in_portions(
    schedule: Schedule, make: Make, trips: RoundTrips
) -> None:
    entries = [make(name, args=["x" * (MOST_WRITTEN // 3)]) for name in "abcdefg"]
    trips.take()
    schedule.save_all(entries)
    assert trips.take() == 3


def test_delete_all(schedule: Schedule, make: Make, world: World, trips: RoundTrips) -> None:
    schedule.save_all(make(f"e{number}") for number in range(501))
    trips.take()
    assert schedule.delete_all(["nobody", *(f"e{number}" for number in range(501))]) == 501
    assert 0 < trips.take() <= 2
    assert world.dump() == {}


def test_pause_all_and_resume_all(schedule: Schedule, make: Make, trips: RoundTrips) -> None:
    schedule.save_all(make(f"e{number}") for number in range(501))
    names = [f"e{number}" for number in range(501)]
    trips.take()
    assert schedule.pause_all([*names, "nobody", "e1"], "moving house") == 501
    assert 0 < trips.take() <= 4
    assert schedule.status().entries["paused"] == 501
    assert schedule["e7"].status.note == "moving house"
    trips.take()
    assert schedule.resume_all(["nobody", *names]) == 501
    assert 0 < trips.take() <= 4
    assert schedule.status().entries["paused"] == 0


# -- apply -----------------------------------------------------------------------------------------

DEFINITIONS: dict[str, dict[str, Any]] = {
    "a": {"task": "t.a", "schedule": crontab(minute=5), "args": (1, 2)},
    "b": {"task": "t.b", "schedule": 60, "options": {"queue": "q"}, "jitter": 3},
    "c": {"task": "t.c", "schedule": 3600, "enabled": False},
}


def parts(applied: Any) -> tuple[list[str], ...]:
    return applied.created, applied.changed, applied.unchanged, applied.removed


def test_apply_creates_changes_and_leaves_alone(schedule: Schedule, world: World) -> None:
    assert parts(schedule.apply(DEFINITIONS)) == (["a", "b", "c"], [], [], [])
    assert schedule["b"].options == {"queue": "q"}
    before = world.dump()
    assert parts(schedule.apply(DEFINITIONS)) == ([], [], ["a", "b", "c"], [])
    assert world.dump() == before
    changed = {**DEFINITIONS, "b": {**DEFINITIONS["b"], "jitter": 4}}
    assert parts(schedule.apply(changed)) == ([], ["b"], ["a", "c"], [])
    assert schedule["b"].jitter == 4


def test_apply_dry_run_writes_nothing(schedule: Schedule, make: Make, world: World) -> None:
    make("old").save()
    before = world.dump()
    applied = schedule.apply(DEFINITIONS, prune=True, dry_run=True)
    assert parts(applied) == (["a", "b", "c"], [], [], ["old"])
    assert world.dump() == before


def test_apply_prunes_dynamic_entries_only(schedule: Schedule, make: Make, world: World) -> None:
    world.app.conf.beat_schedule = {"static": {"task": "t", "schedule": 500}}
    world.scheduler().tick()
    make("old").save()
    world.client.hset(world.put("bad"), "definition", "{")
    assert parts(schedule.apply(DEFINITIONS))[3] == []
    assert "old" in schedule
    world.client.hset(b"redbeat:\xff", "definition", "{}")
    world.client.zadd(SCHEDULE, {b"redbeat:\xff": 1})
    assert set(schedule.apply(DEFINITIONS, prune=True).removed) == {"old", "bad", "\\xff"}
    assert set(schedule) == {"a", "b", "c", "static"}


def test_apply_refuses_the_name_of_a_static_entry(schedule: Schedule, world: World) -> None:
    world.app.conf.beat_schedule = {"b": {"task": "t", "schedule": 500}}
    world.scheduler().tick()
    with pytest.raises(InvalidEntryError, match="b: name: is an entry of beat_schedule"):
        schedule.apply(DEFINITIONS)
    assert list(schedule) == ["b"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedule": "soon"}, "bad: "),
        ({"schedule": 5, "nonsense": 1}, "bad: is not a valid entry definition"),
        ({"schedule": 5, "jitter": -1}, "bad: jitter"),
        ({"schedule": 5, "args": [object()]}, "bad: args"),
        ("text", "bad: is not a valid entry definition"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_apply_checks_all_before_it_writes_one(
    schedule: Schedule, world: World, fields: Any, message: str, dry_run: bool
) -> None:
    entry_or_fields = {"task": "t", **fields} if isinstance(fields, dict) else fields
    with pytest.raises(InvalidEntryError, match=message):
        schedule.apply({**DEFINITIONS, "bad": entry_or_fields}, dry_run=dry_run)
    assert world.dump() == {}


def test_apply_keeps_runs_and_pauses(schedule: Schedule, world: World) -> None:
    schedule.apply(DEFINITIONS)
    world.put_meta("a", last := world.ago(10))
    schedule["a"].pause("broken")
    assert parts(schedule.apply(DEFINITIONS)) == ([], [], ["a", "b", "c"], [])
    assert schedule["a"].status.note == "broken"
    changed = {**DEFINITIONS, "a": {**DEFINITIONS["a"], "args": [3]}}
    assert schedule.apply(changed).changed == ["a"]
    assert (schedule["a"].enabled, schedule["a"].last_run_at) == (True, last)
    assert schedule["a"].status.state == "scheduled"


def test_apply_accepts_equal_entries_in_another_notation(schedule: Schedule, world: World) -> None:
    schedule.apply({"a": {"task": "t", "schedule": 60}})
    text = world.field("a", "definition")
    world.client.hset("redbeat:a", "definition", json.dumps(text, indent=1, sort_keys=True))
    assert schedule.apply({"a": {"task": "t", "schedule": 60}}).unchanged == ["a"]


def test_apply_makes_the_entries_of_an_owner_equal(
    schedule: Schedule, make: Make, world: World
) -> None:
    make("mine").save()
    make("theirs", managed_by="other").save()
    schedule.apply(DEFINITIONS, managed_by="tenants")
    assert {schedule[name].managed_by for name in "abc"} == {"tenants"}
    schedule["a"].pause("closed")
    group = {"a": {**DEFINITIONS["a"], "args": [7]}, "b": DEFINITIONS["b"]}
    assert parts(schedule.apply(group, managed_by="tenants")) == ([], ["a"], ["b"], ["c"])
    assert {*schedule} == {"a", "b", "mine", "theirs"}
    assert not schedule["a"].enabled
    before = world.dump()
    for name in ("mine", "theirs"):
        with pytest.raises(InvalidEntryError, match=rf"{name}: name: .* managed by .*adopt=True"):
            schedule.apply({name: DEFINITIONS["a"]}, managed_by="tenants")
    assert world.dump() == before
    taken = schedule.apply({"mine": DEFINITIONS["a"]}, managed_by="tenants", adopt=True)
    assert parts(taken)[:3] == ([], ["mine"], [])
    assert {*taken.removed} == {"a", "b"}


def test_apply_takes_a_few_round_trips(schedule: Schedule, trips: RoundTrips) -> None:
    definitions = {f"e{number}": {"task": "t", "schedule": 3600} for number in range(501)}
    trips.take()
    schedule.apply(definitions)
    assert 0 < trips.take() <= 4
    schedule.apply(definitions)
    assert 0 < trips.take() <= 2
    schedule.apply({**definitions, "e0": {"task": "u", "schedule": 3600}}, prune=True)
    assert 0 < trips.take() <= 2 + 2 + 3  # 2 to compare, 2 to save, 3 to find entries to prune


def test_apply_accepts_entry_objects_too(
    schedule: Schedule, world: World, redis_client: redis.Redis
) -> None:
    entry = RedBeatSchedulerEntry("a", "t", 60, app=world.app)
    assert schedule.apply({"a": entry}).created == ["a"]
    assert redis_client.zcard(SCHEDULE) == 1
