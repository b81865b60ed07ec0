"""Tests of single connections that are taken from a pool, and go back to it."""

from __future__ import annotations

from contextlib import suppress

import pytest
import redis

from redbeat.storage.scripts import borrowed, connection_of

pytestmark = pytest.mark.standalone


def test_a_connection_whose_reply_was_not_read_is_used_by_nobody(redis_url: str) -> None:
    """Its reply comes only after the connection has gone back to the pool."""
    with redis.Redis.from_url(redis_url) as client:
        pool = client.connection_pool
        connection = connection_of(pool, "BLPOP")
        with suppress(KeyboardInterrupt), borrowed(connection, pool):
            connection.send_command("BLPOP", "redbeat:nothing", "0.5")
            raise KeyboardInterrupt
        assert client.echo("mine") == b"mine"
