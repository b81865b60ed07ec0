"""The configuration of a schedule, read once from a Celery app, and its Redis client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import translate
from itertools import product
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from celery import Celery
from celery.app import app_or_default
from redis import Redis, RedisCluster
from redis.client import Pipeline

from redbeat import settings
from redbeat.connection.endpoint import client_parameters, read_endpoint
from redbeat.connection.retrying import RetryingConnection
from redbeat.connection.topology import build, is_cluster
from redbeat.errors import ConfigurationError, described
from redbeat.printing import get_logger

logger = get_logger("celery.beat")

if TYPE_CHECKING:
    from celery.local import Proxy

    #: A Celery app, or a proxy of an app such as ``celery.current_app``.
    App: TypeAlias = Celery | Proxy
else:
    App = Celery  # the manual shows this type as Celery, because the repr of Proxy is misleading

ALLOWLIST = "redbeat_task_allowlist"


class TaskAllowlist:
    """Tasks that entries may run, as case-sensitive patterns of :mod:`fnmatch`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        # The pattern (?!) never matches, so an empty list allows no task.
        self._any = re.compile("|".join(map(translate, self.patterns)) or r"(?!)")

    def allows(self, task: Any) -> bool:
        return isinstance(task, str) and self._any.match(task) is not None

    def refusal(self, task: Any, options: Any) -> tuple[str, str] | None:
        """Return (field, problem) of the first forbidden task.

        The tasks in ``options`` count too: the callbacks (``link``, ``chain``, ``chord``), and the
        header ``task``, which replaces the task name in the message.
        """
        names = [("task", task), *(("options", name) for name in tasks_in(options))]
        for field, name in names:
            if not self.allows(name):
                return field, self.problem(name)
        return None

    def problem(self, task: Any) -> str:
        return f"the task {task!r:.120} matches no pattern of {ALLOWLIST}; add a pattern"


def tasks_in(value: Any) -> Iterator[Any]:
    return (task for _, task in values_in(value, ("task",)))


def values_in(value: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each key in ``names``, in ``value`` and its nested dicts and lists.

    A pair ``[name, value]`` counts like a key, because message headers may be a list of pairs.
    """
    if isinstance(value, dict):
        yield from ((name, value[name]) for name in names if name in value)
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    elif len(value) == 2 and value[0] in names:
        yield value[0], value[1]
    for item in value:
        yield from values_in(item, names)


DEFAULT_PREFIX = "redbeat:"
DEFAULT_CLUSTER_PREFIX = "{redbeat}:"
DEFAULT_MAX_INTERVAL = 300
#: The default lock timeout is this multiple of ``beat_max_loop_interval``.
LOCK_INTERVALS = 5

#: The shortest lock timeout, in seconds, in which a busy leader still renews the lock.
SAFE_LOCK_TIMEOUT: Final = 1.0

#: Celery's settings that a stand-in may have.
STAND_IN: Final = ("beat_max_loop_interval", "beat_schedule", "beat_sync_every", "broker_url")

PLAIN: Final = (str, int, float, dict, list, tuple, set, frozenset, type(None))

# Redis Cluster's hash tag is the text in the first pair of braces, if it is not empty.
_HASH_TAG = re.compile(r"[^{]*\{[^}]+\}")


#: Stored outside the prefix: other programs assume that every key under it is an entry.
KEYS_ASIDE: Final = (
    *("beats", "calendars", "calendar-users", "calendars-version"),
    *("expected", "failed", "failing", "hands", "inbox", "quarantine", "stats"),
)


def key_aside(prefix: str, what: str) -> str:
    """A key in the cluster slot of ``prefix`` that does not begin with ``prefix``."""
    return f"{'-' if prefix.startswith('.') else '.'}{prefix}:{what}"


class RedBeatConfig(settings.Settings):
    """The validated settings of ``app``.

    The constructor reads the settings, and raises :exc:`~redbeat.ConfigurationError` for an invalid
    value. Changing ``app.conf`` afterwards has no effect. No round trips. ``redis_url`` is
    validated only when a client is built from it, because a program may set its own client
    (``app.redbeat_redis``). The default of ``key_prefix`` depends on whether the client is a Redis
    Cluster client; see :meth:`adopt`.
    """

    #: The tasks that entries may run, None for all.
    task_allowlist: TaskAllowlist | None
    #: The keys that no queue may have as its name, None until they are needed.
    own_keys: Any = None

    _reported = False

    def __init__(self, app: App | None = None) -> None:
        app = real_app(app)
        self.app = _stand_in(app, None) if is_mock(app) or is_mock(app.conf) else app
        #: What RedBeat builds a Redis client from.
        self.endpoint = read_endpoint(self.app)
        #: One or several URLs of Redis, perhaps with passwords: log only ``safe_url()`` of it.
        self.redis_url = self.endpoint.url.value
        self.redis_use_ssl = self.endpoint.use_ssl.value
        self.redbeat_redis_options = self.endpoint.options.value
        self._client = getattr(self.app, "redbeat_redis", None)
        has_client = self._client is not None
        if has_client:
            check_client(self._client)
        self._read_keys(is_cluster(self._client) if has_client else self.endpoint.is_cluster)
        for name, setting in settings.SETTINGS.items():
            if setting.kind is not None:
                value = setting.kind.check(name, self.either_or(name, setting.value))
                setattr(self, name.removeprefix(settings.PREFIX), value)
        for name, kind in settings.OF_CELERY.items():
            kind.check(name, self.app.conf[name])
        self.lock_timeout = self.lock_timeout or None
        #: Celery's ``beat_cron_starting_deadline``, in seconds.
        self.cron_deadline: float | None = self.app.conf.beat_cron_starting_deadline
        self._check_timezone()
        patterns = self.either_or(ALLOWLIST)
        self.task_allowlist = None if patterns is None else TaskAllowlist(patterns)

    @property
    def schedule(self) -> dict[str, Any]:
        """The current ``beat_schedule``, which contains the static entries."""
        schedule: Any = self.app.conf.beat_schedule
        if not isinstance(schedule, Mapping):
            raise ConfigurationError(f"beat_schedule is {schedule!r:.60}, it must be a dict")
        return cast("dict[str, Any]", schedule)

    @schedule.setter
    def schedule(self, value: dict[str, Any]) -> None:
        self.app.conf.beat_schedule = value

    def adopt(self, client: Redis | RedisCluster) -> None:
        """Recompute the key names: a program may swap in its own client at any time.

        The default of ``key_prefix`` depends on whether ``client`` is a Redis Cluster client.
        Raises :exc:`~redbeat.ConfigurationError` if it is one, but the prefix has no hash tag, and
        for what is no client.
        """
        if client is self._client:
            return
        check_client(client)
        cluster = is_cluster(client)
        if cluster is not self.cluster:
            self._read_keys(cluster)
        self._client = client

    def dubious_settings(self) -> Iterator[tuple[str, str]]:
        """Yield (problem, remedy) for each setting that is unknown or probably a mistake."""
        yield from settings.unknown_settings(self.app)
        has_own = self.redis_use_ssl and not self.endpoint.use_ssl.inherited
        if has_own and not self.endpoint.uses_tls:
            problem = (
                f"redbeat_redis_use_ssl has no effect on {self.endpoint.url.setting}, a "
                f"{self.endpoint.scheme}:// URL"
            )
            yield problem, "use a rediss:// URL for TLS, or remove redbeat_redis_use_ssl"
        key = settings.find_setting(self.app, "redbeat_lock_key")
        if key is not None and not key:
            yield f"redbeat_lock_key is {key!r}, which turns the lock off", "use None instead"

    def report(self) -> None:
        """Log the :meth:`dubious_settings`, on the first call only."""
        if not self._reported:
            self._reported = True
            for problem, remedy in self.dubious_settings():
                logger.warning("%s: %s", problem, remedy)

    def either_or(self, name: str, default: Any = None) -> Any:
        """Return the setting ``name``, or ``default`` if it is missing or None."""
        value = settings.find_setting(self.app, name)
        return default if value in (None, settings.MISSING) else value

    def is_key_in_conf(self, name: str) -> bool:
        """Return True if the setting ``name`` has a value, even the value None."""
        return settings.find_setting(self.app, name) is not settings.MISSING

    def resolve_lock_timeout(
        self, argument: float | None = None, max_interval: float | None = None
    ) -> float:
        """Return the number of seconds after which the lock expires if no beat renews it.

        That is ``argument``, else the setting ``redbeat_lock_timeout``, else five times
        ``max_interval`` (300 if missing), but at least 1. None and 0 count as missing. Raises
        :exc:`~redbeat.ConfigurationError` if ``argument`` is invalid.
        """
        if argument is not None and settings.LOCK_TIMEOUT.check("redbeat_lock_timeout", argument):
            return argument
        if self.lock_timeout is not None:
            return self.lock_timeout
        return max(LOCK_INTERVALS * (max_interval or DEFAULT_MAX_INTERVAL), SAFE_LOCK_TIMEOUT)

    def _read_keys(self, cluster: bool) -> None:
        default = DEFAULT_CLUSTER_PREFIX if cluster else DEFAULT_PREFIX
        prefix: str = self.either_or("redbeat_key_prefix", default)
        if prefix != "":
            settings.STRING.check("redbeat_key_prefix", prefix)
        if cluster and not _HASH_TAG.match(prefix):
            stem = prefix.rstrip(":")
            tagged = f"{{{stem}}}{prefix[len(stem) :]}" if stem else DEFAULT_CLUSTER_PREFIX
            raise ConfigurationError(
                f"redbeat_key_prefix is {prefix!r}, but in a cluster all keys of a schedule must "
                f"share a slot: use a prefix with a hash tag, such as {tagged!r}. To copy entries "
                "that are stored without a hash tag, call "
                "redbeat.management.prefixes.copy_untagged(app)"
            )
        #: Whether Redis is a cluster, where all keys of a schedule or shard must be in one slot.
        self.cluster = cluster
        #: The prefix of all keys of the schedule. RedBeat adds no separator after it.
        self.key_prefix = prefix
        self.schedule_key = prefix + ":schedule"
        self.statics_key = prefix + ":statics"
        #: Entries cannot have these keys, because RedBeat uses them; without the lock key.
        self.reserved_keys = (
            *(self.schedule_key, self.statics_key, f"{prefix}:wakeup"),
            *(f"{prefix}:{what}" for what in KEYS_ASIDE),
            *(key_aside(prefix, what) for what in KEYS_ASIDE),
        )
        #: Prefixes of schedules for which the log says that an ACL denies their reserved keys.
        self.warned_prefixes = set[str]()
        self.lock_key = self._read_lock_key()

    def _read_lock_key(self) -> str | None:
        value = settings.find_setting(self.app, "redbeat_lock_key")
        if value is settings.MISSING:
            return self.key_prefix + ":lock"
        if not value:
            return None
        key: str = settings.STRING.check("redbeat_lock_key", value)
        key = key if key.startswith(self.key_prefix) else self.key_prefix + key
        if key in (*self.reserved_keys, self.key_prefix):
            raise ConfigurationError(
                f"redbeat_lock_key is {key!r}, which RedBeat uses for other data: use another key"
            )
        return key

    def _check_timezone(self) -> None:
        zone = str(self.app.conf.timezone)
        if settings.HOST_ZONE.fullmatch(zone):
            raise ConfigurationError(f"timezone is {zone!r}, which {settings.OF_HOST}")
        try:
            _ = self.app.timezone
        except Exception as error:  # each time zone library raises its own error
            raise ConfigurationError(
                f"timezone is {self.app.conf.timezone!r}, which is not the name of a time zone, or "
                f"the package tzdata is missing: {described(error)}"
            ) from None


def real_app(app: App | None = None) -> Celery:
    """Return ``app`` (default: the current app), or the app behind a proxy.

    ``celery.current_app`` is a proxy, and Flask programs often wrap the Celery app in one.
    """
    # A proxy forwards isinstance() and attribute lookups to its app, so check type(app).
    while not issubclass(type(app), Celery) and hasattr(type(app), "_get_current_object"):
        app = cast("Proxy", app)._get_current_object()
    resolved: Celery = app_or_default(app)
    return resolved


def ensure_conf(app: App | None = None) -> RedBeatConfig:
    """Return the configuration of ``app`` (default: the current app).

    The first call reads the settings and stores the configuration as ``app.redbeat_conf``. Later
    calls return that, with its keys adapted to the client in ``app.redbeat_redis``; see
    :meth:`RedBeatConfig.adopt`. No round trips.

    Tests of programs put mocks in place of the app, ``app.conf`` or ``app.redbeat_conf``. Their
    attributes that are plain values count as settings, all others as not set.
    """
    config: RedBeatConfig | None = getattr(app, "redbeat_conf", None)
    if config is None:
        app = real_app(app)
        config = app.redbeat_conf = getattr(app, "redbeat_conf", None) or RedBeatConfig(app)
    if not issubclass(type(config), RedBeatConfig):  # isinstance() is true of some mocks
        config = RedBeatConfig(_stand_in(app, config))
    client = getattr(app, "redbeat_redis", None)
    if client is not None and client is not config._client:
        config.adopt(client)
    return config


def check_client(client: Any) -> None:
    """Raise :exc:`ConfigurationError` for a client of asyncio, and for what is no client at all."""
    is_async = any(base.__module__.startswith("redis.asyncio") for base in type(client).__mro__)
    if is_async or isinstance(client, Pipeline) or not hasattr(client, "execute_command"):
        cls = type(client)
        raise ConfigurationError(
            f"app.redbeat_redis is of the type {cls.__module__}.{cls.__qualname__}, it must be a "
            "client that blocks, such as redis.Redis"
        )


def is_mock(thing: Any) -> bool:
    return type(thing).__module__ == "unittest.mock"


def _stand_in(app: Any, found: Any) -> Celery:
    """An app whose settings are the plain values of ``app.conf`` and ``found``."""
    plain, owners = Celery(set_as_current=False, fixups=[]), (getattr(app, "conf", None), found)
    for name in (*settings.SETTINGS, *STAND_IN):
        attributes = (name, name.removeprefix("redbeat_"), name.removeprefix("beat_"))
        for owner, attribute in product(owners, attributes):
            value = getattr(owner, attribute, settings.MISSING)
            if isinstance(value, PLAIN):
                plain.conf[name] = value
    return plain


# -- the client of an app --------------------------------------------------------------------------

#: The app's attribute with the Redis client; a program may set its own.
REDBEAT_REDIS_KEY: Final = "redbeat_redis"
#: The app's attribute with redis-py's ``Sentinel`` object, if Sentinel is used.
REDBEAT_SENTINEL_KEY: Final = "redbeat_sentinel"

# Threads that call get_redis() at the same time must get the same client.
_creation_lock = RLock()


def get_redis(app: App | None = None) -> Any:
    """Return the Redis client of ``app`` (default: the current app).

    The first call creates it. It decodes replies to ``str``, and retries failed commands for
    ``retry_period`` seconds. A client that a program has set as ``app.redbeat_redis`` is returned
    unchanged. Raises :exc:`~redbeat.ConfigurationError` if the settings are invalid. No round
    trips.
    """
    app = real_app(app)
    with _creation_lock:
        client: Any = getattr(app, REDBEAT_REDIS_KEY, None)
        if client is None:
            client = _make_client(app)
            setattr(app, REDBEAT_REDIS_KEY, client)
    return client


def _make_client(app: Celery) -> Any:
    conf = ensure_conf(app)
    conf.report()
    client = build(client_parameters(conf.endpoint))
    sentinel = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    if sentinel is not None:
        setattr(app, REDBEAT_SENTINEL_KEY, sentinel)
    period = conf.redbeat_redis_options.get("retry_period")
    return RetryingConnection(period, client) if period else client


_provider: Callable[[Celery], Any] = get_redis


def use_provider(provider: Callable[[Celery], Any]) -> None:
    global _provider  # noqa: PLW0603 - one provider per process
    _provider = provider


def client_of(app: App | None = None) -> Any:
    """Return the Redis client that RedBeat uses for ``app``; see :func:`get_redis`.

    A program can replace ``redbeat.schedulers.get_redis`` to provide its own. The first call also
    logs the warnings about the settings, because Celery configures logging only after the app is
    created. Raises :exc:`~redbeat.ConfigurationError` if the settings are invalid, or if the
    program provides a cluster client but the key prefix has no hash tag.
    """
    app = real_app(app)
    conf = ensure_conf(app)
    conf.report()
    client = _provider(app)
    conf.adopt(client)
    return client


def unretried(client: Any) -> Any:
    """For callers with their own retries."""
    return client.wrapped_connection if isinstance(client, RetryingConnection) else client
