"""The only module that issues Redis commands on schedule data; it speaks text and numbers.

Every change of state is one script of ``redbeat/lua``. Redis errors pass through unchanged, unless
they tell about one entry: a key that is not a hash is a :exc:`~redbeat.errors.DecodeError` when it
is loaded and an :exc:`~redbeat.errors.InvalidEntryError` when it is saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError

from .cluster import cluster_errors, node_of
from .errors import DecodeError, InvalidEntryError
from .failover import refusals
from .packing import pack
from .records import (
    NOT_A_HASH,
    Keys,
    StaticRow,
    Swept,
    Terms,
    Turn,
    key_of,
    pack_completions,
    read_turn,
    text_of,
)
from .replicas import Replicas
from .scripts import load_script, overlaps, runs_once

__all__ = ("BATCH", "MAX_WAIT", "Store", "batches")

#: Entries handled in one round trip.
BATCH = 500

#: Seconds a beat waits at most between two looks; what is due later needs no wake-up message.
MAX_WAIT = 5.0

#: Keys looked at in one page of a sweep.
SCAN_PAGE = 1000

#: What means something else in the pattern of a scan.
GLOB_SPECIAL = re.compile(r"[\\\[\]*?]")

#: Seconds until a member without a definition is looked at again.
MISSING_RETRY = 5


def score_text(score: float | None) -> str:
    """Return a score as sent to Redis: microseconds, ``now`` for None."""
    return "now" if score is None else f"{score:.6f}"


def batches(items: Iterable[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Split ``items`` into lists of at most ``size``."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class Store:
    """The schedule of one prefix in one Redis.

    ``wait_replicas`` is how many replicas a claim waits for when it recorded something.
    """

    def __init__(self, client: Any, keys: Keys, wait_replicas: int = 0) -> None:
        self.client = client
        self.keys = keys
        self._replicas = Replicas(wait_replicas)

    def _run(self, script: str, keys: Sequence[Any], args: Sequence[Any] = ()) -> Any:
        return load_script(script)(self.client, keys, args)

    def _read(self, *command: Any) -> Any:
        with cluster_errors(), refusals():
            return self.client.execute_command(*command, **{NEVER_DECODE: True})

    def _undeclared(self, *keys: str) -> list[str]:
        """Return the keys of a script that also uses keys of entries, which it does not name.

        The last one never exists. A cluster that moves the slot to another node, and has moved but
        some of its keys, runs no script of which one key is there and another is not.
        """
        return [*keys, self.keys.wakeup]

    # -- one turn of a beat ------------------------------------------------------------------

    def claim(self, *terms: Any, **more: Any) -> Turn:
        """Take a turn on the :class:`Terms` of these arguments. One round trip.

        Keeps the lock, records completions, claims what is due. The client does not try it again: a
        caller whose reply got lost has other things to say the next time.
        """
        asked = Terms(*terms, **more)
        if runs_once(self.client):
            return self._send_claim(asked)()
        return read_turn(self._run("claim", *self._claim_call(asked)))

    def begin_claim(self, terms: Terms) -> Callable[[], Turn]:
        """Do as :meth:`claim`, without waiting; the function returned waits for the answer.

        Where :attr:`overlaps` holds, other commands may be given meanwhile. One round trip.
        """
        return self._send_claim(terms)

    def _send_claim(self, terms: Terms) -> Callable[[], Turn]:
        keys, args = self._claim_call(terms)
        then = self._replicas.wait if terms.completions and self._replicas.wanted else None
        reply = load_script("claim").begin(self.client, keys, args, then)
        return lambda: read_turn(reply())

    @property
    def overlaps(self) -> bool:
        """Whether :meth:`begin_claim` works with this client. No round trip."""
        return overlaps(self.client, self.keys.schedule)

    def _claim_call(self, terms: Terms) -> tuple[list[str], tuple[Any, ...]]:
        own = self.keys
        keys = self._undeclared(own.schedule, own.statics, own.quarantine, own.beats)
        token, ttl, dead = terms.token, 0.0, ""
        if terms.lock is not None:
            lock_key, token, ttl, dead = terms.lock
            keys.append(lock_key)
        asked = (self.keys.prefix, terms.claim_id, terms.limit, terms.lease)
        lock = (token, int(ttl * 1000), dead)
        until = "" if terms.expires is None else f"{terms.expires:.6f}"
        done = pack_completions(terms.completions)
        return keys, (*asked, *lock, MISSING_RETRY, *done, until, int(terms.reply_lost))

    def park(self, notes: Iterable[tuple[str, str, str]]) -> list[str]:
        """Quarantine entries: (key, claim id or "" when it is no hash, JSON note).

        Returns the keys that were parked. One round trip per 500.
        """
        parked: list[str] = []
        for batch in batches(notes):
            args = [value for key, claim, note in batch for value in (key_of(key), claim, note)]
            reply = self._run("park", self._set_aside, args)
            parked += map(text_of, reply)
        return parked

    @property
    def _set_aside(self) -> list[str]:
        return self._undeclared(self.keys.schedule, self.keys.quarantine)

    def quarantined(self) -> dict[str, str]:
        """Return entry key -> JSON note of what is set aside. One round trip."""
        reply = self._read("HGETALL", self.keys.quarantine)
        pairs = reply.items() if isinstance(reply, dict) else _pairs(reply)
        return {text_of(key): text_of(note) for key, note in pairs}

    def review(self, digests: Iterable[tuple[str, str]]) -> list[str]:
        """Release quarantined entries whose text changed; returns their keys.

        ``digests`` are (key, digest of what was parked). One round trip per 500.
        """
        released: list[str] = []
        for batch in batches(digests):
            args = [value for key, digest in batch for value in (key_of(key), digest)]
            reply = self._run("review", self._set_aside, args)
            released += map(text_of, reply)
        return released

    def forget(self, members: Sequence[str]) -> list[str]:
        """Remove members whose hash is gone; returns those removed. One round trip."""
        reply = self._run(
            "forget", self._undeclared(self.keys.schedule), [key_of(key) for key in members]
        )
        return [text_of(member) for member in reply]

    def sweep(
        self, cursor: str, disabled: float, offset: int, limit: int, known: Sequence[str]
    ) -> Swept:
        """Look for entries that are no members, and for disabled ones that are so no more.

        Scans a page of keys from ``cursor`` on, none when it is empty, and ``limit`` members at
        score ``disabled`` from ``offset`` on. The ``known`` keys become due now if they are still
        no members. One round trip.
        """
        prefix = self.keys.prefix
        scan = (cursor, GLOB_SPECIAL.sub(r"\\\g<0>", prefix) + "*", SCAN_PAGE)
        args = [prefix, *scan, disabled, offset, limit, *map(key_of, known)]
        reply = self._run("sweep", self._undeclared(self.keys.schedule), args)
        orphans, returned, enabled = ([text_of(key) for key in found] for found in reply[1:4])
        return Swept(text_of(reply[0]), orphans, returned, enabled, reply[4])

    # -- single entries ----------------------------------------------------------------------

    def load(self, key: str) -> tuple[str | None, str, str, str]:
        """Return (definition or None, meta, policy, runtime) of an entry. One round trip."""
        try:
            reply = self._read("HMGET", key_of(key), "definition", "meta", "policy", "runtime")
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise DecodeError("definition", not_an_entry(key)) from error
            raise
        definition = None if reply[0] is None else text_of(reply[0])
        return definition, text_of(reply[1]), text_of(reply[2]), text_of(reply[3])

    def save(
        self,
        key: str,
        definition: str = "",
        policy: str = "",
        meta: str = "",
        runtime: str = "",
        seen: str | None = "",
        score: float | None = None,
        made_up: datetime | None = None,
    ) -> tuple[int, str, str]:
        """Write an entry, or only its history when ``definition`` is empty.

        ``seen`` is the stored meta the caller believes in, None for any. ``score`` None is the
        time of Redis. Returns (1, "", "") when written, (0, meta, runtime) when the stored meta is
        another one, (-1, "", "") when there is no entry to change. (-3, now, "") when the entry
        is new and ``made_up``, the instant on the caller's clock from which it counts, is ahead of
        the time of Redis, UNIX seconds. Beats that wait for something later are woken up. One round
        trip.
        """
        believed = "*" if seen is None else seen
        texts = (definition, policy, key_of(meta), runtime, key_of(believed), score_text(score))
        keys = [self.keys.schedule, key_of(key), self.keys.quarantine]
        counts_from = "" if made_up is None else f"{made_up.timestamp():.6f}"
        reply = self._run("save", keys, (*texts, self.keys.wakeup, MAX_WAIT, counts_from))
        code, *told = reply
        if code == NOT_A_HASH:
            raise InvalidEntryError("name", not_an_entry(key))
        first, second = [*map(text_of, told), "", ""][:2]
        return code, first, second

    def delete(self, key: str) -> bool:
        """Remove an entry and its history; False when there was none. One round trip."""
        keys = [self.keys.schedule, key_of(key), self.keys.quarantine]
        return bool(self._run("delete", keys))

    def rank(self, key: str) -> int | None:
        """Return the position in due order, None when it is not a member. One round trip."""
        rank: int | None = self._read("ZRANK", self.keys.schedule, key_of(key))
        return rank

    def members(self, offset: int, limit: int) -> list[tuple[str, float]]:
        """Return (member, score) in due order, ``limit`` of them at most. One round trip."""
        found = self._read(
            *("ZRANGE", self.keys.schedule, offset, offset + limit - 1), "WITHSCORES"
        )
        pairs = found if not found or isinstance(found[0], (list, tuple)) else _pairs(found)
        return [(text_of(member), float(score)) for member, score in pairs]

    def adopt(self, name: str, texts: Sequence[str], score: float, static: bool) -> bool:
        """Store an entry of another schedule, unless there is one of that name.

        ``texts`` are definition, meta, policy and runtime. True when it was stored. One round trip.
        """
        keys = [self.keys.schedule, key_of(self.keys.entry(name)), self.keys.statics]
        args = (key_of(name), f"{score:.6f}", int(static), *map(key_of, texts))
        return bool(self._run("adopt", keys, args))

    def due_keys(self, limit: int = BATCH) -> list[str]:
        """Return the keys that are due and the one after them, in due order. Two round trips."""
        seconds, micros = self._read("TIME")
        now = f"{int(seconds)}.{int(micros):06d}"
        schedule = self.keys.schedule
        due = self._read("ZRANGEBYSCORE", schedule, 0, now, "LIMIT", 0, limit)
        later = self._read("ZRANGEBYSCORE", schedule, f"({now}", "+inf", "LIMIT", 0, 1)
        return [text_of(key) for key in (*due, *later)]

    def end_run(self, key: str, task_id: str) -> bool:
        """Note the end of a run of an entry whose runs must not overlap. One round trip.

        False when it is not the one that the entry waits for.
        """
        keys = [self.keys.schedule, key_of(key)]
        return bool(self._run("ended", keys, [task_id, self.keys.wakeup]))

    # -- static entries ----------------------------------------------------------------------

    def _static_keys(self, lock_key: str | None) -> list[str]:
        own = self.keys
        keys = self._undeclared(own.schedule, own.statics, own.quarantine)
        return keys if lock_key is None else [*keys, lock_key]

    def sync_statics(
        self, rows: Sequence[StaticRow], lock_key: str | None, token: str, ttl: float = 0.0
    ) -> list[int] | None:
        """Write the rows that differ; a code per row as ``sync.lua`` gives them.

        The lock then lives for ``ttl`` seconds.

        None when the caller does not lead any more. No meta is empty, and one that is that of the
        row before is not sent again. One round trip; send at most 500 rows.
        """
        fields: list[str] = []
        meta = ""
        for row in rows:
            again = "" if row.meta == meta else row.meta
            fields += row.name, row.key, row.definition, row.policy, again, f"{row.score:.6f}"
            meta = row.meta
        args = (token, int(ttl * 1000), *pack(fields))
        reply = self._run("sync", self._static_keys(lock_key), args)
        return None if reply[0] == -1 else [int(code) for code in reply[1].decode()]

    def static_names(self) -> set[str]:
        """Return the names of all static entries. One round trip."""
        return {text_of(name) for name in self._read("SMEMBERS", self.keys.statics)}

    def prune_statics(self, names: Sequence[str], lock_key: str | None, token: str) -> bool:
        """Remove static entries; False when the caller does not lead any more.

        One round trip; send at most 500 names.
        """
        args: list[Any] = [token]
        for name in names:
            args += key_of(name), key_of(self.keys.entry(name))
        return bool(self._run("prune", self._static_keys(lock_key), args) != -1)

    # -- lock --------------------------------------------------------------------------------

    def acquire_lock(self, key: str, token: str, ttl: float) -> bool:
        """Take or keep the lock for ``ttl`` seconds; False if another holds it. One round trip."""
        return bool(self._run("acquire", [key], [token, int(ttl * 1000)]))

    def extend_lock(self, key: str, token: str, ttl: float) -> bool:
        """Let our lock live ``ttl`` seconds from now; False when it is not ours. One round trip."""
        return bool(self._run("extend", [key], [token, int(ttl * 1000)]))

    def release_lock(self, key: str, token: str) -> bool:
        """Give up our lock and wake up who waits; False when it was not ours. One round trip."""
        return bool(self._run("release", [key], [token, self.keys.wakeup]))

    def lock_holder(self, key: str) -> str:
        """Return the token of whoever holds the lock, "" for nobody. One round trip."""
        return text_of(self._read("GET", key))

    def beats(self, within: float) -> list[str]:
        """Return the tokens of the beats that share the work, by when they were seen last.

        ``within`` is how many seconds ago at most. Two round trips.
        """
        seconds, _ = self._read("TIME")
        seen = self._read("ZRANGEBYSCORE", self.keys.beats, int(seconds) - within, "+inf")
        return [text_of(token) for token in seen]

    def leave(self, token: str) -> None:
        """Remove a beat from those that share the work. One round trip."""
        self._read("ZREM", self.keys.beats, token)

    # -- the server --------------------------------------------------------------------------

    def eviction(self) -> tuple[int, str]:
        """Return (maxmemory in bytes, maxmemory policy), from INFO. One round trip."""
        with cluster_errors():
            info = node_of(self.client, self.keys.schedule).info("memory")
        return int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", ""))


def _pairs(flat: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def not_an_entry(key: str) -> str:
    """Return what is wrong with a key that is not a hash."""
    return f"the key {key!r} holds something that is not an entry; use another name or remove it"
