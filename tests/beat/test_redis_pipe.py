"""Tests of pipelined messages to a Redis broker, and of what is known after a connection breaks."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from redbeat.beat.pipes import RedisPipe
from redbeat.beat.send import pipe_of
from tests.waiting import wait_until


class Stub(socketserver.ThreadingTCPServer):
    """A server that accepts LPUSH like Redis, and closes each connection after some replies."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, answers: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        #: For each connection, its LPUSH commands: the queue and the messages.
        self.taken: list[list[tuple[str, ...]]] = []
        #: The number of closed connections.
        self.ended = 0


class Handler(socketserver.StreamRequestHandler):
    server: Stub

    def handle(self) -> None:
        taken: list[tuple[str, ...]] = []
        limit: int | None = None
        while words := self.words():
            if words[0] != "LPUSH":
                self.wfile.write(b"+OK\r\n")
                continue
            if limit is None:
                limit = self.server.answers.pop(0)
                self.server.taken.append(taken)
            taken.append(tuple(words[1:]))
            if len(taken) <= limit:  # later commands are accepted but get no reply
                self.wfile.write(b"-WRONGTYPE no\r\n" if words[1] == "crooked" else b":1\r\n")
            if len(taken) == max(limit, 1) and self.server.answers:
                self.connection.shutdown(1)
                self.server.ended += 1

    def words(self) -> list[str]:
        head = self.rfile.readline()
        if not head:
            return []
        words = []
        for _ in range(int(head[1:])):
            size = int(self.rfile.readline()[1:])
            words.append(self.rfile.read(size + 2)[:-2].decode())
        return words


class Channel:
    """The part of kombu's channel that the pipe uses."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self.client

    def put(self, queue: str, message: str) -> None:
        with self.conn_or_acquire() as client:
            client.lpush(queue, message)


@contextmanager
def stub(*answers: int) -> Iterator[tuple[Stub, Channel, RedisPipe]]:
    """Yield a server, a channel to it, and its pipe.

    Each argument is the number of replies on one connection.
    """
    server = Stub(list(answers))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        port, never = server.server_address[1], Retry(NoBackoff(), 0)
        with redis.Redis(port=port, protocol=2, retry=never, socket_timeout=10) as client:
            channel = Channel(client)
            pipe = RedisPipe(channel)
            yield server, channel, pipe
            pipe.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def put(pipe: RedisPipe, *queues: str) -> None:
    """Put one message into each queue; each message is the index of its queue in the arguments."""
    with pipe:
        for number, queue in enumerate(queues):
            pipe.channel.put(queue, str(number))
    assert pipe.size == len(queues)


def write(pipe: RedisPipe, *queues: str) -> list[Exception | None]:
    put(pipe, *queues)
    return pipe.results()


def test_messages_for_a_queue_are_one_command() -> None:
    with stub(9) as (server, _, pipe):
        assert write(pipe, "a", "b", "a", "a") == [None] * 4
        assert server.taken == [[("a", "0", "2", "3"), ("b", "1")]]


def test_only_messages_without_a_reply_are_sent_again() -> None:
    """Setup: five messages. Fault: the broker closes after three replies. Invariant: only the other
    two messages are sent again.
    """
    with stub(3, 9) as (server, _, pipe):
        assert write(pipe, *"abcde") == [None] * 5
        assert server.taken[0][:3] == [("a", "0"), ("b", "1"), ("c", "2")]
        assert server.taken[1] == [("d", "3"), ("e", "4")]


def test_a_message_is_sent_again_only_once() -> None:
    with stub(3, 1, 9) as (server, _, pipe):
        outcomes = write(pipe, *"abcde")
        assert outcomes[:4] == [None] * 4
        assert isinstance(outcomes[4], RedisConnectionError)
        assert len(server.taken) == 2


def test_kombu_may_close_its_pool_while_messages_wait() -> None:
    """Setup: messages wait. Fault: kombu closes its connection pool. Invariant: the connection of
    the pipe stays, and each message is sent once.
    """
    with stub(9) as (server, channel, pipe):
        assert write(pipe, "z") == [None]
        put(pipe, *"abc")
        channel.client.connection_pool.disconnect()
        assert pipe.results() == [None] * 3
        assert len(server.taken) == 1


def test_a_connection_that_the_broker_closed_while_idle_costs_no_try() -> None:
    """Setup: the broker closed an idle connection. Fault: the broker also closes the next
    connection. Invariant: all messages are sent.
    """
    with stub(1, 0, 9) as (server, _, pipe):
        assert write(pipe, "a") == [None]
        wait_until(lambda: server.ended)
        assert write(pipe, "b") == [None]
        assert server.taken == [[("a", "0")], [("b", "0")], [("b", "0")]]


@pytest.mark.parametrize("url", ["memory://", "filesystem://"])
def test_other_transports_have_no_pipe(url: str) -> None:
    app = Celery(broker=url, set_as_current=False)
    with app.connection_for_write() as connection:
        assert pipe_of(connection.default_channel) is None
