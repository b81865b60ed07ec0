"""Refuses queues that a Redis broker would store under the keys of the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from celery import Celery
from redis.sentinel import SentinelConnectionPool

from redbeat.codec.stored import text_of
from redbeat.config import client_of, ensure_conf, key_aside, values_in
from redbeat.connection.urls import parse_url, url_text
from redbeat.errors import ConfigurationError, InvalidEntryError

from .keys import layout_of

#: The message options that name a queue, or from which Celery makes a queue's name.
DESTINATIONS: Final = ("queue", "routing_key", "exchange", "reply_to")

#: Celery's default queue; if it begins with the prefix of entries, any queue may do so.
ANY_QUEUE: Final = "celery"

LOCALHOST: Final = ("127.0.0.1", "::1")


def check_destinations(app: Celery, options: Any) -> None:
    """Raise :exc:`InvalidEntryError` if an option of an entry, or of a callback, names our keys.

    No round trips.
    """
    found = [*values_in(options, DESTINATIONS)] if options else []
    if found:
        own_keys(app).check("options", found)


def own_keys(app: Celery) -> OwnKeys:
    """The keys of the schedule of ``app``, computed once for each client."""
    client, conf = client_of(app), ensure_conf(app)
    if conf.own_keys is None or conf.own_keys.client is not client:
        conf.own_keys = OwnKeys(app, client)
    keys: OwnKeys = conf.own_keys
    return keys


class OwnKeys:
    """The keys of the schedule of ``app``, which queues of the broker must not be named after.

    ``shared`` is whether the broker uses the schedule's database. Settings can hide that, for
    example if a server has two names, so a beat that has asked both servers sets it.
    """

    def __init__(self, app: Celery, client: Any) -> None:
        self.client = client
        conf, options = ensure_conf(app), app.conf.broker_transport_options or {}
        self.shared = not _places_of_broker(app).isdisjoint(_places(client))
        self._keyprefix = str(options.get("global_keyprefix") or "")
        self._prefixes = {conf.key_prefix, *layout_of(conf).prefixes}
        self._lock_key = conf.lock_key
        common = self._keyprefix + ANY_QUEUE
        entries = (f"{key}:" if common.startswith(key) else key for key in self._prefixes)
        self._starts = (*entries, *(key_aside(key, "") for key in self._prefixes))
        self._is_own = lru_cache(maxsize=1000)(self._is_own_key)

    def check(self, field: str, named: Iterable[tuple[str, Any]]) -> None:
        """Raise :exc:`InvalidEntryError` if one of the names is a key of the schedule.

        ``named`` are pairs of an option and a name, or an object of kombu with a name.
        """
        for option, value in named if self.shared else ():
            name = getattr(value, "name", value)
            if name and self._is_own(text_of(name) if isinstance(name, bytes) else str(name)):
                problem = f"{name!r} is a key of the schedule, in the same database as the queues"
                fix = "use another name, or another database in redbeat_redis_url"
                raise InvalidEntryError(f"{field}.{option}", f"{problem}; {fix}")

    def check_message(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """:meth:`check` the arguments of a producer's ``publish``, those after the body."""
        if not self.shared:
            return
        names = [(name, options.get(name)) for name in ("routing_key", "exchange")]
        queues = [("queue", queue) for queue in options.get("declare") or ()]
        self.check("message", [*names, *(("routing_key", name) for name in args[:1]), *queues])

    def _is_own_key(self, name: str) -> bool:
        key = self._keyprefix + name
        return key == self._lock_key or (key.startswith(self._starts) and key not in self._prefixes)


#: Address of a server or a Sentinel, and number of the database.
Place = tuple[str, str]


def _places_of_broker(app: Celery) -> set[Place]:
    try:
        addresses = parse_url(url_text(app.conf.broker_write_url), "broker_url")
    except ConfigurationError:  # not a Redis server
        return set()
    return {_place(vars(one), one.options.get("db")) for one in addresses}


def _places(client: Any) -> set[Place]:
    """The database of ``client`` at its server's address, or at each Sentinel's."""
    pool: Any = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", {})
    nodes = [options]
    if isinstance(pool, SentinelConnectionPool):
        nodes = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    return {_place(node, options.get("db")) for node in nodes}


def _place(node: Mapping[str, Any], database: Any) -> Place:
    host = str(node.get("host")).lower()
    address = f"{'localhost' if host in LOCALHOST else host}:{node.get('port')}"
    return node.get("path") or address, str(database or 0)
