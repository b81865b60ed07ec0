"""Groups of real servers: a master with a replica and Sentinels, and a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import redis

from examples.embedded import find_redis_server
from tests.certificates import CertificateFiles
from tests.servers import RedisServer, port_with_bus
from tests.waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("NEVER_DOWN", "ClusterGroup", "SentinelGroup", "hash_slot")

#: Milliseconds of silence after which a master counts as down. The first value is for tests of
#: failures, the second for tests in which masters must stay up on a busy machine.
DOWN_AFTER = 1000
NEVER_DOWN = 60_000
FORM_SECONDS = 30.0
SLOTS = 16384
#: Makes replication start a snapshot without waiting for more replicas.
REPLICATION: Final = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")


def hash_slot(key: str) -> int:
    """Return the hash slot of a key."""
    return int(redis.crc.key_slot(key.encode()))


def together(actions: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run all actions at the same time, each in a thread, and return their results."""
    with ThreadPoolExecutor() as pool:
        return [future.result() for future in [pool.submit(action) for action in actions]]


class Sentinel(RedisServer):
    """A Sentinel server, which rewrites its configuration file itself."""

    def __init__(
        self,
        master: RedisServer,
        name: str,
        password: str | None = None,
        down_after: int = DOWN_AFTER,
    ) -> None:
        super().__init__(password=password, tls=master.tls)
        self._master, self._name, self._down_after = master, name, down_after

    def _command(self) -> list[str]:
        master, name = self._master, self._name
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"sentinel monitor {name} 127.0.0.1 {master.service_port} 2",
            f"sentinel down-after-milliseconds {name} {self._down_after}",
            f"sentinel failover-timeout {name} 5000",
        ]
        if master.password:
            lines.append(f"sentinel auth-pass {name} {master.password}")
        if self.password:
            lines.append(f"requirepass {self.password}")
        lines += [f"{directive} {value}" for directive, value in self.tls_directives()]
        path = self.directory / "sentinel.conf"
        path.write_text("\n".join(lines) + "\n")
        return [find_redis_server(), str(path), "--sentinel"]


class SentinelGroup:
    """One master, one replica and three Sentinels; a context manager.

    Master and replica get the ``arguments``. The Sentinels require ``sentinel_password``. With
    ``tls``, all servers have a TLS port in addition to the plain port, and ``addresses`` contains
    the TLS ports.
    """

    def __init__(
        self,
        *arguments: str,
        service: str = "master",
        password: str | None = None,
        sentinel_password: str | None = None,
        tls: CertificateFiles | None = None,
        down_after: int = DOWN_AFTER,
    ) -> None:
        login = ("--masterauth", password) if password else ()
        self.service = service
        self.password, self.sentinel_password = password, sentinel_password
        self.servers = [
            RedisServer(*REPLICATION, *login, *arguments, password=password, tls=tls)
            for _ in range(2)
        ]
        self.sentinels = [
            Sentinel(self.servers[0], service, sentinel_password, down_after) for _ in range(3)
        ]
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            master, replica = self.servers
            stack.enter_context(master)
            stack.enter_context(replica)
            with self.client_of(replica) as client:
                client.replicaof("127.0.0.1", master.service_port)
                wait_until(lambda: _link_is_up(client), FORM_SECONDS, "a replica")
            for sentinel in self.sentinels:
                stack.enter_context(sentinel)
            wait_until(self._formed, FORM_SECONDS, "Sentinels that know each other")
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses of the Sentinels."""
        return [("127.0.0.1", sentinel.service_port) for sentinel in self.sentinels]

    def client_of(self, server: RedisServer) -> redis.Redis:
        """Return a client for a single server, not for the group."""
        return redis.Redis(
            host="127.0.0.1",
            port=server.port,
            password=server.password,
            decode_responses=True,
            socket_timeout=5,
        )

    def master(self) -> RedisServer:
        """Return the server that most Sentinels report as the master."""
        awake = [sentinel for sentinel in self.sentinels if not sentinel.is_paused]
        votes = [self._state(sentinel).get("port") for sentinel in awake]
        port = max(set(votes), key=votes.count)
        return next(server for server in self.servers if str(server.service_port) == port)

    def wait_promoted(self, old: RedisServer, deadline: float = FORM_SECONDS) -> RedisServer:
        """Wait until a server other than ``old`` is the master, and return this server."""

        def promoted() -> bool:
            return self.master() is not old and self.role_of(self.master()) == "master"

        wait_until(promoted, deadline, "another master")
        return self.master()

    def knows_replicas(self, sentinel: Any) -> bool:
        """Return whether a Sentinel knows a replica that it can promote."""
        replicas = sentinel.execute_command("SENTINEL", "REPLICAS", self.service)
        return any(_pairs(one)["master-link-status"] == "ok" for one in replicas)

    def role_of(self, server: RedisServer) -> str:
        """Return the role that a server reports, or "" if the server does not respond."""
        with self.client_of(server) as client, suppress(redis.RedisError):
            return str(client.info("replication")["role"])
        return ""

    def _state(self, sentinel: RedisServer) -> dict[str, str]:
        with self.client_of(sentinel) as client, suppress(redis.RedisError):
            return _pairs(client.execute_command("SENTINEL", "MASTER", self.service))
        return {}

    def _formed(self) -> bool:
        states = [self._state(sentinel) for sentinel in self.sentinels]
        return all(
            state.get("num-other-sentinels") == str(len(self.sentinels) - 1)
            and state.get("num-slaves") == "1"
            for state in states
        )


def _pairs(flat: Any) -> dict[str, str]:
    # The reply is a map with RESP3 and a flat list with RESP2.
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def _link_is_up(client: redis.Redis) -> bool:
    return client.info("replication").get("master_link_status") == "up"


class ClusterNode(RedisServer):
    """A cluster node; its port is low enough that the bus port is also valid."""

    def __init__(
        self, *arguments: str, tls: CertificateFiles | None = None, down_after: int = DOWN_AFTER
    ) -> None:
        cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(down_after))
        bus = ("--tls-cluster", "yes") if tls else ()
        super().__init__(*REPLICATION, *cluster, *bus, *arguments, tls=tls)

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.port = port_with_bus()


class ClusterGroup:
    """Three masters, by default with one replica each; a context manager.

    With ``tls``, each node has a TLS port in addition to the plain port, and ``addresses`` contains
    the TLS ports.
    """

    def __init__(
        self, *arguments: str, replicas: bool = True, tls: CertificateFiles | None = None
    ) -> None:
        down_after = DOWN_AFTER if replicas else NEVER_DOWN
        self.nodes = [
            ClusterNode(*arguments, tls=tls, down_after=down_after)
            for _ in range(6 if replicas else 3)
        ]
        self._open = ExitStack()
        self._ids: dict[int, str] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(lambda: together(node.stop for node in self.nodes))
            together(node.start for node in self.nodes)
            self._form()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses of the nodes."""
        return [("127.0.0.1", node.service_port) for node in self.nodes]

    @property
    def url(self) -> str:
        """Return a URL with the address of the first node."""
        return f"redis-cluster://127.0.0.1:{self.nodes[0].service_port}"

    def client(self) -> redis.RedisCluster:
        """Return a client of the cluster."""
        make: Any = redis.cluster.ClusterNode
        startup = [make("127.0.0.1", node.port) for node in self.nodes]
        return redis.RedisCluster(
            startup_nodes=startup, decode_responses=True, require_full_coverage=False
        )

    @contextmanager
    def node_client(self, node: RedisServer) -> Iterator[Any]:
        """Return a client of one node."""
        with redis.Redis(
            host="127.0.0.1", port=node.port, decode_responses=True, socket_timeout=5
        ) as client:
            yield client

    def masters(self) -> list[ClusterNode]:
        """Return the nodes that report that they are masters."""
        return [node for node in self.nodes if self._role(node) == "master"]

    def is_ready(self) -> bool:
        """Return whether all nodes run and report a healthy cluster."""
        return all(self._info(node).get("cluster_state") == "ok" for node in self.nodes)

    def owner(self, key: str) -> ClusterNode:
        """Return the master of a key's slot, according to the running nodes."""
        slot = hash_slot(key)
        for node in self.nodes:
            with suppress(redis.RedisError), self.node_client(node) as client:
                for first, last, master, *_ in client.execute_command("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(one for one in self.nodes if one.port == master[1])
        raise AssertionError(f"no node owns the slot of {key}")

    def wait_promoted(self, key: str, old: ClusterNode, deadline: float = FORM_SECONDS) -> None:
        """Wait until all running nodes report a new master for a key's slot."""

        def promoted() -> bool:
            return self._agreed_owner(key) not in (None, old.port)

        wait_until(promoted, deadline, f"another master for {key}")

    def begin_move(self, key: str, target: ClusterNode) -> ClusterNode:
        """Mark the slot of a key as migrating to ``target``, and return its owner."""
        slot, source = hash_slot(key), self.owner(key)
        with self.node_client(source) as origin, self.node_client(target) as goal:
            goal.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[source.port])
            origin.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[target.port])
        return source

    def move_keys(self, key: str, target: ClusterNode, count: int = 10) -> int:
        """Move up to ``count`` keys of a migrating slot, and return how many were moved."""
        with self.node_client(self.owner(key)) as origin:
            keys = origin.execute_command("CLUSTER", "GETKEYSINSLOT", hash_slot(key), count)
        if keys:
            self.move_these(keys, target)
        return len(keys)

    def move_these(self, keys: Sequence[str], target: ClusterNode) -> None:
        """Move the given keys of a migrating slot."""
        command = ("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS", *keys)
        with self.node_client(self.owner(keys[0])) as origin:
            origin.execute_command(*command)

    def end_move(self, key: str, target: ClusterNode) -> None:
        """Assign the slot of a key to ``target`` after its keys were moved."""
        slot, command = hash_slot(key), ("CLUSTER", "SETSLOT")
        source = self.owner(key)
        for node in (target, source, *self.masters()):
            with self.node_client(node) as client:
                client.execute_command(*command, slot, "NODE", self._ids[target.port])
        wait_until(lambda: self._agreed_owner(key) == target.port, FORM_SECONDS, "a moved slot")

    def move(self, key: str, target: ClusterNode) -> None:
        """Move the slot of a key with all its keys, a few at a time, while beats use it."""
        self.begin_move(key, target)
        while self.move_keys(key, target):
            pass
        self.end_move(key, target)

    # -- forming -------------------------------------------------------------------------------

    def _form(self) -> None:
        share = SLOTS // 3
        for number, node in enumerate(self.nodes):
            with self.node_client(node) as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                self._ids[node.port] = str(client.execute_command("CLUSTER", "MYID"))
                if number < 3:
                    last = SLOTS if number == 2 else (number + 1) * share
                    client.execute_command("CLUSTER", "ADDSLOTS", *range(number * share, last))
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].service_port)
        wait_until(self._all_met, FORM_SECONDS, "nodes that know each other")
        for master, replica in zip(self.nodes[:3], self.nodes[3:], strict=False):
            with self.node_client(replica) as client:
                client.execute_command("CLUSTER", "REPLICATE", self._ids[master.port])
        wait_until(lambda: all(map(self._is_ready, self.nodes)), FORM_SECONDS, "a cluster")

    def _all_met(self) -> bool:
        return all(
            self._info(node).get("cluster_known_nodes") == str(len(self.nodes))
            and self._info(node).get("cluster_state") == "ok"
            for node in self.nodes
        )

    def _is_ready(self, node: ClusterNode) -> bool:
        if self._info(node).get("cluster_state") != "ok":
            return False
        with self.node_client(node) as client:
            replicas = sum(len(row) - 3 for row in client.execute_command("CLUSTER", "SLOTS"))
            follows = self.nodes.index(node) < 3 or _link_is_up(client)
        return follows and replicas == len(self.nodes) - 3

    def _info(self, node: ClusterNode) -> dict[str, Any]:
        with self.node_client(node) as client, suppress(redis.RedisError):
            info: dict[str, Any] = client.execute_command("CLUSTER INFO")
            return info
        return {}

    def _role(self, node: RedisServer) -> str:
        with suppress(redis.RedisError), self.node_client(node) as client:
            return str(client.info("replication")["role"])
        return ""

    def _agreed_owner(self, key: str) -> int | None:
        """Return the port of the slot's owner, or None if the running nodes do not agree."""
        slot, owners = hash_slot(key), set()
        for node in self.nodes:
            with suppress(redis.RedisError), self.node_client(node) as client:
                rows = client.execute_command("CLUSTER", "SLOTS")
                owners |= {row[2][1] for row in rows if row[0] <= slot <= row[1]}
        return owners.pop() if len(owners) == 1 else None
