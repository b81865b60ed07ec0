"""The Lua scripts in ``redbeat/lua``, one file per change of state, loaded by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError

__all__ = ("Script", "load_script", "overlaps", "runs_once")

#: Connections that a pool must allow beyond the one that waits for a reply.
SPARE_CONNECTIONS = 2

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """The text of a script and the SHA-1 under which Redis caches it."""

    name: str
    text: str
    sha: str

    def begin(
        self, client: Any, keys: Sequence[str], args: Sequence[Argument] = ()
    ) -> Callable[[], Any]:
        """Send the script on a connection of its own; the function returned reads the reply.

        For a client for which :func:`runs_once` holds, which is not used otherwise meanwhile unless
        it :func:`overlaps`. The script is never sent twice, however often the client would try
        again. One round trip, more when the server does not have the script cached yet.
        """
        pool = client.connection_pool
        connection = _connection(pool)
        try:
            connection.send_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except BaseException:
            connection.disconnect()
            pool.release(connection)
            raise

        def read() -> Any:
            try:
                return connection.read_response(disable_decoding=True)
            except NoScriptError:
                connection.send_command("EVAL", self.text, len(keys), *keys, *args)
                return connection.read_response(disable_decoding=True)
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)

        return read

    def __call__(self, client: Any, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Run the script; strings in the reply are bytes.

        One round trip, two when the server does not have the script cached yet.
        """
        options = {NEVER_DECODE: True}
        rest = (len(keys), *keys, *args)
        try:
            return client.execute_command("EVALSHA", self.sha, *rest, **options)
        except NoScriptError:
            return client.execute_command("EVAL", self.text, *rest, **options)


def runs_once(client: Any) -> bool:
    """Whether a script can be sent past the retries of ``client``, on a connection of its pool."""
    return hasattr(client, "connection_pool")


def overlaps(client: Any) -> bool:
    """Whether a reply of ``client`` can be waited for while other commands go on.

    So it can with a pool that has connections to spare; a cluster client has none of its own.
    """
    pool = getattr(client, "connection_pool", None)
    return getattr(pool, "max_connections", 0) > SPARE_CONNECTIONS


def _connection(pool: Any) -> Any:
    try:
        return pool.get_connection()
    except TypeError:  # redis-py before 5.3 wants to know the command
        return pool.get_connection("EVALSHA")


@cache
def load_script(name: str) -> Script:
    """Return the script in ``redbeat/lua/<name>.lua``."""
    text = files("redbeat").joinpath("lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
