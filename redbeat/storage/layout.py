"""How the names of entries are distributed over the shards of a schedule.

Each shard has its own key prefix. The prefixes are spread evenly over the slots of a Redis
Cluster, so that each master has about as many shards. All functions are pure: a name and two
settings determine the key of an entry, without a lookup.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from zlib import crc32

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from redbeat.codec.stored import bytes_of
from redbeat.config import RedBeatConfig

__all__ = ("Layout", "layout", "layout_of")


class Layout:
    """The prefixes of a schedule with the base ``prefix`` and a number of ``shards``.

    With one shard, the base prefix is the prefix of that shard.
    """

    def __init__(self, prefix: str, shards: int) -> None:
        self.prefix = prefix
        self.shards = shards
        self._head, tag, self._tail = _tag_in(prefix)
        #: The prefix of each shard, by its number.
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
        except UnicodeEncodeError:  # no entry can have such a name, which is refused later
            return 0

    def key_of(self, name: str) -> str:
        """Return the Redis key of the entry called ``name``."""
        return self.prefixes[self.shard_of(name)] + name

    def split(self, key: str) -> tuple[int, str]:
        """Return the number of the shard that has an entry key, and the name of the entry.

        Also accepts keys with the base prefix, because programs may compute them.
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
        """Return the name of the entry with this key."""
        return self.split(key)[1]


def _tag_in(prefix: str) -> tuple[str, str, str]:
    """Return the hash tag of a prefix, and the parts before and after it, without the braces.

    Without a hash tag, everything before the last colons becomes the tag.
    """
    head, _, rest = prefix.partition("{")
    tag, brace, tail = rest.partition("}")
    if brace:
        return head, tag, tail
    stem = prefix.rstrip(":")
    return "", stem, prefix[len(stem) :]


def _tag(stem: str, shard: int, shards: int) -> str:
    """Return the first hash tag that begins with ``stem`` and lies in the slots of a shard."""
    tags = (stem if not number else f"{stem}.{number}" for number in count())
    return next(tag for tag in tags if key_slot(tag.encode()) * shards // SLOTS == shard)


@lru_cache(maxsize=64)
def layout(prefix: str, shards: int) -> Layout:
    """Return the layout of a schedule; equal arguments return the same object."""
    return Layout(prefix, shards)


def layout_of(conf: RedBeatConfig) -> Layout:
    """Return the layout of the schedule with these settings."""
    return layout(conf.key_prefix, conf.shards)
