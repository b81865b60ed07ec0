"""The keys of a schedule, and of its shards; names a key that has a wrong type.

Each shard has a key prefix of its own. The prefixes are spread evenly over the slots of a Redis
Cluster, so that each master has about the same number of shards. An entry's key follows from its
name, the base prefix and the number of shards, without asking Redis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, Final
from zlib import crc32

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from redbeat.codec.stored import bytes_of, text_of
from redbeat.config import KEYS_ASIDE, RedBeatConfig, key_aside
from redbeat.connection.retrying import replies_to


def _key_aside(what: str) -> cached_property[str]:
    return cached_property(lambda keys: key_aside(keys.prefix, what))


def _key(what: str) -> cached_property[str]:
    return cached_property(lambda keys: f"{keys.prefix}:{what}")


@dataclass(frozen=True)
class Keys:
    """The names of all Redis keys of one schedule. With shards, entries have other prefixes.

    The keys of the quarantine, the beats and the stats are outside the key prefix. ``warned`` has
    the prefixes of schedules for which a missing right to these was logged.
    """

    prefix: str
    warned: set[str] = field(default_factory=set, compare=False)
    shards: int = 1

    #: The sorted set of entries: entry key -> when the entry is due, UNIX seconds.
    schedule = _key("schedule")
    #: The set of the names of static entries.
    statics = _key("statics")
    #: The channel on which beats receive wake-up messages.
    wakeup = _key("wakeup")
    #: The hash of quarantined entries: entry key -> JSON note with the reason.
    quarantine = _key_aside("quarantine")
    #: The sorted set of active beats: token -> when the beat was last seen, UNIX seconds.
    beats = _key_aside("beats")
    #: The hash of the stats: counters of all beats.
    stats = _key_aside("stats")
    #: The sorted set of entries whose run couldn't be sent: entry key -> when the run was due.
    failing = _key_aside("failing")
    #: The sorted set of entries whose last runs failed: entry key -> how many in a row.
    failed = _key_aside("failed")
    #: The sorted set of entries with ``expect_within``: entry key -> when the entry may be overdue.
    expected = _key_aside("expected")
    #: The hash of calendars: name -> JSON of the calendar.
    calendars = _key_aside("calendars")
    #: The set of the keys of all entries with calendars, and of some entries without calendars.
    calendar_users = _key_aside("calendar-users")

    @property
    def aside(self) -> list[str]:
        """The schedule's keys outside the key prefix."""
        return [key_aside(self.prefix, what) for what in KEYS_ASIDE]

    @property
    def layout(self) -> Layout:
        return layout(self.prefix, self.shards)

    def entry(self, name: str) -> str:
        return self.layout.key_of(name)

    def name_of(self, key: str) -> str:
        return self.layout.split(key)[1]


class Layout:
    """The key prefixes of a schedule's ``shards``; a single one has the base ``prefix``."""

    def __init__(self, prefix: str, shards: int) -> None:
        self.prefix = prefix
        self.shards = shards
        self._head, tag, self._tail = _tag_in(prefix)
        #: The key prefixes, by shard number.
        self.prefixes: tuple[str, ...] = (prefix,)
        if shards > 1:
            self.prefixes = tuple(
                f"{self._head}{{{_tag(f'{tag}/{shards}/{shard}', shard, shards)}}}{self._tail}"
                for shard in range(shards)
            )
        self._numbers = {prefix: shard for shard, prefix in enumerate(self.prefixes)}

    def shard_of(self, name: str) -> int:
        try:
            return crc32(bytes_of(name)) % self.shards
        except UnicodeEncodeError:  # not a valid name; a later check rejects it
            return 0

    def key_of(self, name: str) -> str:
        return self.prefixes[self.shard_of(name)] + name

    def lock_key(self, number: int, lock_key: str) -> str:
        """A shard's lock key; ``lock_key`` is the one with the base prefix."""
        if self.shards == 1:
            return lock_key
        return self.prefixes[number] + lock_key.removeprefix(self.prefix)

    def split(self, key: str) -> tuple[int, str]:
        """The shard number and the name of an entry, by its key.

        The key may also have the base prefix: programs make such keys.
        """
        if self.shards == 1:
            return 0, key.removeprefix(self.prefix)
        end = key.find("}", len(self._head)) + 1 + len(self._tail)
        shard = self._numbers.get(key[:end])
        if shard is not None:
            return shard, key[end:]
        name = key.removeprefix(self.prefix)
        return self.shard_of(name), name

    def name_of(self, key: str) -> str:
        return self.split(key)[1]


def _tag_in(prefix: str) -> tuple[str, str, str]:
    """Split a prefix into what comes before the hash tag, the tag without braces, and the rest.

    Without a hash tag, everything but the colons at the end becomes the tag.
    """
    head, _, rest = prefix.partition("{")
    tag, brace, tail = rest.partition("}")
    if brace:
        return head, tag, tail
    stem = prefix.rstrip(":")
    return "", stem, prefix[len(stem) :]


def _tag(stem: str, shard: int, shards: int) -> str:
    """The first of the tags ``stem``, ``stem.1``, ... whose slot belongs to the shard.

    Each shard owns an equal part of all hash slots.
    """
    tags = (stem if not number else f"{stem}.{number}" for number in count())
    return next(tag for tag in tags if key_slot(tag.encode()) * shards // SLOTS == shard)


@lru_cache(maxsize=64)
def layout(prefix: str, shards: int) -> Layout:
    return Layout(prefix, shards)


def layout_of(conf: RedBeatConfig) -> Layout:
    return layout(conf.key_prefix, conf.shards)


# -- keys of a wrong type --------------------------------------------------------------------------

#: In Redis's errors about keys of another type.
WRONG_TYPE: Final = "WRONGTYPE"

#: The types of the schedule's keys, by their attributes in ``Keys``, with their names.
TYPES: Final = {
    **dict.fromkeys(("statics", "calendar_users"), ("set", "set")),
    **dict.fromkeys(("quarantine", "stats", "calendars"), ("hash", "hash")),
    **dict.fromkeys(("schedule", "beats", "failing", "failed", "expected"), ("zset", "sorted set")),
}


def wrong_type(client: Any, keys: Keys) -> str:
    """Which key of a schedule has a wrong type, and what to do; "" if none. One round trip."""
    named = {getattr(keys, name): kind for name, kind in TYPES.items()}
    replies = replies_to(client, [("TYPE", key) for key in named])
    for (key, (kind, name)), reply in zip(named.items(), replies, strict=True):
        found = kind if isinstance(reply, Exception) else text_of(reply)
        if found not in (kind, "none"):
            return (
                f"WRONGTYPE the key {key!r} is a {found}, but it must be a {name}: rename or "
                "delete the key, or set redbeat_key_prefix to another prefix"
            )
    return ""
