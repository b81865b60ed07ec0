"""Redis commands that only read the schedule.

Redis commands that change the schedule are in ``store.py``. Redis errors pass through unchanged,
with two exceptions. Loading a key that is not a hash raises :exc:`~redbeat.errors.DecodeError`. If
a key of the schedule has the wrong Redis type, the error message names the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar, TypeVar

from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, ResponseError

from redbeat.codec.stored import bytes_of as key_of
from redbeat.codec.stored import score_in, seconds_in, text_in, text_of, valid_text
from redbeat.config import key_aside
from redbeat.connection.cluster import cluster_errors, node_of
from redbeat.connection.topology import refusals
from redbeat.errors import DecodeError
from redbeat.printing import get_logger

from .records import Keys
from .scripts import load_script
from .wire import Counts, Cursor, Page, Presence, identity_in, pairs_of, read_counts, read_page

#: The field of the stats for the time of the last ``claim.lua`` call, in UNIX seconds.
LAST_TICK = "last_tick"

T = TypeVar("T")

logger = get_logger("celery.beat")

#: Characters with a special meaning in a SCAN pattern.
GLOB_SPECIAL = re.compile(r"[\\\[\]*?]")

#: The replacement for a special character, so that Redis matches the character literally.
ESCAPED = r"\\\g<0>"

#: Matches the error message of Redis for a user who has no right to access a key.
NO_KEY = re.compile(r"access .*\bkey")

#: Maximum number of entries per round trip.
BATCH = 500

#: The field of the stats for the time zone of the last leader.
TIME_ZONE = "timezone"

#: The field of the stats for the reason why a beat sends no runs.
PROBLEM = "problem"

#: The field of the stats that stores when a worker first reported the end of a run.
REPORTS_SINCE = "reports_since"

#: The field of the stats for a digest of the static entries.
#: A beat stores the digest of its static entries at its start.
STATICS = "statics"

#: The field of the stats under the base prefix that contains the number of shards.
LAYOUT = "layout"

#: The cursor that starts a scan. Redis also returns "0" with the last part of a scan.
START = "0"

#: Approximate number of entries that Redis reads for one part of a scan.
SCAN_COUNT = 2000

#: Approximate number of calendars in a reply of Redis.
#: The number is low, because a calendar may have thousands of days.
CALENDARS = 200


def batches(items: Iterable[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Split ``items`` into lists of at most ``size`` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def not_an_entry(key: str) -> str:
    """Return the error message for a key that is not a hash."""
    return f"the key {key!r} is not an entry; use another name, or delete the key"


#: The stored fields of an entry: definition (None if missing), meta, policy, runtime, identity.
Texts = tuple[str | None, str, str, str, str]

#: The names of the hash fields in :data:`Texts`.
TEXTS = ("definition", "meta", "policy", "runtime", "identity")


def read_texts(reply: Sequence[Any]) -> Texts:
    """Return the stored fields of an entry from a reply of Redis with the fields :data:`TEXTS`."""
    definition = None if reply[0] is None else text_of(reply[0])
    meta, policy, runtime, identity = map(text_of, reply[1:])
    return definition, meta, policy, runtime, identity_in(identity)


def _match(text: str) -> tuple[str, ...]:
    """Return the options of ZSCAN for a glob pattern."""
    return ("MATCH", text) if text != "*" else ()


def _scores(reply: Any) -> list[tuple[str, float]]:
    """Return the pairs (entry key, score) in a reply of Redis."""
    return [(text_of(member), score_in(score)) for member, score in pairs_of(reply)]


def _notes(reply: Any) -> dict[str, str]:
    """Return the notes in a reply of Redis, as key of a quarantined entry -> JSON note."""
    return {text_of(key): valid_text(note) for key, note in pairs_of(reply)}


class Reading:
    """Reads the schedule under one key prefix."""

    #: Seconds after which a script for many entries stops, so that Redis can serve other clients.
    #: Another round trip handles the remaining entries of the script.
    #: A script may take 4 ms longer than ``max_seconds``.
    #: ``claim.lua`` checks the time often, and takes at most 2 ms more than ``max_claim_seconds``.
    #: Every script takes at most 10 ms.
    #:
    #: Completions need no time limit, because a request records at most 50 runs or 1 MiB.
    #: Redis records 50 runs or 1 MiB within a few milliseconds.
    #: A request that only puts back claims takes less time than the request that made the claims.
    max_seconds: ClassVar[float] = 0.004
    max_claim_seconds: ClassVar[float] = 0.008

    def __init__(self, client: Any, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        #: The number of round trips to Redis so far, without retries.
        self.round_trips = 0

    @property
    def _time_limit(self) -> int:
        return int(self.max_seconds * 1e6)

    def _run(self, script: str, keys: Sequence[Any], args: Sequence[Any] = ()) -> Any:
        return self._retry_if_denied(
            lambda: self._run_once(script, self._replace_denied(keys), args)
        )

    def _run_once(self, script: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        self.round_trips += 1
        with self._naming_wrong_types():
            return load_script(script)(self.client, keys, args)

    def _begin(
        self, script: str, keys: Sequence[Any], args: Sequence[Any], then: Any = None
    ) -> Callable[[], Any]:
        """Send a script to Redis, and return a function that waits for the reply."""
        reply = load_script(script).begin(self.client, self._replace_denied(keys), args, then)

        def read() -> Any:
            with self._naming_wrong_types():
                return reply()

        return read

    def _read(self, *command: Any) -> Any:
        self.round_trips += 1
        with self._naming_wrong_types(), cluster_errors(), refusals():
            return self.client.execute_command(*command, **{NEVER_DECODE: True})

    @contextmanager
    def _naming_wrong_types(self) -> Iterator[None]:
        """Replace a WRONGTYPE error with an error that names the key.

        Takes one round trip if the block raises a WRONGTYPE error, else no round trip.
        """
        try:
            yield
        except ResponseError as error:
            wrong = self._wrong_type() if "WRONGTYPE" in str(error) else ""
            if not wrong:
                raise
            raise ResponseError(wrong) from error

    def _wrong_type(self) -> str:
        """Return an error message about a key of the schedule that has the wrong type.

        Returns "" if all keys have the correct types. The message names the key, the type of the
        key, the correct type, and what to do. One round trip.
        """
        keys = self.keys
        expected = {
            **dict.fromkeys((keys.statics, keys.calendar_users), ("set", "set")),
            **dict.fromkeys((keys.quarantine, keys.stats, keys.calendars), ("hash", "hash")),
            **dict.fromkeys(
                (keys.schedule, keys.beats, keys.failing, keys.expected), ("zset", "sorted set")
            ),
        }
        pipe = self.client.pipeline(transaction=False)
        for key in expected:
            pipe.type(key)
        replies = pipe.execute(raise_on_error=False)
        for (key, (kind, name)), reply in zip(expected.items(), replies, strict=True):
            found = kind if isinstance(reply, Exception) else text_of(reply)
            if found not in (kind, "none"):
                return (
                    f"WRONGTYPE the key {key!r} is a {found}, but it must be a {name}: rename or "
                    "delete the key, or set redbeat_key_prefix to another prefix"
                )
        return ""

    def _read_aside(self, *command: Any) -> Any:
        """Run a Redis command on a key that may be outside the key prefix, and return the reply.

        Returns None if the Redis user has no right to access the key. The key is the first argument
        of the command. One round trip.
        """
        denied = self.keys.denied
        return self._retry_if_denied(lambda: None if command[1] in denied else self._read(*command))

    def _retry_if_denied(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``; retry if Redis denies keys outside the key prefix."""
        try:
            return call()
        except NoPermissionError as error:
            if not self._lacks_keys_aside(error):
                raise
        return call()

    def _lacks_keys_aside(self, error: NoPermissionError) -> bool:
        """Return whether Redis newly denies the keys outside the prefix; if so, log a warning.

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
        pattern = GLOB_SPECIAL.sub(ESCAPED, key_aside(keys.prefix, "")) + "*"
        logger.warning(
            "redbeat: The Redis user may not use the keys %s. Entries run, but RedBeat keeps no "
            "counters, no reasons of quarantined entries and no list of beats. To allow the keys: "
            "ACL SETUSER <user> '~%s'",
            *(", ".join(keys.aside), pattern),
        )
        return True

    def _replace_denied(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Return the keys of a script, with each denied key replaced by the schedule key."""
        schedule, denied = self.keys.schedule, self.keys.denied
        return [schedule if key in denied else key for key in keys] if denied else keys

    def _with_missing_key(self, *keys: Any) -> list[Any]:
        """Return the keys and a key that never exists, for scripts that use undeclared keys.

        While a Redis Cluster moves a slot, the keys of the slot are spread over two nodes. A node
        that lacks one of the keys of a script refuses the script with the error TRYAGAIN. Without
        the key that never exists, the script could run on a node that lacks some entries.
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

    def history(self, key: str) -> tuple[str, str, str]:
        """Return the history (latest run first), the results and the identity of an entry.

        One round trip.
        """
        reply = self._read("HMGET", key_of(key), "history", "results", "identity")
        lines, results, identity = map(text_of, reply)
        return text_in(lines), text_in(results), identity_in(identity)

    def expected_after(self, now: float, offset: int) -> list[str]:
        """Return the keys of at most 500 entries that may be overdue at ``now`` (UNIX seconds).

        ``offset`` is the number of keys to skip. One round trip.
        """
        limit = ("LIMIT", offset, BATCH)
        reply = self._read_aside("ZRANGEBYSCORE", self.keys.expected, "-inf", f"{now:.6f}", *limit)
        return [text_of(key) for key in reply or ()]

    def reports_since(self) -> float | None:
        """Return when a worker first reported the end of a run, in UNIX seconds.

        Returns None if no worker has reported a run. One round trip.
        """
        return seconds_in(self.noted(REPORTS_SINCE))

    def rank(self, key: str) -> int | None:
        """Return the position of an entry in the schedule's sorted set, from 0. One round trip.

        Returns None if the set does not contain the entry.
        """
        rank: int | None = self._read("ZRANK", self.keys.schedule, key_of(key))
        return rank

    def count_below(self, score: float) -> int:
        """Return the number of entries whose score is lower than ``score``. One round trip."""
        return int(self._read("ZCOUNT", self.keys.schedule, "-inf", f"({score!r}"))

    def due(self, now: float) -> list[tuple[str, float]]:
        """Return (key, score) for all entries due at ``now`` and for the next entry, in due order.

        Takes two round trips, and one more round trip per 2000 due entries.
        """
        offset = self.count_below(0)  # parked entries
        found: list[tuple[str, float]] = []
        while True:
            page = self.ranked(offset + len(found), SCAN_COUNT)
            later = next((at for at, (_, score) in enumerate(page) if score > now), len(page))
            found += page[: later + 1]
            if later < len(page) or len(page) < SCAN_COUNT:
                return found

    def static_names(self) -> set[str]:
        """Return the names of all static entries. Takes one round trip per about 2000 names."""
        parts = self._scan_all("SSCAN", self.keys.statics, SCAN_COUNT)
        return {text_of(name) for part in parts for name in part}

    def static_among(self, names: Iterable[str]) -> set[str]:
        """Return which of the ``names`` are names of static entries.

        Takes one round trip per 500 names.
        """
        prefix = self.keys.prefix
        return {
            row.key.removeprefix(prefix)
            for batch in batches(map(self.keys.entry, names))
            for row in self.read(batch).rows
            if row.static
        }

    def quarantined(self, limit: int | None = None) -> dict[str, str]:
        """Return at most ``limit`` quarantined entries (default: all) as key -> JSON note.

        Takes one round trip per about 500 quarantined entries.
        """
        notes: dict[str, str] = {}
        for part in self._scan_all("HSCAN", self.keys.quarantine, BATCH):
            notes.update(_notes(part))
            if limit is not None and len(notes) >= limit:
                break
        return dict(islice(notes.items(), limit))

    def calendars(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return the JSON of the calendars called ``names`` (default: all calendars).

        One round trip. If ``names`` is None, the method takes one round trip per about 200
        calendars.
        """
        key = self.keys.calendars
        if names is None:
            pairs = self._all_fields(key, CALENDARS)
            return {text_of(name): text_of(text) for name, text in pairs}
        wanted = list(names)
        texts = self._read_aside("HMGET", key, *wanted) or [None] * len(wanted)
        return {
            name: text_of(text)
            for name, text in zip(wanted, texts, strict=True)
            if text is not None
        }

    def _scan(
        self, command: str, key: str, cursor: str, count: int, *options: str
    ) -> tuple[str, Any]:
        """Read the part of a key at ``cursor``; return the next cursor, and the part.

        The part is empty if the Redis user has no right to read the key. Takes one round trip, in
        which Redis reads about ``count`` items.
        """
        reply = self._read_aside(command, key, cursor, *options, "COUNT", count)
        after, part = reply or (START, ())
        return str(after) if isinstance(after, int) else text_of(after), part

    def _scan_all(self, command: str, key: str, count: int, *options: str) -> Iterator[Any]:
        """Read a key in parts, and yield each part.

        Takes one round trip per about ``count`` items.
        """
        cursor, part = self._scan(command, key, START, count, *options)
        yield part
        while cursor != START:
            cursor, part = self._scan(command, key, cursor, count, *options)
            yield part

    def _all_fields(self, key: str, count: int) -> list[tuple[Any, Any]]:
        """Return the (field, value) pairs of a hash; the list may contain some fields twice.

        Takes one round trip per about ``count`` fields.
        """
        return [pair for part in self._scan_all("HSCAN", key, count) for pair in pairs_of(part)]

    def calendar_users(self, cursor: str) -> tuple[str, list[str]]:
        """Return the next cursor, and a page of the keys of entries with calendars.

        Pass the cursor "0" to start. A returned cursor "0" means that no page follows. One round
        trip.
        """
        after, keys = self._scan("SSCAN", self.keys.calendar_users, cursor, BATCH)
        return after, [text_of(key) for key in keys]

    def quarantine_page(self, cursor: str) -> tuple[str, dict[str, str]]:
        """Return the next cursor, and a page of about 500 :meth:`quarantined` entries.

        Pass the cursor "0" to start. A returned cursor "0" means that no page follows. One round
        trip.
        """
        after, notes = self._scan("HSCAN", self.keys.quarantine, cursor, BATCH)
        return after, _notes(notes)

    def read(self, keys: Sequence[str]) -> Page:
        """Return one row per key, in the order of ``keys``.

        Pass at most 500 keys. Takes one round trip, or more if Redis needs longer than
        :attr:`max_seconds` or if the entries have more than 4 MiB in total.
        """
        page = self._page("named", *map(key_of, keys))
        while left := keys[len(page.rows) :]:
            page.rows.extend(self._page("named", *map(key_of, left)).rows)
        return page

    def page(self, after: Cursor | None = None, limit: int = BATCH, history: bool = False) -> Page:
        """Return a page of entries in due order; entries that are never due come last.

        The page has fewer than ``limit`` entries if Redis needs longer than :attr:`max_seconds`, or
        if the entries have more than 4 MiB in total. One round trip.
        """
        score, member = after or ("", "")
        return self._page(limit, score, key_of(member), "history" if history else "")

    def scan(self, cursor: str = START, text: str = "*") -> tuple[str, list[tuple[str, float]]]:
        """Return the next cursor of a scan, and pairs (entry key, score) in no special order.

        ``text`` is a glob pattern for the entry keys. A returned cursor :data:`START` means that
        the scan is complete. A scan returns every key that stays in the schedule during the whole
        scan. A scan may return a key several times. Takes one round trip, in which Redis reads
        about 2000 entries.
        """
        after, part = self._scan("ZSCAN", self.keys.schedule, cursor, SCAN_COUNT, *_match(text))
        return after, _scores(part)

    def scan_all(self, text: str = "*") -> Iterator[tuple[str, float]]:
        """Yield the pairs (entry key, score) of all parts of a :meth:`scan`.

        Takes one round trip per 2000 entries.
        """
        for part in self._scan_all("ZSCAN", self.keys.schedule, SCAN_COUNT, *_match(text)):
            yield from _scores(part)

    def _page(self, *args: Any) -> Page:
        names = self.keys
        keys = self._with_missing_key(names.schedule, names.statics, names.quarantine)
        return read_page(self._run("page", keys, [self.keys.prefix, self._time_limit, *args]))

    def members(self) -> int:
        """Return the number of entries. One round trip."""
        return int(self._read("ZCARD", self.keys.schedule))

    def ranked(self, offset: int, limit: int) -> list[tuple[str, float]]:
        """Return at most ``limit`` pairs (entry key, score) in order of score. One round trip.

        ``offset`` is the number of pairs to skip. Entries that are never due come first,
        because their scores are negative.
        """
        reply = self._read(
            *("ZRANGE", self.keys.schedule, offset, offset + limit - 1), "WITHSCORES"
        )
        return _scores(reply)

    def counts(self, lock_key: str | None, disabled: float, within: float) -> Counts:
        """Return the number of entries of each kind, and the active beats.

        Also returns the keys of at most 500 entries that may be overdue. A beat is active if it was
        seen in the last ``within`` seconds. ``disabled`` is the score of disabled entries. One
        round trip.
        """
        names = self.keys
        keys = self._with_missing_key(
            *(names.schedule, names.statics, names.quarantine, names.beats, names.stats),
            *(names.failing, names.expected),
        )
        if lock_key is not None:
            keys.append(lock_key)
        return read_counts(self._run("count", keys, [disabled, within, BATCH]))

    # -- beats -------------------------------------------------------------------------------

    def lock_holder(self, key: str) -> str:
        """Return the token of the beat that holds the lock, or "" if the lock is free.

        One round trip.
        """
        return valid_text(self._read("GET", key))

    def lock_holders(self, key: str) -> list[str]:
        """Return a list with the token of the beat that holds the lock. One round trip.

        The list is empty if the lock is free.
        """
        return [*filter(None, (self.lock_holder(key),))]

    def time(self) -> float:
        """Return the time of the Redis server in UNIX seconds. One round trip."""
        seconds, micros = self._read("TIME")
        return int(seconds) + int(micros) / 1e6

    def beats(self, within: float) -> list[Presence]:
        """Return the beats that were seen in the last ``within`` seconds. Two round trips.

        The list ends with the beat that was seen last.
        """
        now = int(self.time())
        span = now - within, now + within
        beats = self._read_aside("ZRANGEBYSCORE", self.keys.beats, *span, "WITHSCORES")
        return [
            Presence.read(valid_text(beat), score_in(seen)) for beat, seen in pairs_of(beats or ())
        ]

    def lock_left(self, key: str) -> float | None:
        """Return the seconds until the lock expires, or None if the lock is free.

        One round trip.
        """
        milliseconds = int(self._read("PTTL", key))
        return milliseconds / 1000 if milliseconds >= 0 else None

    def last_tick_and_layout(self) -> tuple[float, str]:
        """Return when a beat last ran ``claim.lua``, and the note about the number of shards.

        The time is in UNIX seconds of the Redis clock, 0 if unknown. One round trip.
        """
        try:
            reply = self._read_aside("HMGET", self.keys.stats, LAST_TICK, LAYOUT) or ("", "")
        except ResponseError:
            return 0.0, ""  # the key is not a hash, or the Redis user has no right to read the key
        return seconds_in(valid_text(reply[0])) or 0.0, valid_text(reply[1])

    def noted(self, field: str) -> str:
        """Return the text in a field of the stats, or "" if the field is missing.

        One round trip.
        """
        try:
            return valid_text(self._read_aside("HGET", self.keys.stats, field))
        except ResponseError:
            return ""  # the key is not a hash, or the Redis user has no right to read the key

    def stats(self) -> dict[str, str]:
        """Return the counters of all beats as field -> value.

        Takes one round trip per about 2000 fields. Returns an empty mapping if no beat has counted
        anything, or if the key of the stats is not a hash.
        """
        try:
            pairs = self._all_fields(self.keys.stats, SCAN_COUNT)
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                return {}
            raise
        return {valid_text(field): valid_text(value) for field, value in pairs}

    # -- the server --------------------------------------------------------------------------

    def eviction(self) -> tuple[int, str]:
        """Return (maxmemory in bytes, eviction policy) from INFO. One round trip."""
        with cluster_errors():
            info = node_of(self.client, self.keys.schedule).info("memory")
        return int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", ""))

    def server(self) -> dict[str, str]:
        """Return the version and the mode of the server from INFO.

        Returns an empty mapping if the Redis user has no right to run INFO. One round trip.
        """
        try:
            with cluster_errors():
                info = node_of(self.client, self.keys.schedule).info("server")
        except ResponseError:
            return {}
        # Prefer valkey_version: Valkey also reports a redis_version, but only for compatibility.
        version = info.get("valkey_version") or info.get("redis_version", "")
        mode = info.get("redis_mode") or info.get("server_mode", "")
        return {"version": str(version), "mode": str(mode)}
