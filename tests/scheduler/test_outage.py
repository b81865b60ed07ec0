"""While Redis is down, a beat waits and logs this once. Afterwards, it catches up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from redbeat.config import ensure_conf
from redbeat.connection.urls import safe_url
from tests.deployments import PREFIX
from tests.servers import RedisServer

from .clients import Wire
from .conftest import LOCK, Clock, RecordingScheduler, World, interval_json, world_at


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A separate server for the test, which stores its data on disk."""
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def restartable(server: RedisServer) -> Iterator[World]:
    """A schedule in the server that the test kills and restarts."""
    with world_at(server.url) as world:
        yield world


def tick_until_gone(scheduler: RecordingScheduler, ticks: int = 10) -> list[float]:
    """Tick while Redis is down, and return the wait that each tick returns, in seconds."""
    return [scheduler.tick() for _ in range(ticks)]


def lines(log: pytest.LogCaptureFixture, words: str) -> int:
    """Return the number of log messages that contain ``words``."""
    return sum(words in record.getMessage() for record in log.records)


def test_sent_runs_are_recorded_after_the_outage(server: RedisServer, restartable: World) -> None:
    restartable.put("a", interval_json(60), restartable.ago(90), score=1)
    restartable.put("b", interval_json(60), restartable.ago(90), score=2)
    scheduler = restartable.scheduler()
    scheduler.tick()
    scheduler.sent.clear()
    for name in "ab":
        restartable.put_meta(name, restartable.ago(90))
        restartable.client.zadd(f"{PREFIX}:schedule", {f"{PREFIX}{name}": 1})

    def crash(task: str) -> None:
        if task == "tasks.b":
            server.kill()

    scheduler.before_send = crash
    scheduler.tick()
    tick_until_gone(scheduler, 3)
    assert scheduler.names == ["a", "b"]
    server.restart()
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a", "b"]
    assert [restartable.run_count(name) for name in "ab"] == [1, 1]
    assert not restartable.is_held("a")


def test_a_reply_from_before_the_outage_is_no_sign_that_redis_is_back(
    restartable: World, log: pytest.LogCaptureFixture
) -> None:
    """Setup: 600 entries are due, more than a beat looks at in one request.

    Fault: the memory is full from the third run on, when Redis has answered the request that the
    beat sent ahead.

    Invariant: the beat logs that Redis is back once, when it is.
    """
    scheduler = restartable.scheduler()
    scheduler.tick()
    restartable.put_many(600)

    def fill(_: str) -> None:
        if len(scheduler.sent) == 2:
            restartable.client.config_set("maxmemory", 1)

    scheduler.before_send = fill
    tick_until_gone(scheduler)
    assert lines(log, "Redis takes no writes") == 1
    assert not lines(log, "Redis is back")
    restartable.client.config_set("maxmemory", 0)
    scheduler.tick()
    scheduler.tick()
    assert lines(log, "Redis is back") == 1
    assert len(scheduler.names) == len(set(scheduler.names))


def test_redis_is_down_when_the_beat_starts(server: RedisServer, restartable: World) -> None:
    server.kill()
    scheduler = restartable.scheduler()
    assert scheduler.tick() > 0
    server.restart()
    restartable.put("a")
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_close_while_redis_is_down(
    server: RedisServer, restartable: World, log: pytest.LogCaptureFixture
) -> None:
    scheduler = restartable.scheduler()
    scheduler.tick()
    server.kill()
    scheduler.close()
    assert lines(log, "Could not release the lock") == 1
    server.restart()


def test_read_only_replica(restartable: World, log: pytest.LogCaptureFixture) -> None:
    """The server becomes a replica for some time, then it is the master again."""
    scheduler = restartable.scheduler()
    scheduler.tick()
    restartable.put("a")
    restartable.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert tick_until_gone(scheduler, 3)
    assert scheduler.sent == []
    restartable.client.execute_command("REPLICAOF", "NO", "ONE")
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert lines(log, "Redis takes no writes") == 1


def test_a_standby_that_cannot_take_over_says_so_once(
    restartable: World, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    """The leader is dead when Redis becomes read-only."""
    restartable.scheduler().tick()
    standby = restartable.scheduler_of(RecordingScheduler, clock)
    for _ in range(21):
        standby.tick()
        clock.advance(1.0)
        restartable.client.pexpire(LOCK, restartable.client.pttl(LOCK) - 1000)
    restartable.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    tick_until_gone(standby, 100)
    assert lines(log, "takes over") == 1
    assert lines(log, "ReadOnlyError") == 1 + len([32, 64])
    assert "ReadOnlyError" in standby.beat.health.failure
    restartable.client.execute_command("REPLICAOF", "NO", "ONE")
    standby.tick()
    assert standby.beat.health.ready() == (True, "leader")
    assert lines(log, "takes over") == 1


def test_a_standby_is_told_that_redis_is_read_only(restartable: World, clock: Clock) -> None:
    """It takes nothing from a leader that cannot renew its lock only because Redis refuses."""
    leader = restartable.scheduler()
    leader.tick()
    standby = restartable.scheduler_of(RecordingScheduler, clock)
    standby.tick()
    standby.tick()
    restartable.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    for _ in range(30):
        assert tick_until_gone(standby, 1)
        clock.advance(1.0)
    ready = standby.beat.health.ready()
    assert not ready.ok
    assert "read only" in ready.why
    restartable.client.execute_command("REPLICAOF", "NO", "ONE")
    standby.tick()
    assert standby.beat.health.ready() == (True, "standby")
    assert leader.lock is not None
    assert restartable.client.get(LOCK) == leader.lock.token


def test_a_forbidden_command_quarantines_no_entry(
    world: World, redis_url: str, log: pytest.LogCaptureFixture
) -> None:
    """Setup: an entry is due.

    Fault: the Redis user of the beat has no permission for HMGET.

    Invariant: the entry is not quarantined, and the beat logs the reason once.
    """
    world.client.execute_command(
        "ACL", "SETUSER", "poor", "on", ">p", "~*", "&*", "+@all", "-hmget"
    )
    try:
        world.put("a")
        world.app.conf.redbeat_redis_url = redis_url.replace("//", "//poor:p@")
        scheduler = world.scheduler()
        for _ in range(3):
            scheduler.tick()
        assert scheduler.sent == []
        assert world.client.hlen(f".{PREFIX}:quarantine") == 0
        assert log.text.count("trying again") == 1
    finally:
        world.client.execute_command("ACL", "DELUSER", "poor")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (f"{PREFIX}:schedule", "sorted set"),
        (f"{PREFIX}:statics", "set"),
        (f".{PREFIX}:quarantine", "hash"),
    ],
)
def test_a_key_of_a_wrong_type_is_named(
    world: World, log: pytest.LogCaptureFixture, key: str, kind: str
) -> None:
    """Redis answers, and reports only that some key holds a value of the wrong kind."""
    world.client.set(key, "x")
    scheduler = world.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert (
        lines(
            log,
            f"ResponseError: WRONGTYPE the key '{key}' is a string, but it must be a {kind}",
        )
        == 1
    )
    assert lines(log, "Redis is not available") == 0
    world.client.delete(key)
    world.put("a")
    scheduler.tick()
    assert scheduler.names == ["a"]


@pytest.mark.standalone
@pytest.mark.parametrize(
    ("database", "user", "reason"),
    [
        ("99", "", "DB index is out of range: correct the user name, the password or the database"),
        ("0", "nobody:x@", "invalid username-password pair"),
        ("0", "", "the password or the database in redbeat_redis_url (or broker_url)"),
        ("0", ":right@", ""),
    ],
)
def test_a_refused_connection_says_what_to_do(
    log: pytest.LogCaptureFixture, database: str, user: str, reason: str
) -> None:
    with RedisServer() as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", "right")
        authority = user or (":right@" if database == "99" else "")
        url = f"redis://{authority}127.0.0.1:{server.port}/{database}"
        app = Celery("refused", broker="memory://", set_as_current=False)
        app.conf.update(redbeat_redis_url=url, redbeat_key_prefix=PREFIX, result_expires=None)
        scheduler = RecordingScheduler(app)
        scheduler.tick()
        app.redbeat_redis.close()
    found = [record.getMessage() for record in log.records if record.levelname == "ERROR"]
    assert len(found) == bool(reason)
    assert all(reason in message for message in found)


def test_a_failure_of_redis_is_logged_at_growing_intervals_and_summed_up(
    world: World, wire: Wire, log: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    scheduler = world.scheduler(clock=clock)
    scheduler.tick()

    def fail() -> None:
        raise redis.ConnectionError("gone")

    for _ in range(130):
        wire.before_command(fail)
        clock.advance(scheduler.tick())
    scheduler.tick()
    away = [line for line in log.messages if "Redis is not available" in line]
    assert len(away) == 4, "the attempts 1, 32, 64 and 128"
    host = safe_url(ensure_conf(world.app).redis_url)
    assert all(host in line and "trying again every 2 s" in line for line in away)
    (back,) = [line for line in log.messages if "Redis is back" in line]
    assert host in back
    assert "after 130 failed ticks in 25" in back
