"""Check Redis for missing rights, eviction of keys, and a wrong number of shards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from redbeat.codec.stored import record_in, text_of
from redbeat.config import RedBeatConfig
from redbeat.errors import RedBeatKeyExpiryError, described
from redbeat.manual import MANUAL
from redbeat.printing import get_logger

from .keys import WRONG_TYPE, Keys, wrong_type
from .reading import LAYOUT, ask, read_rows
from .store import Store, base_store

logger = get_logger("celery.beat")


MESSAGE = (
    "Redis may evict keys of the schedule: %s. "
    "Set maxmemory-policy to noeviction or to a volatile-* policy, "
    "or set redbeat_key_expiry_check to 'ignore'."
)


def check_eviction(store: Store, mode: str) -> None:
    """Report an eviction policy that lets Redis delete entries.

    ``mode`` is the setting ``redbeat_key_expiry_check``: the level of the log line, ``raise`` for
    :exc:`RedBeatKeyExpiryError`, or ``ignore``. One round trip, none to ``ignore``.
    """
    if mode == "ignore":
        return
    try:
        limits = [memory_limit(info) for _, info in store.servers()]
    except ResponseError as error:
        message = "beat: Cannot tell whether Redis may evict keys of the schedule: %s"
        logger.warning(message, error)
        return
    risk = next((limit for limit, evicts in limits if evicts), "")
    if risk and mode == "raise":
        raise RedBeatKeyExpiryError(MESSAGE % risk)
    if risk:
        report = logger.warning if mode == "warn" else logger.error
        report(MESSAGE, risk)


def memory_limit(info: Mapping[str, Any]) -> tuple[str, bool]:
    """The memory limit as text, and whether entries are evicted once it is reached."""
    most, policy = info.get("maxmemory", 0), str(info.get("maxmemory_policy"))
    text = f"maxmemory is {most} bytes with the policy {policy}"
    return text, most > 0 and policy.startswith("allkeys-")


class LayoutNote(NamedTuple):
    """A note about a schedule's number of ``shards``, stored in the stats under the base prefix.

    ``copying`` is the new number while ``celery redbeat shard`` copies the entries, else 0.
    ``left`` has earlier numbers of shards whose entries are still in Redis.
    """

    shards: int = 1
    copying: int = 0
    left: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> LayoutNote:
        """The note in ``text``, or one of a single shard if that is no valid note."""
        fields = record_in(text)
        shards, copying, left = (fields.get(name) for name in cls._fields)
        if type(shards) is not int or type(copying) is not int or type(left) is not list:
            return cls()
        return cls(shards, copying, tuple(number for number in left if type(number) is int))

    @classmethod
    def read(cls, base: Store) -> LayoutNote:
        """Read the note from ``base``, the store under the base prefix. One round trip."""
        return cls.of(base.noted(LAYOUT))

    def save(self, base: Store) -> None:
        """Write the note to ``base``, the store under the base prefix. One round trip."""
        base.save_layout_note(json.dumps(self._asdict()))

    def problem(self, shards: int) -> str:
        """Why ``shards`` is a wrong value of ``redbeat_shards``, "" if it's right."""
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
    """Why ``redbeat_shards`` is wrong for the schedule in Redis, "" if it's right.

    With ``adopt``, a new schedule gets the number of shards. One to three round trips.
    """
    base = base_store(conf, client)
    text = base.noted(LAYOUT)
    if not text and conf.shards > 1 and not base.members():
        if adopt:
            LayoutNote(conf.shards).save(base)
        return ""
    return LayoutNote.of(text).problem(conf.shards)


#: Matches Redis's errors for a missing ACL right, also inside a script.
REFUSAL = re.compile(r"no permission|can't (?:run|access)|ACL failure", re.IGNORECASE)

#: Matches Redis's errors for wrong credentials and for a database that isn't there.
LOGIN: Final = re.compile(r"password|authenticat|DB index", re.IGNORECASE)

MISSING_RIGHT: Final = f"the Redis user needs each right in {MANUAL.format('deployment/acl')}"
WRONG_URL: Final = (
    "correct the user name, the password or the database in redbeat_redis_url (or broker_url)"
)


def explained(error: Exception, store: Store) -> Exception:
    """An error whose message says what to do, or ``error`` itself if the cause is unknown.

    Knows missing rights, wrong credentials, databases that don't exist and keys of a wrong type;
    the last takes a round trip.
    """
    text = str(error)
    if not isinstance(error, (AuthenticationError, ResponseError)):
        return error
    if REFUSAL.search(text):
        return NoPermissionError(f"{text.rstrip('.')}: {MISSING_RIGHT}")
    if WRONG_TYPE in text:
        try:
            return ResponseError(wrong_type(store.client, store.keys) or text)
        except RedisError as explanation:
            return explanation
    if LOGIN.search(text):
        return type(error)(f"{text.rstrip('.')}: {WRONG_URL}")
    return error


#: How many entries of RedBeat 2 a starting beat looks up under the new prefix.
SAMPLE = 20

_TAG = re.compile(r"\{([^}]+)\}")


def untagged_prefix(prefix: str) -> str:
    """RedBeat 2's prefix: ``prefix`` without the braces of its hash tag."""
    return _TAG.sub(r"\1", prefix, count=1)


def warn_about_untagged(store: Store, conf: RedBeatConfig) -> None:
    """Warn if a cluster has entries of RedBeat 2 that were not copied to the new prefix.

    Two round trips; looks at no more than :data:`SAMPLE` entries.
    """
    old = Keys(untagged_prefix(conf.key_prefix))
    if not conf.cluster or conf.shards > 1 or old.prefix == conf.key_prefix:
        return
    try:
        (found,) = ask(store.client, ("ZRANGE", old.schedule, 0, SAMPLE - 1))
        names = [old.name_of(text_of(member)) for member in found]
        rows = read_rows(store, map(store.keys.entry, names))
    except RedisError as error:
        logger.debug("beat: Cannot look for entries under %r: %s", old.prefix, described(error))
        return
    left = [name for name, row in zip(names, rows, strict=True) if not row.score]
    if left:
        logger.warning(
            "beat: There are entries under the prefix %r, such as %r, which this beat ignores, "
            "because its prefix is %r. Copy the entries with "
            "redbeat.management.prefixes.copy_untagged(app), or delete %s",
            *(old.prefix, left[0], conf.key_prefix, old.schedule),
        )
