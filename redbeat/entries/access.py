"""From an app to the store of its schedule, and to the class of its entries."""

from __future__ import annotations

from typing import Any

from redbeat.config import ensure_conf
from redbeat.connection.client import get_redis
from redbeat.storage.records import Keys
from redbeat.storage.store import Store

__all__ = ("store_of",)


def store_of(app: Any, client: Any = None) -> Store:
    """Return the store of an app's schedule, on ``client`` or on the client of the app."""
    conf = ensure_conf(app)
    keys = Keys(conf.key_prefix, conf.schedule_key, conf.statics_key, conf.quarantine_key)
    return Store(get_redis(app) if client is None else client, keys, conf.wait_replicas)
