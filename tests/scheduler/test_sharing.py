"""Without a lock, each beat first claims its share of the due entries."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat.management.status import status_of
from redbeat.storage.reading import PROBLEM
from redbeat.storage.store import store_of
from tests.deployments import PREFIX
from tests.samples import long

from .clients import Wire
from .conftest import SCHEDULE, Clock, RecordingScheduler, World, once

BEATS = f".{PREFIX}:beats"
SMALLEST_SHARE = 25


@pytest.fixture(autouse=True)
def _no_lock(world: World, wire: Wire) -> None:  # noqa: ARG001
    """Disable the lock."""
    world.app.conf.redbeat_lock_key = None


def present(world: World, count: int) -> list[RecordingScheduler]:
    """Return ``count`` schedulers after their first tick. Their clocks never advance."""
    beats = [world.scheduler(clock=Clock()) for _ in range(count)]
    for beat in beats:
        beat.tick()
    return beats


def claimed(world: World) -> int:
    """Return the number of claimed entries. Their score is the end of the lease."""
    now = world.now()
    return int(world.client.zcount(SCHEDULE, now, now + 60))


def first_share(world: World, wire: Wire, scheduler: RecordingScheduler) -> int:
    """Tick, and return the number of entries that the first request claimed."""
    shares: list[int] = []
    wire.after_reply(lambda: shares.append(claimed(world)), lambda: claimed(world))
    scheduler.tick()
    return shares[0]


def grow_old(world: World, seconds: float) -> None:
    """Change the presence of all beats as if they were last seen ``seconds`` ago."""
    for token in world.client.zrange(BEATS, 0, -1):
        world.client.zadd(BEATS, {token: world.now() - seconds})


@pytest.mark.parametrize(
    ("beats", "due", "share"),
    [
        long(1, 400, 400),
        (1, 700, 500),
        (2, 400, 200),
        long(2, 401, 201),
        (4, 400, 100),
        (4, 100, SMALLEST_SHARE),
        (4, 60, SMALLEST_SHARE),
        (4, 10, 10),
        long(2, 3000, 500),
    ],
)
def test_the_first_request_claims_the_share_of_a_beat(
    world: World, wire: Wire, beats: int, due: int, share: int
) -> None:
    all_of_them = present(world, beats)
    world.put_many(due)
    assert first_share(world, wire, all_of_them[0]) == share


def test_entries_that_are_not_due_are_not_shared(world: World, wire: Wire) -> None:
    beats = present(world, 2)
    world.put_many(1000, score=world.now() + 1000)
    for number in range(100):
        world.put(f"due{number}")
    assert first_share(world, wire, beats[0]) == 50


@pytest.mark.parametrize(("seconds", "share"), [(5, 200), (15, 400)])
def test_a_beat_that_was_not_seen_for_ten_seconds_does_not_count(
    world: World, wire: Wire, seconds: float, share: int
) -> None:
    beats = present(world, 2)
    grow_old(world, seconds)
    world.put_many(400)
    assert first_share(world, wire, beats[0]) == share


def test_a_beat_that_is_closed_does_not_count(world: World, wire: Wire) -> None:
    stays, goes = present(world, 2)
    goes.close()
    world.put_many(400)
    assert first_share(world, wire, stays) == 400


def test_a_beat_that_comes_back_counts_again(world: World, wire: Wire) -> None:
    beats = present(world, 2)
    grow_old(world, 15)
    beats[1].tick()
    world.put_many(400)
    assert first_share(world, wire, beats[0]) == 200


def test_beats_that_were_not_seen_for_long_are_removed(world: World) -> None:
    world.client.zadd(BEATS, {f"gone{number}": world.now() - 100 for number in range(50)})
    present(world, 1)
    assert world.client.zcard(BEATS) == 1
    assert 0 < world.client.ttl(BEATS) <= 60


def test_with_a_lock_nothing_is_shared(world: World, wire: Wire) -> None:
    world.app.conf.redbeat_lock_key = "mine"
    leader, _standby = present(world, 2)
    world.put_many(400)
    assert first_share(world, wire, leader) == 400


@pytest.mark.parametrize("count", [2, long(4)])
def test_beats_that_tick_at_the_same_time(world: World, count: int) -> None:
    """The beat that claims first leaves entries for the others. Each run is sent exactly once."""
    beats = present(world, count)
    world.put_many(400)

    def tick_next(number: int) -> None:
        if number < count:
            beats[number].before_send = once(partial(tick_next, number + 1))
            beats[number].tick()

    tick_next(0)
    sent = Counter(message.id for beat in beats for message in beat.sent)
    assert (len(sent), set(sent.values())) == (400, {1})
    assert all(len(beat.sent) >= SMALLEST_SHARE for beat in beats)


def test_a_single_beat_sends_all_in_one_tick(world: World) -> None:
    """A beat also claims the share of another beat if that beat does not claim it first."""
    beats = present(world, 2)
    world.put_many(400)
    beats[0].tick()
    assert len(beats[0].sent) == 400


def test_a_beat_that_starts_removes_the_problem_of_one_that_died(app: Celery, world: World) -> None:
    app.conf.redbeat_lock_key = None
    store = store_of(app)
    world.scheduler().tick()
    store.note(PROBLEM, "the broker is not available")
    assert status_of(app).problem
    world.scheduler().tick()
    assert status_of(app).problem == ""


def test_a_beat_stores_a_problem_again_that_another_beat_removed(
    app: Celery, world: World, clock: Clock
) -> None:
    """The beat does so every 30 seconds."""
    world.put("a")
    # A beat tries its next run, not the connection, if that run is due within ten seconds.
    world.put("soon", last_run_at=world.ago(55), score=world.now() + 5)
    scheduler = world.scheduler(clock=clock)

    def refuse(_task: str) -> None:
        raise OperationalError("gone")

    scheduler.before_send = refuse
    scheduler.tick()
    store_of(app).note(PROBLEM, "")
    clock.advance(31)
    world.client.zadd(SCHEDULE, {f"{PREFIX}a": world.now()})
    scheduler.tick()
    assert "gone" in status_of(app).problem
