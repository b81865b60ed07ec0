"""Tests of retried commands, pipelines, scripts, locks and scans, during real outages."""

from __future__ import annotations

import logging
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

from redbeat.connection.retrying import RetryingConnection, is_retriable
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
    return RetryingConnection(period, plain_client(url), sleep=sleep)


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


def test_raw_command_is_named_in_the_log(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = retrying(server.url, Outage(server))
    server.kill()
    assert client.execute_command("ECHO", "x") == "x"
    assert "ECHO failed at attempt 1" in caplog.text


@pytest.mark.parametrize("transaction", [True, False])
def test_pipeline_survives_an_outage(server: RedisServer, transaction: bool) -> None:
    client = retrying(server.url, Outage(server))
    with client.pipeline(transaction=transaction) as pipe:
        pipe.set("a", 1).incr("a")
        pipe.get("a")
        assert len(pipe) == 3
        server.kill()
        assert pipe.execute() == [True, 2, "2"]
        assert len(pipe) == 0
        assert pipe.execute() == []
        assert pipe.incr("a").execute() == [3]


def test_pipeline_with_an_explicit_multi_survives(server: RedisServer) -> None:
    client = retrying(server.url, Outage(server))
    pipe = client.pipeline(False)
    pipe.multi()
    pipe.set("a", 1)
    server.kill()
    assert pipe.execute() == [True]


def test_script_in_a_pipeline_survives_the_loss_of_the_script_cache(server: RedisServer) -> None:
    client = retrying(server.url, Outage(server))
    script = client.register_script(SCRIPT)
    assert script(["n"], [2]) == 2
    pipe = client.pipeline()
    script(["m"], [5], client=pipe)
    server.kill()
    assert pipe.execute() == [5]


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


def test_transaction_goes_through_pipelines_that_watch(redis_url: str) -> None:
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


def test_server_that_starts_late(server: RedisServer) -> None:
    server.kill()
    client = retrying(server.url, Outage(server, naps=2), period=-1)
    assert client.ping()


def test_retries_stop_after_the_period(closed_port: int) -> None:
    slept: list[float] = []
    client = retrying(f"redis://localhost:{closed_port}", slept.append, period=30)
    with pytest.raises(redis.ConnectionError, match=str(closed_port)):
        client.get("k")
    assert sum(slept) == pytest.approx(30, abs=2)
    assert max(slept) <= RetryingConnection.RETRY_MAX_WAIT
    assert slept[0] <= 2 * RetryingConnection.RETRY_MIN_WAIT


def test_waits_grow_and_differ(closed_port: int) -> None:
    slept: list[float] = []
    client = retrying(f"redis://localhost:{closed_port}", slept.append, period=120)
    with pytest.raises(redis.ConnectionError):
        client.get("k")
    assert len(set(slept)) > len(slept) / 2
    assert max(slept) > 1


def test_retries_without_a_limit_go_on_for_long(closed_port: int) -> None:
    class EnoughError(Exception):
        pass

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 500:
            raise EnoughError

    with pytest.raises(EnoughError):
        retrying(f"redis://localhost:{closed_port}", sleep, period=-1).get("k")


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


def test_reset_forgets_what_was_queued(redis_url: str) -> None:
    client = retrying(redis_url, never)
    pipe = client.pipeline()
    pipe.set("k", 1)
    pipe.reset()
    assert pipe.execute() == []
    assert bool(pipe)
    assert pipe.set("k", 1).execute() == [True]


def test_other_attributes_are_those_of_the_wrapped_client(redis_url: str) -> None:
    client = retrying(redis_url, never)
    wrapped = client.wrapped_connection
    assert client.connection_pool is wrapped.connection_pool
    assert client.pipeline().transaction is True
    with pytest.raises(AttributeError):
        _ = client.no_such_command
    with client as entered:
        assert entered is client


def test_a_fake_can_be_wrapped() -> None:
    client = RetryingConnection(1, FakeRedis(decode_responses=True), sleep=never)
    assert client.pipeline().set("k", 1).get("k").execute() == [True, "1"]
    assert client.get("k") == "1"
    assert list(client.scan_iter()) == ["k"]
