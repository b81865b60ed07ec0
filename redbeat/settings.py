"""The table of settings, and how they are found in the configuration of a Celery app."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.app.defaults import SETTING_KEYS

__all__ = (
    "AT_LEAST_ONCE",
    "AT_MOST_ONCE",
    "DELIVERIES",
    "EXACTLY_ONCE",
    "MISSING",
    "OF_AN_APP",
    "SETTINGS",
    "Setting",
    "find_setting",
    "is_set",
    "unknown_settings",
)


class Setting(NamedTuple):
    """What there is to know about a setting; texts are reStructuredText, for the manual."""

    #: What may be set.
    type: str
    #: What holds if nothing is set: a Python literal in double backquotes, or a description.
    default: str
    #: What it means, in one sentence.
    meaning: str
    #: The first version that has it.
    since: str
    #: In what a number is counted, empty for what is no number.
    unit: str = ""


#: Every setting of this package, in lower case. The manual's table is made from this one.
SETTINGS: Final[Mapping[str, Setting]] = {
    "redbeat_redis_url": Setting(
        "text", "``broker_url``", "the Redis that holds the schedule", since="2"
    ),
    "redbeat_redis_use_ssl": Setting(
        "dict or bool", "``broker_use_ssl``", "TLS on or off, or redis-py's ``ssl_`` options", "2"
    ),
    "redbeat_redis_options": Setting(
        "dict",
        "``broker_transport_options``, of which only the keys listed below are used",
        "options of the client and of its connections",
        since="2",
    ),
    "redbeat_key_prefix": Setting(
        "text",
        "``'redbeat:'``; in a cluster ``'{redbeat}:'``",
        "what all keys begin with",
        since="2",
    ),
    "redbeat_lock_key": Setting(
        "text or ``None``",
        "``'<prefix>:lock'``, which is ``redbeat::lock``",
        "key of the leader's lock; ``None`` for no lock",
        since="2",
    ),
    "redbeat_lock_timeout": Setting(
        "number",
        "five times ``beat_max_loop_interval``; 1500 if that is not set",
        "how long the lock lives when it is not renewed",
        since="2",
        unit="seconds",
    ),
    "redbeat_on_lock_lost": Setting(
        "``'standby'`` or ``'exit'``",
        "``'standby'``",
        "what a leader does that lost the lock",
        since="3.0",
    ),
    "redbeat_delivery": Setting(
        "``'exactly_once'``, ``'at_least_once'`` or ``'at_most_once'``",
        "``None``: ``'exactly_once'`` if broker and schedule are one Redis server, else "
        "``'at_least_once'``",
        "how runs are delivered, unless an entry says otherwise",
        since="3.0",
    ),
    "redbeat_publish_window": Setting(
        "integer from 1 to 1000",
        "``100``",
        "how many messages may be on their way to the broker at once; 1 = each is waited for",
        since="3.0",
        unit="messages",
    ),
    "redbeat_max_rate": Setting(
        "number above 0 or ``None``",
        "``None``, which is no limit",
        "how many late runs a beat sends a second, after an outage",
        since="3.0",
        unit="runs a second",
    ),
    "redbeat_history_size": Setting(
        "integer from 0 to 30",
        "``10``",
        "how many of its last runs an entry remembers",
        since="3.0",
        unit="runs",
    ),
    "redbeat_wait_replicas": Setting(
        "integer, at least 0",
        "``0``",
        "how many replicas each record of runs is waited for",
        since="3.0",
        unit="replicas",
    ),
    "redbeat_metrics_port": Setting(
        "port, or ``None``",
        "``None``, which is off",
        "the port of ``/metrics``, ``/healthz`` and ``/readyz``",
        since="3.0",
    ),
    "redbeat_metrics_host": Setting(
        "text", "``'127.0.0.1'``", "the address that this port listens on", since="3.0"
    ),
    "redbeat_metrics_entries": Setting(
        "integer from 0 to 10000",
        "``200``",
        "up to how many entries are counted one by one",
        since="3.0",
        unit="entries",
    ),
    "redbeat_task_allowlist": Setting(
        "list of text or ``None``",
        "``None``, which allows all tasks",
        "patterns of the tasks that entries may name",
        since="3.0",
    ),
    "redbeat_key_expiry_check": Setting(
        "``'ignore'``, ``'warn'``, ``'error'`` or ``'raise'``",
        "``'error'``",
        "what to do at start when Redis may evict keys of the schedule",
        since="2",
    ),
}

#: What :func:`find_setting` returns for a setting that nobody made; None is a value.
MISSING: Final = object()

_PREFIX: Final = "redbeat_"

# How alike a misspelt name must be: one letter more, less or other in the shortest name.
_NEAR = 0.93

# The prefix of RedisBeater, a fork of RedBeat 2 whose settings are ours under another prefix.
_FORK: Final = "redisbeater_"


def find_setting(app: Celery, name: str) -> Any:
    """Return what ``app`` has for ``name`` in any of its spellings, or :data:`MISSING`.

    The spellings are lower case, upper case, and both with the namespace of the app. Reads the
    configuration of the app if that has not happened yet.
    """
    conf = app.conf.finalize()
    spellings = _spellings(name, conf.prefix)
    for source in conf.maps:
        for spelling in spellings:
            if spelling in source:
                return source[spelling]
    return MISSING


def is_set(app: Celery, name: str) -> bool:
    """Tell whether somebody set ``name``, be it to None."""
    return find_setting(app, name) is not MISSING


def unknown_settings(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield each ``redbeat_*`` or ``redisbeater_*`` setting that does not exist, and a remedy.

    Names that are one letter away from a setting of ours are found too. Values are not shown.
    """
    for spelling, name in sorted(set(_used_names(app))):
        ours = _PREFIX + name.removeprefix(_FORK)
        nearest = _nearest(ours if name.startswith(_FORK) else name)
        if name.startswith(_FORK):
            remedy = f"write {nearest}" if nearest else "take it out, RedBeat has no such setting"
            yield f"Setting {spelling} is one of RedisBeater and is ignored", remedy
        elif nearest:
            yield f"Unknown setting {spelling}", f"did you mean {nearest}?"
        elif name.startswith(_PREFIX):
            yield f"Unknown setting {spelling}", f"the valid ones are {', '.join(SETTINGS)}"


def _spellings(name: str, namespace: str | None) -> list[str]:
    plain = [name, name.upper()]
    if not namespace:
        return plain
    prefixes = dict.fromkeys((namespace, namespace.upper(), namespace.lower()))
    return [prefix + spelling for prefix in prefixes for spelling in plain] + plain


def _used_names(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield the names that are neither Celery's nor ours: as spelt, and in lower case, bare."""
    conf = app.conf.finalize()
    namespace = (conf.prefix or "").lower()
    for source in conf.maps[:-1]:
        for spelling in source:
            if isinstance(spelling, str):
                name = spelling.lower().removeprefix(namespace)
                if name not in SETTINGS and name not in SETTING_KEYS:
                    yield spelling, name


def _nearest(name: str) -> str | None:
    if name.startswith(_PREFIX):  # what all names share would make all of them alike
        known = {setting.removeprefix(_PREFIX): setting for setting in SETTINGS}
        found = get_close_matches(name.removeprefix(_PREFIX), known, n=1)
        return known[found[0]] if found else None
    return next(iter(get_close_matches(name, SETTINGS, n=1, cutoff=_NEAR)), None)


#: Published and recorded in one step, by the Redis that is broker and schedule.
EXACTLY_ONCE: Final = "exactly_once"

#: Published first and recorded afterwards: a beat that dies in between has it sent again.
AT_LEAST_ONCE: Final = "at_least_once"

#: Recorded first and published afterwards: a beat that dies in between loses it.
AT_MOST_ONCE: Final = "at_most_once"

#: What an entry may choose, and an app.
DELIVERIES: Final = (AT_LEAST_ONCE, AT_MOST_ONCE)
OF_AN_APP: Final = (EXACTLY_ONCE, *DELIVERIES)
