"""What a beat decides before it's due leaves at its time, once, and as it is stored by then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.beat import early
from redbeat.storage.rows import Reply, Request
from tests.scheduler.conftest import heard
from tests.servers import RedisServer

from .worlds import SCHEDULE, HookedScheduler, HookedStore, World, empty_broker

pytestmark = pytest.mark.standalone

#: How many entries are due at one instant, and in how many seconds.
CROWD, SOON = 24, 0.7


@pytest.fixture(scope="module")
def other_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["one server", "two servers"])
def world(
    request: pytest.FixtureRequest, app: Celery, redis_client: Any, redis_server: RedisServer
) -> Iterator[World]:
    server = redis_server
    if request.param == "two servers":
        server = request.getfixturevalue("other_server")
    with empty_broker(app, server.url) as broker:
        world = World(app, redis_client, broker)
        yield world
        world.close()


@pytest.fixture
def requests() -> list[Request]:
    """The requests of the beat of :func:`decided`."""
    return []


def crowd(world: World, count: int = CROWD, **more: Any) -> list[str]:
    """Store entries that run each hour, next in :data:`SOON` seconds; return their keys."""
    entries = [
        RedBeatSchedulerEntry(f"e{number:02}", "proj.note", 3600, [number], app=world.app, **more)
        for number in range(count)
    ]
    last = datetime.fromtimestamp(world.now + count * 0.003 + SOON - 3600, timezone.utc)
    for entry in entries:
        entry.last_run_at = last
        entry.save()
    return [entry.key for entry in entries]


def decided(world: World, requests: list[Request]) -> Any:
    """Return a beat that waits for the instant of :func:`crowd`."""
    beat = world.beat()
    beat.store.before.append(requests.append)
    while beat.tick() == 0:
        pass
    return beat


def looked_early(requests: list[Request]) -> bool:
    return any(one.look is not None and one.look.soon for one in requests)


def run(beat: Any, until: Callable[[], bool]) -> None:
    """Tick as a beat service does, for at most ten seconds."""
    end = time.monotonic() + 10
    while not until():
        assert time.monotonic() < end
        time.sleep(min(beat.tick(), 1.0))


def names(world: World) -> list[str]:
    return sorted(message.name for message in world.messages)


def test_a_crowd_leaves_at_its_time_without_another_look(
    world: World, requests: list[Request]
) -> None:
    keys = crowd(world)
    at = float(world.client.zscore(SCHEDULE, keys[0]))
    beat = decided(world, requests)
    assert looked_early(requests)
    assert world.messages == []
    assert world.client.hlen(".redbeat::hands") == 0, "a beat that follows suspects no entry"
    assert world.now < at
    requests.clear()
    begun: list[float] = []
    beat.store.before.append(lambda request: begun.append(world.now) if request.changes else None)

    run(beat, lambda: len(world.messages) >= CROWD)

    assert next(len(one.changes) for one in requests if one.changes) == CROWD
    assert names(world) == [f"e{number:02}" for number in range(CROWD)]
    assert {one.scheduled_at for one in world.messages} == {world.messages[0].scheduled_at}
    run(beat, lambda: [world.runs(key) for key in keys] == [1] * CROWD)
    assert begun[0] >= at


def change_definition(world: World, key: str, **fields: Any) -> None:
    stored = json.loads(world.client.hget(key, "definition"))
    world.client.hset(key, "definition", json.dumps({**stored, **fields}))


@pytest.mark.parametrize(
    ("edit", "leaves"),
    [
        (lambda world, key: change_definition(world, key, args=["new"]), True),
        (lambda world, key: change_definition(world, key, enabled=False), False),
        (lambda world, key: world.client.zadd(SCHEDULE, {key: world.now + 60}), False),
        (lambda world, key: RedBeatSchedulerEntry.from_key(key, world.app).delete(), False),
        (lambda world, key: RedBeatSchedulerEntry.from_key(key, world.app).pause(), False),
    ],
    ids=["changed", "disabled", "moved", "deleted", "paused"],
)
def test_an_edit_in_between_counts(
    world: World, requests: list[Request], edit: Callable[[World, str], Any], leaves: bool
) -> None:
    keys = crowd(world)
    beat = decided(world, requests)
    edit(world, keys[0])

    run(beat, lambda: len(world.messages) >= CROWD - (not leaves))
    run(beat, lambda: world.client.zcount(SCHEDULE, 0, world.now) == 0)

    assert names(world) == [f"e{number:02}" for number in range(not leaves, CROWD)]
    if leaves:
        assert next(one.args for one in world.messages if one.name == "e00") == ["new"]


def test_a_calendar_that_changes_in_between_counts(world: World, requests: list[Request]) -> None:
    Schedule(world.app).save_calendar(Calendar("de"))
    keys = crowd(world, exclude="de")
    beat = decided(world, requests)
    today = datetime.fromtimestamp(world.now, timezone.utc).date()
    excluded = Calendar("de", days=[(today, today + timedelta(days=1))])
    world.client.hset(".redbeat::calendars", "de", excluded.to_json())
    world.client.set(".redbeat::calendars-version", "written by another program")

    run(beat, lambda: float(world.client.zscore(SCHEDULE, keys[-1])) > world.now + 60)

    assert world.messages == []


def test_a_beat_that_comes_late_decides_again(world: World, requests: list[Request]) -> None:
    keys = crowd(world)
    at = float(world.client.zscore(SCHEDULE, keys[0]))
    beat = decided(world, requests)
    time.sleep(at + early.TOO_LATE + 0.05 - world.now)

    run(beat, lambda: all(float(world.client.zscore(SCHEDULE, key)) > at + 60 for key in keys))

    entry = RedBeatSchedulerEntry.from_key(keys[0], world.app)
    assert entry.last_run_at.timestamp() > at + early.TOO_LATE


def test_a_trigger_in_between_is_a_run_more(world: World, requests: list[Request]) -> None:
    keys = crowd(world)
    beat = decided(world, requests)
    RedBeatSchedulerEntry.from_key(keys[0], world.app).trigger()

    run(beat, lambda: len(world.messages) > CROWD)

    assert names(world).count("e00") == 2


def test_a_trigger_before_the_instant_does_not_wait_for_it(
    world: World, requests: list[Request]
) -> None:
    keys = crowd(world)
    at = float(world.client.zscore(SCHEDULE, keys[0]))
    beat = decided(world, requests)
    RedBeatSchedulerEntry.from_key(keys[0], world.app).trigger()

    beat.tick()

    assert names(world) == ["e00"]
    assert world.now < at
    run(beat, lambda: len(world.messages) > CROWD)
    assert names(world).count("e00") == 2


def test_a_signal_that_is_connected_in_between_is_sent(
    world: World, requests: list[Request]
) -> None:
    crowd(world)
    beat = decided(world, requests)
    with heard(before_task_publish) as published:
        run(beat, lambda: len(world.messages) >= CROWD)
    assert len(published) == CROWD


def test_the_runs_of_a_killed_beat_leave_once(world: World, requests: list[Request]) -> None:
    keys = crowd(world)
    decided(world, requests)
    world.client.delete("redbeat::lock")  # as after its time to live

    run(decided(world, []), lambda: len(world.messages) >= CROWD)

    assert names(world) == [f"e{number:02}" for number in range(CROWD)]
    assert [world.state(key).failing for key in keys] == [None] * CROWD


@pytest.mark.parametrize(
    "settings",
    [
        {"redbeat_lock_key": None},
        {"redbeat_max_rate": 1000},
        {"redbeat_render_messages": False},
        {"redbeat_delivery": "at_most_once"},
        {},
    ],
    ids=str,
)
def test_what_gains_nothing_is_not_decided_early(
    world: World, requests: list[Request], settings: dict[str, Any]
) -> None:
    world.app.conf.update(settings)
    count = CROWD if settings else early.FEWEST - 1
    crowd(world, count)
    beat = decided(world, requests)

    run(beat, lambda: len(world.messages) >= count)

    assert not looked_early(requests)


def test_shards_do_not_wait_for_each_others_full_minute(
    world: World, requests: list[Request]
) -> None:
    class NotingStore(HookedStore):
        def begin_turn(self, request: Request) -> Callable[[], Reply]:
            requests.append(request)
            return super().begin_turn(request)

    world.app.conf.redbeat_shards = 2
    crowd(world, 3 * CROWD)
    with closing(
        type("Noting", (HookedScheduler,), {"make_store": NotingStore})(world.app)
    ) as beat:
        run(beat, lambda: len(world.messages) >= 3 * CROWD)

    assert requests
    assert not looked_early(requests)


def test_what_is_newer_does_not_wait_for_a_large_crowd(
    world: World, requests: list[Request]
) -> None:
    keys = crowd(world, 300)
    at = float(world.client.zscore(SCHEDULE, keys[0]))
    newer = world.put("newer", args=[0])
    world.client.zadd(SCHEDULE, {newer: at + 0.05})
    beat = decided(world, requests)
    time.sleep(max(at + 0.06 - world.now, 0.0))  # the beat was busy with something else

    run(beat, lambda: len(world.messages) >= 301)

    assert [one.name for one in world.messages].index("newer") <= 100
