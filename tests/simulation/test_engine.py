"""The server of a simulation follows the virtual time and otherwise replies like a real server.

The tests compare replies in the wire format. All tests run with both kinds of engine.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.engine import Engine
from tests.simulation.shim import ShimmedEngine
from tests.waiting import wait_until

#: Microseconds since 1970: 2030-03-17 17:46:40.123456 UTC.
NOW = 1_900_000_000_123_456
MS = 1000
SECOND = 1000 * MS

Ask = Callable[..., bytes]


@pytest.fixture(
    scope="module", params=[Engine, pytest.param(ShimmedEngine, marks=pytest.mark.long)]
)
def started(request: pytest.FixtureRequest) -> Iterator[Engine]:
    kind: type[Engine] = request.param
    with kind() as engine:
        yield engine


@pytest.fixture
def engine(started: Engine) -> Iterator[Engine]:
    """Return an empty server with its clock at :data:`NOW`."""
    started.reset()
    started.now = NOW
    yield started
    started.reset()


@pytest.fixture
def connection(engine: Engine) -> Iterator[socket.socket]:
    with engine.connect() as connection:
        yield connection


@pytest.fixture
def ask(engine: Engine, connection: socket.socket) -> Ask:
    """Return a function that sends one command and returns the reply as bytes."""

    def ask(*words: str | int) -> bytes:
        return engine.run(connection, [[str(word).encode() for word in words]])

    return ask


def bulk(*texts: str) -> bytes:
    """Return an array of strings in the Redis wire format."""
    parts = [b"$%d\r\n%s\r\n" % (len(text), text.encode()) for text in texts]
    return b"*%d\r\n%s" % (len(texts), b"".join(parts))


def sha_of(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


OK, NIL, NO, ONE = b"+OK\r\n", b"$-1\r\n", b":0\r\n", b":1\r\n"
TIME = "return redis.call('TIME')"
GET = "return redis.call('GET', KEYS[1])"
SET_PX = "return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"


# -- time ------------------------------------------------------------------------------------------


def test_commands_and_scripts_read_the_virtual_time(ask: Ask) -> None:
    assert ask("TIME") == bulk("1900000000", "123456")
    assert ask("EVAL", TIME, 0) == bulk("1900000000", "123456")


def test_the_time_is_exact_after_each_change(engine: Engine, ask: Ask) -> None:
    for step in (1, MS - 1, MS, -SECOND, 86_400 * SECOND, 60 * 365 * 86_400 * SECOND):
        engine.now += step
        expected = bulk(str(engine.now // SECOND), str(engine.now % SECOND))
        assert ask("EVAL", TIME, 0) == ask("TIME") == expected


# -- expiry ----------------------------------------------------------------------------------------


#: Commands that store the value ``v``, and the milliseconds for which it lives then.
EXPIRING: list[tuple[list[str], int]] = [
    (["SET key v PX 1500"], 1500),
    (["SET key v px 1500"], 1500),
    (["SET key v NX PX 1500"], 1500),
    (["SET key v PX 1500 NX"], 1500),
    ([f"SET key v PXAT {NOW // MS + 1500}"], 1500),
    (["SET key v", "PEXPIRE key 2000"], 2000),
    (["SET key v", "EXPIRE key 2"], 2000),
    (["SET key v", f"PEXPIREAT key {NOW // MS + 2000}"], 2000),
    (["SET key other PX 10", "SET key v KEEPTTL"], 10),
]
#: Commands that look at a key, and their replies if it does not exist.
LOOKS = {
    "GET key": NIL,
    "EXISTS key": NO,
    "TYPE key": b"+none\r\n",
    "PTTL key": b":-2\r\n",
    "TTL key": b":-2\r\n",
    "PEXPIRE key 10": NO,
    "SET key other XX": NIL,
    "DEL key": NO,
    "MGET key": b"*1\r\n$-1\r\n",
}


@pytest.mark.parametrize(("commands", "milliseconds"), EXPIRING, ids=str)
def test_a_key_expires_at_its_end_for_all_commands(
    engine: Engine, ask: Ask, commands: list[str], milliseconds: int
) -> None:
    for command in commands:
        ask(*command.split())
    assert ask("PTTL", "key") == b":%d\r\n" % milliseconds
    engine.now += milliseconds * MS
    assert ask("GET", "key") == b"$1\r\nv\r\n"
    engine.now += MS
    assert {look: ask(*look.split()) for look in LOOKS} == LOOKS


@pytest.mark.parametrize(
    "command", ["SET key other", "PERSIST key", "PEXPIRE key 10000000000", "DEL key"]
)
def test_a_removed_expiry_deletes_nothing(engine: Engine, ask: Ask, command: str) -> None:
    ask("SET", "key", "value", "PX", 10)
    ask(*command.split())
    ask("SET", "key", "value", "NX")
    engine.now += 11 * MS
    assert ask("EXISTS", "key") == ONE


def test_scripts_see_and_set_expiry(engine: Engine, ask: Ask) -> None:
    assert ask("EVAL", SET_PX, 1, "key", "value", 10) == OK
    assert ask("EVAL", "return redis.call('PTTL', KEYS[1])", 1, "key") == b":10\r\n"
    engine.now += 10 * MS
    assert ask("EVAL", GET, 1, "key") == b"$5\r\nvalue\r\n"
    assert ask("EVAL", "return redis.call('PEXPIRE', KEYS[1], 20)", 1, "key") == ONE
    engine.now += 20 * MS
    assert ask("EVAL", GET, 1, "key") == b"$5\r\nvalue\r\n"
    engine.now += MS
    assert ask("EVAL", GET, 1, "key") == NIL
    script = (
        "local call = redis.call call('ZADD', KEYS[1], 1, 'a') return call('EXPIRE', KEYS[1], 1)"
    )
    assert ask("EVAL", script, 1, "set") == ONE
    assert ask("PTTL", "set") == b":1000\r\n"


def test_a_backward_jump_prolongs_the_life_of_a_key(engine: Engine, ask: Ask) -> None:
    ask("SET", "key", "value", "PX", 1000)
    engine.now -= 10 * SECOND
    assert ask("PTTL", "key") == b":11000\r\n"
    engine.now += 11 * SECOND + MS
    assert ask("PTTL", "key") == b":-2\r\n"


def test_expiry_survives_a_snapshot(engine: Engine, ask: Ask) -> None:
    ask("SET", "short", "value", "PX", 1000)
    ask("SET", "long", "value", "PX", 5000)
    ask("SET", "lasting", "value")
    engine.messages.rpush("queue", "message")
    engine.now += 400 * MS
    stored = engine.snapshot()
    ask("DEL", "short", "long", "lasting")
    engine.messages.delete("queue")
    ask("SET", "more", "value")
    engine.restore(stored)
    assert [ask("PTTL", key) for key in ("short", "long", "lasting", "more")] == [
        b":600\r\n",
        b":4600\r\n",
        b":-1\r\n",
        b":-2\r\n",
    ]
    assert engine.messages.lrange("queue", 0, -1) == [b"message"]
    engine.now += 2000 * MS
    engine.restore(stored)
    assert [ask("GET", key) for key in ("short", "long")] == [NIL, b"$5\r\nvalue\r\n"]


@pytest.mark.long
def test_a_server_with_the_shim_expires_keys_itself() -> None:
    with ShimmedEngine() as engine:
        engine.now = NOW
        for number in range(100):
            engine.client.set(f"key {number}", "value", px=10)
        engine.now += 11 * MS
        wait_until(lambda: engine.client.info("stats")["expired_keys"] == 100)
        assert engine.client.dbsize() == 0


# -- scripts ---------------------------------------------------------------------------------------


def test_a_script_gets_its_arguments_unchanged(ask: Ask) -> None:
    script = "return {KEYS[1], tostring(#KEYS), unpack(ARGV)}"
    reply = bulk("k", "1", "a", "b")
    assert ask("EVAL", script, 1, "k", "a", "b") == reply
    assert ask("EVALSHA", sha_of(script), 1, "k", "a", "b") == reply
    assert ask("EVAL", "return #ARGV", 0) == NO


def test_scripts_are_called_by_the_hash_of_their_original_text(engine: Engine, ask: Ask) -> None:
    sha = sha_of(TIME)
    ask("SCRIPT", "FLUSH")
    assert ask("EVALSHA", sha, 0).startswith(b"-NOSCRIPT ")
    ask("EVAL", TIME, 0)
    assert ask("EVALSHA", sha, 0) == bulk("1900000000", "123456")
    assert ask("SCRIPT", "EXISTS", sha, "0" * 40) == b"*2\r\n:1\r\n:0\r\n"
    engine.forget_scripts()
    assert ask("EVALSHA", sha, 0).startswith(b"-NOSCRIPT ")
    assert ask("SCRIPT", "EXISTS", sha) == b"*1\r\n:0\r\n"
    assert ask("TIME") == bulk("1900000000", "123456")


@pytest.mark.parametrize(
    "line",
    [
        "redis.call('HGET', KEYS[1], 'field')",
        "local missing = nil + 1",
        "error('on purpose')",
    ],
)
def test_errors_name_the_right_line_of_a_script(ask: Ask, line: str) -> None:
    ask("SET", "key", "value")
    reply = ask("EVAL", f"-- a comment\nlocal a = 1\n\n{line}\n\nreturn a", 1, "key")
    assert b"user_script:4" in reply


# -- replies ---------------------------------------------------------------------------------------


def test_several_commands_have_their_replies_in_order(
    engine: Engine, connection: socket.socket
) -> None:
    commands = ["SET key value PX 10", "HSET hash field value", "PTTL key", "HGET hash field"]
    replies = engine.run(connection, [command.encode().split() for command in commands])
    assert replies == OK + ONE + b":10\r\n" + b"$5\r\nvalue\r\n"


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Engine.fill_memory, b"OOM "), (Engine.make_replica, b"READONLY ")],
    ids=["full", "replica"],
)
def test_a_faulty_server_refuses_writes(
    engine: Engine, ask: Ask, fault: Callable[[Engine, bool], None], error: bytes
) -> None:
    ask("SET", "key", "value")
    fault(engine, True)
    assert ask("SET", "key", "other", "PX", 10).startswith(b"-" + error)
    assert error in ask("EVAL", SET_PX, 1, "key", "other", 10)
    assert ask("GET", "key") == b"$5\r\nvalue\r\n"
    fault(engine, False)
    assert ask("SET", "key", "other", "PX", 10) == OK
