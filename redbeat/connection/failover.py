"""A server that takes no writes any more, because another one is the master by now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis
from redis.exceptions import ReadOnlyError, ResponseError

__all__ = ("MasterClient", "refusals")

# Redis before version 7 puts what a script was refused for into the middle of an error.
_REFUSED: Final = re.compile(r"(^|\s)-?(READONLY|NOREPLICAS) ")


@contextmanager
def refusals() -> Iterator[None]:
    """Raise as a ``ReadOnlyError`` whatever says that a replica, or a lonely master, was asked."""
    try:
        yield
    except ReadOnlyError:
        raise
    except ResponseError as error:
        if _REFUSED.search(str(error)):
            raise ReadOnlyError(str(error)) from error
        raise


class MasterClient(Redis):
    """A client that connects anew when its server takes no writes any more.

    The name of the server, or Sentinel, leads to the new master then. The command is not repeated.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""
        try:
            with refusals():
                return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ReadOnlyError:
            self.connection_pool.disconnect(inuse_connections=False)
            raise
