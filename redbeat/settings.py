"""The table of RedBeat's settings, and functions that look up settings in a Celery app."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from numbers import Real
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.app.defaults import SETTING_KEYS

from redbeat.errors import ConfigurationError

#: Redis publishes and records a run in one step.
#: Exactly-once delivery needs the broker and the schedule on the same Redis server.
EXACTLY_ONCE: Final = "exactly_once"

#: A beat publishes a run and then records the run.
#: If the beat crashes before it records a published run, the run is sent again.
AT_LEAST_ONCE: Final = "at_least_once"

#: A beat records a run and then publishes the run.
#: If the beat crashes before it publishes a recorded run, the run is lost.
AT_MOST_ONCE: Final = "at_most_once"


class Kind(NamedTuple):
    """The valid values of a setting.

    Attributes:
        text: the valid types or values, in reStructuredText for the manual.
        requirement: the valid types or values, as the text after "it must be" in an error message.
        accepts: a function that returns whether a value is valid; None for settings that
            :class:`.RedBeatConfig` reads and checks separately.
    """

    text: str
    requirement: str = ""
    accepts: Callable[[Any], bool] | None = None

    def check(self, name: str, value: Any) -> Any:
        """Return ``value``; raise :exc:`ConfigurationError` if the value is invalid.

        None is valid: it means that the setting is not set.
        """
        if value is not None and self.accepts is not None and not self.accepts(value):
            raise ConfigurationError(f"{name} is {value!r}, it must be {self.requirement}")
        return value


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite number; True and False do not count as numbers."""
    return type(value) is not bool and isinstance(value, Real) and math.isfinite(value)


def integer(minimum: int, maximum: int, text: str = "") -> Kind:
    """Return the kind of a setting that is an integer from ``minimum`` to ``maximum``."""
    span = f"integer from {minimum} to {maximum}"
    return Kind(
        text or span, f"an {span}", lambda value: type(value) is int and minimum <= value <= maximum
    )


def one_of(*choices: str) -> Kind:
    """Return the kind of a setting that is one of the strings ``choices``."""
    *most, last = (f"``{choice!r}``" for choice in choices)
    return Kind(
        f"{', '.join(most)} or {last}",
        f"one of {', '.join(choices)}",
        lambda value: isinstance(value, str) and value in choices,
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_text, value))


STRING: Final = Kind("string", "a non-empty string", _is_text)

#: The minimum lock timeout in seconds: one millisecond is the shortest timeout that Redis can set.
MIN_LOCK_TIMEOUT: Final = 0.001

#: The kind of ``redbeat_lock_timeout``, whose value 0 means the default timeout.
LOCK_TIMEOUT: Final = Kind(
    "number",
    "a number of seconds above 0 (redbeat_lock_key = None turns the lock off)",
    lambda value: is_number(value) and (value == 0 or value >= MIN_LOCK_TIMEOUT),
)

#: Names of time zones that :mod:`zoneinfo` accepts, but that mean another zone on another host.
HOST_ZONE: Final = re.compile(r"localtime|posixrules|factory|(posix|right)/.*", re.IGNORECASE)
OF_HOST: Final = "is another time zone on another host; use a name such as 'Europe/Paris'"

#: The kind of Celery's setting ``beat_cron_starting_deadline``.
CRON_DEADLINE: Final = Kind(
    "number", "a number of seconds, at least 0", lambda value: is_number(value) and value >= 0
)

#: The maxima of ``redbeat_shards``, ``redbeat_history_size`` and ``redbeat_metrics_entries``.
MAX_SHARDS, MAX_HISTORY, MAX_METRICS_ENTRIES = 256, 30, 10_000

#: What the names of all settings begin with.
PREFIX: Final = "redbeat_"

#: The default of ``redbeat_log_dispatch``.
LOG_EACH: Final = "each"


class Setting(NamedTuple):
    """The description of a setting, with texts in reStructuredText for the manual."""

    kind: Kind
    #: What the setting does, in one phrase.
    meaning: str
    #: The first version that has the setting.
    since: str = "3.0"
    #: The value that RedBeat uses if the setting is not set.
    value: Any = None
    #: A description of the default for the manual; "" if ``value`` is the default.
    default_text: str = ""
    #: The unit of a number; empty for settings that are not numbers.
    unit: str = ""

    @property
    def type(self) -> str:
        """The valid types or values of the setting."""
        return self.kind.text

    @property
    def default(self) -> str:
        """The default value, which is a Python literal in double backquotes or a description."""
        return self.default_text or f"``{self.value!r}``"


_setting: Any = Setting


class Settings:
    """All settings of RedBeat: the attribute ``shards`` is the setting ``redbeat_shards``.

    Here, each attribute is the description of the setting. In a :class:`.RedBeatConfig`, it is the
    checked value, None if a setting without a default is not set.
    """

    redis_url: str = _setting(
        Kind("string"),
        "URL of the Redis that stores the schedule",
        since="2",
        default_text="``broker_url``",
    )
    redis_use_ssl: Any = _setting(
        Kind("dict or bool"),
        "TLS: ``True`` or ``False``, or a dict of redis-py's ``ssl_`` options",
        since="2",
        default_text="``broker_use_ssl``",
    )
    redbeat_redis_options: dict[str, Any] = _setting(
        Kind("dict"),
        "options of the Redis client and its connections",
        since="2",
        default_text="``broker_transport_options``, of which RedBeat uses only the keys below",
    )
    key_prefix: str = _setting(
        Kind("string"),
        "prefix of all keys in Redis",
        since="2",
        default_text="``'redbeat:'``; in a cluster ``'{redbeat}:'``",
    )
    shards: int = _setting(
        integer(1, MAX_SHARDS),
        "number of shards of the schedule, equal in all programs; see :ref:`shards`",
        value=1,
        default_text="``1``, no shards",
        unit="shards",
    )
    lock_key: str | Any = _setting(
        Kind("string or ``None``"),
        "key of the leader's lock; ``None`` turns the lock off",
        since="2",
        default_text="``'<prefix>:lock'``, which is ``redbeat::lock``",
    )
    lock_timeout: float | None = _setting(
        LOCK_TIMEOUT,
        "time after which the lock expires if the leader does not renew it",
        since="2",
        default_text="five times ``beat_max_loop_interval``, or 1500 without a loop interval",
        unit="seconds",
    )
    on_lock_lost: str = _setting(
        one_of("standby", "exit"), "what a leader does after it lost the lock", value="standby"
    )
    delivery: str | None = _setting(
        one_of(EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE),
        "delivery guarantee of runs; an entry can choose another guarantee",
        default_text="``None``: ``'exactly_once'`` if broker and schedule are on one Redis server, "
        "else ``'at_least_once'``",
    )
    publish_window: int = _setting(
        integer(1, 1000),
        "maximum number of messages in flight to the broker; with 1, a beat waits for each "
        "confirmation",
        value=100,
        unit="messages",
    )
    max_rate: float | None = _setting(
        Kind(
            "number above 0 or ``None``",
            "a number of runs per second above 0",
            lambda value: is_number(value) and value > 0,
        ),
        "maximum rate at which a beat sends late runs, for example after an outage",
        default_text="``None``, no limit",
        unit="runs per second",
    )
    history_size: int = _setting(
        integer(0, MAX_HISTORY),
        "number of runs in the history of each entry",
        value=10,
        unit="runs",
    )
    wait_replicas: int = _setting(
        Kind(
            "integer, at least 0",
            "a number of replicas, at least 0",
            lambda value: type(value) is int and value >= 0,
        ),
        "number of Redis replicas that must confirm the record of a run",
        value=0,
        unit="replicas",
    )
    log_dispatch: str = _setting(
        one_of(LOG_EACH, "summary"),
        "how a beat logs the runs that it sends: a line for each run, or a line per second with "
        "the number of runs",
        value=LOG_EACH,
    )
    metrics_port: int | None = _setting(
        integer(1, 65535, "port, or ``None``"),
        "port of ``/metrics``, ``/healthz`` and ``/readyz``",
        default_text="``None``, off",
    )
    metrics_host: str = _setting(
        STRING, "address on which the beat serves metrics and health checks", value="127.0.0.1"
    )
    metrics_entries: int = _setting(
        integer(0, MAX_METRICS_ENTRIES),
        "maximum number of entries with their own metrics",
        value=200,
        unit="entries",
    )
    task_allowlist: Any = _setting(
        Kind(
            "list of strings or ``None``",
            "a list of patterns such as ['proj.tasks.*']",
            _are_texts,
        ),
        "patterns of the task names that entries are allowed to use",
        default_text="``None``, all tasks",
    )
    key_expiry_check: str = _setting(
        one_of("ignore", "warn", "error", "raise"),
        "what a beat does at start if Redis may evict keys of the schedule",
        since="2",
        value="error",
    )


#: All settings of RedBeat by their names in lower case. The manual shows them as a table.
SETTINGS: Final[Mapping[str, Setting]] = {
    f"{PREFIX}{name.removeprefix(PREFIX)}": setting
    for name, setting in vars(Settings).items()
    if isinstance(setting, Setting)
}

#: :func:`find_setting` returns this object for an unset setting, because None is a valid value.
MISSING: Final = object()

# A name whose similarity to a setting is at least ``_TYPO_CUTOFF`` is a likely typo. One wrong
# letter in the shortest setting name gives a similarity of ``_TYPO_CUTOFF``.
_TYPO_CUTOFF = 0.93

# Names that begin so are meant for RedBeat. RedisBeater is a fork of RedBeat 2, whose settings have
# the same names with another prefix.
_PREFIXES: Final = (PREFIX, "redisbeater_")


def find_setting(app: Celery, name: str) -> Any:
    """Return the setting ``name`` of ``app``, or :data:`MISSING` if the setting has no value.

    The name may be in lower or upper case, with or without the namespace of the app. The function
    loads the configuration of the app if necessary.
    """
    conf = app.conf.finalize()
    spellings = _spellings(name, conf.prefix)
    for source in conf.maps:
        for spelling in spellings:
            if spelling in source:
                return source[spelling]
    return MISSING


def unknown_settings(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield (problem, remedy) for each unknown ``redbeat_*`` or ``redisbeater_*`` setting.

    The function also yields setting names that look like a typo of a setting of RedBeat. The
    yielded strings contain no values of settings, because values may be secret.
    """
    for spelling, name in sorted(set(_foreign_names(app))):
        nearest = _nearest(name)
        if nearest:
            yield f"Unknown setting {spelling}", f"did you mean {nearest}?"
        elif name.startswith(_PREFIXES):
            yield f"Unknown setting {spelling}", f"the valid settings are {', '.join(SETTINGS)}"


def _spellings(name: str, namespace: str | None) -> list[str]:
    plain = [name, name.upper()]
    if not namespace:
        return plain
    prefixes = dict.fromkeys((namespace, namespace.upper(), namespace.lower()))
    return [prefix + spelling for prefix in prefixes for spelling in plain] + plain


def _foreign_names(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield two forms of each setting name of ``app``: as written, and normalized.

    The normalized form is in lower case and without the namespace. The function does not yield the
    settings of Celery. It yields a setting of RedBeat only in mixed case, which is not read.
    """
    conf = app.conf.finalize()
    namespace = (conf.prefix or "").lower()
    for source in conf.maps[:-1]:
        for spelling in source:
            if isinstance(spelling, str):
                name = spelling.lower().removeprefix(namespace)
                known = _spellings(name, conf.prefix) if name in SETTINGS else ()
                if spelling not in known and name not in SETTING_KEYS:
                    yield spelling, name


def _nearest(name: str) -> str | None:
    if name.startswith(_PREFIXES):  # compare names without the prefix, which all settings share
        settings = {setting.removeprefix(PREFIX): setting for setting in SETTINGS}
        matches = get_close_matches(name.partition("_")[2], settings, n=1)
        return settings[matches[0]] if matches else None
    return next(iter(get_close_matches(name, SETTINGS, n=1, cutoff=_TYPO_CUTOFF)), None)
