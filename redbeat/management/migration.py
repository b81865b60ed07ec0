"""Data that a beat does not read: under a prefix without a hash tag, or at a misspelt key."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError, ResponseError

from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.storage.records import Keys
from redbeat.storage.store import Store, store_of
from redbeat.storage.wire import text_of

from .prefixes import copy_prefix

__all__ = (
    "Copied",
    "copy_untagged",
    "misspelt_keys",
    "untagged_prefix",
    "warn_about_misspelt",
    "warn_about_untagged",
)

logger = get_logger("celery.beat")

#: Old entries that are looked for in the new place when a beat starts.
SAMPLE = 20

#: What is taken for the schedule, or the set of static names, where the key has one colon only.
MISSPELT = {"schedule": ("zset", "sorted set"), "statics": ("set", "set")}

_TAG = re.compile(r"\{([^}]+)\}")


@dataclass
class Copied:
    """What became of the entries: copied, there already, or without a definition to copy."""

    copied: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def untagged_prefix(prefix: str) -> str:
    """Return the prefix that RedBeat 2 would have had: without the braces of the hash tag."""
    return _TAG.sub(r"\1", prefix, count=1)


def copy_untagged(app: Any = None, prefix: str | None = None) -> Copied:
    """Copy the entries under ``prefix`` to the prefix of the app, with history and score.

    ``prefix`` is by default that of the app without its braces: ``redbeat:`` for ``{redbeat}:``.
    Stop the beats of both first. What is under the new prefix already is kept as it is, so a copy
    that broke off can be repeated; the old keys stay, for a way back. See :func:`.copy_prefix`.

    Raises :exc:`ConfigurationError` when the two prefixes are the same; Redis errors pass through.
    """
    conf, result = ensure_conf(app), Copied()
    old = prefix or untagged_prefix(conf.key_prefix)
    if old == conf.key_prefix:
        raise ConfigurationError(
            f"redbeat_key_prefix is {conf.key_prefix!r}, which is where the entries are: "
            "give it a hash tag, or name the old prefix"
        )
    lists = {"copied": result.copied, "unreadable": result.unreadable}

    def note(what: str, name: str) -> None:
        lists.get(what, result.kept).append(name)

    copy_prefix(store_of(app).client, old, conf.key_prefix, note=note)
    return result


def warn_about_untagged(store: Store, conf: RedBeatConfig) -> None:
    """Log a warning when entries of RedBeat 2 were not copied yet; only in a cluster.

    One round trip when there are none, a few more when there are.
    """
    old = _old_store(store, untagged_prefix(conf.key_prefix))
    if not conf.cluster or old.keys.prefix == conf.key_prefix:
        return
    try:
        names = [_name(member, old) for member, _ in old.ranked(0, SAMPLE)]
        left = [name for name in names if store.rank(store.keys.entry(name)) is None]
    except RedisError as error:
        logger.debug("beat: Cannot look for entries under %r: %r", old.keys.prefix, error)
        return
    if left:
        logger.warning(
            "beat: There are entries under the prefix %r, such as %r, which this beat ignores: "
            "its prefix is %r. Copy them with "
            "redbeat.management.migration.copy_untagged(app), or delete %s",
            *(old.keys.prefix, left[0], conf.key_prefix, old.keys.schedule),
        )


def misspelt_keys(store: Store) -> list[tuple[str, str]]:
    """Return what is wrong with keys such as ``redbeat:schedule``, and the right spelling.

    An entry of that name is a hash, and right. Empty where ``TYPE`` is forbidden. One round trip.
    """
    pipe = store.client.pipeline(transaction=False)
    for word in MISSPELT:
        pipe.type(store.keys.entry(word))
    try:
        types = pipe.execute()
    except ResponseError:
        return []
    right = (store.keys.schedule, store.keys.statics)
    return [
        (f"{store.keys.entry(word)} is a {kind} that nothing reads", f"the key is {key}")
        for (word, (name, kind)), found, key in zip(MISSPELT.items(), types, right, strict=True)
        if text_of(found) == name
    ]


def warn_about_misspelt(store: Store) -> None:
    """Log :func:`misspelt_keys`. One round trip."""
    for problem, remedy in misspelt_keys(store):
        logger.warning("beat: %s: %s, with two colons", problem, remedy)


def _old_store(store: Store, prefix: str) -> Store:
    return Store(store.client, Keys.under(prefix))


def _name(member: str, old: Store) -> str:
    return member.removeprefix(old.keys.prefix)
