"""The commands that read the schedule and change nothing; those that change it are in ``store``.

Redis errors pass through unchanged, but for a key that is not a hash: that is a
:exc:`~redbeat.errors.DecodeError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from celery.utils.log import get_logger
from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, ResponseError

from redbeat.config import key_aside
from redbeat.connection.cluster import cluster_errors, node_of
from redbeat.connection.topology import refusals
from redbeat.errors import DecodeError

from .records import Keys, key_of
from .scripts import load_script
from .wire import Counts, Cursor, Page, Presence, read_counts, read_page, text_in, text_of

__all__ = (
    "BATCH",
    "GLOB_SPECIAL",
    "LAST_TICK",
    "Reading",
    "Texts",
    "batches",
    "not_an_entry",
    "read_texts",
)

#: Written by ``claim.lua``: UNIX seconds of the last turn; since when who leads.
LAST_TICK = "last_tick"

T = TypeVar("T")

logger = get_logger("celery.beat")

#: What means something else in the pattern of a scan.
GLOB_SPECIAL = re.compile(r"[\\\[\]*?]")

#: What Redis says to a user who may not use a key.
NO_KEY = re.compile(r"access .*\bkey")

#: Entries handled in one round trip.
BATCH = 500

#: The field of the stats with the time zone of the last beat that led.
TIME_ZONE = "timezone"

#: The field of the stats with why a beat sends nothing.
PROBLEM = "problem"

#: The field of the stats with a digest of the static entries that were written last at a start.
STATICS = "statics"

#: Keys without their texts that are read in one round trip.
KEYS_PAGE = 5000


def batches(items: Iterable[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Split ``items`` into lists of at most ``size``."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def not_an_entry(key: str) -> str:
    """Return what is wrong with a key that is not a hash."""
    return f"the key {key!r} holds something that is not an entry; use another name or remove it"


#: An entry as it is stored: definition or None, meta, policy, runtime, identity.
Texts = tuple[str | None, str, str, str, str]

#: The fields of its hash that hold these.
TEXTS = ("definition", "meta", "policy", "runtime", "identity")


def read_texts(reply: Sequence[Any]) -> Texts:
    """Return the fields of an entry's hash, from a reply with these fields."""
    definition = None if reply[0] is None else text_of(reply[0])
    meta, policy, runtime, identity = map(text_of, reply[1:])
    return definition, meta, policy, runtime, text_in(identity)


class Reading:
    """What can be read of the schedule of one prefix in one Redis."""

    def __init__(self, client: Any, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        #: Round trips that were made, but for those of retries.
        self.round_trips = 0

    def _run(self, script: str, keys: Sequence[Any], args: Sequence[Any] = ()) -> Any:
        return self._retry_if_denied(
            lambda: self._run_once(script, self._replace_denied(keys), args)
        )

    def _run_once(self, script: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        self.round_trips += 1
        return load_script(script)(self.client, keys, args)

    def _read(self, *command: Any) -> Any:
        self.round_trips += 1
        with cluster_errors(), refusals():
            return self.client.execute_command(*command, **{NEVER_DECODE: True})

    def _read_aside(self, *command: Any) -> Any:
        """Read a key outside the prefix; None when the user may not use those. One round trip."""
        return self._retry_if_denied(lambda: None if self.keys.denied else self._read(*command))

    def _retry_if_denied(self, ask: Callable[[], T]) -> T:
        """Return the answer; asks again when the user turns out to lack the keys aside."""
        try:
            return ask()
        except NoPermissionError as error:
            if not self._lacks_keys_aside(error):
                raise
        return ask()

    def _lacks_keys_aside(self, error: NoPermissionError) -> bool:
        """Find out whether the user was refused for the keys outside the prefix; logged once.

        One round trip.
        """
        keys = self.keys
        if keys.denied or not NO_KEY.search(str(error)):
            return False
        try:
            self._read("EVAL", "return 1", len(keys.aside), *keys.aside)
        except NoPermissionError as refused:
            if not NO_KEY.search(str(refused)):
                return False
        else:
            return False
        keys.denied.update(keys.aside)
        pattern = GLOB_SPECIAL.sub(r"\\\g<0>", key_aside(keys.prefix, "")) + "*"
        logger.warning(
            "redbeat: The Redis user may not use the keys %s. Everything runs, but nothing is "
            "counted, entries in quarantine have no reason, and beats are not listed. To allow "
            "the keys: ACL SETUSER <user> '~%s'",
            *(", ".join(keys.aside), pattern),
        )
        return True

    def _replace_denied(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Return the keys of a script; the schedule stands for those that the user may not use."""
        own = self.keys
        return [own.schedule if key in own.denied else key for key in keys] if own.denied else keys

    def _with_missing_key(self, *keys: Any) -> list[Any]:
        """Return the keys of a script that also uses keys of entries, which it does not name.

        The last one never exists. A cluster that moves the slot to another node, and has moved but
        some of its keys, runs no script of which one key is there and another is not.
        """
        return [*keys, self.keys.wakeup]

    # -- entries ---------------------------------------------------------------------------------

    def load(self, key: str) -> Texts:
        """Return the texts of an entry. One round trip."""
        try:
            reply = self._read("HMGET", key_of(key), *TEXTS)
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise DecodeError("definition", not_an_entry(key)) from error
            raise
        return read_texts(reply)

    def history(self, key: str) -> tuple[str, str]:
        """Return the lines of the history, the latest first, and the identity. One round trip."""
        lines, identity = self._read("HMGET", key_of(key), "history", "identity")
        return text_in(text_of(lines)), text_in(text_of(identity))

    def rank(self, key: str) -> int | None:
        """Return the position in due order, None when it is not a member. One round trip."""
        rank: int | None = self._read("ZRANK", self.keys.schedule, key_of(key))
        return rank

    def due(self, now: float) -> list[tuple[str, float]]:
        """Return key and score of all that is due at ``now``, in due order, and of the one after.

        Two round trips.
        """
        at, schedule = f"{now:.6f}", self.keys.schedule
        due = self._read("ZRANGEBYSCORE", schedule, 0, at, "WITHSCORES")
        later = self._read("ZRANGEBYSCORE", schedule, f"({at}", "+inf", "WITHSCORES", "LIMIT", 0, 1)
        return [(text_of(key), float(score)) for key, score in (*_scored(due), *_scored(later))]

    def static_names(self) -> set[str]:
        """Return the names of all static entries. One round trip."""
        return {text_of(name) for name in self._read("SMEMBERS", self.keys.statics)}

    def quarantined(self) -> dict[str, str]:
        """Return entry key -> JSON note of what is set aside. One round trip."""
        reply = self._read_aside("HGETALL", self.keys.quarantine) or {}
        pairs = reply.items() if isinstance(reply, dict) else _pairs(reply)
        return {text_of(key): text_of(note) for key, note in pairs}

    def quarantine_page(self, cursor: str) -> tuple[str, dict[str, str]]:
        """Return a page of :meth:`quarantined`, some 500, and the cursor of the next: "0" is both
        the first one and the end. One round trip.
        """
        reply = self._read_aside("HSCAN", self.keys.quarantine, cursor, "COUNT", BATCH)
        if not reply:
            return "0", {}
        after, found = reply
        pairs = found.items() if isinstance(found, dict) else _pairs(found)
        return text_of(str(after) if isinstance(after, int) else after), {
            text_of(key): text_of(note) for key, note in pairs
        }

    def read(self, keys: Sequence[str]) -> Page:
        """Return the rows of these entries, in this order. One round trip; ask at most 500."""
        return self._page("named", *map(key_of, keys))

    def page(self, after: Cursor | None = None, limit: int = BATCH, history: bool = False) -> Page:
        """Return the rows of a page in due order, parked ones last. One round trip."""
        score, member = after or ("", "")
        return self._page(limit, score, key_of(member), "history" if history else "")

    def keys_after(self, after: Cursor | None = None) -> tuple[list[str], Cursor | None]:
        """Return the members of a large page, and where the next one begins. One round trip."""
        score, member = after or ("", "")
        page = self._page(KEYS_PAGE, score, key_of(member), "keys")
        return [row.key for row in page.rows], page.after

    def _page(self, *args: Any) -> Page:
        own = self.keys
        keys = self._with_missing_key(own.schedule, own.statics, own.quarantine)
        return read_page(self._run("page", keys, [self.keys.prefix, *args]))

    def members(self) -> int:
        """Return how many entries there are. One round trip."""
        return int(self._read("ZCARD", self.keys.schedule))

    def ranked(self, offset: int, limit: int) -> list[tuple[str, float]]:
        """Return (member, score) in due order, ``limit`` of them at most. One round trip."""
        found = self._read(
            *("ZRANGE", self.keys.schedule, offset, offset + limit - 1), "WITHSCORES"
        )
        return [(text_of(member), float(score)) for member, score in _scored(found)]

    def counts(self, lock_key: str | None, disabled: float, within: float) -> Counts:
        """Return how many entries there are of each kind.

        ``disabled`` is the score of those that are, ``within`` the seconds since its last turn
        after which a beat is left out. One round trip.
        """
        own = self.keys
        keys = [own.schedule, own.statics, own.quarantine, own.beats, own.stats]
        if lock_key is not None:
            keys.append(lock_key)
        return read_counts(self._run("count", keys, [disabled, within]))

    # -- beats -------------------------------------------------------------------------------

    def lock_holder(self, key: str) -> str:
        """Return the token of whoever holds the lock, "" for nobody. One round trip."""
        return text_of(self._read("GET", key))

    def time(self) -> float:
        """Return the time of Redis, UNIX seconds. One round trip."""
        seconds, micros = self._read("TIME")
        return int(seconds) + int(micros) / 1e6

    def beats(self, within: float) -> list[Presence]:
        """Return the beats, by when they were seen last.

        ``within`` is how many seconds ago at most. Two round trips.
        """
        since = int(self.time()) - within
        found = self._read_aside("ZRANGEBYSCORE", self.keys.beats, since, "+inf", "WITHSCORES")
        return [
            Presence.read(text_of(member), float(seen)) for member, seen in _scored(found or ())
        ]

    def lock_left(self, key: str) -> float | None:
        """Return the seconds that a lock has left, None when there is none. One round trip."""
        milliseconds = int(self._read("PTTL", key))
        return milliseconds / 1000 if milliseconds >= 0 else None

    def time_zone(self) -> str:
        """Return the zone of the last beat that led, "" when it is not known. One round trip."""
        return self._noted(TIME_ZONE)

    def last_tick(self) -> float:
        """Return when a beat at work ticked last, UNIX seconds of Redis, 0 where it is not known.

        One round trip.
        """
        try:
            return float(self._noted(LAST_TICK) or 0.0)
        except ValueError:
            return 0.0

    def problem(self) -> str:
        """Return why a beat sends nothing, "" where no beat says so. One round trip."""
        return self._noted(PROBLEM)

    def noted_statics(self) -> str:
        """Return what :meth:`Store.note_statics` noted last, "" for nothing. One round trip."""
        return self._noted(STATICS)

    def _noted(self, field: str) -> str:
        try:
            return text_of(self._read_aside("HGET", self.keys.stats, field))
        except ResponseError:
            return ""  # another type of key, or one that this user may not read

    def stats(self) -> dict[str, str]:
        """Return what beats have counted, by field. One round trip.

        Empty when there is nothing yet, or when the key holds something else.
        """
        try:
            reply = self._read_aside("HGETALL", self.keys.stats) or {}
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                return {}
            raise
        pairs = reply.items() if isinstance(reply, dict) else _pairs(reply)
        return {text_of(field): text_of(value) for field, value in pairs}

    # -- the server --------------------------------------------------------------------------

    def eviction(self) -> tuple[int, str]:
        """Return (maxmemory in bytes, maxmemory policy), from INFO. One round trip."""
        with cluster_errors():
            info = node_of(self.client, self.keys.schedule).info("memory")
        return int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", ""))

    def server(self) -> dict[str, str]:
        """Return version and mode of the server, from INFO; empty where that is forbidden.

        One round trip.
        """
        try:
            with cluster_errors():
                info = node_of(self.client, self.keys.schedule).info("server")
        except ResponseError:
            return {}
        # The redis_version of Valkey is that of a Redis that it is compatible with.
        version = info.get("valkey_version") or info.get("redis_version", "")
        mode = info.get("redis_mode") or info.get("server_mode", "")
        return {"version": str(version), "mode": str(mode)}


def _pairs(flat: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _scored(found: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Return members with their scores, whichever way the client returns them."""
    return found if not found or isinstance(found[0], (list, tuple)) else _pairs(found)
