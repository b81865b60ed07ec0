"""Loads and runs the Lua scripts in ``redbeat/lua``.

Several scripts include the functions in ``redbeat/lua/parts``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import MovedError, NoScriptError, RedisError

from redbeat.connection.topology import is_cluster, node_of, refreshing, server_errors

#: A client with at most this many connections can't send commands while a script runs.
SPARE_CONNECTIONS = 2

INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the SHA-1 under which Redis caches it."""

    name: str
    text: str
    sha: str

    def begin(
        self,
        client: Any,
        keys: Sequence[str],
        args: Sequence[Argument] = (),
        then: Callable[[Any], None] | None = None,
    ) -> Callable[[], Any]:
        """Send the script on a reserved connection; the function returned reads the reply.

        Only for clients with :func:`runs_once`. Without :func:`overlaps`, don't use the client
        until you have read the reply. The client doesn't retry, so the script never runs twice.
        Once the reply is there, ``then`` is called with the connection. One round trip, or more if
        the server hasn't cached the script or another cluster node has the keys.
        """
        read = self._sent(client, keys, args, then)

        def read_again() -> Any:
            try:
                return read()
            except MovedError:
                return self._sent(client, keys, args, then)()

        return read_again

    def _sent(
        self,
        client: Any,
        keys: Sequence[str],
        args: Sequence[Argument],
        then: Callable[[Any], None] | None,
    ) -> Callable[[], Any]:
        with refreshing(client):
            pool = getattr(client, "connection_pool", None)
            pool = pool or node_of(client, keys[0]).connection_pool
            connection = connection_of(pool, "EVALSHA")
            with borrowed(connection, pool, keep=True):
                # In one write: an error between two would leave a partial command.
                words = ("EVALSHA", self.sha, len(keys), *keys, *args)
                connection.send_packed_command([b"".join(connection.pack_command(*words))])

        def read() -> Any:
            with refreshing(client), borrowed(connection, pool), server_errors():
                try:
                    reply = connection.read_response(disable_decoding=True)
                except NoScriptError:
                    connection.send_command("EVAL", self.text, len(keys), *keys, *args)
                    reply = connection.read_response(disable_decoding=True)
                if then is not None:
                    then(connection)
                return reply

        return read

    def __call__(self, client: Any, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Run the script; return the reply, with strings as bytes.

        One round trip, or two if the server hasn't cached the script.
        """
        options = {NEVER_DECODE: True}
        rest = (len(keys), *keys, *args)
        with server_errors():
            try:
                return client.execute_command("EVALSHA", self.sha, *rest, **options)
            except NoScriptError:
                return client.execute_command("EVAL", self.text, *rest, **options)


def connection_of(pool: Any, command: str) -> Any:
    try:
        return pool.get_connection()
    except TypeError:  # redis-py before 5.3 requires the name of the command
        return pool.get_connection(command)


@contextmanager
def borrowed(connection: Any, pool: Any, keep: bool = False) -> Iterator[None]:
    """Return ``connection`` to ``pool`` after the block; with ``keep``, only after an error.

    An error also closes the connection: it may have an unread reply.
    """
    try:
        yield
    except BaseException:
        connection.disconnect()
        pool.release(connection)
        raise
    if not keep:
        pool.release(connection)


def runs_once(client: Any) -> bool:
    """Whether ``client`` can run scripts without retries on a connection of its pool."""
    return hasattr(client, "connection_pool") or is_cluster(client)


def overlaps(client: Any, key: str) -> bool:
    """Whether ``client`` can send commands while a script that uses ``key`` runs.

    That takes a spare connection in the pool of the cluster node that stores ``key``.
    """
    pool = getattr(client, "connection_pool", None)
    try:
        pool = pool or getattr(node_of(client, key), "connection_pool", None)
    except RedisError:
        return False
    return getattr(pool, "max_connections", 0) > SPARE_CONNECTIONS


@cache
def load_script(name: str) -> Script:
    """The script in ``redbeat/lua/<name>.lua``.

    Each line ``-- include: <part>`` becomes the code of ``redbeat/lua/parts/<part>.lua``, on a
    single line, so that line numbers in error messages are those of the script's file.
    """
    text = INCLUDE.sub(lambda match: _part(match[1]), _read(name))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _part(name: str) -> str:
    lines = [line.strip() for line in _read(f"parts/{name}").splitlines()]
    return " ".join(line.partition("  -- ")[0] for line in lines if not line.startswith("--"))


def _read(name: str) -> str:
    return files("redbeat").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")
