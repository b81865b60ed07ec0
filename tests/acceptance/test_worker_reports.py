"""Tests of the end of a run, as a worker reports it."""

from __future__ import annotations

import pytest
from celery import Celery

from redbeat.entries.changes import read
from redbeat.entries.history import RunResult
from redbeat.entries.state import read_inbox
from redbeat.storage.store import store_of
from redbeat.worker import report_end


@pytest.mark.parametrize("shards", [1, 3])
def test_a_report_is_a_line_for_the_entry(redis_url: str, shards: int) -> None:
    app = Celery(set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, redbeat_shards=shards)
    store = store_of(app)
    keys = [store.keys.entry(name) for name in "abcdef"]
    for key in keys:
        report_end(store, key, "nobody", RunResult("failed"), 0.0)
    assert not any(read(store, key) for key in keys), "nothing is stored for an entry that is gone"
    for key in keys:
        part = store.part_of(key) if shards > 1 else store
        store.client.hset(part.keys.entry(store.keys.name_of(key)), "definition", "{}")
        report_end(store, key, key, RunResult("failed", None, 0.5, 2, "ValueError: \ud83d"), 1.0)
    for key in keys:
        row = read(store, key)
        assert row is not None
        (said,) = read_inbox(row.inbox)
        end = said.end
        assert end is not None
        found = (end.state, end.seconds, end.retries, end.error)
        assert found == ("failed", 0.5, 2, r"ValueError: \ud83d")
        assert end.id.endswith(row.key[-1])
    store.client.close()
