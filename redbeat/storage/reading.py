"""Commands that only read the schedule. Commands that change the schedule are in ``store``.

Redis errors pass through unchanged, with one exception: loading a key that is not a hash raises
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
from .wire import Counts, Cursor, Page, Presence, pairs_of, read_counts, read_page, text_in, text_of

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

#: The field of the stats for the time of the last ``claim.lua`` call, in UNIX seconds.
LAST_TICK = "last_tick"

T = TypeVar("T")

logger = get_logger("celery.beat")

#: Characters with a special meaning in a SCAN pattern.
GLOB_SPECIAL = re.compile(r"[\\\[\]*?]")

#: Matches the error message of Redis for a user who may not access a key.
NO_KEY = re.compile(r"access .*\bkey")

#: Maximum number of entries per round trip.
BATCH = 500

#: The field of the stats for the time zone of the last leader.
TIME_ZONE = "timezone"

#: The field of the stats for the reason why a beat sends no runs.
PROBLEM = "problem"

#: The field of the stats for a digest of the static entries that a beat last wrote at its start.
STATICS = "statics"

#: Maximum number of keys per round trip if only keys are read.
KEYS_PAGE = 5000


def batches(items: Iterable[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Split ``items`` into lists of at most ``size``."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def not_an_entry(key: str) -> str:
    """Return the error message for a key that is not a hash."""
    return f"the key {key!r} holds something that is not an entry; use another name or remove it"


#: The stored fields of an entry: definition (None if missing), meta, policy, runtime, identity.
Texts = tuple[str | None, str, str, str, str]

#: The names of the hash fields in :data:`Texts`.
TEXTS = ("definition", "meta", "policy", "runtime", "identity")


def read_texts(reply: Sequence[Any]) -> Texts:
    """Return the stored fields of an entry from a reply with the fields :data:`TEXTS`."""
    definition = None if reply[0] is None else text_of(reply[0])
    meta, policy, runtime, identity = map(text_of, reply[1:])
    return definition, meta, policy, runtime, text_in(identity)


class Reading:
    """Reads the schedule under one key prefix."""

    def __init__(self, client: Any, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        #: Number of round trips so far, retries excluded.
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
        """Read a key outside the prefix; None if the user may not use such keys. One round trip."""
        return self._retry_if_denied(lambda: None if self.keys.denied else self._read(*command))

    def _retry_if_denied(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns; repeat it once if keys outside the prefix are denied."""
        try:
            return call()
        except NoPermissionError as error:
            if not self._lacks_keys_aside(error):
                raise
        return call()

    def _lacks_keys_aside(self, error: NoPermissionError) -> bool:
        """Return whether the error is about the keys outside the prefix, and log this case once.

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
        """Return the keys of a script, with each denied key replaced by the schedule key."""
        schedule, denied = self.keys.schedule, self.keys.denied
        return [schedule if key in denied else key for key in keys] if denied else keys

    def _with_missing_key(self, *keys: Any) -> list[Any]:
        """Return the keys plus a key that never exists, for scripts that use undeclared keys.

        While a cluster moves the slot, its keys are spread over two nodes. The missing key makes
        the node answer TRYAGAIN. Without it, the script could run on a node without some entries.
        """
        return [*keys, self.keys.wakeup]

    # -- entries ---------------------------------------------------------------------------------

    def load(self, key: str) -> Texts:
        """Return the stored fields of an entry. One round trip.

        Raises :exc:`DecodeError` if the key is not a hash.
        """
        try:
            reply = self._read("HMGET", key_of(key), *TEXTS)
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise DecodeError("definition", not_an_entry(key)) from error
            raise
        return read_texts(reply)

    def history(self, key: str) -> tuple[str, str]:
        """Return the entry's run history, latest line first, and identity. One round trip."""
        lines, identity = self._read("HMGET", key_of(key), "history", "identity")
        return text_in(text_of(lines)), text_in(text_of(identity))

    def rank(self, key: str) -> int | None:
        """Return the entry's position in due order, None if it has none. One round trip."""
        rank: int | None = self._read("ZRANK", self.keys.schedule, key_of(key))
        return rank

    def due(self, now: float) -> list[tuple[str, float]]:
        """Return (key, score) of all entries due at ``now`` and of the next entry, in due order.

        Two round trips.
        """
        at, schedule = f"{now:.6f}", self.keys.schedule
        due = self._read("ZRANGEBYSCORE", schedule, 0, at, "WITHSCORES")
        later = self._read("ZRANGEBYSCORE", schedule, f"({at}", "+inf", "WITHSCORES", "LIMIT", 0, 1)
        return [(text_of(key), float(score)) for key, score in (*pairs_of(due), *pairs_of(later))]

    def static_names(self) -> set[str]:
        """Return the names of all static entries. One round trip."""
        return {text_of(name) for name in self._read("SMEMBERS", self.keys.statics)}

    def quarantined(self) -> dict[str, str]:
        """Return the quarantined entries: key -> JSON note. One round trip."""
        reply = self._read_aside("HGETALL", self.keys.quarantine) or {}
        pairs = pairs_of(reply)
        return {text_of(key): text_of(note) for key, note in pairs}

    def quarantine_page(self, cursor: str) -> tuple[str, dict[str, str]]:
        """Return the cursor of the next page, and a page of about 500 :meth:`quarantined` entries.

        Pass the cursor "0" to start. A returned "0" means that this page is the last. One round
        trip.
        """
        reply = self._read_aside("HSCAN", self.keys.quarantine, cursor, "COUNT", BATCH)
        if not reply:
            return "0", {}
        after, notes = reply
        pairs = pairs_of(notes)
        return text_of(str(after) if isinstance(after, int) else after), {
            text_of(key): text_of(note) for key, note in pairs
        }

    def read(self, keys: Sequence[str]) -> Page:
        """Return one row per key, in the same order. One round trip; pass at most 500 keys."""
        return self._page("named", *map(key_of, keys))

    def page(self, after: Cursor | None = None, limit: int = BATCH, history: bool = False) -> Page:
        """Return a page of entries in due order; entries that are never due come last.

        One round trip.
        """
        score, member = after or ("", "")
        return self._page(limit, score, key_of(member), "history" if history else "")

    def keys_after(self, after: Cursor | None = None) -> tuple[list[str], Cursor | None]:
        """Return up to 5000 entry keys and the cursor of the next page. One round trip."""
        score, member = after or ("", "")
        page = self._page(KEYS_PAGE, score, key_of(member), "keys")
        return [row.key for row in page.rows], page.after

    def _page(self, *args: Any) -> Page:
        names = self.keys
        keys = self._with_missing_key(names.schedule, names.statics, names.quarantine)
        return read_page(self._run("page", keys, [self.keys.prefix, *args]))

    def members(self) -> int:
        """Return the number of entries. One round trip."""
        return int(self._read("ZCARD", self.keys.schedule))

    def ranked(self, offset: int, limit: int) -> list[tuple[str, float]]:
        """Return at most ``limit`` pairs (entry key, score) in due order. One round trip."""
        reply = self._read(
            *("ZRANGE", self.keys.schedule, offset, offset + limit - 1), "WITHSCORES"
        )
        return [(text_of(member), float(score)) for member, score in pairs_of(reply)]

    def counts(self, lock_key: str | None, disabled: float, within: float) -> Counts:
        """Return the number of entries of each kind, and the active beats.

        A beat is active if it was seen in the last ``within`` seconds. ``disabled`` is the score
        of disabled entries. One round trip.
        """
        names = self.keys
        keys = [names.schedule, names.statics, names.quarantine, names.beats, names.stats]
        if lock_key is not None:
            keys.append(lock_key)
        return read_counts(self._run("count", keys, [disabled, within]))

    # -- beats -------------------------------------------------------------------------------

    def lock_holder(self, key: str) -> str:
        """Return the token of the beat that holds the lock, "" if it is free. One round trip."""
        return text_of(self._read("GET", key))

    def time(self) -> float:
        """Return the time of the Redis server in UNIX seconds. One round trip."""
        seconds, micros = self._read("TIME")
        return int(seconds) + int(micros) / 1e6

    def beats(self, within: float) -> list[Presence]:
        """Return the beats seen in the last ``within`` seconds, latest last. Two round trips."""
        since = int(self.time()) - within
        reply = self._read_aside("ZRANGEBYSCORE", self.keys.beats, since, "+inf", "WITHSCORES")
        return [
            Presence.read(text_of(member), float(seen)) for member, seen in pairs_of(reply or ())
        ]

    def lock_left(self, key: str) -> float | None:
        """Return the seconds until the lock expires, None if it does not exist. One round trip."""
        milliseconds = int(self._read("PTTL", key))
        return milliseconds / 1000 if milliseconds >= 0 else None

    def time_zone(self) -> str:
        """Return the time zone of the last leader, "" if unknown. One round trip."""
        return self._noted(TIME_ZONE)

    def last_tick(self) -> float:
        """Return when a beat last ran ``claim.lua``, in UNIX seconds of Redis; 0 if unknown.

        One round trip.
        """
        try:
            return float(self._noted(LAST_TICK) or 0.0)
        except ValueError:
            return 0.0

    def problem(self) -> str:
        """Return the reason why a beat sends no runs, "" if there is none. One round trip."""
        return self._noted(PROBLEM)

    def noted_statics(self) -> str:
        """Return the digest that :meth:`Store.note_statics` stored, or "". One round trip."""
        return self._noted(STATICS)

    def _noted(self, field: str) -> str:
        try:
            return text_of(self._read_aside("HGET", self.keys.stats, field))
        except ResponseError:
            return ""  # the key is not a hash, or the Redis user may not read it

    def stats(self) -> dict[str, str]:
        """Return the counters of all beats as field -> value. One round trip.

        Returns an empty mapping if nothing was counted yet, or if the key is not a hash.
        """
        try:
            reply = self._read_aside("HGETALL", self.keys.stats) or {}
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                return {}
            raise
        pairs = pairs_of(reply)
        return {text_of(field): text_of(value) for field, value in pairs}

    # -- the server --------------------------------------------------------------------------

    def eviction(self) -> tuple[int, str]:
        """Return (maxmemory in bytes, eviction policy) from INFO. One round trip."""
        with cluster_errors():
            info = node_of(self.client, self.keys.schedule).info("memory")
        return int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", ""))

    def server(self) -> dict[str, str]:
        """Return the version and the mode of the server from INFO.

        Returns an empty mapping if the Redis user may not run INFO. One round trip.
        """
        try:
            with cluster_errors():
                info = node_of(self.client, self.keys.schedule).info("server")
        except ResponseError:
            return {}
        # For Valkey, redis_version is only the Redis version that it is compatible with.
        version = info.get("valkey_version") or info.get("redis_version", "")
        mode = info.get("redis_mode") or info.get("server_mode", "")
        return {"version": str(version), "mode": str(mode)}
