"""Thousands of entries that are due at one instant do not make another entry late."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from redbeat.schedulers import RedBeatScheduler
from tests.servers import RedisServer

from .conftest import World

pytestmark = pytest.mark.standalone

#: The number of entries of the burst, and of the messages that may leave before one that is due.
COUNT, BEFORE = 1500, 100


def names_in(broker: Any) -> list[str]:
    """Return the names of the entries in the queue, the first message first."""
    texts = reversed(broker.lrange("celery", 0, -1))
    return [json.loads(text)["headers"]["periodic_task_name"] for text in texts]


@pytest.mark.parametrize("ago", [0.5, 5.0], ids=["fresh", "late"])
@pytest.mark.parametrize("rate", [None, 300])
@pytest.mark.parametrize("server", ["one server", "two servers"])
def test_a_burst_does_not_make_others_late(
    world: World, redis_url: str, ago: float, rate: float | None, server: str
) -> None:
    with RedisServer() as other:
        url = other.url if server == "two servers" else f"{redis_url.rpartition('/')[0]}/0"
        world.app.conf.update(broker_url=url, redbeat_max_rate=rate)
        world.put_many(COUNT, score=world.now() - ago)
        world.put("fast", score=world.now())
        world.scheduler_of(RedBeatScheduler).tick()
        broker: Any = redis.Redis.from_url(url, decode_responses=True)
        sent = names_in(broker)
    assert sent.index("fast") <= BEFORE
    assert len(sent) > BEFORE, "the burst goes on"
