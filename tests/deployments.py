"""The kinds of Redis deployment on which whole test suites can run.

Each run of pytest uses one kind. The environment variable ``REDBEAT_TOPOLOGY`` selects it:
``REDBEAT_TOPOLOGY=cluster python -m pytest tests/storage tests/scheduler tests/entry`` runs three
suites with the schedule in a cluster.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import redis

from tests.servers import RedisServer

VARIABLE: Final = "REDBEAT_TOPOLOGY"
STANDALONE: Final = "standalone"
ACL_PAGE: Final = Path(__file__).parents[1] / "docs" / "deployment" / "acl.rst"
#: The users of that page: one for the schedule only, and one that also sends messages.
USER: Final = "redbeat"
SENDER: Final = "redbeat-sender"


@dataclass(frozen=True)
class Deployment:
    """The Redis deployment that stores the schedule of a test.

    ``url`` is the URL of the server that stores the schedule. It uses no TLS, and its user has all
    rights. ``settings`` are the Celery settings with which an app connects. ``servers`` are the
    URLs of all servers that accept writes.
    """

    url: str
    settings: dict[str, Any]
    servers: list[str] = field(default_factory=list)

    @cached_property
    def _clients(self) -> list[redis.Redis]:
        """Clients of all servers. They are cached because most tests call :meth:`empty`."""
        return [redis.Redis.from_url(url) for url in self.servers or [self.url]]

    def empty(self) -> None:
        """Delete all data. Scripts stay in the cache: to compile them again takes long."""
        for client in self._clients:
            client.flushall()


def single(server: RedisServer, **options: Any) -> Deployment:
    """Return a deployment of one server. The app passes ``options`` to its Redis client."""
    settings = {"redbeat_redis_url": server.url, "redbeat_redis_options": options}
    return Deployment(server.url, settings)


@contextmanager
def resp2() -> Iterator[Deployment]:
    """A single server, whose clients use version 2 of the Redis protocol."""
    with RedisServer() as server:
        yield single(server, protocol=2)


@contextmanager
def resp3() -> Iterator[Deployment]:
    """A single server, whose clients use version 3 of the Redis protocol."""
    with RedisServer() as server:
        yield single(server, protocol=3)


@contextmanager
def sentinel() -> Iterator[Deployment]:
    """A master whose address clients get from Sentinels."""
    from tests.topologies.groups import (  # noqa: PLC0415 - few runs need it
        NEVER_DOWN,
        SentinelGroup,
    )

    with SentinelGroup(service="mine", password="secret", down_after=NEVER_DOWN) as group:
        options = {
            "sentinels": group.addresses,
            "service_name": group.service,
            "password": group.password,
        }
        yield Deployment(
            group.master().url,
            {"redbeat_redis_url": "redis-sentinel://", "redbeat_redis_options": options},
        )


@contextmanager
def cluster() -> Iterator[Deployment]:
    """A cluster of three masters. ``url`` is the master of the hash slot of the schedule."""
    from tests.topologies.groups import ClusterGroup  # noqa: PLC0415

    with ClusterGroup(replicas=False) as group:
        yield Deployment(
            group.owner(PREFIX).url,
            # The tests that set their own client also need this prefix.
            {"redbeat_redis_url": group.url, "redbeat_key_prefix": PREFIX},
            [node.url for node in group.nodes],
        )


@contextmanager
def tls() -> Iterator[Deployment]:
    """A server that accepts only clients with a certificate of the server's authority."""
    from tests.certificates import write_certificates  # noqa: PLC0415
    from tests.tls_server import TLSServer  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory, RedisServer() as server:
        files = write_certificates(Path(directory))
        with TLSServer(files, server.port, client_authority=files.authority) as front:
            use_ssl = {
                "ssl_ca_certs": files.authority,
                "ssl_certfile": files.certificate,
                "ssl_keyfile": files.key,
            }
            url = f"rediss://localhost:{front.port}/0"
            settings = {"redbeat_redis_url": url, "redbeat_redis_use_ssl": use_ssl}
            yield Deployment(server.url, settings)


def acl_rules(block: int = 0) -> list[str]:
    """Return the rules of an ``ACL SETUSER`` command in the manual; ``block`` is its number.

    The second command adds rights to those of the first command.
    """
    text = ACL_PAGE.read_text(encoding="utf-8")
    found = re.findall(r"redis-cli ACL SETUSER (.*?)\n\n", text, re.DOTALL)
    name, *rules = shlex.split(found[block].replace("\\\n", " "))
    assert name == (USER, SENDER, USER, USER)[block]
    return [*acl_rules(), *rules] if name == SENDER else rules


@contextmanager
def acl() -> Iterator[Deployment]:
    """A server with the ACL user of the manual, who has only the rights that it lists.

    These include the rights for shards.
    """
    with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", USER, *acl_rules(), *acl_rules(3))
        url = f"redis://{USER}:PASSWORD@127.0.0.1:{server.port}/0"
        yield Deployment(server.url, {"redbeat_redis_url": url})


#: For each kind, a function that starts a deployment. The single server is a fixture instead.
KINDS: Final[dict[str, Callable[[], AbstractContextManager[Deployment]]]] = {
    maker.__name__: maker for maker in (sentinel, cluster, tls, acl, resp2, resp3)
}


def chosen_kind() -> str:
    """Return the kind of deployment that the environment variable names, or the single server."""
    kind = os.environ.get(VARIABLE) or STANDALONE
    if kind not in (STANDALONE, *KINDS):
        valid = ", ".join((STANDALONE, *KINDS))
        raise ValueError(f"{VARIABLE} is {kind!r}, it must be one of {valid}")
    return kind


#: The default prefix of all keys of a schedule.
PREFIX: Final = "{redbeat}:" if chosen_kind() == "cluster" else "redbeat:"
