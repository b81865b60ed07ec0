"""The table of settings, and how they are found in the configuration of a Celery app."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final
from weakref import WeakSet

from celery import Celery
from celery.app.defaults import SETTING_KEYS
from celery.utils.log import get_logger

__all__ = ("MISSING", "SETTINGS", "find_setting", "is_set", "report_unknown_settings")

logger = get_logger("celery.beat")

#: Every setting of this package, in lower case, and what it says.
SETTINGS: Final[Mapping[str, str]] = {
    "redbeat_redis_url": "URL of the Redis that holds the schedule; default: broker_url",
    "redbeat_redis_use_ssl": "True, or a dict of redis-py's ssl_ options; default: broker_use_ssl",
    "redbeat_redis_options": "options of the client; default: broker_transport_options",
    "redbeat_key_prefix": "what all keys begin with; default: redbeat:",
    "redbeat_lock_key": "key of the leader's lock, None for no lock; default: <prefix>:lock",
    "redbeat_lock_timeout": "seconds; default: 5 x beat_max_loop_interval",
    "redbeat_key_expiry_check": "ignore, warn, error or raise; default: error",
    "redbeat_delivery": "at_least_once or at_most_once; default: at_least_once",
    "redbeat_publish_window": "messages on their way to the broker at once; default: 100",
    "redbeat_history_size": "runs kept in the history of an entry, 0 for none; default: 10",
    "redbeat_wait_replicas": "replicas that each record of runs is waited for; default: 0",
    "redbeat_on_lock_lost": "standby or exit; default: standby",
    "redbeat_metrics_port": "port of /metrics, /healthz and /readyz; default: they are off",
    "redbeat_metrics_host": "address to listen on there; default: 127.0.0.1",
    "redbeat_metrics_entries": "up to how many entries are counted one by one; default: 200",
    "redbeat_task_allowlist": "patterns of the tasks that entries may name; default: all",
}

#: What :func:`find_setting` returns for a setting that nobody made; None is a value.
MISSING: Final = object()

_PREFIX: Final = "redbeat_"

# How alike a misspelt name must be: one letter more, less or other in the shortest name.
_NEAR = 0.93

# The apps that were warned already; a warning at each new object would be noise.
_reported: WeakSet[Celery] = WeakSet()


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


def report_unknown_settings(app: Celery) -> None:
    """Log a warning for each ``redbeat_*`` setting that does not exist, once per app.

    Names that are one letter away from a setting of ours are reported too. Values are not shown.
    """
    if app in _reported:
        return
    _reported.add(app)
    for spelling, name in sorted(set(_used_names(app))):
        nearest = _nearest(name)
        if nearest:
            logger.warning("Unknown setting %s: did you mean %s?", spelling, nearest)
        elif name.startswith(_PREFIX):
            valid = ", ".join(SETTINGS)
            logger.warning("Unknown setting %s: the valid ones are %s", spelling, valid)


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
