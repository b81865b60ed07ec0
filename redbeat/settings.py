"""RedBeat's settings, and how to look them up in a Celery app."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Set
from difflib import get_close_matches
from numbers import Real
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.app.defaults import SETTING_KEYS
from celery.utils.text import match_case

from redbeat.errors import ConfigurationError

#: Redis publishes and records a run in one step. The broker and the schedule must be on the same
#: Redis server.
EXACTLY_ONCE: Final = "exactly_once"

#: A run is published and then recorded. If the beat crashes in between, it's sent again.
AT_LEAST_ONCE: Final = "at_least_once"

#: A run is recorded and then published. If the beat crashes in between, it's lost.
AT_MOST_ONCE: Final = "at_most_once"


class Kind(NamedTuple):
    """The valid values of a setting.

    ``requirement`` follows "it must be" in an error message. ``accepts`` says whether a value is
    valid.
    """

    requirement: str
    accepts: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> Any:
        """Return ``value``; raise :exc:`ConfigurationError` if it is invalid.

        None is valid: it means that the setting is not set.
        """
        if value is not None and not self.accepts(value):
            raise ConfigurationError(f"{name} is {value!r}, it must be {self.requirement}")
        return value


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number; True and False are none."""
    return type(value) is not bool and isinstance(value, Real) and math.isfinite(value)


def integer(minimum: int, maximum: int) -> Kind:
    return Kind(
        f"an integer from {minimum} to {maximum}",
        lambda value: type(value) is int and minimum <= value <= maximum,
    )


def one_of(*choices: str) -> Kind:
    return Kind(
        f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_text, value))


STRING: Final = Kind("a non-empty string", _is_text)

BOOLEAN: Final = Kind("True or False", lambda value: isinstance(value, bool))

#: Seconds: Redis cannot set a timeout shorter than a millisecond.
MIN_LOCK_TIMEOUT: Final = 0.001

#: 0 means the default timeout.
LOCK_TIMEOUT: Final = Kind(
    "a number of seconds above 0 (redbeat_lock_key = None turns the lock off)",
    lambda value: is_number(value) and (value == 0 or value >= MIN_LOCK_TIMEOUT),
)

#: :mod:`zoneinfo` accepts these names, but they mean another time zone on another host.
HOST_ZONE: Final = re.compile(r"localtime|posixrules|factory|(posix|right)/.*", re.IGNORECASE)
OF_HOST: Final = "is another time zone on another host; use a name such as 'Europe/Paris'"

SECONDS: Final = Kind(
    "a number of seconds, at least 0", lambda value: is_number(value) and value >= 0
)

#: The settings of Celery that beats compute with. Celery takes any value.
OF_CELERY: Final[Mapping[str, Kind]] = {
    "beat_cron_starting_deadline": SECONDS,
    "beat_max_loop_interval": SECONDS,
    "beat_sync_every": integer(0, 2**31),
}

MAX_SHARDS, MAX_HISTORY, MAX_METRICS_ENTRIES = 256, 30, 10_000

PREFIX: Final = "redbeat_"

LOG_EACH: Final = "each"


class Setting(NamedTuple):
    """A setting. ``kind`` is None if :class:`.RedBeatConfig` reads and checks it separately.

    ``value`` is the default, None without one or if it depends on other settings.
    """

    kind: Kind | None = None
    value: Any = None


_setting: Any = Setting


class Settings:
    """All settings: the attribute ``shards`` is the setting ``redbeat_shards``.

    Here, each attribute describes the setting. In a :class:`.RedBeatConfig`, it is the checked
    value, None if a setting without a default is not set. The manual says what they mean.
    """

    redis_url: str = _setting()
    redis_use_ssl: Any = _setting()
    redbeat_redis_options: dict[str, Any] = _setting()
    key_prefix: str = _setting()
    shards: int = _setting(integer(1, MAX_SHARDS), 1)
    lock_key: str | Any = _setting()
    lock_timeout: float | None = _setting(LOCK_TIMEOUT)
    on_lock_lost: str = _setting(one_of("standby", "exit"), "standby")
    delivery: str | None = _setting(one_of(EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE))
    publish_window: int = _setting(integer(1, 1000), 100)
    render_messages: bool = _setting(BOOLEAN, True)
    max_rate: float | None = _setting(
        Kind("a number of runs per second above 0", lambda value: is_number(value) and value > 0)
    )
    history_size: int = _setting(integer(0, MAX_HISTORY), 10)
    wait_replicas: int = _setting(
        Kind("a number of replicas, at least 0", lambda value: type(value) is int and value >= 0),
        0,
    )
    log_dispatch: str = _setting(one_of(LOG_EACH, "summary"), LOG_EACH)
    metrics_port: int | None = _setting(integer(1, 65535))
    metrics_host: str = _setting(STRING, "127.0.0.1")
    metrics_entries: int = _setting(integer(0, MAX_METRICS_ENTRIES), 200)
    max_failures: int = _setting(integer(1, 1000), 3)
    task_allowlist: Any = _setting(Kind("a list of patterns such as ['proj.tasks.*']", _are_texts))
    key_expiry_check: str = _setting(one_of("ignore", "warn", "error", "raise"), "error")


#: By their names in lower case.
SETTINGS: Final[Mapping[str, Setting]] = {
    f"{PREFIX}{name.removeprefix(PREFIX)}": setting
    for name, setting in vars(Settings).items()
    if isinstance(setting, Setting)
}

EXPECTED: Final = f"the valid settings are {', '.join(SETTINGS)}"

#: Stands for an unset setting, because None is a valid value.
MISSING: Final = object()

#: Celery's settings of beat.
BEAT_SETTINGS: Final = tuple(name for name in SETTING_KEYS if name.startswith("beat_"))

#: Django's settings of :mod:`redbeat.web.django`, without a namespace: names of permissions.
VIEW, CHANGE = "REDBEAT_WEB_VIEW_PERMISSION", "REDBEAT_WEB_CHANGE_PERMISSION"
IN_DJANGO: Final = frozenset({VIEW, CHANGE})

# Meant for RedBeat. RedisBeater is a fork of RedBeat 2, whose settings have the same names with
# another prefix.
_PREFIXES: Final = (PREFIX, "redisbeater_")


def find_setting(app: Celery, name: str) -> Any:
    """Return the setting ``name``, or :data:`MISSING`.

    The name may be in lower or upper case, with or without the app's namespace. The app's
    configuration is loaded if necessary.
    """
    conf = app.conf.finalize()
    for spelling in (name, name.upper()):
        if spelling in conf:
            return conf[spelling]
    return MISSING


def unknown_settings(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield (problem, remedy) for each setting that is not read, but meant for RedBeat or beat.

    A name in mixed case is unknown too, because it is not read. Values are left out, because they
    may be secret.
    """
    conf = app.conf.finalize()
    namespace = conf.prefix or ""
    read = {name for setting in SETTINGS for name in (setting, setting.upper())}
    # Celery reads a setting in a namespace like this.
    read |= {match_case(namespace + name, namespace) for name in (*SETTINGS, *BEAT_SETTINGS)}
    # It still reads its early names, such as CELERYBEAT_SCHEDULE.
    read |= {f"CELERY{name.upper()}" for name in BEAT_SETTINGS}
    given = {name for source in conf.maps[:-1] for name in source if isinstance(name, str)}
    for spelling in sorted(given - read - IN_DJANGO):
        yield from _misspelt(spelling, namespace) or _unseen(spelling, namespace, given)


def _misspelt(spelling: str, namespace: str) -> list[tuple[str, str]]:
    """(problem, remedy) if the app's namespace is right, but the name after it is unknown."""
    name = spelling.lower().removeprefix(namespace.lower())
    if name.startswith(_PREFIXES):
        by_stem = {name.removeprefix(PREFIX): name for name in SETTINGS}
        nearest = get_close_matches(name.partition("_")[2], by_stem, n=1)
        remedy = f"did you mean {by_stem[nearest[0]]}?" if nearest else EXPECTED
        return [(f"Unknown setting {spelling}", remedy)]
    if namespace and spelling.startswith(namespace):
        # Such as CELERY_BEAT_SHEDULE and CELERY_REBEAT_REDIS_URL.
        for nearest in get_close_matches(name, (*SETTINGS, *BEAT_SETTINGS), n=1, cutoff=0.85):
            return [(f"Unknown setting {spelling}", f"did you mean {nearest}?")]
    return []


def _unseen(spelling: str, namespace: str, given: Set[str]) -> list[tuple[str, str]]:
    """(problem, remedy) if the name is right, but not in the namespace that the app reads."""
    found = re.fullmatch(r"(.*?)((?:red)?beat_.+)", spelling.lower())
    if not found or found[2] not in (*SETTINGS, *BEAT_SETTINGS) or spelling == found[2]:
        return []
    before, problem = found[1].rstrip("_"), f"The setting {spelling} is not read"
    if namespace:
        wanted = match_case(namespace + found[2], namespace)
        # Another prefix may be the namespace of another app.
        is_other = before and not get_close_matches(before, [namespace.rstrip("_").lower()])
        return [] if is_other or wanted in given else [(problem, f"write {wanted}")]
    if not found[1].endswith("_"):
        return []
    name = spelling[: len(before)]
    return [(problem, f"pass namespace={name!r} to config_from_object()")]
