"""The network between the processes of a simulation and its servers.

redis-py and kombu write to sockets of this module. Each socket has a real connection to the real
server, and passes the bytes on at the virtual time of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import redis.connection

from redbeat.storage.scripts import Script, load_script
from tests.simulation.clocks import SECOND
from tests.simulation.engine import Engine, commands_in
from tests.simulation.world import Fault, Process, World


class Service:
    """A server in the network, with its faults."""

    def __init__(self, world: World, engine: Engine) -> None:
        self.world, self.engine = world, engine
        self.down = False
        #: The error reply to every command; empty if commands are executed.
        self.answer = b""
        self.stalled_until = 0
        #: Microseconds from the arrival of a request to its execution.
        self.delay = 0
        self.sockets: list[SimulatedSocket] = []
        self.channels: dict[bytes, list[SimulatedSocket]] = {}
        #: Called after each write that may have added messages.
        self.on_push: Callable[[str], None] = lambda _sender: None
        #: Called with the name of a process and the bytes of a reply to it.
        self.on_reply: Callable[[str, bytes], None] = lambda _reader, _reply: None

    def break_connections(self) -> None:
        """Reset all connections."""
        for sock in [*self.sockets]:
            sock.broken()

    def demote(self) -> None:
        """Turn the server into a replica while connections stay open, as a failover does."""
        for sock in self.sockets:
            sock.demoted = True

    def stop(self) -> None:
        """Shut down the server: connections break and new connections are refused."""
        self.down = True
        self.break_connections()

    def execute(self, sock: SimulatedSocket, commands: list[list[bytes]]) -> bytes:
        """Run commands from a connection now, and return the bytes of the replies."""
        if self.answer:
            return self.answer * len(commands)
        if sock.demoted and any(words[0].upper() in WRITES for words in commands):
            return READONLY * len(commands)
        engine = self.engine
        engine.now = engine.host.wall(self.world.now)
        others, replies = [], []
        for words in commands:
            local = self._subscription(sock, words)
            if local is None:
                others.append(words)
                continue
            if others:
                replies.append(engine.run(sock.real, others))
                others = []
            replies.append(local)
        if others:
            replies.append(engine.run(sock.real, others))
        self._publish(commands)
        if any(words[0].upper() in PUSHES for words in commands):
            self.on_push(sock.process.name)
        reply = b"".join(replies)
        self.on_reply(sock.process.name, reply)
        return reply

    def _subscription(self, sock: SimulatedSocket, words: list[bytes]) -> bytes | None:
        """Return the reply to a subscription command, or None for other commands."""
        name = words[0].upper()
        if name == b"SUBSCRIBE":
            for channel in words[1:]:
                self.channels.setdefault(channel, []).append(sock)
            sock.subscribed = True
            return b"".join(
                sock.push(b"subscribe", channel, number + 1)
                for number, channel in enumerate(words[1:])
            )
        if name == b"UNSUBSCRIBE":
            self.leave(sock)
            sock.subscribed = False
            return sock.push(b"unsubscribe", b"", 0)
        if name == b"PING" and sock.subscribed and not sock.resp3:
            return b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
        return None

    def leave(self, sock: SimulatedSocket) -> None:
        """Remove the subscriptions of a connection."""
        for listeners in self.channels.values():
            if sock in listeners:
                listeners.remove(sock)

    def _publish(self, commands: list[list[bytes]]) -> None:
        if not self.channels or not any(may_publish(words) for words in commands):
            return
        for channel, message in self.engine.published():
            for sock in self.channels.get(channel, []):
                sock.receive(sock.push(b"message", channel, message))


PUSHES = frozenset((b"LPUSH", b"RPUSH", b"EVAL", b"EVALSHA", b"EXEC"))
WRITES = PUSHES | {b"SET", b"HSET", b"SADD", b"ZADD", b"DEL"}
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
SCRIPTED = frozenset((b"EVAL", b"EVALSHA"))

#: The scripts, by hash and by source.
SCRIPTS: dict[bytes, Script] = {
    word.encode(): script
    for path in files("redbeat").joinpath("lua").iterdir()
    if path.name.endswith(".lua")
    for script in [load_script(path.name.removesuffix(".lua"))]
    for word in (script.sha, script.text)
}


def may_publish(words: list[bytes]) -> bool:
    """Return whether a command can publish something."""
    name = words[0].upper()
    if name in SCRIPTED:
        return words[1] not in SCRIPTS or "PUBLISH" in SCRIPTS[words[1]].text
    return name == b"PUBLISH"


class SimulatedSocket:
    """A process's socket, connected to a service."""

    def __init__(self, process: Process, service: Service, number: int) -> None:
        self.process, self.service, self.number = process, service, number
        self.world = process.world
        self.real = service.engine.connect()
        self.timeout: float | None = None
        self.resp3 = self.subscribed = False
        self.closed = self.demoted = False
        self._error: type[Exception] | None = None
        self._written = b""
        self._inbox = b""
        self._waiting = False
        self._sent = self._under_way = 0
        self._free_at = [0, 0]
        process.sockets.append(self)
        service.sockets.append(self)

    # -- what redis-py calls ---------------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        self.timeout = seconds

    def gettimeout(self) -> float | None:
        return self.timeout

    def setblocking(self, blocking: bool) -> None:
        self.timeout = None if blocking else 0.0

    def setsockopt(self, *_args: Any) -> None:
        """Do nothing: a simulated socket has no options."""

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 6379)

    def fileno(self) -> int:
        return self.real.fileno()

    def shutdown(self, _how: int) -> None:
        """Do nothing: closing the socket is enough."""

    def sendall(self, data: bytes) -> None:
        self._check()
        self._written += bytes(data)
        commands, end = [], 0
        for end, words in commands_in(self._written):  # noqa: B007 - the last one is used
            commands.append(words)
        if not commands:
            return
        self._written = self._written[end:]
        fault = self.process.step("request " + described(commands[-1]))
        self._check()
        self._send(commands, fault)

    send = sendall

    def _send(self, commands: list[list[bytes]], fault: Fault | None) -> None:
        kind, extra = "", 0
        if fault is not None:
            kind, extra = fault.kind, int(fault.seconds * SECOND)
        if kind == "reset before":
            self.broken()
            return
        if kind == "request lost":
            return
        self._under_way += 1
        delay = extra if kind == "request delayed" else 0
        self._later(0, delay + self.service.delay, self._deliver, commands, kind, extra)
        if kind == "request reset":
            # The bytes still arrive, but the connection breaks before the reply.
            self._fail(ConnectionResetError)

    def _later(self, way: int, extra: int, action: Callable[..., Any], *args: Any) -> None:
        """Run ``action`` after a message has travelled one way, behind all earlier messages."""
        self._sent += 1
        when = self.world.now + self.world.latency(self.number, self._sent) + extra
        self._free_at[way] = when = max(when, self._free_at[way])
        self.world.at(when, action, *args, owner=self.process, thaw=False)

    def _deliver(self, commands: list[list[bytes]], kind: str, extra: int) -> None:
        service = self.service
        if service.down or self._error is ConnectionAbortedError:
            self._arrived()
            return
        if service.stalled_until > self.world.now:
            self.world.at(service.stalled_until, self._deliver, commands, kind, extra)
            return
        if commands[0][0].upper() == b"HELLO":
            self.resp3 = commands[0][1:2] == [b"3"]
        reply = service.execute(self, commands)
        self._arrived()
        if kind not in {"reply lost", "request reset"} and not self.closed:
            delay = extra if kind == "reply delayed" else 0
            self._later(1, delay, self.receive, reply, self.process.go_on)

    def _arrived(self) -> None:
        self._under_way -= 1
        if self.closed and not self._under_way:
            self.real.close()

    def receive(self, data: bytes, resume: Callable[[], None] | None = None) -> None:
        """Receive bytes from the server; ``resume`` continues the waiting process."""
        if self.closed:
            return
        self._inbox += data
        if self._waiting:
            (resume or self.process.wake)()

    def push(self, kind: bytes, channel: bytes, content: bytes | int) -> bytes:
        """Return a subscription message in the Redis wire format."""
        text = (
            b":%d\r\n" % content
            if isinstance(content, int)
            else b"$%d\r\n%s\r\n" % (len(content), content)
        )
        sign = b">" if self.resp3 else b"*"
        head = b"%s3\r\n$%d\r\n%s\r\n" % (sign, len(kind), kind)
        return head + b"$%d\r\n%s\r\n" % (len(channel), channel) + text

    def recv(self, size: int, _flags: int = 0) -> bytes:
        if not self._inbox:
            self._wait()
        data, self._inbox = self._inbox[:size], self._inbox[size:]
        return data

    def recv_into(self, buffer: Any, size: int = 0) -> int:
        data = self.recv(size or len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _wait(self) -> None:
        self._check()
        if self.timeout == 0:
            raise BlockingIOError(11, "nothing to read")
        self.process.step("wait")
        until = None
        if self.timeout is not None:
            until = self.world.now + self.process.host.lasting(self.timeout)
        while not self._inbox and self._error is None:
            if until is not None and self.world.now >= until:
                if self.subscribed:
                    self.process.idled()
                raise TimeoutError("timed out")
            self._waiting = True
            self.process.wait_until(until)
            self._waiting = False
        if not self._inbox:
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error("the connection is broken")

    # -- what the network does -------------------------------------------------------------------

    def broken(self) -> None:
        """Break the connection; bytes in transit are lost."""
        self._fail(ConnectionAbortedError)

    def _fail(self, error: type[Exception]) -> None:
        if self._error is None:
            self._error = error
        if self._waiting:
            self.process.wake()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.service.leave(self)
        self.service.sockets.remove(self)
        if self in self.process.sockets:
            self.process.sockets.remove(self)
        if not self._under_way or self.world.over:
            self.real.close()


def described(words: list[bytes]) -> str:
    """Return a short, readable description of a command."""
    name = words[0].upper()
    text = name.decode("latin-1")
    if name in SCRIPTED:
        return SCRIPTS[words[1]].name if words[1] in SCRIPTS else text
    return f"{text} {words[1].decode('latin-1')[:40]}" if len(words) > 1 else text


class Network:
    """Connects processes to services by host name."""

    def __init__(self, world: World, services: dict[str, Service]) -> None:
        self.world, self.services = world, services
        self._made = 0

    def connect(self, host: str, timeout: float | None) -> SimulatedSocket:
        """Connect the running process to a host; this takes one round trip."""
        process, service = self.world.current, self.services[host]
        if process is None:
            raise RuntimeError(f"nobody runs that could connect to {host}")
        process.step(f"connect to {host}")
        self._made += 1
        process.wait_until(self.world.now + 2 * self.world.latency(self._made, 0))
        if service.down:
            raise ConnectionRefusedError(111, "Connection refused")
        sock = SimulatedSocket(process, service, self._made)
        sock.settimeout(timeout)
        return sock

    def install(self) -> None:
        """Make redis-py and kombu, which uses redis-py, connect through this network."""
        network = self

        def connect(connection: Any) -> SimulatedSocket:
            return network.connect(connection.host, connection.socket_timeout)

        setattr(redis.connection.Connection, "_connect", connect)  # noqa: B010 - as redis-py calls it
