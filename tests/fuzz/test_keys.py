"""Tests that a beat sends the good entry and changes no other key, whatever the keys contain.

A tick runs on keys of all types, with all kinds of members and scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from tests.fuzz.hostile import definitions, metas, names, policies, runtimes, scores
from tests.fuzz.profile import cases
from tests.scheduler.conftest import RecordingScheduler

PREFIX = b"redbeat:"
SCHEDULE = "redbeat::schedule"
GOOD = '{"name": "good", "task": "t", "schedule": {"__type__": "interval", "every": 3600}}'

#: Keys that belong to no entry, with their values; a beat must not change them.
FOREIGN = {"foreign": "1", "redbeat": "2", "redbeat-other:a": "3", "redbeat:counter": "4"}


class Scene:
    """A server, the data before the tick, and a new scheduler for each case."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self.app = Celery("fuzz", broker="memory://", set_as_current=False)
        self.app.conf.update(redbeat_redis_url=url, timezone="UTC", redbeat_lock_key=None)

    def begin(self) -> None:
        """Delete all data, and store one good due entry and keys of other programs."""
        self.client.flushall()
        self.client.hset("redbeat:good", "definition", GOOD)
        self.client.zadd(SCHEDULE, {"redbeat:good": 1})
        self.client.mset(FOREIGN)

    def all_keys(self) -> list[bytes]:
        return list(self.client.scan_iter())

    def tick(self) -> RecordingScheduler:
        """Create a beat, run one tick, and stop the beat."""
        scheduler = RecordingScheduler(self.app, lazy=False)
        scheduler.tick()
        scheduler.close()
        return scheduler

    def end(self) -> None:
        self.client.close()
        self.app.redbeat_redis.close()


@pytest.fixture(scope="module")
def scene(redis_server: Any) -> Iterator[Scene]:
    """Return the scene that all cases share."""
    scene = Scene(redis_server.url)
    yield scene
    scene.end()


def put_hash(pipeline: Any, key: bytes, fields: dict[str, str]) -> None:
    """Write the non-empty fields of a hash."""
    filled = {name: text.encode("utf-8", "surrogatepass") for name, text in fields.items() if text}
    if filled:
        pipeline.hset(key, mapping=filled)


def raw(name: str | bytes) -> bytes:
    """Return a name as bytes, in a form that another program may have written."""
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")


OTHER_TYPES: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda pipeline, key: pipeline.set(key, "x"),
    "list": lambda pipeline, key: pipeline.rpush(key, "x"),
    "set": lambda pipeline, key: pipeline.sadd(key, "x"),
    "zset": lambda pipeline, key: pipeline.zadd(key, {"x": 1}),
    "stream": lambda pipeline, key: pipeline.xadd(key, {"x": 1}),
    "nothing": lambda _pipeline, _key: None,
}

#: Keys with a special meaning; tests/scheduler tests broken data in them.
OWN_NAMES = (b":schedule", b":statics", b"good")
OWN = {PREFIX + name for name in OWN_NAMES}

bad_entries = st.tuples(
    names,
    scores,
    st.booleans(),
    st.one_of(
        st.sampled_from(sorted(OTHER_TYPES)),
        st.fixed_dictionaries(
            {
                "definition": definitions,
                "meta": metas,
                "policy": policies,
                "runtime": runtimes,
                "claim": st.one_of(st.just(""), st.text(max_size=20), st.just('["x 1 9e999",0,0]')),
            }
        ),
    ),
)


@cases(60, 5_000)
@given(st.lists(bad_entries, max_size=4))
def test_the_good_entry_runs(scene: Scene, bad: list[Any]) -> None:
    scene.begin()
    pipeline = scene.client.pipeline(transaction=False)
    for name, score, prefixed, content in bad:
        key = PREFIX + raw(name)
        if key in OWN or key.decode("utf-8", "replace") in FOREIGN:
            continue
        if isinstance(content, dict):
            put_hash(pipeline, key, content)
        else:
            OTHER_TYPES[content](pipeline, key)
        pipeline.zadd(SCHEDULE, {key if prefixed else raw(name): score})
    pipeline.execute(raise_on_error=False)  # Two entries may have the same name.
    sent = scene.tick().names
    assert sent.count("good") == 1
    assert scene.client.hget("redbeat:good", "meta")
    for foreign, value in FOREIGN.items():
        assert scene.client.get(foreign) == value.encode()


@cases(30, 1_000)
@given(st.one_of(names, st.text()))
def test_no_name_reaches_an_internal_key(scene: Scene, name: Any) -> None:
    scene.begin()
    before = {key: scene.client.dump(key) for key in scene.all_keys() if key != b"redbeat:good"}
    try:
        entry = RedBeatSchedulerEntry(name, "t", 60, app=scene.app).save()
    except InvalidEntryError:
        pass
    else:
        assert entry.key.startswith("redbeat:")
        before.pop(entry.key.encode("utf-8", "surrogateescape"), None)
    for key, value in before.items():
        if key != SCHEDULE.encode():
            assert scene.client.dump(key) == value
