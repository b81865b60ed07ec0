"""One connection through the proxy, and the network conditions shared by all connections."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ("Conditions", "Link", "abort")

CHUNK = 256 * 1024
#: SO_LINGER with zero seconds: closing sends RST and discards unsent bytes.
RESET = struct.pack("ii", 1, 0)


class CutError(ConnectionError):
    """Raised when the proxy must reset a link."""


@dataclass
class Conditions:
    """The current network conditions: the proxy sets them and the links read them.

    Proxy and links run in one event loop.
    """

    random: random.Random
    #: Mean delay of a chunk in seconds, in each direction.
    mean: float = 0.0
    jitter: float = 0.0
    #: The probability that a chunk to the server resets its connection.
    reset_rate: float = 0.0
    #: How many more replies the proxy must drop.
    swallows: int = 0
    #: How many connections the proxy has reset, at random or instead of a reply.
    struck: int = 0
    matching: bytes = b""
    #: Called once, before a request that contains these bytes reaches the server.
    before: tuple[Callable[[], object], bytes] | None = None
    refusing: bool = False
    swallowing_all: bool = False
    #: Cleared while the proxy delays all bytes.
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def travel(self) -> float:
        """Return the delay of the next chunk, in seconds."""
        if not self.mean and not self.jitter:
            return 0.0
        return max(0.0, self.random.uniform(self.mean - self.jitter, self.mean + self.jitter))

    def strikes(self) -> bool:
        """Return whether the next chunk resets its connection."""
        return self.reset_rate > 0 and self.random.random() < self.reset_rate

    def announce(self, request: bytes) -> None:
        """Call the function that waits for this request, if any."""
        if self.before is not None and self.before[1] in request:
            action, self.before = self.before[0], None
            action()

    def takes_reply(self, request: bytes) -> bool:
        """Return whether to drop the reply to this request; if so, decrease the count of drops."""
        if not self.swallows or self.matching not in request:
            return False
        self.swallows -= 1
        return True


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset a connection: send RST, not FIN."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


class Direction:
    """The bytes that pass a link in one direction, in order."""

    def __init__(self, link: Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter):
        self._link = link
        self._source = source
        self._sink = sink
        self._under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read(self) -> None:
        """Read chunks from the source; b'' marks the end of the stream."""
        clock, data, arrival = asyncio.get_running_loop().time, b"-", 0.0
        while data:
            data = await self._source.read(CHUNK)
            arrival = max(arrival, clock() + self._link.conditions.travel())
            self._under_way.put_nowait((arrival, data))

    async def write(self) -> None:
        """Deliver each chunk after its delay; a dead link delivers nothing."""
        clock, conditions = asyncio.get_running_loop().time, self._link.conditions
        while True:
            arrival, data = await self._under_way.get()
            await asyncio.sleep(max(0.0, arrival - clock()))
            await conditions.flowing.wait()
            if self._link.dead:
                continue
            if not data:
                self._sink.write_eof()
                return
            await self._deliver(data)

    async def _deliver(self, data: bytes) -> None:
        self._sink.write(data)
        await self._sink.drain()


class Requests(Direction):
    """Bytes from the client to the server; resets and lost replies start here."""

    async def _deliver(self, data: bytes) -> None:
        conditions = self._link.conditions
        struck = conditions.strikes()
        if struck and conditions.random.random() < 0.5:
            raise CutError
        conditions.announce(data)
        self._link.reply_is_lost |= conditions.takes_reply(data)
        await super()._deliver(data)
        if struck:
            # The server has the chunk. Its reply, or the proxy's FIN, comes after the delivered
            # bytes.
            raise CutError


class Replies(Direction):
    """Bytes from the server to the client."""

    async def _deliver(self, data: bytes) -> None:
        if self._link.reply_is_lost:
            raise CutError
        await super()._deliver(data)


class Link:
    """A connection from a client, with the matching connection to the server."""

    def __init__(
        self, conditions: Conditions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.conditions = conditions
        #: Whether the link drops all bytes until it is closed.
        self.dead = conditions.swallowing_all
        #: Whether to drop the next reply and reset the connection instead.
        self.reply_is_lost = False
        self._reader = reader
        self._writers = [writer]

    async def run(self, port: int) -> None:
        """Forward bytes until both ends close the connection or the link is reset."""
        try:
            if self.dead:
                while await self._reader.read(CHUNK):
                    pass
            else:
                await self._carry(port)
        except CutError:
            self.conditions.struck += 1
            self.reset()
        except OSError:
            self.reset()
        except asyncio.CancelledError:
            self.reset()
            raise
        finally:
            for writer in self._writers:
                writer.close()

    async def _carry(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        requests = Requests(self, self._reader, writer)
        replies = Replies(self, reader, self._writers[0])
        jobs = (requests.read(), requests.write(), replies.read(), replies.write())
        tasks = [asyncio.ensure_future(job) for job in jobs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def reset(self) -> None:
        """Reset both connections."""
        for writer in self._writers:
            abort(writer)
