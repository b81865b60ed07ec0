"""Tests that several schedules and other programs in one Redis do not affect each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entry import store_of
from tests.scheduler.conftest import Clock, RecordingScheduler, on_clock
from tests.security.scenario import overdue

#: These prefixes overlap, look like glob patterns, or look like internal keys.
PREFIXES = ("redbeat:", "redbeat:b:", "red", "[a-z]*:", "billing-", "redbeat::", "redbeat:*")


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Celery]]:
    """Yield a function that creates an app with its own prefix on the shared Redis."""
    apps: list[Celery] = []

    def make(prefix: str, **settings: Any) -> Celery:
        app = Celery(f"app{len(apps)}", broker="memory://", set_as_current=False)
        app.conf.update(redbeat_redis_url=redis_url, redbeat_key_prefix=prefix)
        app.conf.update(result_expires=None, **settings)  # without Celery's own entry
        apps.append(app)
        return app

    yield make
    for app in apps:
        client = getattr(app, "redbeat_redis", None)
        if client is not None:
            client.close()


def beat_of(app: Celery, clock: Clock) -> RecordingScheduler:
    """Return a scheduler that uses ``clock``."""
    return on_clock(RecordingScheduler, clock)(app)


def test_each_beat_leads_and_sends_its_own(make: Callable[..., Celery]) -> None:
    clock = Clock()
    apps = {}
    for number, prefix in enumerate(PREFIXES):
        static = {f"static-{number}": {"task": "t", "schedule": 3600}}
        apps[prefix] = make(prefix, beat_schedule=static)
        overdue(f"own-{number}", apps[prefix]).save()
        overdue("common", apps[prefix]).save()
    beats = {prefix: beat_of(app, clock) for prefix, app in apps.items()}
    for _ in range(4):  # the ticks include scans of all keys
        for beat in beats.values():
            beat.tick()
        clock.advance(90)
    for number, prefix in enumerate(PREFIXES):
        beat = beats[prefix]
        assert beat.lock is not None
        assert beat.lock.leading
        assert sorted(beat.names) == ["common", f"own-{number}"]
        store = store_of(apps[prefix])
        assert store.static_names() == {f"static-{number}"}
        assert store.quarantined() == {}
        own = {prefix + name for name in ("common", f"own-{number}", f"static-{number}")}
        members = store.client.zrange(store.keys.schedule, 0, -1)
        assert set(members) == own
    for beat in beats.values():
        beat.close()


def test_deleting_in_one_leaves_the_others(make: Callable[..., Celery]) -> None:
    one, other = make("one:"), make("other:")
    for app in (one, other):
        overdue("common", app).save()
    RedBeatSchedulerEntry("common", app=one).delete()
    assert RedBeatSchedulerEntry.from_key("other:common", app=other).task == "t"
    with pytest.raises(KeyError):
        RedBeatSchedulerEntry.from_key("one:common", app=one)


def test_foreign_keys_under_the_prefix_are_left_alone(
    make: Callable[..., Celery], redis_client: redis.Redis
) -> None:
    redis_client.set("redbeat:counter", 7)
    redis_client.rpush("redbeat:queue", "x")
    redis_client.sadd("redbeat:members", "x")
    redis_client.zadd("redbeat:ranking", {"x": 1})
    redis_client.xadd("redbeat:events", {"x": "1"})
    redis_client.hset("redbeat:profile", mapping={"name": "somebody", "meta": "theirs"})
    redis_client.hset("redbeat:document", "definition", "not JSON")
    redis_client.hset("redbeat:article", "definition", '{"name": "another", "task": 5}')
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    clock = Clock()
    beat = beat_of(make("redbeat:"), clock)
    for _ in range(5):
        beat.tick()
        clock.advance(90)
    beat.close()
    assert beat.sent == []
    assert {key: redis_client.dump(key) for key in before} == before
    own = {"redbeat::lock", "redbeat::statics", ".redbeat::stats"}
    assert set(redis_client.scan_iter()) - set(before) <= own


@pytest.mark.parametrize("kind", ["set", "rpush"])
def test_a_name_that_is_taken_is_refused(
    make: Callable[..., Celery], redis_client: redis.Redis, kind: str
) -> None:
    getattr(redis_client, kind)("redbeat:taken", "x")
    with pytest.raises(ValueError, match=r"^name: .*redbeat:taken.*is not an entry"):
        RedBeatSchedulerEntry("taken", "t", 60, app=make("redbeat:")).save()
    assert redis_client.type("redbeat:taken") != "hash"
