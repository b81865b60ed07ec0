"""Tests of the proxy, between a plain socket and a real server."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.faults.proxy import Proxy
from tests.servers import RedisServer
from tests.waiting import wait_until

PONG = b"+PONG\r\n"


class Client:
    """A socket that uses the inline protocol of Redis."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, command: str) -> None:
        """Send a command as one chunk."""
        self.socket.sendall(command.encode() + b"\r\n")

    def receive(self, size: int) -> bytes:
        """Receive and return ``size`` bytes."""
        received = b""
        while len(received) < size and (chunk := self.socket.recv(size - len(received))):
            received += chunk
        return received

    def ping(self) -> bytes:
        """Send PING and return the reply."""
        self.send("PING")
        return self.receive(len(PONG))

    def is_silent(self, seconds: float = 0.3) -> bool:
        """Return whether nothing arrives for some seconds: no bytes, no FIN and no RST."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(10)
        return False


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[Proxy]:
    """Run a proxy in front of an empty Redis."""
    assert redis_url
    with Proxy(redis_server.port, seed=1) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Callable[[], Client]]:
    """Return a function that connects to the proxy; the sockets are closed after the test."""
    made: list[Client] = []

    def connect() -> Client:
        made.append(Client(proxy.port))
        return made[-1]

    yield connect
    for client in made:
        client.socket.close()


Connect = Callable[[], Client]


def test_bytes_and_ends_of_connections_pass(proxy: Proxy, connect: Connect) -> None:
    one, two = connect(), connect()
    assert one.ping() == two.ping() == PONG
    one.send("QUIT")
    assert one.receive(100) == b"+OK\r\n"
    one.socket.close()
    wait_until(lambda: proxy.connections == 1)
    assert two.ping() == PONG


def test_large_values_pass(proxy: Proxy) -> None:
    value = random.Random(1).randbytes(3_000_000)
    with redis.Redis.from_url(proxy.url) as client:
        client.set("large", value)
        assert client.get("large") == value


def test_a_delay_counts_one_way_and_can_change(proxy: Proxy, connect: Connect) -> None:
    client = connect()
    proxy.delay(0.1)
    started = time.monotonic()
    assert client.ping() == PONG
    assert time.monotonic() - started >= 0.2
    proxy.delay(0.0)
    started = time.monotonic()
    assert client.ping() == PONG
    assert time.monotonic() - started < 0.2


def test_jitter_keeps_the_order(proxy: Proxy, connect: Connect, redis_client: redis.Redis) -> None:
    proxy.delay(0.01, jitter=0.01)
    client = connect()
    for number in range(100):
        client.send(f"RPUSH order {number}")
    expected = b"".join(b":%d\r\n" % length for length in range(1, 101))
    assert client.receive(len(expected)) == expected
    assert redis_client.lrange("order", 0, -1) == [str(number) for number in range(100)]


def test_cut_resets_open_connections(proxy: Proxy, connect: Connect) -> None:
    client = connect()
    assert client.ping() == PONG
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.receive(1)
    assert connect().ping() == PONG


def test_refuse_resets_new_connections_only(proxy: Proxy, connect: Connect) -> None:
    old = connect()
    assert old.ping() == PONG
    proxy.refuse(True)
    with pytest.raises(ConnectionError):
        connect().ping()
    assert old.ping() == PONG
    proxy.refuse(False)
    assert connect().ping() == PONG


def test_a_black_hole_is_silent_and_loses_its_bytes(
    proxy: Proxy, connect: Connect, redis_client: redis.Redis
) -> None:
    old = connect()
    assert old.ping() == PONG
    proxy.black_hole()
    new = connect()
    for client in (old, new):
        client.send("INCR counter")
        assert client.is_silent()
    proxy.heal()
    for client in (old, new):
        client.send("INCR counter")
        assert client.is_silent()
    assert redis_client.get("counter") is None
    assert connect().ping() == PONG


def test_a_black_hole_that_keeps_delivers_later(
    proxy: Proxy, connect: Connect, redis_client: redis.Redis
) -> None:
    old = connect()
    assert old.ping() == PONG
    proxy.black_hole(keep=True)
    new = connect()
    for client in (old, new):
        client.send("INCR counter")
        assert client.is_silent()
    assert redis_client.get("counter") is None
    proxy.heal()
    assert sorted(client.receive(4) for client in (old, new)) == [b":1\r\n", b":2\r\n"]


def test_a_swallowed_reply_belongs_to_an_executed_request(
    proxy: Proxy, connect: Connect, redis_client: redis.Redis
) -> None:
    proxy.swallow_replies(2, matching=b"INCR")
    for _ in range(2):
        client = connect()
        assert client.ping() == PONG
        client.send("INCR counter")
        with pytest.raises(ConnectionResetError):
            client.receive(1)
    assert redis_client.get("counter") == "2"
    client = connect()
    client.send("INCR counter")
    assert client.receive(4) == b":3\r\n"


def test_something_happens_once_before_a_request(
    proxy: Proxy, connect: Connect, redis_client: redis.Redis
) -> None:
    counters: list[object] = []
    proxy.before_request(lambda: counters.append(redis_client.get("counter")), matching=b"INCR")
    client = connect()
    assert client.ping() == PONG
    for number in (1, 2):
        client.send("INCR counter")
        assert client.receive(4) == f":{number}\r\n".encode()
    assert counters == [None]


def outcomes(proxy: Proxy, connect: Connect, trials: int) -> list[bool]:
    """Send ``trials`` requests and return for each whether it got a reply."""
    proxy.reset_rate(0.5)
    answered = []
    for _ in range(trials):
        client = connect()
        client.send("INCR counter")
        try:
            answered.append(client.receive(1) == b":")
        except ConnectionResetError:
            answered.append(False)
    return answered


def test_resets_strike_before_and_after_delivery(
    proxy: Proxy, connect: Connect, redis_client: redis.Redis
) -> None:
    answered = outcomes(proxy, connect, 60)
    assert 10 < sum(answered) < 50

    def delivered() -> int:
        return int(redis_client.get("counter") or 0)

    def more_are_delivered_than_answered() -> bool:
        # If a reset overtakes a delivered chunk, the system discards the chunk.
        if delivered() <= sum(answered):
            answered.extend(outcomes(proxy, connect, 10))
        return delivered() > sum(answered)

    wait_until(more_are_delivered_than_answered)
    assert delivered() < len(answered)
    assert proxy.struck == len(answered) - sum(answered)


def test_equal_seeds_reset_the_same_chunks(
    proxy: Proxy, connect: Connect, redis_server: RedisServer
) -> None:
    with Proxy(redis_server.port, seed=1) as other:
        made: list[Client] = []

        def connect_to_other() -> Client:
            made.append(Client(other.port))
            return made[-1]

        assert outcomes(proxy, connect, 20) == outcomes(other, connect_to_other, 20)
        for client in made:
            client.socket.close()


def refused(port: int) -> None:
    client = Client(port)
    try:
        client.receive(1)
    finally:
        client.socket.close()


def test_clients_of_a_stopped_server_are_reset(closed_port: int) -> None:
    # The proxy may already reset the connection while it is being opened.
    with Proxy(closed_port) as proxy, pytest.raises(ConnectionResetError):
        refused(proxy.port)
