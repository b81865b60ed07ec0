"""The Sentinels: asked one after the other, and named with what each said when none helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError, Sentinel

__all__ = ("Sentinels",)


class AskedSentinel(Redis):
    """A client of one Sentinel; ``trouble`` is the last error, "" after an answer."""

    trouble = ""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""
        try:
            reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except RedisError as error:
            self.trouble = f"{type(error).__name__}: {error}"
            raise
        self.trouble = ""
        return reply


class Sentinels(Sentinel):
    """redis-py's ``Sentinel``, but its error tells what is wrong with each, such as its TLS."""

    def __init__(self, hosts: Sequence[tuple[str, int]], **arguments: Any) -> None:
        super().__init__(hosts, **arguments)  # type: ignore[no-untyped-call]
        self._addresses = [f"{host}:{port}" for host, port in hosts]
        made: list[Any] = [
            AskedSentinel(host=host, port=port, **self.sentinel_kwargs) for host, port in hosts
        ]
        self.sentinels = made
        self._asked = dict(zip(self._addresses, made, strict=True))

    def discover_master(self, service_name: str) -> Any:
        """Return (host, port) of the master; raises ``MasterNotFoundError``."""
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as error:
            said = ", ".join(
                f"{address} ({asked.trouble or 'knows no such master that is up'})"
                for address, asked in self._asked.items()
            )
            message = f"no Sentinel leads to the master {service_name!r}: {said}"
            raise MasterNotFoundError(message) from error
