"""Reads the schedule: entries, pages, beats, and hashes outside of the schedule.

Redis errors pass through unchanged; see :func:`redbeat.storage.checks.explained`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError

from redbeat.codec.stored import (
    bytes_of,
    record_in,
    score_in,
    seconds_in,
    text_of,
    valid_text,
)
from redbeat.config import key_aside
from redbeat.connection.retrying import replies_to
from redbeat.connection.topology import node_of, server_errors
from redbeat.printing import get_logger
from redbeat.storage.keys import WRONG_TYPE, Keys
from redbeat.storage.rows import Row
from redbeat.storage.scripts import load_script

if TYPE_CHECKING:
    from redbeat.storage.store import Store

logger = get_logger("celery.beat")

#: What is special in a SCAN pattern, and the replacement that makes Redis match it literally.
GLOB_SPECIAL: Final = re.compile(r"[\\\[\]*?]")
ESCAPED: Final = r"\\\g<0>"

#: Matches Redis's error for a user without the right to a key.
NO_KEY: Final = re.compile(r"access .*\bkey")

#: How many entries to read in a round trip.
BATCH: Final = 500

#: About how many characters to write in a round trip: Redis does nothing else until it has them.
MOST_WRITTEN: Final = 1 << 20

#: Fields of the stats: the time of the last turn of a leading beat, in UNIX seconds; the time zone
#: of the last leader; why a beat sends no runs; how many seconds the clock of a beat's host is
#: ahead of Redis's, if it differs; when a worker first reported the end of a run; and, under the
#: base prefix, the number of shards.
LAST_TICK: Final = "last_tick"
TIME_ZONE: Final = "timezone"
PROBLEM: Final = "problem"
HOST_AHEAD: Final = "host_ahead"
REPORTS_SINCE: Final = "reports_since"
LAYOUT: Final = "layout"

#: The cursor that starts a scan. Redis returns it with a scan's last part, too.
START: Final = 0

#: About how many entries Redis reads for one part of a scan.
SCAN_COUNT: Final = 2000

#: The most bytes of a page.
MOST_BYTES: Final = 1 << 22

#: No row has this digest.
NOTHING_HAS: Final = "-"

#: About how many keys a tool reads in one portion of a scan; a beat reads fewer at once.
SCANNED: Final = 1000

#: What ``turn.lua`` appends to the token of a beat that uses the lock.
LOCKED = " lock"

#: Score and key, as strings, of the entry after which a page begins.
Cursor = tuple[str, str]


class Page(NamedTuple):
    """A page of entries in due order; entries that are never due come last.

    ``now`` is Redis's time in UNIX seconds. ``after`` is the cursor of the next page, None on the
    last one.
    """

    now: float
    rows: list[Row]
    after: Cursor | None


class Presence(NamedTuple):
    """An active beat; ``seen`` is when it was last seen, in UNIX seconds.

    A beat that uses the lock (``locked``) is the leader or a standby. Others share the work.
    """

    token: str
    seen: float
    locked: bool

    @classmethod
    def read(cls, member: str, seen: float) -> Presence:
        return cls(member.removesuffix(LOCKED), seen, member.endswith(LOCKED))


def batches(
    items: Iterable[Any], size: int = BATCH, length_of: Callable[[Any], int] = lambda _: 0
) -> Iterator[list[Any]]:
    """Lists of at most ``size`` items; one that has come to :data:`MOST_WRITTEN` is full, too."""
    batch, length = [], 0
    for item in items:
        batch.append(item)
        length += length_of(item)
        if len(batch) == size or length >= MOST_WRITTEN:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def not_an_entry(key: str) -> str:
    return f"the key {key!r} is not an entry; use another name, or delete the key"


def pattern_of(prefix: str) -> str:
    return GLOB_SPECIAL.sub(ESCAPED, prefix) + "*"


def pairs_of(reply: Any) -> Iterable[tuple[Any, Any]]:
    """(field, value) or (member, score) pairs.

    In RESP3 a reply is a dict or a list of pairs, in RESP2 a flat list.
    """
    if isinstance(reply, dict):
        return reply.items()
    if not reply or isinstance(reply[0], (list, tuple)):
        pairs: Iterable[tuple[Any, Any]] = reply
        return pairs
    return zip(reply[::2], reply[1::2], strict=True)


def ask(client: Any, *commands: Sequence[Any]) -> list[Any]:
    """The replies to commands, as bytes. One round trip; raises the first error."""
    replies = replies_to(client, commands) if commands else []
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


class Reading:
    """Reads the schedule under one key prefix.

    With shards, each of the :attr:`parts` has its own key prefix; without, the object itself is the
    only part. Numbers of round trips are those for each part.

    A side key that has a wrong type, or that the Redis user may not read, counts as empty.
    :func:`redbeat.metrics.counts.counts_of` names it.
    """

    #: Seconds after which a script for many entries stops, so that Redis can serve others; another
    #: round trip handles the rest. It may take 4 ms longer.
    max_seconds: ClassVar[float] = 0.004

    def __init__(self, client: Any, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.parts: Sequence[Reading] = (self,)

    def run_script(self, script: str, args: Sequence[Any], *lock: str) -> Any:
        """Run a script that only reads. One round trip.

        The third key never exists. While a Redis Cluster moves a slot, a node that lacks a key of a
        script refuses it. Without this key, the script could run on a node that lacks entries.
        """
        keys = [self.keys.schedule, self.keys.statics, self.keys.wakeup, *lock]
        return load_script(script)(self.client, keys, args)

    def _read(self, *command: Any) -> Any:
        with server_errors():
            return self.client.execute_command(*command, **{NEVER_DECODE: True})

    def read_aside(self, *command: Any) -> Any:
        """The reply to a command on a key, its first argument, that may be outside the prefix.

        None if the Redis user has no right to such a key, or if another program has made it of
        another type: it counts as empty. One round trip.
        """
        try:
            return self._read(*command)
        except ResponseError as error:
            # If calendars had no known users, one in use could be deleted.
            is_other = WRONG_TYPE in str(error) and command[1] != self.keys.calendar_users
            if command[1] not in self.keys.aside or not (is_other or NO_KEY.search(str(error))):
                raise
            self.warn_of_denied(str(error))
            return None

    def warn_of_denied(self, error: str) -> None:
        """Log once that the Redis user has no right to the keys outside the prefix."""
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

    def part_of(self, key: str) -> Reading:
        return self.parts[self.keys.layout.split(key)[0]]

    def rank(self, key: str) -> int | None:
        """The position of an entry in the order of scores, from 0; None if it isn't there.

        One round trip. Entries of other shards with the same score count as later; that takes two
        more round trips, and one for each shard.
        """
        own = self.part_of(key)
        rank: int | None = own._read("ZRANK", own.keys.schedule, bytes_of(key))
        others = [part for part in self.parts if part is not own]
        if rank is None or not others:
            return rank
        score = own.read([key]).rows[0].due or 0.0
        return rank + sum(part.count_below(score) for part in others)

    def count_below(self, score: float) -> int:
        """How many entries have a lower score. One round trip."""
        span = ("-inf", f"({score!r}")
        return sum(int(part._read("ZCOUNT", part.keys.schedule, *span)) for part in self.parts)

    def members(self) -> int:
        """The number of entries. One round trip."""
        return sum(int(part._read("ZCARD", part.keys.schedule)) for part in self.parts)

    def scan(self, text: str = "*", which: str = "schedule") -> Iterator[list[tuple[str, float]]]:
        """(entry key, score) pairs in no special order, in parts of about 2000.

        ``which`` names the sorted set in :class:`Keys`; ``text`` is a glob pattern for the entry
        keys. Every key that stays in the set during the whole scan comes, perhaps several times.
        One round trip for each part.
        """
        for items in self.portions(which, "ZSCAN", SCAN_COUNT, "MATCH", text):
            yield [(text_of(member), score_in(score)) for member, score in pairs_of(items)]

    def static_names(self) -> set[str]:
        """The names of all static entries. One round trip per :data:`SCAN_COUNT` names.

        Users of Redis have no right to SMEMBERS.
        """
        parts = self.portions("statics", "SSCAN", SCAN_COUNT)
        return {text_of(name) for items in parts for name in items}

    def quarantined(self, limit: int | None = None) -> dict[str, str]:
        """Quarantined entries, at most ``limit`` (default: all), as key -> JSON note.

        One round trip per about 500 of them.
        """
        notes = dict(islice(self._fields("quarantine", BATCH), limit))
        return {text_of(key): valid_text(note) for key, note in notes.items()}

    def calendars(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """The JSON of the calendars called ``names`` (default: all).

        One round trip; for all, one per about 500.
        """
        first = self.parts[0]  # each part has all calendars
        if names is None:
            pairs: Iterable[tuple[Any, Any]] = first._fields("calendars", BATCH)
        else:
            wanted = list(names)
            texts = first.read_aside("HMGET", first.keys.calendars, *wanted) or ()
            pairs = zip(wanted, texts, strict=False)
        return {text_of(name): text_of(text) for name, text in pairs if text is not None}

    def calendar_users(self) -> Iterator[list[str]]:
        """Keys of the entries with calendars, in parts of about 500. One round trip each."""
        for items in self.portions("calendar_users", "SSCAN", BATCH):
            yield [text_of(key) for key in items]

    def _fields(self, which: str, count: int) -> Iterator[tuple[Any, Any]]:
        """(field, value) pairs of a hash, some perhaps twice. A round trip per ``count`` fields."""
        for items in self.portions(which, "HSCAN", count):
            yield from pairs_of(items)

    def portions(self, which: str, command: str, count: int, *options: str) -> Iterator[Any]:
        """What a scan of a key returns, nothing if the Redis user has no right to read it.

        ``which`` names the key in :class:`Keys`. One round trip per about ``count`` items.
        """
        for part in self.parts:
            cursor: Any = None
            while cursor is None or int(cursor) != START:
                scan = (command, getattr(part.keys, which), cursor or START)
                cursor, items = part.read_aside(*scan, *options, "COUNT", count) or (START, ())
                yield items

    # -- beats -------------------------------------------------------------------------------

    def lock_holder(self, key: str) -> str:
        """Token of the beat that holds the first shard's lock, "" if it's free. One round trip."""
        return valid_text(self._read("GET", self.keys.layout.lock_key(0, key)))

    def time(self) -> float:
        """Redis's time in UNIX seconds. One round trip."""
        seconds, micros = self._read("TIME")
        return int(seconds) + int(micros) / 1e6

    def beats(self, within: float) -> list[Presence]:
        """The beats that were seen in the last ``within`` seconds, the latest last.

        Two round trips.
        """
        first, now = self.parts[0], int(self.time())
        span = now - within, now + within
        beats = first.read_aside("ZRANGEBYSCORE", first.keys.beats, *span, "WITHSCORES")
        return [
            Presence.read(valid_text(beat), score_in(seen)) for beat, seen in pairs_of(beats or ())
        ]

    # -- the stats -----------------------------------------------------------------------------

    def noted(self, field: str) -> str:
        """The text in a field of the stats, "" if it is missing. One round trip."""
        return valid_text(self.read_aside("HGET", self.keys.stats, field))

    def reports_since(self) -> float | None:
        """When a worker first reported the end of a run, in UNIX seconds. One round trip.

        None if no worker has reported any.
        """
        found = [seconds_in(part.noted(REPORTS_SINCE)) for part in self.parts]
        return min((seconds for seconds in found if seconds is not None), default=None)

    # -- the servers, rows and pages -----------------------------------------------------------

    def servers(self) -> list[tuple[Any, Mapping[str, Any]]]:
        """Each server of the schedule with its INFO. One round trip each.

        INFO is used because managed servers may disable CONFIG.
        """
        nodes = dict.fromkeys(node_of(self.client, part.keys.schedule) for part in self.parts)
        return [(node, node.info()) for node in nodes]

    def read(self, keys: Sequence[str], history: bool = False) -> Page:
        """One row per key, in the order of ``keys``; with ``history`` also about its runs.

        One round trip per 2000 keys, or more if Redis needs longer than :attr:`max_seconds` or the
        entries have more than 4 MiB in total.
        """
        head = {"history": history}
        page = self._page(head, keys[:SCAN_COUNT])
        while left := keys[len(page.rows) : len(page.rows) + SCAN_COUNT]:
            page.rows.extend(self._page(head, left).rows)
        return page

    def page(self, after: Cursor | None = None, limit: int = BATCH, history: bool = False) -> Page:
        """A page of entries in due order; entries that are never due come last. One round trip.

        With shards, each part has its own. A page has fewer than ``limit`` entries if Redis needs
        longer than :attr:`max_seconds`, or if the entries have more than 4 MiB in total.
        """
        score, member = after or ("", "")
        head = {"limit": limit, "score": score, "member": member, "history": history}
        return self._page(head, ())

    def _page(self, head: Mapping[str, Any], keys: Sequence[str]) -> Page:
        head = {**head, "max_bytes": MOST_BYTES, "max_seconds": self.max_seconds}
        text = bytes_of(json.dumps(head, ensure_ascii=False))
        found = self.run_script("page", [text, *map(bytes_of, keys)])
        now, score, member, side_error, rows = found
        self.note_side_error(text_of(side_error))
        after = (text_of(score), text_of(member)) if score else None
        return Page(score_in(now), Row.read_all(rows), after)

    def note_side_error(self, error: str) -> str:
        """What is wrong with a side key, and the command that mends it; "" if nothing is.

        A lack of rights is logged once. ``error`` is the key's name and Redis's error.
        """
        name, _, why = error.partition(": ")
        if WRONG_TYPE in why:
            key = key_aside(self.keys.prefix, name)
            return (
                f"the key {key!r} is not what RedBeat stores there, so that counts lack what it "
                f"tells: redis-cli DEL {shlex.quote(key)}"
            )
        self.warn_of_denied(why)
        return ""


def read_rows(store: Store, keys: Iterable[str]) -> list[Row]:
    """The rows of entries; see :meth:`Reading.read`. No round trip without keys."""
    keys = list(keys)
    return store.read(keys).rows if keys else []


# -- hashes outside of the schedule ----------------------------------------------------------------


def rows_outside(store: Store, count: int = SCANNED) -> Iterator[list[Row]]:
    """The hashes outside, in portions of about ``count`` keys of the database.

    Two or three round trips for each portion.
    """
    pattern, cursor = pattern_of(store.keys.prefix), None
    while cursor is None or int(cursor) != START:
        node = node_of(store.client, store.keys.schedule)
        scan = ("SCAN", cursor or START, "MATCH", pattern, "COUNT", count, "TYPE", "hash")
        ((cursor, found),) = ask(node, scan)
        rows = read_rows(store, sorted({text_of(key) for key in found}))
        yield [row for row in rows if not row.score]


def is_entry(store: Store, row: Row) -> bool:
    """Whether the definition has the key's name; otherwise the hash belongs to others."""
    name = definition_of(row).get("name")
    return name is not None and store.keys.entry(str(name)) == row.key


def definition_of(row: Row) -> dict[str, Any]:
    """The fields of a definition, none if it can't be read."""
    return record_in(row.definition or "")
