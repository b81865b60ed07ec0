"""The clock of a beat's host decides nothing, also not in its messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
import time_machine
from celery import Celery

from redbeat import Schedule
from redbeat.schedulers import RedBeatScheduler
from tests.servers import RedisServer

from .conftest import STATS, World

pytestmark = pytest.mark.standalone

#: How far the clock of the host is ahead, in seconds.
OFFSETS = [-300.0, 300.0]

SOON = datetime(2040, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class Own(RedBeatScheduler):
    """A scheduler of a program that overrides how it sends."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Send the task of an entry."""
        return super().apply_async(entry, *args, **kwargs)


@pytest.fixture(params=["one server", "two servers", "at most once", "protocol 1"])
def broker(world: World, redis_url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of the broker: on the server of the schedule, or on another one."""
    if request.param == "at most once":
        world.app.conf.redbeat_delivery = "at_most_once"
    if request.param == "protocol 1":
        world.app.conf.task_protocol = 1
    if request.param == "two servers":
        with RedisServer() as server:
            world.app.conf.broker_url = server.url
            yield redis.Redis.from_url(server.url, decode_responses=True)
        return
    world.app.conf.broker_url = url = f"{redis_url.rpartition('/')[0]}/0"
    yield redis.Redis.from_url(url, decode_responses=True)


def sent_by(scheduler: type[RedBeatScheduler], world: World, broker: Any, **options: Any) -> Any:
    """Send a run with some options by another clock, and return the times in its message."""
    world.put("a", last_run_at=world.ago(61), score=world.now() - 1, options=options)
    beat = world.scheduler_of(scheduler)
    beat.tick()
    message = json.loads(broker.lindex("celery", 0))
    if "task" in message["headers"]:
        return message["headers"]
    with Celery(broker="memory://").connection() as connection:
        body = connection.default_channel.decode_body(message["body"], "base64")
    return json.loads(body)


def seconds_from_now(world: World, text: str) -> float:
    """Return the seconds from now, by the clock of Redis, to a time in a message."""
    return datetime.fromisoformat(text).timestamp() - world.now()


@pytest.mark.parametrize("ahead", OFFSETS)
@pytest.mark.parametrize("scheduler", [RedBeatScheduler, Own])
def test_seconds_are_counted_by_redis(
    world: World, broker: Any, ahead: float, scheduler: type[RedBeatScheduler]
) -> None:
    with time_machine.travel(time.time() + ahead, tick=True):
        found = sent_by(scheduler, world, broker, expires=60, countdown=30)
    assert seconds_from_now(world, found["expires"]) == pytest.approx(60, abs=5)
    assert seconds_from_now(world, found["eta"]) == pytest.approx(30, abs=5)


@pytest.mark.parametrize("ahead", OFFSETS)
def test_the_seconds_of_a_task_are_counted_by_redis(
    world: World, broker: Any, ahead: float
) -> None:
    @world.app.task(name="tasks.a", expires=60, shared=False)
    def task() -> None:
        pass

    with time_machine.travel(time.time() + ahead, tick=True):
        found = sent_by(RedBeatScheduler, world, broker)
    assert seconds_from_now(world, found["expires"]) == pytest.approx(60, abs=5)


@pytest.mark.parametrize("ahead", OFFSETS)
def test_instants_stay(world: World, broker: Any, ahead: float) -> None:
    instant = SOON.isoformat()
    with time_machine.travel(time.time() + ahead, tick=True):
        found = sent_by(RedBeatScheduler, world, broker, expires=instant, eta=instant)
    assert [datetime.fromisoformat(found[name]) for name in ("expires", "eta")] == [SOON] * 2


@pytest.mark.parametrize("ahead", [0.0, 0.5, -0.5])
def test_a_message_stays_celerys_if_the_clocks_hardly_differ(
    world: World, broker: Any, ahead: float
) -> None:
    with time_machine.travel(time.time() + ahead, tick=True):
        found = sent_by(RedBeatScheduler, world, broker, expires=60)
        left = datetime.fromisoformat(found["expires"]) - datetime.now(timezone.utc)
    assert timedelta(seconds=55) < left < timedelta(seconds=60)


def test_the_difference_is_logged_and_stored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with time_machine.travel(time.time() - 300, tick=True):
        scheduler = world.scheduler()
        for _ in range(2):
            scheduler.tick()
        assert float(world.client.hget(STATS, "host_ahead")) == pytest.approx(-300, abs=5)
        assert Schedule(world.app).status().beat_clock_offset == pytest.approx(-300, abs=5)
        world.scheduler().tick()
    assert "The clock of this host is 300 s behind that of Redis" in caplog.text
    for _ in range(2):
        scheduler.tick()
    assert "The clock of this host is right again" in caplog.text
    assert world.client.hget(STATS, "host_ahead") is None
    assert Schedule(world.app).status().beat_clock_offset == 0
