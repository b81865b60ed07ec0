"""From an app to the store of its schedule, and to the class of its entries."""

from __future__ import annotations

from typing import Any

from redbeat.config import ensure_conf
from redbeat.connection.client import client_of
from redbeat.storage.records import Keys
from redbeat.storage.store import Store

__all__ = ("store_of",)


def store_of(app: Any, client: Any = None) -> Store:
    """Return the store of an app's schedule, on ``client`` or on the client of the app."""
    client = client_of(app) if client is None else client
    conf = ensure_conf(app)
    keys = Keys(conf.key_prefix, conf.schedule_key, conf.statics_key, conf.denied_keys)
    return Store(client, keys, conf.wait_replicas)
