"""Checks of the Redis server: its refusals, eviction of keys, and misspelt keys."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from redbeat.codec.stored import record_in, text_of
from redbeat.config import RedBeatConfig
from redbeat.connection.borrowing import borrowed, connection_of
from redbeat.connection.cluster import cluster_errors, node_of
from redbeat.errors import RedBeatKeyExpiryError
from redbeat.printing import get_logger

from .reading import LAYOUT
from .records import Keys
from .store import Store, base_store

__all__ = (
    "LayoutNote",
    "check_eviction",
    "check_rights",
    "eviction_risk",
    "explained",
    "layout_problem",
    "misspelt_keys",
    "untagged_prefix",
    "warn_about_misspelt",
    "warn_about_untagged",
)

logger = get_logger("celery.beat")


MESSAGE = (
    "Redis may evict keys of the schedule: maxmemory is %d bytes with policy %s. "
    "Set maxmemory-policy to noeviction or to a volatile-* policy, "
    "or redbeat_key_expiry_check to 'ignore'."
)


def eviction_risk(store: Store, mode: str) -> tuple[int, str] | None:
    """Return maxmemory in bytes and the eviction policy if Redis may delete entries, else None.

    If ``mode``, the setting ``redbeat_key_expiry_check``, is ``ignore``, also returns None, without
    a round trip; else one round trip. The check runs INFO, which managed servers allow even if they
    disable CONFIG. Raises redis-py's ``ResponseError`` if the server refuses INFO.
    """
    limit, policy = store.eviction() if mode != "ignore" else (0, "")
    return (limit, policy) if limit and policy.startswith("allkeys-") else None


def check_eviction(store: Store, mode: str) -> None:
    """Report an eviction policy that allows Redis to delete entries.

    The modes ``warn`` and ``error`` log at that level; ``raise`` raises
    :exc:`RedBeatKeyExpiryError`. :func:`eviction_risk` describes the check. If the server refuses
    INFO, the function logs a warning.
    """
    try:
        found = eviction_risk(store, mode)
    except ResponseError as error:
        logger.warning("beat: Cannot tell whether Redis may evict keys of the schedule: %s", error)
        return
    if found is None:
        return
    if mode == "raise":
        raise RedBeatKeyExpiryError(MESSAGE % found)
    report = logger.warning if mode == "warn" else logger.error
    report(MESSAGE, *found)


class LayoutNote(NamedTuple):
    """The stored number of shards of a schedule; the note is under the base prefix.

    ``copying`` is the new number of shards while ``celery redbeat shard`` copies the entries, else
    0. ``left`` are earlier numbers of shards; Redis still has the entries under their prefixes.
    """

    shards: int = 1
    copying: int = 0
    left: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> LayoutNote:
        """Return the note in a stored text; a text that is not a valid note means one shard."""
        fields = record_in(text)
        shards, copying, left = (fields.get(name) for name in cls._fields)
        if type(shards) is not int or type(copying) is not int or type(left) is not list:
            return cls()
        return cls(shards, copying, tuple(number for number in left if type(number) is int))

    @classmethod
    def read(cls, base: Store) -> LayoutNote:
        """Return the note in the store under the base prefix. One round trip."""
        return cls.of(base.noted(LAYOUT))

    def save(self, base: Store) -> None:
        """Store the note. One round trip."""
        base.save_layout_note(json.dumps(self._asdict()))

    def problem(self, shards: int) -> str:
        """Return why a program may not use this number of ``shards``, "" if it may."""
        if self.copying:
            return (
                f"celery redbeat shard {self.copying} is running or was interrupted: run it again, "
                f"or celery redbeat shard {self.shards} --delete to undo it"
            )
        if self.shards == shards:
            return ""
        return (
            f"redbeat_shards is {shards}, but the schedule has {self.shards} shards: "
            f"set redbeat_shards = {self.shards}, or stop all beats and run celery redbeat shard "
            f"{shards}"
        )


def layout_problem(conf: RedBeatConfig, client: Any, adopt: bool = False) -> str:
    """Return why ``redbeat_shards`` does not fit the schedule in Redis, "" if it fits.

    With ``adopt``, the number is stored if the schedule is new. One round trip, three at most.
    """
    base = base_store(conf, client)
    text = base.noted(LAYOUT)
    if not text and conf.shards > 1 and not base.members():
        if adopt:
            LayoutNote(conf.shards).save(base)
        return ""
    return LayoutNote.of(text).problem(conf.shards)


#: Matches the error messages of Redis for a missing ACL right, including errors inside a script.
REFUSAL = re.compile(r"no permission|can't (?:run|access)|ACL failure", re.IGNORECASE)

#: Placeholder in the commands below. A key under the prefix that does not exist replaces it.
KEY: Final = "KEY"

#: Commands that every beat needs. With these arguments, the commands change nothing in Redis.
NEEDED: Final[Mapping[str, tuple[Any, ...]]] = {
    "EVALSHA": ("0" * 40, 0),
    "EVAL": ("return 1", 0),
    "TIME": (),
    "HGET": (KEY, "f"),
    "HMGET": (KEY, "f"),
    "HEXISTS": (KEY, "f"),
    "HLEN": (KEY,),
    "HSET": (KEY, "f", "v", "a field without a value"),
    "HDEL": (KEY, "f"),
    "ZADD": (KEY, "XX", 0, "m"),
    "ZREM": (KEY, "m"),
    "ZSCORE": (KEY, "m"),
    "ZCARD": (KEY,),
    "ZCOUNT": (KEY, 0, 1),
    "ZRANGEBYSCORE": (KEY, 0, 1),
    "ZREMRANGEBYSCORE": (KEY, 0, 1),
    "SREM": (KEY, "m"),
    "SSCAN": (KEY, 0),
    "SCARD": (KEY,),
    "GET": (KEY,),
    "SET": (KEY, "v", "XX"),
    "DEL": (KEY,),
    "PEXPIRE": (KEY, 1),
    "PTTL": (KEY,),
}

#: Commands that a beat does not need, but that the dashboard or the command line may need.
USEFUL: Final[Mapping[str, tuple[Any, ...]]] = {
    "HSCAN": (KEY, 0),
    "HINCRBY": (KEY, "f", "no number"),
    "ZRANK": (KEY, "m"),
    "ZRANGE": (KEY, 0, 0),
    "ZSCAN": (KEY, 0),
    "SISMEMBER": (KEY, "m"),
    "EXPIRE": (KEY, 1),
    "TYPE": (KEY,),
    "SCAN": (0, "COUNT", 1),
    "PING": (),
    "INFO": ("memory",),
}

#: Commands that cannot be probed without an effect. The error message always includes them.
UNTRIED: Final = ("SADD", "PUBLISH", "SUBSCRIBE")


#: Part of the error message of Redis for wrong credentials -> what to do.
CREDENTIALS: Final[Mapping[str, str]] = {
    "invalid username-password pair": "correct the user name and password in {setting}",
    "without any password configured": "the server has no password; remove it from {setting}",
    "uthentication required": "the server needs a password; add it to {setting}",
    "already authenticated": "the server needs a password; add it to {setting}",
}
URL_SETTING: Final = "redbeat_redis_url (or broker_url)"


def explained(error: Exception, store: Store) -> Exception:
    """Return an error of the same kind whose message says what to do, or ``error`` itself.

    This function explains missing rights, wrong credentials and databases that do not exist. One
    round trip for a missing right, else none.
    """
    text = str(error)
    try:
        if isinstance(error, AuthenticationError):
            return _with_remedy(error, CREDENTIALS)
        if not isinstance(error, ResponseError):
            return error
        if REFUSAL.search(text):
            missing = missing_rights(store)
            return NoPermissionError(missing) if missing else error
    except RedisError as explanation:
        return explanation
    database = "correct the number of the database in {setting}, or raise databases in redis.conf"
    return _with_remedy(error, {"DB index is out of range": database})


def _with_remedy(error: Exception, remedies: Mapping[str, str]) -> Exception:
    text = str(error)
    for part, remedy in remedies.items():
        if part in text:
            return type(error)(f"{text.rstrip('.')}: {remedy.format(setting=URL_SETTING)}")
    return error


def check_rights(store: Store) -> None:
    """Raise redis-py's ``NoPermissionError`` if the Redis user lacks rights that a beat needs.

    The message lists the missing rights and the ACL command that grants them. One round trip.
    """
    missing = missing_rights(store, NEEDED)
    if missing:
        raise NoPermissionError(missing)


#: The page of the manual that lists all rights.
ACL_PAGE: Final = "deployment/acl"


def missing_rights(store: Store, needed: Collection[str] = frozenset((*NEEDED, *USEFUL))) -> str:
    """Return which rights the Redis user lacks, with the ACL command that grants the rights.

    Returns "" if the user has the rights for all commands in ``needed``. One round trip.
    """
    with cluster_errors():
        node = node_of(store.client, store.keys.schedule)
    pool = getattr(node, "connection_pool", None)
    if pool is None:
        return ""
    connection = connection_of(pool, "TIME")
    with borrowed(connection, pool):
        user = _user_of(connection)
        refused = dict(_refused(connection, store.keys.entry(":probe")))
    commands = [name for name, why in refused.items() if "command" in why]
    if not refused.keys() & needed:
        return ""
    if commands:
        missing = f"run {', '.join(commands)}"
        # Some commands cannot be probed. Assume that a user who may not run a needed command may
        # not run these commands either.
        untried = UNTRIED if NEEDED.keys() & set(commands) else ()
        rights = " ".join(f"+{name.lower()}" for name in (*commands, *untried))
    else:
        missing = f"use keys that begin with {store.keys.prefix!r}"
        rights = f"'~{store.keys.prefix}*'"
    return (
        f"the user may not {missing} (see {ACL_PAGE} in the manual); "
        f"grant it: ACL SETUSER {user} {rights}"
    )


def _refused(connection: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield (command, error text) for each command that the server refuses. One round trip."""
    probes = {**NEEDED, **USEFUL}
    for name, args in probes.items():
        connection.send_command(name, *(key if arg is KEY else arg for arg in args))
    for name in probes:
        try:
            connection.read_response()
        except NoPermissionError as error:
            yield name, str(error)
        except ResponseError:
            pass  # Redis rejects only the arguments, so the user may run the command


def _user_of(connection: Any) -> str:
    provider = getattr(connection, "credential_provider", None)
    name = getattr(provider, "username", None) or getattr(connection, "username", None)
    return str(name or "default")


#: Number of RedBeat 2 entries that a starting beat looks up under the new prefix.
SAMPLE = 20

#: Misspelt key name (after one colon) -> Redis type of the key, and the type in log messages.
MISSPELT = {"schedule": ("zset", "sorted set"), "statics": ("set", "set")}

_TAG = re.compile(r"\{([^}]+)\}")


def untagged_prefix(prefix: str) -> str:
    """Return the prefix without the braces of the hash tag, which is the prefix of RedBeat 2."""
    return _TAG.sub(r"\1", prefix, count=1)


def warn_about_untagged(store: Store, conf: RedBeatConfig) -> None:
    """Log a warning in a cluster if entries of RedBeat 2 are not yet under the new prefix.

    One round trip, plus one for each RedBeat 2 entry that is checked (at most :data:`SAMPLE`).
    """
    old = Store(store.client, Keys.under(untagged_prefix(conf.key_prefix)))
    if not conf.cluster or conf.shards > 1 or old.keys.prefix == conf.key_prefix:
        return
    try:
        names = [old.keys.name_of(member) for member, _ in old.ranked(0, SAMPLE)]
        left = [name for name in names if store.rank(store.keys.entry(name)) is None]
    except RedisError as error:
        logger.debug("beat: Cannot look for entries under %r: %r", old.keys.prefix, error)
        return
    if left:
        logger.warning(
            "beat: There are entries under the prefix %r, such as %r, which this beat ignores: "
            "its prefix is %r. Copy them with "
            "redbeat.management.prefixes.copy_untagged(app), or delete %s",
            *(old.keys.prefix, left[0], conf.key_prefix, old.keys.schedule),
        )


def misspelt_keys(store: Store) -> list[tuple[str, str]]:
    """Return (problem, remedy) for each key with one colon instead of two: ``redbeat:schedule``.

    A hash at ``redbeat:schedule`` is correct: it is the entry called "schedule". Returns an empty
    list if the Redis user may not run ``TYPE``. One round trip.
    """
    pipe = store.client.pipeline(transaction=False)
    for word in MISSPELT:
        pipe.type(store.keys.entry(word))
    try:
        types = pipe.execute()
    except ResponseError:
        return []
    correct = (store.keys.schedule, store.keys.statics)
    return [
        (f"{store.keys.entry(word)} is a {kind} that nothing reads", f"the key is {key}")
        for (word, (name, kind)), reply, key in zip(MISSPELT.items(), types, correct, strict=True)
        if text_of(reply) == name
    ]


def warn_about_misspelt(store: Store) -> None:
    """Log a warning for each of the :func:`misspelt_keys`. One round trip."""
    for problem, remedy in misspelt_keys(store):
        logger.warning("beat: %s: %s, with two colons", problem, remedy)
