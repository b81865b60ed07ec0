"""The keys of a schedule and of its shards; refuses queues that would be among them.

Each shard has a key prefix of its own. The prefixes are spread evenly over the slots of a Redis
Cluster, so that each master has about the same number of shards. An entry's key follows from its
name, the base prefix and the number of shards, without asking Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, Final
from zlib import crc32

from celery import Celery
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot
from redis.sentinel import SentinelConnectionPool

from redbeat.codec.stored import bytes_of, text_of
from redbeat.config import KEYS_ASIDE, RedBeatConfig, client_of, ensure_conf, key_aside, values_in
from redbeat.connection.retrying import replies_to
from redbeat.connection.urls import parse_url, url_text
from redbeat.errors import ConfigurationError, InvalidEntryError


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


# -- queues with the keys of the schedule ---------------------------------------------------------

#: The message options that name a queue, or from which Celery makes a queue's name.
DESTINATIONS: Final = ("queue", "routing_key", "exchange", "reply_to")

#: Celery's default queue; if it begins with the prefix of entries, any queue may do so.
ANY_QUEUE: Final = "celery"

LOCALHOST: Final = ("127.0.0.1", "::1")


def check_destinations(app: Celery, options: Any) -> None:
    """Raise :exc:`InvalidEntryError` if an option of an entry, or of a callback, names our keys.

    No round trips.
    """
    found = [*values_in(options, DESTINATIONS)] if options else []
    if found:
        own_keys(app).check("options", found)


def own_keys(app: Celery) -> OwnKeys:
    """The keys of the schedule of ``app``, computed once for each client."""
    client, conf = client_of(app), ensure_conf(app)
    if conf.own_keys is None or conf.own_keys.client is not client:
        conf.own_keys = OwnKeys(app, client)
    keys: OwnKeys = conf.own_keys
    return keys


class OwnKeys:
    """The keys of the schedule of ``app``, which queues of the broker must not be named after.

    ``shared`` is whether the broker uses the schedule's database. Settings can hide that, for
    example if a server has two names, so a beat that has asked both servers sets it.
    """

    def __init__(self, app: Celery, client: Any) -> None:
        self.client = client
        conf, options = ensure_conf(app), app.conf.broker_transport_options or {}
        self.shared = not _places_of_broker(app).isdisjoint(_places(client))
        self._keyprefix = str(options.get("global_keyprefix") or "")
        self._prefixes = {conf.key_prefix, *layout_of(conf).prefixes}
        self._lock_key = conf.lock_key
        common = self._keyprefix + ANY_QUEUE
        entries = (f"{key}:" if common.startswith(key) else key for key in self._prefixes)
        self._starts = (*entries, *(key_aside(key, "") for key in self._prefixes))
        self._is_own = lru_cache(maxsize=1000)(self._is_own_key)

    def check(self, field: str, named: Iterable[tuple[str, Any]]) -> None:
        """Raise :exc:`InvalidEntryError` if one of the names is a key of the schedule.

        ``named`` are pairs of an option and a name, or an object of kombu with a name.
        """
        for option, value in named if self.shared else ():
            name = getattr(value, "name", value)
            if name and self._is_own(text_of(name) if isinstance(name, bytes) else str(name)):
                problem = f"{name!r} is a key of the schedule, in the same database as the queues"
                fix = "use another name, or another database in redbeat_redis_url"
                raise InvalidEntryError(f"{field}.{option}", f"{problem}; {fix}")

    def check_message(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """:meth:`check` the arguments of a producer's ``publish``, those after the body."""
        if not self.shared:
            return
        names = [(name, options.get(name)) for name in ("routing_key", "exchange")]
        queues = [("queue", queue) for queue in options.get("declare") or ()]
        self.check("message", [*names, *(("routing_key", name) for name in args[:1]), *queues])

    def _is_own_key(self, name: str) -> bool:
        key = self._keyprefix + name
        return key == self._lock_key or (key.startswith(self._starts) and key not in self._prefixes)


#: Address of a server or a Sentinel, and number of the database.
Place = tuple[str, str]


def _places_of_broker(app: Celery) -> set[Place]:
    try:
        addresses = parse_url(url_text(app.conf.broker_write_url), "broker_url")
    except ConfigurationError:  # not a Redis server
        return set()
    return {_place(vars(one), one.options.get("db")) for one in addresses}


def _places(client: Any) -> set[Place]:
    """The database of ``client`` at its server's address, or at each Sentinel's."""
    pool: Any = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", {})
    nodes = [options]
    if isinstance(pool, SentinelConnectionPool):
        nodes = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    return {_place(node, options.get("db")) for node in nodes}


def _place(node: Mapping[str, Any], database: Any) -> Place:
    host = str(node.get("host")).lower()
    address = f"{'localhost' if host in LOCALHOST else host}:{node.get('port')}"
    return node.get("path") or address, str(database or 0)
