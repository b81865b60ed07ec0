"""The virtual clocks of the processes in a simulation.

:func:`install` replaces the functions from which Python reads time and randomness. Call it before
Celery, kombu, redis-py or RedBeat are imported, because these packages keep references to the
replaced functions. Therefore a simulation needs a separate interpreter.
"""

from __future__ import annotations

import math
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: Microseconds in a second. Instants in the simulation are integers, so nothing is rounded.
SECOND: Final = 1_000_000


def microseconds(seconds: float) -> int:
    """Return a duration in microseconds, at least 1, so that every wait takes some time."""
    return max(math.ceil(seconds * SECOND), 1)


@dataclass
class Host:
    """A machine with a clock that differs from the true time by ``offset`` and by its drift.

    ``offset`` is in microseconds. The clock drifts by ``drift`` microseconds per second since
    ``since``, and by ``gained`` microseconds before.
    """

    name: str
    offset: int = 0
    drift: int = 0
    since: int = 0
    gained: int = 0

    def drift_from(self, now: int, drift: int) -> None:
        """Drift by ``drift`` microseconds per second from now on."""
        self.gained += (now - self.since) * self.drift // SECOND
        self.since, self.drift = now, drift

    def lasting(self, seconds: float) -> int:
        """Return the true microseconds, at least 1, in which this clock counts some seconds."""
        return max(microseconds(seconds) * SECOND // (SECOND + self.drift), 1)

    def monotonic(self, now: int) -> int:
        """Return the monotonic clock at a true time, in microseconds; jumps do not change it."""
        return now + self.gained + (now - self.since) * self.drift // SECOND

    def wall(self, now: int) -> int:
        """Return the wall clock at a true time, in microseconds since 1970."""
        return self.monotonic(now) + self.offset


class Source:
    """Supplies time and randomness to the replaced functions; a running simulation is a source."""

    def wall(self) -> int:
        """Return the wall clock of the calling process, in microseconds since 1970."""
        raise NotImplementedError

    def monotonic(self) -> int:
        """Return the monotonic clock of the calling process, in microseconds."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass for the calling process."""
        raise NotImplementedError

    def host_name(self) -> str:
        """Return the host name of the calling process."""
        raise NotImplementedError

    def random_bytes(self, count: int) -> bytes:
        """Return ``count`` bytes derived from the seed."""
        raise NotImplementedError


_source: Source | None = None


def use(source: Source | None) -> None:
    """Make ``source`` supply time and randomness to the replaced functions from now on."""
    global _source  # noqa: PLW0603 - the interpreter has one set of clocks
    _source = source


def install() -> None:
    """Replace the functions that read time and randomness until this interpreter ends."""
    import time_machine  # noqa: PLC0415 - an import patches nothing unless a simulation begins

    monotonic, sleep = time.monotonic, time.sleep
    host_name, random_bytes = socket.gethostname, os.urandom
    seconds = _asking(lambda source: source.monotonic() / SECOND, monotonic)
    replaced: dict[Any, dict[str, Any]] = {
        time: {
            "monotonic": seconds,
            "monotonic_ns": lambda: int(seconds() * 1_000_000_000),
            "sleep": _asking(lambda source, seconds: source.sleep(seconds), sleep),
        },
        socket: {"gethostname": _asking(lambda source: source.host_name(), host_name)},
        os: {"urandom": _asking(lambda source, count: source.random_bytes(count), random_bytes)},
    }
    replaced[random] = {"_urandom": replaced[os]["urandom"]}
    for module, functions in replaced.items():
        for name, function in functions.items():
            setattr(module, name, function)
    traveller = time_machine.travel(0, tick=False).start()
    # Modules import the wall clock under several names; replacing it in the class reaches them all.
    traveller.time_ns = _wall_ns  # type: ignore[method-assign]


def _asking(ask: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the running simulation, or the real function if none runs."""

    def asking(*args: Any) -> Any:
        return real(*args) if _source is None else ask(_source, *args)

    return asking


def _wall_ns() -> int:
    return 0 if _source is None else _source.wall() * 1000
