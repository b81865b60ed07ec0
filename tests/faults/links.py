"""One connection through the proxy, and the weather that all its connections share."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from dataclasses import dataclass, field

__all__ = ("Link", "Weather", "abort")

CHUNK = 256 * 1024
#: SO_LINGER on, zero seconds: closing sends RST, and what was not sent yet is dropped.
RESET = struct.pack("ii", 1, 0)


class CutError(ConnectionError):
    """The link was chosen to be reset."""


@dataclass
class Weather:
    """What happens to bytes; changed by the proxy, read by its links, in one event loop."""

    random: random.Random
    #: Seconds that a chunk is under way, in each direction.
    mean: float = 0.0
    jitter: float = 0.0
    #: The chance that a chunk to the server resets its connection.
    reset_rate: float = 0.0
    #: How many replies are still to be swallowed, and to which requests.
    swallows: int = 0
    #: How many connections were reset by chance or for a reply, so far.
    struck: int = 0
    matching: bytes = b""
    refusing: bool = False
    swallowing_all: bool = False
    #: Cleared while bytes are held back.
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def travel(self) -> float:
        """Return the seconds that the next chunk is under way."""
        if not self.mean and not self.jitter:
            return 0.0
        return max(0.0, self.random.uniform(self.mean - self.jitter, self.mean + self.jitter))

    def strikes(self) -> bool:
        """Whether the next chunk resets its connection."""
        return self.reset_rate > 0 and self.random.random() < self.reset_rate

    def takes_reply(self, request: bytes) -> bool:
        """Whether the reply to a request is to be swallowed; that uses up one."""
        if not self.swallows or self.matching not in request:
            return False
        self.swallows -= 1
        return True


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset a connection: RST, not FIN."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


class Direction:
    """Bytes of a link on their way from one side to the other, in order."""

    def __init__(self, link: Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter):
        self._link = link
        self._source = source
        self._sink = sink
        self._under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read(self) -> None:
        """Take chunks from the source; b'' is its end."""
        clock, data, arrival = asyncio.get_running_loop().time, b"-", 0.0
        while data:
            data = await self._source.read(CHUNK)
            arrival = max(arrival, clock() + self._link.weather.travel())
            self._under_way.put_nowait((arrival, data))

    async def write(self) -> None:
        """Deliver chunks when their time has come; a dead link delivers nothing, for ever."""
        clock, weather = asyncio.get_running_loop().time, self._link.weather
        while True:
            arrival, data = await self._under_way.get()
            await asyncio.sleep(max(0.0, arrival - clock()))
            await weather.flowing.wait()
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
    """From the client to the server: this is where faults strike."""

    async def _deliver(self, data: bytes) -> None:
        weather = self._link.weather
        struck = weather.strikes()
        if struck and weather.random.random() < 0.5:
            raise CutError
        self._link.reply_is_lost |= weather.takes_reply(data)
        await super()._deliver(data)
        if struck:
            # The server has it: its answer, or a FIN of ours, comes after what was delivered.
            raise CutError


class Replies(Direction):
    """From the server to the client."""

    async def _deliver(self, data: bytes) -> None:
        if self._link.reply_is_lost:
            raise CutError
        await super()._deliver(data)


class Link:
    """One connection of a client, with its connection to the server."""

    def __init__(
        self, weather: Weather, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.weather = weather
        #: Whether everything is swallowed, for as long as the link lasts.
        self.dead = weather.swallowing_all
        #: Whether the next reply is thrown away, and the connection with it.
        self.reply_is_lost = False
        self._reader = reader
        self._writers = [writer]

    async def run(self, port: int) -> None:
        """Carry bytes until both sides have ended or the link is reset."""
        try:
            if self.dead:
                while await self._reader.read(CHUNK):
                    pass
            else:
                await self._carry(port)
        except CutError:
            self.weather.struck += 1
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
        """End both connections by RST."""
        for writer in self._writers:
            abort(writer)
