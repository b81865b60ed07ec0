"""The table of RedBeat's settings, and functions that look up settings in a Celery app."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.app.defaults import SETTING_KEYS

__all__ = (
    "APP_DELIVERIES",
    "AT_LEAST_ONCE",
    "AT_MOST_ONCE",
    "DELIVERIES",
    "EXACTLY_ONCE",
    "MISSING",
    "SETTINGS",
    "Setting",
    "find_setting",
    "is_set",
    "unknown_settings",
)


class Setting(NamedTuple):
    """The description of a setting. The strings are reStructuredText for the manual."""

    #: The valid types or values.
    type: str
    #: A Python literal in double backquotes, or a description of the default.
    default: str
    #: What the setting does, in one phrase.
    meaning: str
    #: The first version that has the setting.
    since: str
    #: The unit of a number; empty for settings that are not numbers.
    unit: str = ""


#: All settings of RedBeat, in lower case. The table of settings in the manual shows this mapping.
SETTINGS: Final[Mapping[str, Setting]] = {
    "redbeat_redis_url": Setting(
        "string", "``broker_url``", "URL of the Redis that stores the schedule", since="2"
    ),
    "redbeat_redis_use_ssl": Setting(
        "dict or bool",
        "``broker_use_ssl``",
        "TLS: ``True`` or ``False``, or a dict of redis-py's ``ssl_`` options",
        since="2",
    ),
    "redbeat_redis_options": Setting(
        "dict",
        "``broker_transport_options``; RedBeat uses only the keys listed below",
        "options of the Redis client and its connections",
        since="2",
    ),
    "redbeat_key_prefix": Setting(
        "string",
        "``'redbeat:'``; in a cluster ``'{redbeat}:'``",
        "prefix of all keys in Redis",
        since="2",
    ),
    "redbeat_shards": Setting(
        "integer from 1 to 256",
        "``1``, no shards",
        "number of shards of the schedule, see :ref:`shards`; the same for all programs",
        since="3.0",
        unit="shards",
    ),
    "redbeat_lock_key": Setting(
        "string or ``None``",
        "``'<prefix>:lock'``, which is ``redbeat::lock``",
        "key of the leader's lock; ``None`` turns the lock off",
        since="2",
    ),
    "redbeat_lock_timeout": Setting(
        "number",
        "five times ``beat_max_loop_interval``; 1500 if that is not set",
        "time after which the lock expires if the leader does not renew it",
        since="2",
        unit="seconds",
    ),
    "redbeat_on_lock_lost": Setting(
        "``'standby'`` or ``'exit'``",
        "``'standby'``",
        "what a leader does after it lost the lock",
        since="3.0",
    ),
    "redbeat_delivery": Setting(
        "``'exactly_once'``, ``'at_least_once'`` or ``'at_most_once'``",
        "``None``: ``'exactly_once'`` if broker and schedule are on one Redis server, else "
        "``'at_least_once'``",
        "delivery guarantee of runs; an entry can choose another one",
        since="3.0",
    ),
    "redbeat_publish_window": Setting(
        "integer from 1 to 1000",
        "``100``",
        "maximum number of messages in flight to the broker; with 1, a beat waits for each "
        "confirmation",
        since="3.0",
        unit="messages",
    ),
    "redbeat_max_rate": Setting(
        "number above 0 or ``None``",
        "``None``, no limit",
        "maximum rate at which a beat sends late runs, for example after an outage",
        since="3.0",
        unit="runs per second",
    ),
    "redbeat_history_size": Setting(
        "integer from 0 to 30",
        "``10``",
        "number of runs in the history of each entry",
        since="3.0",
        unit="runs",
    ),
    "redbeat_wait_replicas": Setting(
        "integer, at least 0",
        "``0``",
        "number of replicas that a beat waits for after it recorded runs",
        since="3.0",
        unit="replicas",
    ),
    "redbeat_log_dispatch": Setting(
        "``'each'`` or ``'summary'``",
        "``'each'``",
        "what a beat logs of the runs that it sends: a line for each, or their number in one line "
        "per second",
        since="3.0",
    ),
    "redbeat_metrics_port": Setting(
        "port, or ``None``",
        "``None``, off",
        "port of ``/metrics``, ``/healthz`` and ``/readyz``",
        since="3.0",
    ),
    "redbeat_metrics_host": Setting(
        "string", "``'127.0.0.1'``", "address that ``redbeat_metrics_port`` listens on", since="3.0"
    ),
    "redbeat_metrics_entries": Setting(
        "integer from 0 to 10000",
        "``200``",
        "maximum number of entries with their own metrics",
        since="3.0",
        unit="entries",
    ),
    "redbeat_task_allowlist": Setting(
        "list of strings or ``None``",
        "``None``, all tasks",
        "patterns of the task names that entries may use",
        since="3.0",
    ),
    "redbeat_key_expiry_check": Setting(
        "``'ignore'``, ``'warn'``, ``'error'`` or ``'raise'``",
        "``'error'``",
        "what a beat does at start if Redis may evict keys of the schedule",
        since="2",
    ),
}

#: :func:`find_setting` returns this object for an unset setting, because None is a valid value.
MISSING: Final = object()

_PREFIX: Final = "redbeat_"

# A name that is at least this similar to a setting is a likely typo. The value corresponds to one
# wrong letter in the shortest setting name.
_TYPO_CUTOFF = 0.93

# RedisBeater is a fork of RedBeat 2. Its settings have the same names except for this prefix.
_REDISBEATER_PREFIX: Final = "redisbeater_"


def find_setting(app: Celery, name: str) -> Any:
    """Return the value of the setting ``name`` of ``app``, or :data:`MISSING` if it is not set.

    The app may spell the name in lower or upper case, with or without its namespace. Loads the
    configuration of the app if necessary.
    """
    conf = app.conf.finalize()
    spellings = _spellings(name, conf.prefix)
    for source in conf.maps:
        for spelling in spellings:
            if spelling in source:
                return source[spelling]
    return MISSING


def is_set(app: Celery, name: str) -> bool:
    """Return whether the setting ``name`` is set, even if its value is None."""
    return find_setting(app, name) is not MISSING


def unknown_settings(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield (problem, remedy) for each unknown ``redbeat_*`` or ``redisbeater_*`` setting.

    Also yields other names that look like a typo of a setting of RedBeat. The strings contain names
    but no values, because values may be secret.
    """
    for spelling, name in sorted(set(_foreign_names(app))):
        is_fork = name.startswith(_REDISBEATER_PREFIX)
        nearest = _nearest(_PREFIX + name.removeprefix(_REDISBEATER_PREFIX) if is_fork else name)
        if is_fork:
            remedy = f"write {nearest}" if nearest else "remove it, RedBeat has no such setting"
            yield f"{spelling} is a setting of RedisBeater and is ignored", remedy
        elif nearest:
            yield f"Unknown setting {spelling}", f"did you mean {nearest}?"
        elif name.startswith(_PREFIX):
            yield f"Unknown setting {spelling}", f"the valid settings are {', '.join(SETTINGS)}"


def _spellings(name: str, namespace: str | None) -> list[str]:
    plain = [name, name.upper()]
    if not namespace:
        return plain
    prefixes = dict.fromkeys((namespace, namespace.upper(), namespace.lower()))
    return [prefix + spelling for prefix in prefixes for spelling in plain] + plain


def _foreign_names(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield two names of each setting of ``app``: as written, and lower-case without namespace.

    Omits the settings of Celery and RedBeat.
    """
    conf = app.conf.finalize()
    namespace = (conf.prefix or "").lower()
    for source in conf.maps[:-1]:
        for spelling in source:
            if isinstance(spelling, str):
                name = spelling.lower().removeprefix(namespace)
                if name not in SETTINGS and name not in SETTING_KEYS:
                    yield spelling, name


def _nearest(name: str) -> str | None:
    if name.startswith(_PREFIX):  # the common prefix would make all names similar
        settings = {setting.removeprefix(_PREFIX): setting for setting in SETTINGS}
        matches = get_close_matches(name.removeprefix(_PREFIX), settings, n=1)
        return settings[matches[0]] if matches else None
    return next(iter(get_close_matches(name, SETTINGS, n=1, cutoff=_TYPO_CUTOFF)), None)


#: Redis publishes and records a run in one step. The broker and the schedule must be on the same
#: Redis server.
EXACTLY_ONCE: Final = "exactly_once"

#: A run is published, then recorded. If the beat crashes after the publish, the run is sent again.
AT_LEAST_ONCE: Final = "at_least_once"

#: A run is recorded, then published. If the beat crashes after the record, the run is lost.
AT_MOST_ONCE: Final = "at_most_once"

#: The valid deliveries of an entry, and the valid values of ``redbeat_delivery``.
DELIVERIES: Final = (AT_LEAST_ONCE, AT_MOST_ONCE)
APP_DELIVERIES: Final = (EXACTLY_ONCE, *DELIVERIES)
