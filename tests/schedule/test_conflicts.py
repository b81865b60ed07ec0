"""With ``save(if_unchanged=True)``, the second of two concurrent writers gets an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat import ConflictError, Schedule
from tests.faults.proxy import Proxy
from tests.scheduler.conftest import SCHEDULE, World, once
from tests.servers import RedisServer

from .conftest import Make


@pytest.mark.parametrize("fields", [{"args": [9]}, {"jitter": 2}, {"enabled": False}])
def test_a_change_by_another_process_is_a_conflict(
    schedule: Schedule, make: Make, world: World, fields: dict[str, object]
) -> None:
    make("a", jitter=1).save()
    mine = schedule["a"]
    make("a", **{"jitter": 1, **fields}).save()
    before = world.dump()
    mine.args = [1]
    with pytest.raises(ConflictError, match="'a' was changed by somebody else"):
        mine.save(if_unchanged=True)
    assert world.dump() == before
    mine.save()
    assert schedule["a"].args == [1]


@pytest.fixture
def proxied(redis_server: RedisServer, world: World) -> Iterator[Proxy]:
    """A proxy through which the app connects to Redis. The app's client retries requests."""
    with Proxy(redis_server.port) as proxy:
        world.app.redbeat_redis = redis.Redis.from_url(
            proxy.url,
            retry=Retry(NoBackoff(), 2),
            retry_on_error=[redis.ConnectionError],  # redis-py 5 does not retry by default
            decode_responses=True,
        )
        yield proxy
        world.app.redbeat_redis.close()


@pytest.mark.standalone
def test_a_failed_save_may_be_repeated(make: Make, world: World, proxied: Proxy) -> None:
    make("other").save()
    entry = make("a")
    proxied.swallow_replies(3, b"EVALSHA")
    with pytest.raises(redis.ConnectionError):
        entry.save(if_unchanged=True)
    assert world.client.exists("redbeat:a")
    entry.save(if_unchanged=True)
    with pytest.raises(ConflictError):
        make("a").save(if_unchanged=True)


def test_a_save_during_a_run_puts_back_a_member_that_a_program_took_out(
    make: Make, world: World
) -> None:
    entry = make("a", last_run_at=world.ago(5000)).save()
    scheduler = world.scheduler()

    def take_out_and_save() -> None:
        world.client.zrem(SCHEDULE, "redbeat:a")
        entry.save()

    scheduler.before_send = once(take_out_and_save)
    scheduler.tick()
    assert (world.score("a") or 0) > world.now()
