"""Single values that programs read: what is due, the rank of an entry, the server's settings."""

from __future__ import annotations

from redbeat.storage.store import Store


def test_the_eviction_policy_is_read_from_the_server(store: Store) -> None:
    assert store.server()["eviction"] == ""
