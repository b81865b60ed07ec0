"""What is written to a broker together, and what is known of it when the connection breaks."""

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
from redis.exceptions import ResponseError
from redis.retry import Retry

from redbeat.beat.pipelining import RedisPipe, pipe_of


class Stub(socketserver.ThreadingTCPServer):
    """Speaks enough of Redis to take LPUSH, and closes each connection after some answers."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, answers: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.taken: list[list[str]] = []


class Handler(socketserver.StreamRequestHandler):
    server: Stub

    def handle(self) -> None:
        taken: list[str] = []
        limit: int | None = None
        while words := self.words():
            if words[0] != "LPUSH":
                self.wfile.write(b"+OK\r\n")
                continue
            if limit is None:
                limit = self.server.answers.pop(0)
                self.server.taken.append(taken)
            taken.append(words[2])
            if len(taken) > limit:
                continue  # taken, and never answered
            self.wfile.write(b"-WRONGTYPE no\r\n" if words[2] == "bad" else b":1\r\n")
            if len(taken) == limit and self.server.answers:
                self.connection.shutdown(1)

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
    """As much of kombu's channel as a pipe needs."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self.client

    def put(self, message: str) -> None:
        with self.conn_or_acquire() as client:
            client.lpush("queue", message)


@contextmanager
def stub(*answers: int) -> Iterator[tuple[Stub, Channel]]:
    server = Stub(list(answers))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port, never = server.server_address[1], Retry(NoBackoff(), 0)
        with redis.Redis(port=port, protocol=2, retry=never, socket_timeout=10) as client:
            yield server, Channel(client)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write(pipe: RedisPipe, *messages: str) -> list[Exception | None]:
    with pipe:
        for message in messages:
            pipe.channel.put(message)
    assert pipe.size == len(messages)
    return pipe.deliver()


MESSAGES = ("a", "b", "c", "d", "e")


def test_only_what_has_no_answer_is_sent_again() -> None:
    """Setup: the broker answers three of five and closes. Invariant: two are sent again."""
    with stub(3, 9) as (server, channel):
        assert write(RedisPipe(channel), *MESSAGES) == [None] * 5
        assert server.taken[0][:3] == ["a", "b", "c"]
        assert server.taken[1] == ["d", "e"]


def test_sent_again_once() -> None:
    with stub(3, 1, 9) as (server, channel):
        outcomes = write(RedisPipe(channel), *MESSAGES)
        assert outcomes[:4] == [None] * 4
        assert isinstance(outcomes[4], RedisConnectionError)
        assert len(server.taken) == 2


def test_one_is_refused() -> None:
    with stub(9) as (_, channel):
        pipe = RedisPipe(channel)
        outcomes = write(pipe, "a", "bad", "c")
        assert (outcomes[0], outcomes[2]) == (None, None)
        assert isinstance(outcomes[1], ResponseError)
        assert (pipe.size, pipe.nbytes) == (0, 0)
        assert pipe.deliver() == []


def test_outside_of_the_context_a_message_is_out_at_once() -> None:
    with stub(9) as (server, channel):
        pipe = RedisPipe(channel)
        with pipe:
            channel.put("later")
        channel.put("now")
        assert server.taken == [["now"]]
        assert pipe.deliver() == [None]


def test_bytes_are_counted() -> None:
    with stub(9) as (_, channel):
        pipe = RedisPipe(channel)
        with pipe:
            channel.put("x" * 1000)
        assert pipe.nbytes == 1000


@pytest.mark.parametrize("url", ["memory://", "filesystem://"])
def test_other_transports_have_none(url: str) -> None:
    app = Celery(broker=url, set_as_current=False)
    with app.connection_for_write() as connection:
        assert pipe_of(connection.default_channel) is None
