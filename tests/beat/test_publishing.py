"""What becomes of runs whose publish ends early, and of entries that change or vanish during it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.signals import entry_dispatched
from redbeat.storage.rows import Request
from redbeat.storage.store import Store
from tests.beat.sending import Clock
from tests.beat.worlds import SCHEDULE, World, empty_broker
from tests.scheduler.conftest import heard
from tests.schedulers import Scheduler

pytestmark = pytest.mark.standalone


class Acting(Scheduler):
    """A scheduler that calls ``act`` with the name of each entry before it sends a run."""

    act: Callable[[str], object] = staticmethod(lambda _name: None)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        type(self).act(entry.name)
        return super().apply_async(entry, *args, **kwargs)


@pytest.fixture
def world(app: Celery, redis_client: Any, redis_url: str) -> Iterator[World]:
    """A schedule whose broker is another database of the same server."""
    with empty_broker(app, redis_url) as broker:
        world = World(app, redis_client, broker)
        yield world
        for beat in world.beats:
            beat.close()


def acting(act: Callable[[str], object]) -> type[Acting]:
    """Return a scheduler that calls ``act`` with the name of each entry before it sends a run."""
    return type("Acting", (Acting,), {"act": staticmethod(act)})


@pytest.mark.parametrize("signal", [SystemExit, KeyboardInterrupt])
def test_a_stop_in_a_publish_records_what_left_and_keeps_its_own_run_decided(
    world: World, signal: type[BaseException]
) -> None:
    keys = [world.put(name, late) for name, late in (("a", 30), ("b", 20), ("c", 10))]
    scores = [world.client.zscore(SCHEDULE, key) for key in keys]

    def stop(name: str) -> None:
        if name == "b":
            raise signal

    beat = world.beat(acting(stop))
    with pytest.raises(signal):
        beat.tick()

    assert [world.client.hexists(key, "meta") for key in keys] == [1, 0, 0]
    assert [world.client.zscore(SCHEDULE, key) for key in keys[1:]] == scores[1:]
    interrupted, untried = (world.state(key).hold for key in keys[1:])
    assert interrupted is not None
    assert interrupted.at == pytest.approx(scores[1], abs=1e-5)
    assert interrupted.until <= world.now
    assert untried is None


def test_a_history_that_cannot_be_read_and_came_during_a_run_is_set_aside(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    key = world.put("a")
    beat = world.beat(acting(lambda _name: world.client.hset(key, "meta", "{")))
    with heard(entry_dispatched) as announced:
        for _ in range(3):
            beat.tick()

    assert [one["entry"].name for one in announced] == ["a"]
    assert world.client.hget(key, "meta") == "{"
    assert world.client.hkeys(".redbeat::quarantine") == [key]
    assert "meta: cannot be read" in caplog.text


class Fails(Acting):
    """A scheduler that fails after its messages are out."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        super().apply_async(entry, *args, **kwargs)
        raise ValueError("after the fact")


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_run_that_fails_after_its_message_is_out_is_sent(
    world: World, caplog: pytest.LogCaptureFixture, delivery: str
) -> None:
    world.app.conf.redbeat_delivery = delivery
    keys = [world.put(name) for name in "ab"]
    world.beats.append(Fails(world.app))

    for _ in range(3):
        world.beats[0].tick()

    with redis.Redis.from_url(world.app.conf.broker_url) as broker:
        assert broker.llen("celery") == 2
    assert [world.state(key).failing for key in keys] == [None, None]
    assert [world.client.hexists(key, "meta") for key in keys] == [1, 1]
    assert caplog.text.count("was sent, and then failed: after the fact") == 2


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_run_that_fails_before_a_message_can_leave_is_tried_again(
    world: World, delivery: str
) -> None:
    world.app.conf.redbeat_delivery = delivery
    key = world.put("a", options={"serializer": "no such"})
    score = world.client.zscore(SCHEDULE, key)
    beat = Scheduler(world.app)
    world.beats.append(beat)

    for _ in range(2):
        beat.tick()

    state = world.state(key)
    assert state.failing is not None
    assert state.failing.due == pytest.approx(score, abs=1e-5)
    assert not world.client.hexists(key, "meta")
    definition = json.loads(world.client.hget(key, "definition"))
    world.client.hset(key, "definition", json.dumps({**definition, "options": {}}))
    world.client.zadd(SCHEDULE, {key: world.now - 1})
    for _ in range(2):
        beat.tick()
    assert world.state(key).failing is None
    assert world.client.hexists(key, "meta")


def test_few_published_runs_are_unrecorded(world: World) -> None:
    """A beat that is killed leaves at most two turns of held runs."""
    with redis.Redis.from_url(world.app.conf.broker_url) as broker:
        world.app.conf.redbeat_delivery = "at_least_once"
        keys = [world.put(f"e{number}") for number in range(160)]
        unrecorded: list[int] = []

        class Counts(Store):
            def begin_turn(self, request: Request) -> Any:
                pipeline = world.client.pipeline(transaction=False)
                for key in keys:
                    pipeline.hexists(key, "meta")
                recorded = sum(pipeline.execute())
                unrecorded.append(broker.llen("celery") - recorded)
                return super().begin_turn(request)

        beat = type("Counted", (Scheduler,), {"make_store": Counts, "clock": Clock()})(world.app)
        world.beats.append(beat)
        for _ in range(2):
            beat.tick()
        assert broker.llen("celery") == 160
    assert 50 <= max(unrecorded) <= 100


def test_own_code_that_takes_part_in_sending_is_named_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keys = [world.put(name) for name in "ab"]
    held: list[bool] = []
    beat = world.beat(
        acting(lambda name: held.append(world.state(f"redbeat:{name}").hold is not None))
    )

    for _ in range(3):
        beat.tick()

    assert held == [True, True]
    assert [world.client.hexists(key, "meta") for key in keys] == [1, 1]
    assert caplog.text.count("at least once: Acting.apply_async takes part") == 1
