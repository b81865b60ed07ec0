"""The configuration of a schedule: read once from a Celery app, checked, then only looked at."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fnmatch import translate
from typing import Any, Final

from celery import Celery
from celery.app import app_or_default
from celery.utils.log import get_logger
from redis.cluster import RedisCluster

from redbeat.connection.options import is_number
from redbeat.connection.parameters import Endpoint, read_endpoint
from redbeat.connection.urls import safe_url
from redbeat.errors import ConfigurationError
from redbeat.settings import MISSING, OF_AN_APP, find_setting, is_set, unknown_settings

__all__ = (
    "EXPIRY_CHECKS",
    "MIN_LOCK_TIMEOUT",
    "ON_LOCK_LOST",
    "SAFE_LOCK_TIMEOUT",
    "RedBeatConfig",
    "TaskAllowlist",
    "ensure_conf",
    "read_allowlist",
    "real_app",
)

logger = get_logger("celery.beat")


ALLOWLIST = "redbeat_task_allowlist"


class TaskAllowlist:
    """Patterns as of :mod:`fnmatch`, upper and lower case told apart; one must match."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        # Without a pattern nothing matches.
        self._any = re.compile("|".join(map(translate, patterns)) or r"(?!)")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.patterns)}>"

    def allows(self, task: Any) -> bool:
        """Return whether a task of this name may be sent."""
        return isinstance(task, str) and self._any.match(task) is not None

    def refusal(self, task: Any, options: Any) -> tuple[str, str] | None:
        """Return (field, what is wrong with it), None when nothing is.

        Options count too: callbacks (``link``, ``chain``, ``chord``) are signatures, which name
        tasks, and a header ``task`` takes the place of the name in the message.
        """
        named = [("task", task), *(("options", found) for found in tasks_in(options))]
        for field, name in named:
            if not self.allows(name):
                return (
                    field,
                    f"the task {name!r:.120} matches no pattern of {ALLOWLIST}; add it there",
                )
        return None


def tasks_in(value: Any) -> Iterator[Any]:
    """Yield what stands under ``task`` in ``value``, at any depth; as a pair too, in a list."""
    if isinstance(value, dict):
        if "task" in value:
            yield value["task"]
        for item in value.values():
            yield from tasks_in(item)
    elif isinstance(value, (list, tuple)):
        if len(value) == 2 and value[0] == "task":
            yield value[1]
        for item in value:
            yield from tasks_in(item)


def read_allowlist(value: Any) -> TaskAllowlist | None:
    """Return what the setting says, None for no limit; raises :exc:`ConfigurationError`."""
    if value is None:
        return None
    patterns = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (None,)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise ConfigurationError(
            f"{ALLOWLIST} is {value!r}, it must be a list of patterns such as ['proj.tasks.*']"
        )
    return TaskAllowlist(patterns)


DEFAULT_PREFIX = "redbeat:"
DEFAULT_CLUSTER_PREFIX = "{redbeat}:"
DEFAULT_MAX_INTERVAL = 300
#: The lock is worth this many of the longest intervals between two looks of the leader.
LOCK_INTERVALS = 5

#: Messages that may be on their way to the broker at once.
DEFAULT_WINDOW = 100

#: Runs kept in the history of an entry, and how many that may be at most.
DEFAULT_HISTORY, MAX_HISTORY = 10, 30

#: Where metrics are served, and up to how many entries they are counted one by one.
DEFAULT_METRICS_HOST, DEFAULT_METRICS_ENTRIES, MAX_METRICS_ENTRIES = "127.0.0.1", 200, 10_000

#: The shortest time that Redis can keep a lock for, seconds.
MIN_LOCK_TIMEOUT: Final = 0.001

#: Seconds below which a lock may expire before a busy leader renews it.
SAFE_LOCK_TIMEOUT: Final = 1.0

#: What to do at start when Redis may evict keys of the schedule.
EXPIRY_CHECKS: Final = ("ignore", "warn", "error", "raise")

#: What a beat does that lost the lock.
ON_LOCK_LOST: Final = ("standby", "exit")

# Only the first pair of braces counts, and only if something is between them.
_HASH_TAG = re.compile(r"[^{]*\{[^}]+\}")


#: What is kept beside the schedule; programs take what they find under its prefix for entries.
KEYS_ASIDE: Final = ("quarantine", "beats", "stats")


def key_aside(prefix: str, what: str) -> str:
    """Return a key that no scan of ``<prefix>*`` finds, in the same slot of a cluster."""
    return f"{'-' if prefix.startswith('.') else '.'}{prefix}:{what}"


class RedBeatConfig:
    """What the settings of ``app`` mean; raises :exc:`ConfigurationError` for impossible ones.

    The settings are read when the object is made, later changes of ``app.conf`` are not seen.
    No round trips. Whether ``redis_url`` is usable is checked when a client is built from it,
    because a program may set a client of its own (``app.redbeat_redis``). Whether that client is
    one of a Redis Cluster decides about the default of ``key_prefix``, see :meth:`adopt`.
    """

    app: Celery
    #: What all keys of the schedule begin with; no separator is added.
    key_prefix: str
    schedule_key: str
    statics_key: str
    #: All keys of RedBeat's own but the lock, and its channel: no names of entries.
    reserved_keys: tuple[str, ...]
    #: Those of RedBeat's own keys that the Redis user turned out not to be allowed to use.
    denied_keys: set[str]
    #: The key of the leader's lock; None if the lock is off.
    lock_key: str | None
    #: Seconds as set, None if not set; see :meth:`resolve_lock_timeout`.
    lock_timeout: float | None
    #: The URL, alternates included, with its password: show it through ``safe_url`` only.
    redis_url: str
    redis_use_ssl: Any
    redbeat_redis_options: dict[str, Any]
    key_expiry_check: str
    #: How runs are delivered, unless an entry says otherwise; None for as well as it can be done.
    delivery: str | None
    on_lock_lost: str
    #: Messages that may be on their way to the broker at once; with 1 each is waited for by itself.
    publish_window: int
    #: Late runs that a beat sends a second; None for no limit.
    max_rate: float | None
    #: Runs kept in the history of an entry; 0 for none.
    history_size: int
    #: How many replicas a beat waits for when it recorded runs.
    wait_replicas: int
    #: The port of metrics and health, None when they are off; and the address.
    metrics_port: int | None
    metrics_host: str
    #: Up to how many entries are counted one by one; 0 for none.
    metrics_entries: int
    #: Which tasks entries may name; None for all.
    task_allowlist: TaskAllowlist | None
    #: Celery's ``beat_cron_starting_deadline``, seconds.
    cron_deadline: float | None
    #: Whether the keys of the schedule must share one slot.
    cluster: bool
    #: Whether the options are the broker's; then only those that RedBeat knows are used.
    options_inherited: bool
    #: URL, TLS and options with where they come from, for building a client.
    endpoint: Endpoint

    _reported = False

    def __init__(self, app: Celery | None = None) -> None:
        self.app = real_app(app)
        self.endpoint = read_endpoint(self.app)
        self.redis_url = self.endpoint.url
        self.redis_use_ssl = self.endpoint.use_ssl
        self.redbeat_redis_options = self.endpoint.options
        self.options_inherited = self.endpoint.options_inherited
        self._client = getattr(self.app, "redbeat_redis", None)
        brought = self._client is not None
        self._read_keys(_is_cluster(self._client) if brought else self.endpoint.is_cluster)
        self.lock_timeout = self._read_lock_timeout()
        self.key_expiry_check = self._read_choice("redbeat_key_expiry_check", EXPIRY_CHECKS, 2)
        self.delivery = self._read_delivery()
        self.publish_window = self._read_whole("redbeat_publish_window", DEFAULT_WINDOW, 1, 1000)
        self.max_rate = self._read_max_rate()
        self.history_size = self._read_whole(
            "redbeat_history_size", DEFAULT_HISTORY, 0, MAX_HISTORY
        )
        self._read_metrics()
        self.wait_replicas = self._read_wait_replicas()
        self.cron_deadline = self._read_cron_deadline()
        self.on_lock_lost = self._read_choice("redbeat_on_lock_lost", ON_LOCK_LOST)
        self.task_allowlist = read_allowlist(self.either_or(ALLOWLIST))

    def __repr__(self) -> str:
        # The options and use_ssl may hold secrets, under any name.
        return (
            f"<{type(self).__name__}: {safe_url(self.redis_url)} prefix={self.key_prefix!r} "
            f"lock={self.lock_key!r}>"
        )

    @property
    def schedule(self) -> dict[str, Any]:
        """The static schedule, ``beat_schedule`` as it is now."""
        schedule: dict[str, Any] = self.app.conf.beat_schedule
        return schedule

    @schedule.setter
    def schedule(self, value: dict[str, Any]) -> None:
        self.app.conf.beat_schedule = value

    def adopt(self, client: Any) -> None:
        """Take note of the client that is used: a program may set its own at any time.

        Whether it is one of a Redis Cluster decides about the default of ``key_prefix``. Raises
        :exc:`ConfigurationError`, at each call, if the prefix does not fit the client.
        """
        if client is self._client:
            return
        before, cluster = self.key_prefix, _is_cluster(client)
        if cluster is not self.cluster:
            self._read_keys(cluster)
        self._client = client
        if self.key_prefix != before:
            message = "The client of the program is a %s: keys begin with %r in place of %r"
            logger.warning(message, type(client).__name__, self.key_prefix, before)

    def dubious_settings(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong or unwise among the settings, each with what to do instead."""
        yield from unknown_settings(self.app)
        if not self.key_prefix:
            problem = "redbeat_key_prefix is empty, entries lie among all keys of the database"
            yield problem, f"set a prefix, such as {DEFAULT_PREFIX!r}"
        key = find_setting(self.app, "redbeat_lock_key")
        if key is not None and not key:
            yield f"redbeat_lock_key is {key!r}, which switches the lock off", "write None for that"
        if self.either_or("redbeat_lock_timeout") == 0:
            problem = "redbeat_lock_timeout is 0, which means the default"
            yield problem, "leave it out; redbeat_lock_key = None switches the lock off"
        elif self.lock_timeout is not None and self.lock_timeout < SAFE_LOCK_TIMEOUT:
            problem = f"redbeat_lock_timeout is {self.lock_timeout:g}, a leader may lose the lock"
            yield problem, f"set at least {SAFE_LOCK_TIMEOUT:g} second; the default is 1500"

    def report(self) -> None:
        """Log what :meth:`dubious_settings` yields, at the first call only."""
        if not self._reported:
            self._reported = True
            for problem, remedy in self.dubious_settings():
                logger.warning("%s: %s", problem, remedy)

    def either_or(self, name: str, default: Any = None) -> Any:
        """Return the setting ``name`` in any of its spellings, ``default`` if unset or None."""
        value = find_setting(self.app, name)
        if value is MISSING:
            value = self.app.conf.get(name)
        return default if value is None else value

    def is_key_in_conf(self, name: str) -> bool:
        """Tell whether somebody set ``name``, in any of its spellings, be it to None."""
        return is_set(self.app, name)

    def resolve_lock_timeout(
        self, argument: float | None = None, max_interval: float | None = None
    ) -> float:
        """Return the seconds that the lock lives without renewal.

        ``argument``, else the setting, else five times ``max_interval``, else 1500; None and 0 mean
        "not given". Raises :exc:`ConfigurationError` for what is no number of seconds.
        """
        if not _is_unset(argument):
            return _check_lock_timeout(argument)
        if self.lock_timeout is not None:
            return self.lock_timeout
        interval = max_interval or DEFAULT_MAX_INTERVAL
        if not is_number(interval) or interval < 0:
            raise ConfigurationError(
                f"beat_max_loop_interval is {interval!r}, it must be seconds above 0"
            )
        return max(LOCK_INTERVALS * interval, SAFE_LOCK_TIMEOUT)

    def _read_keys(self, cluster: bool) -> None:
        default = DEFAULT_CLUSTER_PREFIX if cluster else DEFAULT_PREFIX
        prefix = self.either_or("redbeat_key_prefix", default)
        if prefix != "":
            _check_key("redbeat_key_prefix", prefix)
        if cluster and not _HASH_TAG.match(prefix):
            self._refuse_untagged(prefix)
        self.cluster, self.key_prefix = cluster, prefix
        self.schedule_key = prefix + ":schedule"
        self.statics_key = prefix + ":statics"
        self.reserved_keys = (
            *(self.schedule_key, self.statics_key, f"{prefix}:wakeup"),
            *(f"{prefix}:{what}" for what in KEYS_ASIDE),
            *(key_aside(prefix, what) for what in KEYS_ASIDE),
        )
        self.denied_keys = set()
        self.lock_key = self._read_lock_key()

    def _refuse_untagged(self, prefix: str) -> None:
        stem = prefix.rstrip(":")
        tagged = f"{{{stem}}}{prefix[len(stem) :]}" if stem else DEFAULT_CLUSTER_PREFIX
        raise ConfigurationError(
            f"redbeat_key_prefix is {prefix!r}, but in a cluster all keys of a schedule must share "
            f"a slot: give it a hash tag, such as {tagged!r}. Entries that are stored without one "
            "are copied with redbeat.management.prefixes.copy_untagged(app)"
        )

    def _read_lock_key(self) -> str | None:
        value = find_setting(self.app, "redbeat_lock_key")
        if value is MISSING:
            return self.key_prefix + ":lock"
        if not value:
            return None
        key = _check_key("redbeat_lock_key", value)
        key = key if key.startswith(self.key_prefix) else self.key_prefix + key
        if key in (*self.reserved_keys, self.key_prefix):
            raise ConfigurationError(
                f"redbeat_lock_key is {key!r}, a key that is in use: rename it"
            )
        return key

    def _read_lock_timeout(self) -> float | None:
        value = self.either_or("redbeat_lock_timeout")
        return None if _is_unset(value) else _check_lock_timeout(value)

    def _read_wait_replicas(self) -> int:
        value = self.either_or("redbeat_wait_replicas", 0)
        if type(value) is int and value >= 0:
            return value
        raise ConfigurationError(
            f"redbeat_wait_replicas is {value!r}, it must be a number of replicas, 0 for none"
        )

    def _read_max_rate(self) -> float | None:
        value = self.either_or("redbeat_max_rate")
        if value is None or (is_number(value) and 0 < value < math.inf):
            return None if value is None else float(value)
        raise ConfigurationError(
            f"redbeat_max_rate is {value!r}, it must be a number of runs a second above 0"
        )

    def _read_cron_deadline(self) -> float | None:
        value = self.app.conf.beat_cron_starting_deadline
        if value is None or (is_number(value) and value >= 0):
            return None if value is None else float(value)
        raise ConfigurationError(
            f"beat_cron_starting_deadline is {value!r}, it must be seconds, 0 at least"
        )

    def _read_metrics(self) -> None:
        port = "redbeat_metrics_port"
        off = self.either_or(port) is None
        self.metrics_port = None if off else self._read_whole(port, 0, 1, 65535)
        self.metrics_host = _check_key(
            "redbeat_metrics_host", self.either_or("redbeat_metrics_host", DEFAULT_METRICS_HOST)
        )
        self.metrics_entries = self._read_whole(
            "redbeat_metrics_entries", DEFAULT_METRICS_ENTRIES, 0, MAX_METRICS_ENTRIES
        )

    def _read_whole(self, name: str, default: int, least: int, most: int) -> int:
        value = self.either_or(name, default)
        if type(value) is int and least <= value <= most:
            return value
        raise ConfigurationError(
            f"{name} is {value!r}, it must be a whole number from {least} to {most}"
        )

    def _read_delivery(self) -> str | None:
        name = "redbeat_delivery"
        return None if self.either_or(name) is None else self._read_choice(name, OF_AN_APP)

    def _read_choice(self, name: str, choices: tuple[str, ...], default: int = 0) -> str:
        value = self.either_or(name, choices[default])
        if not isinstance(value, str) or value not in choices:
            raise ConfigurationError(f"{name} is {value!r}, it must be one of {', '.join(choices)}")
        return value


def real_app(app: Any = None) -> Celery:
    """Return ``app``; the current one for None, and the app behind a proxy of it.

    ``celery.current_app`` is a proxy, and so is what Flask programs make of their app.
    """
    # Asking the type is quick for an app, and goes past what a proxy passes on.
    while not issubclass(type(app), Celery) and hasattr(type(app), "_get_current_object"):
        app = app._get_current_object()
    found: Celery = app_or_default(app)
    return found


def ensure_conf(app: Celery | None = None) -> RedBeatConfig:
    """Return the configuration of ``app`` (or of the current one), read at the first call.

    It is kept as ``app.redbeat_conf``; one that is there already is returned as it is, with the
    keys that the client in ``app.redbeat_redis`` needs, see :meth:`RedBeatConfig.adopt`.
    """
    config: RedBeatConfig | None = getattr(app, "redbeat_conf", None)
    if config is None:
        app = real_app(app)
        config = getattr(app, "redbeat_conf", None)
        if config is None:
            config = app.redbeat_conf = RedBeatConfig(app)
    client = getattr(app, "redbeat_redis", None)
    if client is not None and client is not config._client:
        config.adopt(client)
    return config


def _is_cluster(client: Any) -> bool:
    return isinstance(getattr(client, "wrapped_connection", client), RedisCluster)


def _is_unset(seconds: Any) -> bool:
    return seconds is None or (seconds == 0 and is_number(seconds))


def _check_key(setting: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise ConfigurationError(f"{setting} is {value!r}, it must be a text that is not empty")


def _check_lock_timeout(value: Any) -> float:
    if is_number(value) and value >= MIN_LOCK_TIMEOUT:
        seconds: float = value
        return seconds
    raise ConfigurationError(
        f"redbeat_lock_timeout is {value!r}, it must be a number of seconds above 0 "
        "(redbeat_lock_key = None turns the lock off)"
    )
