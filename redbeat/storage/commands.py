"""Redis commands that only read the schedule.

Redis errors pass through unchanged, except that an error about a key of the schedule with a wrong
Redis type names the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Final

from redis.client import NEVER_DECODE
from redis.exceptions import NoPermissionError, ResponseError

from redbeat.codec.stored import bytes_of, score_in, seconds_in, text_of, valid_text, whole_in
from redbeat.config import key_aside
from redbeat.connection.borrowing import replies_to
from redbeat.connection.cluster import node_of, server_errors
from redbeat.printing import get_logger
from redbeat.storage.keys import WRONG_TYPE, Keys, naming_wrong_types
from redbeat.storage.scripts import load_script
from redbeat.storage.views import Presence

logger = get_logger("celery.beat")

#: Characters with a special meaning in a SCAN pattern, and the replacement that makes Redis match
#: the character literally.
GLOB_SPECIAL: Final = re.compile(r"[\\\[\]*?]")
ESCAPED: Final = r"\\\g<0>"

#: Matches the error message of Redis for a user who has no right to access a key.
NO_KEY: Final = re.compile(r"access .*\bkey")

#: Maximum number of entries per round trip.
BATCH: Final = 500

#: Fields of the stats: the time of the last turn of a beat that leads, in UNIX seconds; the time
#: zone of the last leader; why a beat sends no runs; by how many seconds the clock of a beat's host
#: is ahead of Redis's, if it differs; when a worker first reported the end of a run; and, under the
#: base prefix, the number of shards.
LAST_TICK: Final = "last_tick"
TIME_ZONE: Final = "timezone"
PROBLEM: Final = "problem"
HOST_AHEAD: Final = "host_ahead"
REPORTS_SINCE: Final = "reports_since"
LAYOUT: Final = "layout"

#: The cursor that starts a scan. Redis also returns it with the last part of a scan.
START: Final = 0

#: Approximate number of entries that Redis reads for one part of a scan.
SCAN_COUNT: Final = 2000


def batches(items: Iterable[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Split ``items`` into lists of at most ``size`` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def not_an_entry(key: str) -> str:
    """Return the error message for a key that is not a hash."""
    return f"the key {key!r} is not an entry; use another name, or delete the key"


def pattern_of(prefix: str) -> str:
    """Return the glob pattern of all keys that begin with ``prefix``."""
    return GLOB_SPECIAL.sub(ESCAPED, prefix) + "*"


def pairs_of(reply: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (field, value) or (member, score) pairs of a reply.

    In RESP3, a reply is a dict or a list of pairs; in RESP2, a reply is a flat list.
    """
    if isinstance(reply, dict):
        return reply.items()
    if not reply or isinstance(reply[0], (list, tuple)):
        pairs: Iterable[tuple[Any, Any]] = reply
        return pairs
    return zip(reply[::2], reply[1::2], strict=True)


def ask(client: Any, *commands: Sequence[Any]) -> list[Any]:
    """Return the replies to commands, as bytes. One round trip; raises the first error."""
    replies = replies_to(client, commands) if commands else []
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def ask_aside(client: Any, *command: Any) -> Any:
    """Return the reply about a key aside of the prefix. One round trip.

    Returns None without a right to the key, or if another program has made it of another type.
    """
    try:
        return ask(client, command)[0]
    except ResponseError as error:
        if isinstance(error, NoPermissionError) or WRONG_TYPE in str(error):
            return None
        raise


class Commands:
    """Reads values of a schedule with single commands.

    The :attr:`parts` of a schedule with shards have a key prefix each. Without shards, the only
    part is the object itself. The docstrings give the number of round trips for each part.
    """

    #: Seconds after which a script for many entries stops, so that Redis can serve other clients.
    #: Another round trip handles the remaining entries of the script.
    #: A script may take 4 ms longer than ``max_seconds``.
    max_seconds: ClassVar[float] = 0.004

    def __init__(self, client: Any, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.parts: Sequence[Commands] = (self,)

    def _run(self, script: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        with naming_wrong_types(self.client, self.keys):
            return load_script(script)(self.client, keys, args)

    def _read(self, *command: Any) -> Any:
        with naming_wrong_types(self.client, self.keys), server_errors():
            return self.client.execute_command(*command, **{NEVER_DECODE: True})

    def _read_aside(self, *command: Any) -> Any:
        """Run a Redis command on a key that may be outside the key prefix, and return the reply.

        Returns None if the Redis user has no right to such a key, or if another program has made it
        of another type: it counts as empty. The key is the first argument. One round trip.
        """
        try:
            return self._read(*command)
        except ResponseError as error:
            # Without the users of a calendar, one that is in use could be deleted.
            is_other = WRONG_TYPE in str(error) and command[1] != self.keys.calendar_users
            if command[1] not in self.keys.aside or not (is_other or NO_KEY.search(str(error))):
                raise
            self.warn_of_denied(str(error))
            return None

    def warn_of_denied(self, error: str) -> None:
        """Log once that the Redis user has no right to access the keys outside the prefix."""
        keys = self.keys
        if keys.prefix in keys.warned or not NO_KEY.search(error):
            return
        keys.warned.add(keys.prefix)
        logger.warning(
            "redbeat: The Redis user may not use the keys %s. Entries run, but RedBeat keeps no "
            "counters, no reasons of quarantined entries and no list of beats. To allow the keys: "
            "ACL SETUSER <user> '~%s'",
            *(", ".join(keys.aside), pattern_of(key_aside(keys.prefix, ""))),
        )

    # -- entries ---------------------------------------------------------------------------------

    def rank(self, key: str) -> int | None:
        """Return the position of an entry in the schedule's sorted set, from 0. One round trip.

        Returns None if the set does not contain the entry.
        """
        rank: int | None = self._read("ZRANK", self.keys.schedule, bytes_of(key))
        return rank

    def count_below(self, score: float) -> int:
        """Return the number of entries whose score is lower than ``score``. One round trip."""
        span = ("-inf", f"({score!r}")
        return sum(int(part._read("ZCOUNT", part.keys.schedule, *span)) for part in self.parts)

    def members(self) -> int:
        """Return the number of entries. One round trip."""
        return sum(int(part._read("ZCARD", part.keys.schedule)) for part in self.parts)

    def scan(self, text: str = "*") -> Iterator[list[tuple[str, float]]]:
        """Yield pairs (entry key, score) in no special order, in parts of about 2000 entries.

        ``text`` is a glob pattern for the entry keys. A scan returns every key that stays in the
        schedule during the whole scan. A scan may return a key several times. Takes one round trip
        for each part.
        """
        for items in self._scan("schedule", "ZSCAN", SCAN_COUNT, "MATCH", text):
            yield [(text_of(member), score_in(score)) for member, score in pairs_of(items)]

    def static_names(self) -> set[str]:
        """Return the names of all static entries. One round trip per :data:`SCAN_COUNT` names.

        Users of Redis have no right to SMEMBERS.
        """
        parts = self._scan("statics", "SSCAN", SCAN_COUNT)
        return {text_of(name) for items in parts for name in items}

    def quarantined(self, limit: int | None = None) -> dict[str, str]:
        """Return at most ``limit`` quarantined entries (default: all) as key -> JSON note.

        Takes one round trip per about 500 quarantined entries.
        """
        notes = dict(islice(self._fields("quarantine", BATCH), limit))
        return {text_of(key): valid_text(note) for key, note in notes.items()}

    def calendars(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return the JSON of the calendars called ``names`` (default: all calendars).

        One round trip. If ``names`` is None, the method takes one round trip per about 500
        calendars.
        """
        first = self.parts[0]  # each part has all calendars
        if names is None:
            pairs: Iterable[tuple[Any, Any]] = first._fields("calendars", BATCH)
        else:
            wanted = list(names)
            texts = first._read_aside("HMGET", first.keys.calendars, *wanted) or ()
            pairs = zip(wanted, texts, strict=False)
        return {text_of(name): text_of(text) for name, text in pairs if text is not None}

    def calendar_users(self) -> Iterator[list[str]]:
        """Yield the keys of entries with calendars, in parts of about 500. One round trip each."""
        for items in self._scan("calendar_users", "SSCAN", BATCH):
            yield [text_of(key) for key in items]

    def _fields(self, which: str, count: int) -> Iterator[tuple[Any, Any]]:
        """Yield the (field, value) pairs of a hash, some perhaps twice.

        Takes one round trip per about ``count`` fields.
        """
        for items in self._scan(which, "HSCAN", count):
            yield from pairs_of(items)

    def _scan(self, which: str, command: str, count: int, *options: str) -> Iterator[Any]:
        """Yield what a scan of a key returns; nothing if the Redis user has no right to read it.

        ``which`` is the name of the key in :class:`Keys`. Takes one round trip for about ``count``
        items.
        """
        for part in self.parts:
            cursor: Any = None
            while cursor is None or int(cursor) != START:
                scan = (command, getattr(part.keys, which), cursor or START)
                cursor, items = part._read_aside(*scan, *options, "COUNT", count) or (START, ())
                yield items

    # -- beats -------------------------------------------------------------------------------

    def lock_holder(self, key: str) -> str:
        """Return the token of the beat that holds the lock, or "" if the lock is free.

        One round trip.
        """
        return valid_text(self._read("GET", key))

    def lock_left(self, key: str) -> float | None:
        """Return the seconds until the lock expires, or None if the lock is free.

        One round trip.
        """
        milliseconds = int(self._read("PTTL", key))
        return milliseconds / 1000 if milliseconds >= 0 else None

    def time(self) -> float:
        """Return the time of the Redis server in UNIX seconds. One round trip."""
        seconds, micros = self._read("TIME")
        return int(seconds) + int(micros) / 1e6

    def beats(self, within: float) -> list[Presence]:
        """Return the beats that were seen in the last ``within`` seconds. Two round trips.

        The list ends with the beat that was seen last.
        """
        first, now = self.parts[0], int(self.time())
        span = now - within, now + within
        beats = first._read_aside("ZRANGEBYSCORE", first.keys.beats, *span, "WITHSCORES")
        return [
            Presence.read(valid_text(beat), score_in(seen)) for beat, seen in pairs_of(beats or ())
        ]

    # -- the stats -----------------------------------------------------------------------------

    def noted(self, field: str) -> str:
        """Return the text in a field of the stats, "" if it is missing. One round trip."""
        return valid_text(self._read_aside("HGET", self.keys.stats, field))

    def reports_since(self) -> float | None:
        """Return when a worker first reported the end of a run, in UNIX seconds.

        Returns None if no worker has reported a run. One round trip.
        """
        found = [seconds_in(part.noted(REPORTS_SINCE)) for part in self.parts]
        return min((seconds for seconds in found if seconds is not None), default=None)

    def stats(self) -> dict[str, str]:
        """Return the counters of all beats as field -> value, added up over the shards.

        Takes one round trip per about 2000 fields.
        """
        return total_stats(self.parts)

    # -- the server --------------------------------------------------------------------------

    def eviction_risk(self) -> tuple[int, str] | None:
        """Return maxmemory in bytes and the policy of a server that can evict entries, or None.

        Asks INFO instead of CONFIG, because managed servers may disable CONFIG. One round trip.
        """
        for part in self.parts:
            info = part._info("memory")
            limit, policy = int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", ""))
            if limit and policy.startswith("allkeys-"):
                return limit, policy
        return None

    def server(self) -> dict[str, str]:
        """Return the version and the mode of the server from INFO.

        Returns an empty mapping if the Redis user has no right to run INFO. One round trip.
        """
        try:
            info = self.parts[0]._info("server")
        except ResponseError:
            return {}
        # Prefer valkey_version: Valkey also reports a redis_version, but only for compatibility.
        version = info.get("valkey_version") or info.get("redis_version", "")
        mode = info.get("redis_mode") or info.get("server_mode", "")
        return {"version": str(version), "mode": str(mode)}

    def _info(self, section: str) -> Any:
        return node_of(self.client, self.keys.schedule).info(section)


def total_stats(parts: Iterable[Commands]) -> dict[str, str]:
    """Return the stats of a schedule, with the counters of all ``parts`` added up.

    Takes one round trip per about 2000 fields of a part.
    """
    stats: dict[str, str] = {}
    for part in parts:
        for field, value in dict(part._fields("stats", SCAN_COUNT)).items():
            name, text = valid_text(field), valid_text(value)
            stats[name] = _total(name, stats[name], text) if name in stats else text
    return stats


def _total(name: str, one: str, other: str) -> str:
    """Combine the values ``one`` and ``other`` of a field of the stats into one value."""
    if name in (LAST_TICK, REPORTS_SINCE):
        choose = max if name == LAST_TICK else min
        return choose(one, other, key=lambda text: seconds_in(text) or 0.0)
    first, second = whole_in(one), whole_in(other)
    return one if first is None or second is None else str(first + second)
