"""Redis clients that count replies, or lose commands and replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import redis

__all__ = ("CountingRedis", "Wire", "counting_client", "wired_client")

LOST = "connection reset"


class WatchedConnection(redis.Connection):
    """A connection that notifies its client of each command and each reply."""

    watcher: Any = None

    def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Notify the watcher, then send the commands."""
        self.watcher.sending()
        super().send_packed_command(*args, **options)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read the reply, then notify the watcher."""
        reply = super().read_response(*args, **options)
        self.watcher.received(self)
        return reply


class CountingRedis(redis.Redis):
    """A client that counts what it sends at once. Each is one round trip."""

    trips = 0

    def sending(self) -> None:
        """Count a command, or some commands that are sent together."""
        self.trips += 1

    def received(self, _connection: redis.Connection) -> None:
        """Do nothing after a reply."""


def always() -> bool:
    """Return True: a condition that always holds."""
    return True


class Wire(redis.Redis):
    """A client that can lose commands and replies, or run an action before or after them.

    A test specifies the moment by a condition, such as "a run is recorded". The client checks the
    condition at each command or reply.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._before: list[Callable[[], object]] = []
        self._after: list[Callable[[], object]] = []
        self._losses: list[Callable[[], object]] = []
        self.lost = 0
        super().__init__(*args, **kwargs)

    def before_command(
        self, action: Callable[[], object], when: Callable[[], object] = always
    ) -> None:
        """Run ``action`` once, before the first command that is sent while ``when`` holds.

        If ``action`` raises, Redis does not get the command.
        """
        self._before.append(_once(action, when, self._before))

    def after_reply(
        self, action: Callable[[], object], when: Callable[[], object] = always
    ) -> None:
        """Run ``action`` once, after the first reply that arrives while ``when`` holds."""
        self._after.append(_once(action, when, self._after))

    def cut(self, when: Callable[[], object] = always) -> None:
        """Lose the first command that is sent while ``when`` holds: Redis never executes it."""
        self.before_command(_fail, when)

    def lose(self, when: Callable[[], object] = always, times: int = 1) -> None:
        """Lose the first ``times`` replies that arrive while ``when`` holds."""
        self._losses += [when] * times

    def forget(self) -> None:
        """Forget all actions and losses that have not happened."""
        self._before.clear()
        self._after.clear()
        self._losses.clear()

    def sending(self) -> None:
        """Run the :meth:`before_command` actions whose condition holds."""
        for step in tuple(self._before):
            step()

    def received(self, connection: redis.Connection) -> None:
        """Lose the reply, or run the :meth:`after_reply` actions whose condition holds."""
        if self._losses and self._losses[0]():
            del self._losses[0]
            self.lost += 1
            connection.disconnect()  # type: ignore[no-untyped-call]
            _fail()
        for step in tuple(self._after):
            step()


def _fail() -> None:
    raise redis.ConnectionError(LOST)


def _once(
    action: Callable[[], object], when: Callable[[], object], steps: list[Callable[[], object]]
) -> Callable[[], None]:
    """Return a function that runs ``action`` if ``when`` holds, and leaves ``steps`` first."""

    def step() -> None:
        if when():
            steps.remove(step)
            action()

    return step


C = TypeVar("C", CountingRedis, Wire)


def counting_client(url: str) -> CountingRedis:
    """Return a client that counts replies, with its own connection pool."""
    return _watched(CountingRedis, url)


def wired_client(url: str) -> Wire:
    """Return a client that can lose commands and replies, with its own connection pool."""
    return _watched(Wire, url)


def _watched(cls: type[C], url: str) -> C:
    class Watched(WatchedConnection):
        """A connection of this client."""

    pool = redis.ConnectionPool.from_url(url, decode_responses=True, connection_class=Watched)
    client = cls(connection_pool=pool)
    Watched.watcher = client
    return client
