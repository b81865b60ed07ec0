"""Tests of retried commands, scripts, locks and scans, during real outages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from fakeredis import FakeRedis
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from redbeat.connection.retrying import RetryingConnection, is_retriable, replies_to
from tests.servers import RedisServer

SCRIPT = "return redis.call('INCRBY', KEYS[1], ARGV[1])"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Return a separate Redis server that the test may kill."""
    with RedisServer() as server:
        yield server


class Outage:
    """A replacement of `sleep` that restarts the server in one of its calls."""

    def __init__(self, server: RedisServer, naps: int = 1) -> None:
        self._server = server
        self._naps = naps
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self._naps:
            self._server.restart()


def plain_client(url: str) -> Redis:
    """Return a client without redis-py's own retries."""
    return Redis.from_url(url, decode_responses=True, retry=Retry(NoBackoff(), 0))


def retrying(url: str, sleep: Callable[[float], None], period: float = 60) -> RetryingConnection:
    client = RetryingConnection(period, plain_client(url))
    client.sleep = sleep
    return client


def never(seconds: float) -> None:
    raise AssertionError(f"slept {seconds} s")


def test_command_survives_an_outage(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(server, naps=3)
    client = retrying(server.url, outage)
    client.set("before", 1)
    server.kill()
    with caplog.at_level(logging.WARNING, "celery.beat"):
        assert client.set("k", "confidential")
    assert client.get("k") == "confidential"
    assert len(outage.slept) == 3
    lines = [record.getMessage() for record in caplog.records if record.name == "celery.beat"]
    assert [f"SET failed at attempt {number}," in lines[number - 1] for number in (1, 2, 3)]
    assert "ConnectionError" in lines[0]
    assert f"{outage.slept[0]:.2f} s" in lines[0]
    assert "confidential" not in caplog.text


def test_commands_of_one_round_trip_survive_an_outage(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = retrying(server.url, Outage(server))
    server.kill()
    commands = [("INCR", "a"), ("INCR", "a"), ("GET", "a")]
    assert replies_to(client, iter(commands)) == [1, 2, b"2"]
    assert "pipeline of 3 commands failed at attempt 1" in caplog.text


def test_script_survives_an_outage_and_the_loss_of_the_script_cache(server: RedisServer) -> None:
    client = retrying(server.url, Outage(server))
    script = client.register_script(SCRIPT)
    assert script(["n"], [2]) == 2
    server.kill()
    assert script(["m"], [3]) == 3
    assert client.eval(SCRIPT, 1, "m", 1) == 4


def test_lock_survives_an_outage(server: RedisServer) -> None:
    client = retrying(server.url, Outage(server))
    lock = client.lock("leader", timeout=60)
    server.kill()
    assert lock.acquire(blocking=False)
    assert lock.owned()
    assert lock.extend(60)
    with Redis.from_url(server.url) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    lock.release()
    assert not client.exists("leader")


def test_scan_survives_an_outage(server: RedisServer) -> None:
    client = retrying(server.url, Outage(server))
    client.sadd("members", *range(5))
    with Redis.from_url(server.url) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    client.sadd("members", 5)
    keys = client.scan_iter(match="mem*")
    server.kill()
    assert list(keys) == []  # the restarted server is empty; the scan continues without an error
    assert list(client.sscan_iter("members")) == []


def test_a_transaction(redis_url: str) -> None:
    client = retrying(redis_url, never)

    def increment(pipe: Any) -> None:
        value = int(pipe.get("n") or 0)
        pipe.multi()
        pipe.set("n", value + 1)

    client.transaction(increment, "n")
    client.transaction(increment, "n")
    assert client.get("n") == "2"


def test_pipeline_that_watches_is_not_repeated(server: RedisServer) -> None:
    client = retrying(server.url, never)
    pipe = client.pipeline()
    pipe.watch("n")
    assert pipe.get("n") is None
    pipe.multi()
    pipe.set("n", 1)
    server.kill()
    with pytest.raises((redis.WatchError, redis.ConnectionError)):
        pipe.execute()


class EnoughError(Exception):
    """Ends retries that would go on for ever."""


class Naps:
    """A replacement of `sleep` that raises an error in the call number ``most``."""

    def __init__(self, most: int) -> None:
        self.slept: list[float] = []
        self._most = most

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self._most:
            raise EnoughError


def test_retries_stop_after_the_period(closed_port: int) -> None:
    started = time.monotonic()
    client = retrying(f"redis://localhost:{closed_port}", time.sleep, period=0.5)
    with pytest.raises(redis.ConnectionError, match=str(closed_port)):
        client.get("k")
    longest = RetryingConnection.RETRY_MAX_WAIT
    assert 0.5 <= time.monotonic() - started < 0.5 + longest + 1


def test_waits_grow_and_differ(closed_port: int) -> None:
    naps = Naps(60)
    with pytest.raises(EnoughError):
        retrying(f"redis://localhost:{closed_port}", naps, period=120).get("k")
    assert naps.slept[0] <= 2 * RetryingConnection.RETRY_MIN_WAIT
    assert len(set(naps.slept)) > len(naps.slept) / 2
    assert 1 < max(naps.slept) <= RetryingConnection.RETRY_MAX_WAIT


def test_retries_without_a_limit_go_on_for_long(closed_port: int) -> None:
    with pytest.raises(EnoughError):
        retrying(f"redis://localhost:{closed_port}", Naps(500), period=-1).get("k")


def test_a_wrong_password_is_not_retried(redis_url: str) -> None:
    url = redis_url.replace("redis://", "redis://nobody:wrong@")
    with pytest.raises(AuthenticationError):
        retrying(url, never).ping()


def test_a_wrong_command_is_not_retried(redis_url: str) -> None:
    client = retrying(redis_url, never)
    client.set("k", "text")
    with pytest.raises(ResponseError):
        client.incr("k")
    with pytest.raises(ResponseError):
        client.pipeline().incr("k").execute()
    (error,) = client.pipeline().incr("k").execute(raise_on_error=False)
    assert isinstance(error, ResponseError)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.ConnectionError(), True),
        (redis.TimeoutError(), True),
        (BusyLoadingError(), True),
        (ReadOnlyError(), True),
        (TryAgainError(), True),
        (ClusterDownError("down"), True),
        (MasterNotFoundError(), True),
        (AuthenticationError(), False),
        (AuthorizationError(), False),
        (NoPermissionError(), False),
        (ResponseError(), False),
        (ValueError(), False),
    ],
)
def test_which_errors_are_retried(error: Exception, expected: bool) -> None:
    assert is_retriable(error) is expected


def test_a_fake_can_be_wrapped() -> None:
    client = RetryingConnection(1, FakeRedis(decode_responses=True))
    assert client.pipeline().set("k", 1).get("k").execute() == [True, "1"]
    assert client.get("k") == "1"
    assert list(client.scan_iter()) == ["k"]
    with pytest.raises(AttributeError):
        _ = client.no_such_command
