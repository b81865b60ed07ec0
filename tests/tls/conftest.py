"""Groups of servers that use TLS for all connections."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from examples.embedded import find_redis_server
from tests.certificates import CertificateFiles
from tests.servers import RedisServer
from tests.tls.certificates import write_for_addresses
from tests.topologies.groups import ClusterGroup, SentinelGroup

#: Timeout of one test in seconds: groups need time to form and to fail over.
TIMEOUT = 180
HINT = (
    "{} was built without TLS. Set REDIS_SERVER to one with it, such as that of Debian's package "
    "redis-server"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the timeout of the tests in this directory."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """Return the certificate and its authority; raise RuntimeError without TLS support."""
    server = find_redis_server()
    # With TLS support, the server reports a missing certificate. Otherwise it reports an unknown
    # option.
    output = subprocess.run(
        [server, "--port", "0", "--tls-port", "1"], capture_output=True, timeout=30, check=False
    )
    if b"tls-cert-file" not in output.stdout:
        raise RuntimeError(HINT.format(server))
    return write_for_addresses(tmp_path_factory.mktemp("tls"))


@dataclass
class Place:
    """A group with a schedule; ``settings`` connect to it, and ``servers`` may store it."""

    group: Any
    settings: dict[str, Any]
    servers: list[RedisServer]

    def ports_in_use(self) -> set[int]:
        """Return the ports that clients use, except the plain clients of this process."""
        ports = set()
        for server in self.servers:
            if server.is_running:
                with redis.Redis(
                    port=server.port, password=server.password, decode_responses=True
                ) as client:
                    mine = client.client_id()
                    clients = [*client.client_list("normal"), *client.client_list("pubsub")]
                    others = [one for one in clients if int(one["id"]) != mine]
                ports |= {int(one["laddr"].rpartition(":")[2]) for one in others}
        return ports


def certificate_options(files: CertificateFiles) -> dict[str, Any]:
    """Return the TLS options of an app that has a client certificate."""
    return {
        "ssl_ca_certs": files.authority,
        "ssl_certfile": files.certificate,
        "ssl_keyfile": files.key,
    }


@pytest.fixture(scope="session")
def sentinels(files: CertificateFiles) -> Iterator[Place]:
    """Run a master, a replica and Sentinels with TLS."""
    with SentinelGroup(
        service="main", password="of-the-servers", sentinel_password="of-the-sentinels", tls=files
    ) as group:
        tls = certificate_options(files)
        settings = {
            "redbeat_redis_url": "redis-sentinel://",
            "redbeat_redis_use_ssl": tls,
            "redbeat_redis_options": {
                "sentinels": group.addresses,
                "service_name": group.service,
                "password": group.password,
                "socket_timeout": 1.0,
                "sentinel_kwargs": {"password": group.sentinel_password, "ssl": True, **tls},
            },
        }
        yield Place(group, settings, group.servers)


@pytest.fixture(scope="session")
def cluster(files: CertificateFiles) -> Iterator[Place]:
    """Run a cluster with TLS."""
    with ClusterGroup(tls=files) as group:
        settings = {
            "redbeat_redis_url": group.url,
            "redbeat_redis_use_ssl": certificate_options(files),
            "redbeat_redis_options": {"socket_timeout": 1.0},
        }
        yield Place(group, settings, list(group.nodes))


@pytest.fixture(params=["sentinels", "cluster"])
def place(request: pytest.FixtureRequest) -> Place:
    """Return each of the two groups."""
    place: Place = request.getfixturevalue(request.param)
    return place
