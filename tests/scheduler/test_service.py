"""A scheduler in Celery's beat service: start, settings, stops, and what Celery calls."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery, signals
from celery.beat import PersistentScheduler, Service
from kombu.exceptions import OperationalError

from redbeat import ConfigurationError, RedBeatKeyExpiryError, RedBeatScheduler
from redbeat.settings import AT_LEAST_ONCE
from tests.deployments import PREFIX
from tests.servers import RedisServer
from tests.waiting import wait_until

from .conftest import LOCK, Clock, RecordingScheduler, World, interval_json, world_at
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


# -- settings of Django ----------------------------------------------------------------------------


def app_with(world: World, namespace: str, **settings: Any) -> Celery:
    """Return an app that reads ``settings`` with a namespace."""
    app = Celery("django", broker="memory://", set_as_current=False)
    url = {"REDBEAT_REDIS_URL": world.app.conf.redbeat_redis_url}
    named = {f"{namespace}_{name}": value for name, value in {**url, **settings}.items()}
    app.config_from_object(named, namespace=namespace)
    return app


@pytest.mark.parametrize("namespace", ["CELERY", "MYPROJECT"])
@pytest.mark.standalone
def test_every_setting_is_heard(world: World, namespace: str) -> None:
    app = app_with(
        world,
        namespace,
        REDBEAT_KEY_PREFIX="dj:",
        REDBEAT_LOCK_KEY="mine",
        REDBEAT_LOCK_TIMEOUT=77,
        REDBEAT_KEY_EXPIRY_CHECK="ignore",
        BEAT_SCHEDULE={"a": {"task": "t", "schedule": 3600}},
    )
    scheduler = world.scheduler(app=app)
    scheduler.tick()
    assert world.client.smembers("dj::statics") >= {"a"}
    assert 70_000 < world.client.pttl("dj:mine") <= 77_000
    assert scheduler.lock_timeout == 77


@pytest.mark.standalone
def test_no_lock(world: World) -> None:
    scheduler = world.scheduler(app=app_with(world, "CELERY", REDBEAT_LOCK_KEY=None))
    scheduler.tick()
    assert scheduler.lock is None
    assert scheduler.lock_key is None
    assert not world.client.exists(f"{PREFIX}:lock")


@pytest.mark.standalone
def test_options_count_as_set(world: World) -> None:
    options = {"retry_period": 5}
    app = app_with(world, "CELERY", REDBEAT_REDIS_OPTIONS=options)
    scheduler = world.scheduler(app=app)
    scheduler.tick()
    assert app.redbeat_conf.is_key_in_conf("redbeat_redis_options")
    assert app.redbeat_redis.retry_period == 5


# -- servers that evict keys -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def evicting() -> Iterator[RedisServer]:
    """A server with a memory limit and an eviction policy that may evict any key."""
    with RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        yield server


@pytest.fixture
def full(evicting: RedisServer) -> Iterator[World]:
    """A schedule in the server that may evict keys."""
    with world_at(evicting.url) as world:
        world.client.flushall()
        world.client.config_set("maxmemory-policy", "allkeys-lru")
        yield world


def reported_levels(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the levels of the log messages about eviction."""
    return [record.levelname for record in log.records if "may evict" in record.getMessage()]


@pytest.mark.parametrize(
    ("mode", "levels"), [("ignore", []), ("warn", ["WARNING"]), ("error", ["ERROR"])]
)
def test_eviction_is_reported_once_and_the_beat_goes_on(
    full: World, log: pytest.LogCaptureFixture, mode: str, levels: list[str]
) -> None:
    full.app.conf.redbeat_key_expiry_check = mode
    full.put("a")
    scheduler = full.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert reported_levels(log) == levels


def test_raise_stops_the_beat(full: World) -> None:
    full.app.conf.redbeat_key_expiry_check = "raise"
    full.put("a")
    scheduler = full.scheduler()
    with pytest.raises(RedBeatKeyExpiryError, match=r"allkeys-lru.*redbeat_key_expiry_check"):
        scheduler.tick()
    assert scheduler.sent == []
    assert full.run_count("a") == 0


def test_error_is_the_default(full: World, log: pytest.LogCaptureFixture) -> None:
    full.scheduler().tick()
    assert reported_levels(log) == ["ERROR"]


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_harmless_policies_are_not_reported(
    full: World, log: pytest.LogCaptureFixture, policy: str
) -> None:
    full.client.config_set("maxmemory-policy", policy)
    full.scheduler().tick()
    assert reported_levels(log) == []


def test_a_server_without_a_memory_limit_is_not_reported(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    world.scheduler().tick()
    assert reported_levels(log) == []


def test_a_server_that_hides_its_policy_is_warned_about_once(
    log: pytest.LogCaptureFixture,
) -> None:
    with (
        RedisServer("--rename-command", "INFO", "", "--rename-command", "CONFIG", "") as server,
        world_at(server.url) as world,
    ):
        world.put("a")
        scheduler = world.scheduler()
        scheduler.tick()
        scheduler.tick()
        assert scheduler.names == ["a"]
        assert reported_levels(log) == ["WARNING"]


# -- stops -----------------------------------------------------------------------------------------


#: More entries than one batch, so the beat requests the second batch in advance.
MANY = 700


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Install a SIGTERM handler that raises ``SystemExit``, like the handler of Celery Beat."""

    def stop(*_: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


@contextmanager
def signalled(ready: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Send SIGTERM to this process, 0.2 s after the start and once ``ready`` returns true."""

    def send() -> None:
        wait_until(ready, 30)
        os.kill(os.getpid(), signal.SIGTERM)

    signalling = threading.Timer(0.2, send)
    signalling.start()
    yield
    signalling.join()


def test_a_stopping_beat_waits_for_the_reply(world: World, clock: Clock) -> None:
    """Setup: two batches are due, and Redis takes half a second to reply.

    Fault: SIGTERM arrives while the beat waits for the reply.

    Invariant: the tick raises the exception of the signal handler. All sent runs are recorded and
    no hold is left, so each run is sent exactly once.
    """
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()
    world.put_many(MANY)
    world.client.client_pause(500)
    with signalled(), pytest.raises(SystemExit):
        scheduler.tick()
    scheduler.close()
    heir = world.scheduler(clock=clock)
    heir.tick()
    sent = scheduler.names + heir.names
    assert len(sent) == len(set(sent)) == MANY
    assert all(world.run_count(name) == 1 for name in sent)


class Slow(RecordingScheduler):
    """A scheduler with a fake service. It calls ``after_tick`` after each tick."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.service = SimpleNamespace(_is_shutdown=threading.Event())
        self.ticks = 0
        self.after_tick: Callable[[], object] = lambda: None

    def should_sync(self) -> bool:
        """Count the tick. Celery calls this method after each tick."""
        self.ticks += 1
        self.after_tick()
        return False


def test_a_stop_during_a_subscription_raises_no_connection_error(world: World) -> None:
    """Setup: a beat subscribes, and Redis takes half a second to confirm.

    Fault: SIGTERM arrives before the confirmation. The signal handler closes the scheduler.

    Invariant: the tick raises the exception of the signal handler, not a connection error.
    """
    scheduler = world.scheduler_of(Slow)
    scheduler.after_tick = lambda: world.client.client_pause(500)

    def stop(*_: object) -> None:
        scheduler.close()
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    with signalled(), pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.ticks == 1


def test_waiting_ends_at_once(world: World) -> None:
    """Setup: no entry is due, so the beat waits for a wake-up message.

    Fault: SIGTERM arrives.

    Invariant: the beat stops waiting immediately.
    """
    scheduler = world.scheduler_of(Slow)
    assert scheduler.tick() == 0.0
    with signalled(lambda: scheduler.ticks == 2), pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.ticks == 2


def test_a_run_that_was_sent_before_the_exit_is_recorded_although_it_was_edited(
    world: World,
) -> None:
    """The first attempt to record the run finds the edit, so it takes a second attempt."""
    world.app.conf.redbeat_delivery = AT_LEAST_ONCE
    world.put("a", interval_json(60), world.ago(90), score=world.now() - 30)
    world.put("b", interval_json(60), world.ago(90), score=world.now() - 20)
    scheduler = world.scheduler()

    def before_send(task: str) -> None:
        if task == "tasks.b":
            raise SystemExit
        definition = {**world.field("a", "definition"), "args": ["edited"]}
        world.client.hset(f"{PREFIX}a", "definition", json.dumps(definition))

    scheduler.before_send = before_send
    with pytest.raises(SystemExit):
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.run_count("a") == 1
