"""A real Redis server whose clock is that of the simulation.

Scripts get a prelude that answers ``TIME`` with the virtual time and keeps expiry by it: a key that
expires at a virtual time has a real time to live that ends :data:`FAR` later, so that the server
itself forgets it when the key is deleted or replaced, and the prelude deletes the keys of a script
that have expired. Commands that look at expiry are sent as a script.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import redis

from tests.servers import RedisServer
from tests.simulation.clocks import Host

__all__ = ("Engine", "commands_in", "packed")

#: Milliseconds between a virtual instant of expiry and the real one of the same key.
FAR: Final = 4_000_000_000_000

PRELUDE: Final = r"""
local redis = (function(raw, now)
  local now_ms = math.floor(tonumber(now) / 1000)
  local far = %d
  local real_call, real_pcall = raw.call, raw.pcall
  local function expires(key)
    local at = real_pcall('PEXPIRETIME', key)
    if type(at) ~= 'number' then
      at = real_pcall('PTTL', key)
      local clock = real_call('TIME')
      if at >= 0 then
        at = at + tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
      end
    end
    return at
  end
  local function forget(key)
    local at = expires(key)
    if at >= 0 and at - far <= now_ms then
      real_call('DEL', key)
    end
  end
  for _, key in ipairs(KEYS) do
    forget(key)
  end
  local function expire(call, key, ms)
    return call('PEXPIREAT', key, string.format('%%.0f', now_ms + tonumber(ms) + far))
  end
  local special = {
    TIME = function()
      return {string.sub(now, 1, -7), string.format('%%d', tonumber(string.sub(now, -6)))}
    end,
    PEXPIRE = expire,
    EXPIRE = function(call, key, seconds)
      return expire(call, key, tonumber(seconds) * 1000)
    end,
    PTTL = function(call, key)
      local at = expires(key)
      return at < 0 and at or at - far - now_ms
    end,
    TTL = function(call, key)
      local at = expires(key)
      return at < 0 and at or math.floor((at - far - now_ms + 500) / 1000)
    end,
    SET = function(call, key, value, ...)
      local rest, ms, words = {}, nil, {...}
      local i = 1
      while i <= #words do
        local word = string.upper(words[i])
        if word == 'PX' or word == 'EX' then
          ms = tonumber(words[i + 1]) * (word == 'EX' and 1000 or 1)
          i = i + 1
        else
          rest[#rest + 1] = words[i]
        end
        i = i + 1
      end
      local reply = call('SET', key, value, unpack(rest))
      if ms and type(reply) == 'table' and reply.ok then
        expire(call, key, ms)
      end
      return reply
    end,
  }
  local function wrapped(call)
    return function(name, ...)
      local other = special[string.upper(name)]
      if other then
        return other(call, ...)
      end
      return call(name, ...)
    end
  end
  local replaced = {call = wrapped(real_call), pcall = wrapped(real_pcall)}
  return setmetatable(replaced, {__index = raw})
end)(redis, table.remove(ARGV));
"""

#: Any command that looks at expiry, as a script.
ANY_COMMAND: Final = "return redis.call(unpack(ARGV))"
LOOKS_AT_EXPIRY: Final = frozenset(
    (b"TIME", b"GET", b"SET", b"EXISTS", b"TYPE", b"PTTL", b"TTL", b"EXPIRE", b"PEXPIRE")
)
MARK: Final = b"end of the replies of this message"
MARK_REPLY: Final = b"$%d\r\n%s\r\n" % (len(MARK), MARK)


def packed(*words: bytes | str | int) -> bytes:
    """Return a command as it goes over the wire."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    head = b"*%d\r\n" % len(parts)
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


MARK_COMMAND: Final = packed("ECHO", MARK)


def commands_in(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each whole command in ``data``, with the place where it ends."""
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        if end < 0:
            return
        words, place = [], end + 2
        for _ in range(int(data[at + 1 : end])):
            end = data.find(b"\r\n", place)
            if end < 0:
                return
            first = end + 2
            place = first + int(data[place + 1 : end]) + 2
            words.append(data[first : place - 2])
        if place > len(data):
            return
        at = place
        yield at, words


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines())


class Engine:
    """A server of a simulation; a context manager that starts and stops it.

    ``now`` is its clock, microseconds; whoever runs commands sets it first.
    """

    def __init__(self, name: str = "redis") -> None:
        self.name = name
        self.host = Host(name)
        self.now = 0
        self._server = RedisServer("--unixsocket", "redis.sock", "--appendonly", "no")
        self._prelude = _one_line(PRELUDE % FAR) + " "
        self._shas: dict[bytes, bytes] = {}
        self.any_command = self._sha_of(ANY_COMMAND.encode())

    def __enter__(self) -> Engine:
        self._server.start()
        self.client = self._database(0)
        #: The database of the messages.
        self.messages = self._database(1)
        self._heard = self.connect()
        self._heard.sendall(packed("PSUBSCRIBE", "*"))
        self._heard.recv(1 << 16)
        self.load()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()
        self.messages.close()
        self._server.stop()

    @property
    def path(self) -> Path:
        """The socket of the server."""
        return self._server.directory / "redis.sock"

    def connect(self) -> socket.socket:
        """Return a new real connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(str(self.path))
        return connection

    def load(self) -> None:
        """Have the server know the script that the simulator needs."""
        self.client.script_load((self._prelude + ANY_COMMAND).encode())

    def reset(self) -> None:
        """Empty the server and forget its faults."""
        self.host = Host(self.name)
        self.fill_memory(False)
        self.make_replica(False)
        self.client.flushall()

    def _sha_of(self, text: bytes) -> bytes:
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        changed = self._prelude.encode() + text
        self._shas[sha] = hashlib.sha1(changed, usedforsecurity=False).hexdigest().encode()
        return self._shas[sha]

    # -- commands ------------------------------------------------------------------------------

    def translated(self, words: list[bytes]) -> bytes:
        """Return a command as the real server is to get it."""
        name = words[0].upper()
        if name == b"EVALSHA":
            known = self._shas.get(words[1])
            if known is not None:
                return packed(words[0], known, *words[2:], self.now)
        elif name == b"EVAL":
            self._sha_of(words[1])
            return packed(words[0], self._prelude.encode() + words[1], *words[2:], self.now)
        elif name in LOOKS_AT_EXPIRY:
            keys = words[1:2]
            return packed(b"EVALSHA", self.any_command, len(keys), *keys, *words, self.now)
        return packed(*words)

    def run(self, connection: socket.socket, commands: list[list[bytes]]) -> bytes:
        """Run commands on a real connection; return the bytes of their replies.

        Raises ``ConnectionError`` when the server closed it.
        """
        connection.sendall(b"".join(map(self.translated, commands)) + MARK_COMMAND)
        reply = connection.recv(1 << 16)
        while not reply.endswith(MARK_REPLY):
            more = connection.recv(1 << 16)
            if not more:
                raise ConnectionError("the server closed the connection")
            reply += more
        return reply[: -len(MARK_REPLY)]

    def published(self) -> list[tuple[bytes, bytes]]:
        """Return what was published since the last call: pairs of channel and message."""
        self._heard.sendall(packed("PING"))
        data = b""
        while not data.endswith(b"$4\r\npong\r\n$0\r\n\r\n"):
            data += self._heard.recv(1 << 16)
        return [
            (words[2], words[3])
            for _, words in commands_in(data)
            if len(words) == 4 and words[0] == b"pmessage"
        ]

    # -- faults --------------------------------------------------------------------------------

    def snapshot(self) -> list[tuple[int, bytes, bytes, int]]:
        """Return all that is stored: database, key, dumped value, instant of expiry or -1."""
        stored = []
        for database in sorted(int(name[2:]) for name in self.client.info("keyspace")):
            client = self._database(database)
            for key in sorted(client.keys("*")):
                remaining = int(client.pttl(key))
                expires = -1 if remaining < 0 else int(client.execute_command("PEXPIRETIME", key))
                stored.append((database, key, client.dump(key), expires))
            client.close()
        return stored

    def restore(self, stored: list[tuple[int, bytes, bytes, int]]) -> None:
        """Replace all that is stored by what :meth:`snapshot` returned."""
        self.client.flushall()
        for database, key, value, expires in stored:
            client = self._database(database)
            client.restore(key, max(expires, 0), value, absttl=expires >= 0)
            client.close()

    def fill_memory(self, full: bool) -> None:
        """Have the server refuse commands that need memory, or accept them again."""
        self.client.config_set("maxmemory", 1 if full else 0)

    def make_replica(self, replica: bool) -> None:
        """Have the server refuse writes as a replica does, or accept them again."""
        if replica:
            self.client.replicaof("127.0.0.1", 1)
        else:
            self.client.replicaof("NO", "ONE")

    def forget_scripts(self) -> None:
        """Empty the script cache, as a restart does."""
        self.client.script_flush()
        self.load()

    def _database(self, number: int) -> Any:
        return redis.Redis(unix_socket_path=str(self.path), db=number)
