"""A real Redis server that uses the virtual clock of the simulation.

Each script gets a prelude. The prelude answers ``TIME`` with the virtual time, applies this time to
expiry, and deletes those KEYS of the script that have expired. A key that expires at a virtual time
has a real TTL that ends :data:`FAR` later. Thus the server itself forgets the expiry when the key
is deleted or replaced. Commands that depend on expiry are sent as a script.

:mod:`tests.simulation.shim` contains a server with a virtual clock.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis

from tests.servers import RedisServer
from tests.simulation.clocks import Host

#: Milliseconds from a key's virtual expiry to its real expiry in the server.
FAR: Final = 4_000_000_000_000

#: Code before each script; the last argument of the script is the virtual time in microseconds. A
#: script does not see the real time of ``os.clock``.
PRELUDE: Final = r"""
local os = nil
local real_redis = redis
local redis = (function(raw, now)
  local now_ms = math.floor(tonumber(now) / 1000)
  local far = %d
  local function real_ms()
    local clock = raw.call('TIME')
    return tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
  end
  local function expires(key)
    local at = raw.pcall('PEXPIRETIME', key)
    if type(at) == 'number' then
      return at < 0 and at or at - far
    end
    local before, left
    repeat
      before = real_ms()
      left = raw.call('PTTL', key)
    until left < 0 or before == real_ms()
    return left < 0 and left or before + left - far
  end
  for _, key in ipairs(KEYS) do
    local at = expires(key)
    if at >= 0 and at < now_ms then
      raw.pcall('DEL', key)
    end
  end
  local function left(key)
    local at = expires(key)
    return at < 0 and at or at - now_ms
  end
  local function instant(amount, scale, base)
    local at = base + tonumber(amount) * scale
    return string.format('%%.0f', at > now_ms and at + far or 1)
  end
  local function is_whole(amount)
    return string.find(amount or '', '^-?%%d+$') ~= nil
  end
  local function expire(name, scale, base)
    return function(call, key, amount, ...)
      if not is_whole(amount) then
        return call(name, key, amount, ...)
      end
      return call('PEXPIREAT', key, instant(amount, scale, base), ...)
    end
  end
  local lifetimes = {PX = {1, now_ms}, EX = {1000, now_ms}, PXAT = {1, 0}, EXAT = {1000, 0}}
  local special = {
    TIME = function()
      return {string.sub(now, 1, -7), string.format('%%d', tonumber(string.sub(now, -6)))}
    end,
    PEXPIRE = expire('PEXPIRE', 1, now_ms),
    EXPIRE = expire('EXPIRE', 1000, now_ms),
    PEXPIREAT = expire('PEXPIREAT', 1, 0),
    EXPIREAT = expire('EXPIREAT', 1000, 0),
    PEXPIRETIME = function(call, key)
      return expires(key)
    end,
    PTTL = function(call, key)
      return left(key)
    end,
    TTL = function(call, key)
      local ms = left(key)
      return ms < 0 and ms or math.floor((ms + 500) / 1000)
    end,
    SET = function(call, key, value, ...)
      local words = {...}
      for i = 1, #words - 1 do
        local unit, amount = lifetimes[string.upper(words[i])], words[i + 1]
        if unit and is_whole(amount) and tonumber(amount) > 0 then
          words[i], words[i + 1] = 'PXAT', instant(amount, unit[1], unit[2])
          break
        end
      end
      return call('SET', key, value, unpack(words))
    end,
  }
  for _, name in ipairs({'EXPIRETIME', 'GETEX', 'PSETEX', 'SETEX'}) do
    special[name] = function()
      error('the simulator does not emulate ' .. name)
    end
  end
  local function wrapped(call)
    return function(name, ...)
      local other = special[string.upper(name)]
      if other then
        return other(call, ...)
      end
      return call(name, ...)
    end
  end
  return setmetatable({call = wrapped(raw.call), pcall = wrapped(raw.pcall)}, {__index = raw})
end)(redis, table.remove(ARGV));
"""

#: Commands that the prelude answers itself, or whose reply it changes.
SPECIAL: Final = (
    *("TIME", "SET", "PTTL", "TTL", "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PEXPIRETIME"),
    *("EXPIRETIME", "GETEX", "PSETEX", "SETEX"),
)
#: All other commands bypass the prelude, so that their errors report the right line of the script.
DIRECT: Final = re.compile(
    rb"\bredis\.(p?call)\((?='\w+')(?!'(?i:%s)')" % "|".join(SPECIAL).encode()
)

#: Runs a command that depends on expiry as a script; Redis 6.2 prefixes some errors with a
#: location.
ANY_COMMAND: Final = b"""
local reply = redis.pcall(unpack(ARGV))
if type(reply) == 'table' and reply.err then
  reply.err = string.gsub(reply.err, '^@user_script: %d+: %-', '')
end
return reply
"""
LOOKS_AT_EXPIRY: Final = frozenset(
    name.encode() for name in (*SPECIAL, "DEL", "EXISTS", "GET", "MGET", "TYPE")
)
#: The commands of which all arguments are keys.
OF_KEYS: Final = frozenset((b"DEL", b"EXISTS", b"MGET"))
MARK: Final = b"end of the replies of this message"
MARK_REPLY: Final = b"$%d\r\n%s\r\n" % (len(MARK), MARK)


def packed(*words: bytes | str | int) -> bytes:
    """Return a command in the Redis wire format."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    head = b"*%d\r\n" % len(parts)
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


MARK_COMMAND: Final = packed("ECHO", MARK)


def commands_in(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each complete command in ``data``, with the offset of its end."""
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
    """A server in a simulation; a context manager that starts and stops the server.

    ``now`` is the clock of the server, in microseconds; set it before you run commands.
    """

    #: Milliseconds that the server adds to each instant of expiry.
    far = FAR

    def __init__(self, name: str = "redis") -> None:
        self.name = name
        self.host = Host(name)
        self.now = 0
        self._is_full = self._is_replica = False
        self._server = self._new_server("--unixsocket", "redis.sock", "--appendonly", "no")
        self._prelude = _one_line(PRELUDE % FAR).encode() + b" "
        #: Maps the hash of a script to the hash of the script with the prelude.
        self._shas: dict[bytes, bytes] = {}

    def _new_server(self, *arguments: str) -> RedisServer:
        return RedisServer(*arguments)

    def __enter__(self) -> Engine:
        self._server.start()
        self.client = self._database(0)
        #: A client of the database that stores the messages.
        self.messages = self._database(1)
        self._heard = self.connect()
        self._heard.sendall(packed("PSUBSCRIBE", "*"))
        self._heard.recv(1 << 16)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._heard.close()
        self.client.close()
        self.messages.close()
        self._server.stop()

    @property
    def path(self) -> Path:
        """Return the path of the server's socket."""
        return self._server.directory / "redis.sock"

    def connect(self) -> socket.socket:
        """Return a new real connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(str(self.path))
        return connection

    def reset(self) -> None:
        """Delete all data and cached scripts, and end all faults of the server."""
        self.host = Host(self.name)
        self.fill_memory(False)
        self.make_replica(False)
        self.client.flushall()
        self.forget_scripts()

    # -- commands ------------------------------------------------------------------------------

    def translated(self, words: list[bytes]) -> list[bytes]:
        """Return a command in the form that the real server needs."""
        name = words[0].upper()
        if name == b"EVALSHA":
            known = self._shas.get(words[1].lower())
            return [words[0], known, *words[2:], b"%d" % self.now] if known else words
        if name == b"EVAL":
            return [words[0], self._changed(words[1]), *words[2:], b"%d" % self.now]
        if name == b"SCRIPT":
            return self._about_scripts(words)
        if name in LOOKS_AT_EXPIRY:
            keys = words[1:] if name in OF_KEYS else words[1:2]
            return self.translated([b"EVAL", ANY_COMMAND, b"%d" % len(keys), *keys, *words])
        return words

    def _about_scripts(self, words: list[bytes]) -> list[bytes]:
        what = words[1].upper()
        if what == b"LOAD":
            return [*words[:2], self._changed(words[2])]
        if what == b"EXISTS":
            return [*words[:2], *(self._shas.get(sha.lower(), sha) for sha in words[2:])]
        return words

    def _changed(self, text: bytes) -> bytes:
        """Return a script with the prelude, and remember its hash."""
        changed = self._prelude + DIRECT.sub(rb"real_redis.\1(", text)
        sha, new = (
            hashlib.sha1(one, usedforsecurity=False).hexdigest().encode() for one in (text, changed)
        )
        # The reply to SCRIPT LOAD contains the new hash, so clients may use it too.
        self._shas[sha] = self._shas[new] = new
        return changed

    def run(self, connection: socket.socket, commands: list[list[bytes]]) -> bytes:
        """Run commands on a real connection, and return the bytes of their replies.

        Raise ``ConnectionError`` if the server closes the connection.
        """
        if self._is_full or self._is_replica:
            self._forget_expired()
        connection.sendall(
            b"".join(packed(*self.translated(words)) for words in commands) + MARK_COMMAND
        )
        reply = connection.recv(1 << 16)
        while not reply.endswith(MARK_REPLY):
            more = connection.recv(1 << 16)
            if not more:
                raise ConnectionError("the server closed the connection")
            reply += more
        return reply[: -len(MARK_REPLY)]

    def _forget_expired(self) -> None:
        """Delete all expired keys before a command runs.

        Otherwise the script of the command would delete them: a replica refuses this deletion, and
        a full server allows writes after it.
        """
        keys = self.client.keys("*")
        if keys:
            self.client.config_set("replica-read-only", "no")
            self.client.execute_command(*self.translated([b"EXISTS", *keys]))
            self.client.config_set("replica-read-only", "yes")

    def published(self) -> list[tuple[bytes, bytes]]:
        """Return the messages published since the last call, as pairs of channel and message."""
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
        """Return all data as tuples: database, key, dumped value, and expiry or -1.

        The expiry is virtual, in milliseconds since 1970.
        """
        stored = []
        for database in sorted(int(name[2:]) for name in self.client.info("keyspace")):
            client = self._database(database)
            for key in sorted(client.keys("*")):
                left = int(client.execute_command(*self.translated([b"PTTL", key])))
                if (value := client.dump(key)) is not None:
                    expires = -1 if left < 0 else self.now // 1000 + left
                    stored.append((database, key, value, expires))
            client.close()
        return stored

    def restore(self, stored: list[tuple[int, bytes, bytes, int]]) -> None:
        """Replace all data with a result of :meth:`snapshot`."""
        self.client.flushall()
        for database, key, value, expires in stored:
            client = self._database(database)
            at = expires + self.far if expires >= 0 else 0
            client.restore(key, at, value, absttl=expires >= 0)
            client.close()

    def fill_memory(self, full: bool) -> None:
        """Make the server refuse commands that need memory, or accept them again."""
        self._is_full = full
        self.client.config_set("maxmemory", 1 if full else 0)

    def make_replica(self, replica: bool) -> None:
        """Make the server refuse writes like a replica, or accept writes again."""
        self._is_replica = replica
        if replica:
            self.client.replicaof("127.0.0.1", 1)
        else:
            self.client.replicaof("NO", "ONE")

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Let the simulation change the data of a server that refuses writes."""
        full, replica = self._is_full, self._is_replica
        if full:
            self.fill_memory(False)
        if replica:
            self.make_replica(False)
        yield
        if full:
            self.fill_memory(True)
        if replica:
            self.make_replica(True)

    def forget_scripts(self) -> None:
        """Delete all cached scripts, as a restart does."""
        self.client.script_flush()

    def _database(self, number: int) -> Any:
        return redis.Redis(unix_socket_path=str(self.path), db=number)
