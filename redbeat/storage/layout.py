"""Assign each entry of a schedule to a shard by the name of the entry.

Each shard has its own key prefix. The key prefixes of the shards are spread evenly over the slots
of a Redis Cluster, so that each master has about the same number of shards. The functions
of this module do not read Redis, because the name of an entry, the base prefix and the number of
shards determine the key of the entry.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from zlib import crc32

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from redbeat.codec.stored import bytes_of
from redbeat.config import RedBeatConfig


class Layout:
    """The key prefixes of the ``shards`` of a schedule with the base prefix ``prefix``.

    If a schedule has only one shard, the prefix of the shard is the base prefix.
    """

    def __init__(self, prefix: str, shards: int) -> None:
        self.prefix = prefix
        self.shards = shards
        self._head, tag, self._tail = _tag_in(prefix)
        #: The key prefixes of the shards, in the order of the shard numbers.
        self.prefixes: tuple[str, ...] = (prefix,)
        if shards > 1:
            self.prefixes = tuple(
                f"{self._head}{{{_tag(f'{tag}/{shards}/{shard}', shard, shards)}}}{self._tail}"
                for shard in range(shards)
            )
        self._numbers = {prefix: shard for shard, prefix in enumerate(self.prefixes)}

    def shard_of(self, name: str) -> int:
        """Return the number of the shard that has the entry called ``name``."""
        try:
            return crc32(bytes_of(name)) % self.shards
        except UnicodeEncodeError:  # not a valid name of an entry; a later check rejects the name
            return 0

    def key_of(self, name: str) -> str:
        """Return the Redis key of the entry called ``name``."""
        return self.prefixes[self.shard_of(name)] + name

    def lock_key(self, number: int, lock_key: str) -> str:
        """Return the lock key of a shard; ``lock_key`` is the lock key with the base prefix."""
        if self.shards == 1:
            return lock_key
        return self.prefixes[number] + lock_key.removeprefix(self.prefix)

    def split(self, key: str) -> tuple[int, str]:
        """Return the shard number and the name of the entry with the key ``key``.

        Also accepts keys with the base prefix, because programs may compute entry keys from the
        base prefix.
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
        """Return the name of the entry with the key ``key``."""
        return self.split(key)[1]


def _tag_in(prefix: str) -> tuple[str, str, str]:
    """Split a prefix into the text before the hash tag, the tag without braces, and the rest.

    If the prefix has no hash tag, the text before the colons at the end of the prefix becomes the
    tag.
    """
    head, _, rest = prefix.partition("{")
    tag, brace, tail = rest.partition("}")
    if brace:
        return head, tag, tail
    stem = prefix.rstrip(":")
    return "", stem, prefix[len(stem) :]


def _tag(stem: str, shard: int, shards: int) -> str:
    """Return the first of the tags ``stem``, ``stem.1``, ... whose slot belongs to the shard.

    Each shard owns an equal part of all hash slots.
    """
    tags = (stem if not number else f"{stem}.{number}" for number in count())
    return next(tag for tag in tags if key_slot(tag.encode()) * shards // SLOTS == shard)


@lru_cache(maxsize=64)
def layout(prefix: str, shards: int) -> Layout:
    """Return the layout of a schedule; calls with equal arguments return the same object."""
    return Layout(prefix, shards)


def layout_of(conf: RedBeatConfig) -> Layout:
    """Return the layout of the schedule that the settings ``conf`` describe."""
    return layout(conf.key_prefix, conf.shards)
