"""A scheduler in Celery's beat service: start, invalid settings, and what Celery calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, signals
from celery.beat import PersistentScheduler, Service
from kombu.exceptions import OperationalError

from redbeat import ConfigurationError, RedBeatScheduler
from tests.deployments import PREFIX

from .conftest import LOCK, RecordingScheduler, World
from .test_own_ticks import OwnTick

EX_CONFIG = 78


class Recording(RecordingScheduler):
    """A scheduler that checks a setting of the program before it sends an at-most-once run."""

    def check_broker(self) -> None:
        """Raise an error if the setting is invalid."""
        if self.app.conf.get("example"):
            raise ConfigurationError("example: is invalid")


class Failing(RedBeatScheduler):
    """A scheduler that cannot send."""

    def apply_async(self, *_args: Any, **_kwargs: Any) -> Any:
        """Fail, as for a queue that does not exist."""
        raise ValueError("no such queue")


@pytest.fixture
def exits(app: Celery) -> None:
    """A beat that ends after it lost the lock; name this fixture before ``service``."""
    app.conf.redbeat_on_lock_lost = "exit"


@pytest.fixture
def service(app: Celery, world: World) -> Service:
    """A beat service after its start, before its first tick."""
    service = Service(app, scheduler_cls=Recording)
    world.schedulers.append(service.scheduler)
    signals.beat_init.send(sender=service)
    return service


def test_a_service_that_starts_takes_the_lock(service: Service, redis_client: redis.Redis) -> None:
    assert redis_client.exists(LOCK)
    assert service.scheduler.service is service


def test_an_invalid_setting_ends_a_service_with_one_line(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.redbeat_lock_timeout = -1
    with pytest.raises(SystemExit) as ended:
        _ = Service(app, scheduler_cls=Recording).scheduler
    assert ended.value.code == EX_CONFIG
    (line,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert "redbeat_lock_timeout" in line.getMessage()
    with pytest.raises(ConfigurationError, match="redbeat_lock_timeout"):
        Recording(app)


def test_an_impossible_delivery_ends_a_service(app: Celery) -> None:
    app.conf.redbeat_delivery = "exactly_once"
    with pytest.raises(SystemExit) as ended:
        _ = Service(app, scheduler_cls=Recording).scheduler
    assert ended.value.code == EX_CONFIG


def test_a_setting_that_becomes_invalid_ends_a_service(service: Service, world: World) -> None:
    """Celery ignores the first exit, which comes from a tick, and not the second one."""
    world.put("a", delivery="at_most_once")
    world.app.conf.example = "invalid"
    for last_call in (service.scheduler.tick, service.scheduler.close):
        with pytest.raises(SystemExit) as ended:
            last_call()
        assert ended.value.code == EX_CONFIG
    service.scheduler.close = lambda: None  # the test has closed it


@pytest.mark.usefixtures("exits")
@pytest.mark.parametrize("event", ["another beat took the lock", "all data vanished"])
def test_a_lost_lock_ends_a_service_with_one_line(
    service: Service, world: World, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    world.put("a", score=world.now() + 900)
    service.scheduler.tick()
    if event == "all data vanished":
        world.client.flushall()
    else:
        world.client.set(LOCK, "another")
    caplog.clear()
    for last_call in (service.scheduler.tick, service.scheduler.close):
        with pytest.raises(SystemExit) as ended:
            last_call()
        assert ended.value.code == 1
    service.scheduler.close = lambda: None  # the test has closed it
    (line,) = [record for record in caplog.records if "lock" in record.getMessage().lower()]
    assert (line.levelname, line.exc_info) == ("CRITICAL", None)
    assert line.getMessage().endswith("this beat ends, because redbeat_on_lock_lost is 'exit'")


def test_the_program_of_an_embedded_beat_gets_the_error(world: World) -> None:
    world.put("a", delivery="at_most_once")
    world.app.conf.example = "invalid"
    with pytest.raises(ConfigurationError, match="example: is invalid"):
        world.scheduler_of(Recording).tick()


def test_an_entry_that_cannot_be_read_is_left_out_of_the_mapping(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.put("good")
    world.client.hset(f"{PREFIX}bad", "definition", "no JSON")
    world.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}bad": 0})
    assert list(world.scheduler().schedule) == ["good"]
    assert f"Cannot load {PREFIX}bad" in caplog.text


def test_celery_may_assign_a_mapping(world: World) -> None:
    """The assignment has no effect on what is due."""
    world.put("a")
    scheduler = world.scheduler()
    scheduler.schedule = {}
    assert list(scheduler.schedule) == ["a"]


def test_an_entry_is_added_by_its_fields(world: World) -> None:
    added = world.scheduler().add(name="added", task="t", schedule=3600)
    assert world.field("added", "definition")["task"] == "t"
    assert added.name == "added"


class Broken:
    """A connection to a broker whose transport raises errors that kombu does not wrap."""

    connection_errors = channel_errors = ()

    def ensure_connection(self, **_options: Any) -> None:
        raise RuntimeError("login refused")

    def release(self) -> None:
        raise RuntimeError("closed twice")


def test_any_error_of_a_connection_concerns_the_broker(world: World) -> None:
    """The broken connection is dropped, although it cannot be closed."""
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.connection = Broken()
    with pytest.raises(OperationalError, match="login refused") as caught:
        _ = scheduler.producer
    assert scheduler.broker_failed(caught.value)
    assert not isinstance(scheduler.connection, Broken)


def test_the_service_of_another_scheduler_is_left_alone(
    app: Celery, redis_client: redis.Redis, tmp_path: Path
) -> None:
    app.conf.beat_schedule_filename = str(tmp_path / "shelve")
    other = Service(app, scheduler_cls=PersistentScheduler)
    _ = other.scheduler
    signals.beat_init.send(sender=other)
    assert not redis_client.exists(LOCK)
    other.scheduler.close()


def test_the_banner_has_the_number_of_shards(app: Celery) -> None:
    app.conf.redbeat_shards = 2
    assert "shards -> 2" in RedBeatScheduler(app, lazy=True).info


def test_a_tick_of_the_program_goes_on_without_a_broker(world: World) -> None:
    """The run is sent later."""

    class Offline(OwnTick):
        connection = property(lambda _self: Broken())

    world.put("a")
    scheduler = world.scheduler_of(Offline)
    assert scheduler.tick() > 0
    assert scheduler.names == []
    assert world.run_count("a") == 0


def test_an_error_outside_a_run_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A program may send an entry itself, as with RedBeat 2."""
    world.put("a")
    scheduler = world.scheduler_of(Failing)
    scheduler.send_if_due(scheduler.schedule["a"])
    assert "Message Error: no such queue" in caplog.text
