"""Messages through exchanges reach their queues also after the broker forgot the bindings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import kombu.common
import kombu.entity
import pytest
import redis

from redbeat.schedulers import RedBeatScheduler
from tests.servers import RedisServer

from .conftest import World

#: Broker and schedule may share a server, so it must be one that scripts can push to.
pytestmark = pytest.mark.standalone

ENTITIES: Any = kombu.entity
COMMON: Any = kombu.common

TOPIC = {"queue": "all", "routing_key": "some.thing"}
DIRECT = {"exchange": "orders", "routing_key": "new"}


@pytest.fixture(params=["one server", "two servers", "alone", "at most once"])
def broker(world: World, redis_url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of the broker: on the server of the schedule, or on another one."""
    topic = ENTITIES.Exchange("news", type="topic")
    orders = ENTITIES.Exchange("orders", type="direct")
    world.app.conf.task_queues = [
        ENTITIES.Queue("all", topic, routing_key="some.*"),
        ENTITIES.Queue("new-orders", orders, routing_key="new"),
    ]
    if request.param == "one server":
        world.app.conf.broker_url = url = f"{redis_url.rpartition('/')[0]}/0"
        yield redis.Redis.from_url(url, decode_responses=True)
        return
    if request.param == "alone":
        world.app.conf.redbeat_publish_window = 1
    if request.param == "at most once":
        world.app.conf.redbeat_delivery = "at_most_once"
    with RedisServer() as server:
        world.app.conf.broker_url = server.url
        yield redis.Redis.from_url(server.url, decode_responses=True)


def forget(broker: Any) -> None:
    """Delete what FLUSHALL of a broker deletes: bindings and queues."""
    for key in broker.scan_iter("_kombu.*"):
        broker.delete(key)
    broker.delete("all", "new-orders")


def put_due(world: World, name: str, **options: Any) -> None:
    """Store an entry that is due now; its next run is a minute later."""
    world.put(name, last_run_at=world.ago(61), score=world.now() - 1, options=options)


@pytest.mark.parametrize(("queue", "options"), [("all", TOPIC), ("new-orders", DIRECT)])
def test_lost_bindings_are_declared_again(
    world: World, broker: Any, queue: str, options: dict[str, Any]
) -> None:
    names = [f"e{number:02}" for number in range(12)]  # so many that the beat renders what it can
    scheduler = world.scheduler_of(RedBeatScheduler)
    for _ in range(3):
        for name in names:
            put_due(world, name, **options)
        scheduler.tick()
        messages = [json.loads(text) for text in broker.lrange(queue, 0, -1)]
        sent = [message["headers"]["periodic_task_name"] for message in messages]
        assert sorted(sent) == names
        assert [world.run_count(name) for name in names] == [1] * len(names)
        forget(broker)


def test_a_message_for_no_queue_is_a_failure(
    world: World, broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    put_due(world, "lost", exchange="orders", routing_key="nobody")
    put_due(world, "good", **DIRECT)
    world.scheduler_of(RedBeatScheduler).tick()
    assert broker.llen("new-orders") == world.run_count("good") == 1
    assert world.run_count("lost") == 0
    assert "no queue is bound to the exchange 'orders' with the routing key 'nobody'" in caplog.text


def test_a_fanout_that_only_publishes_is_no_failure(world: World, broker: Any) -> None:
    exchange = ENTITIES.Exchange("fan", type="fanout")
    world.app.conf.task_queues = [ENTITIES.Queue("fanned", exchange)]
    scheduler = world.scheduler_of(RedBeatScheduler)
    for _ in range(2):
        put_due(world, "a", queue="fanned")
        scheduler.tick()
        assert world.run_count("a") == 1
        forget(broker)


def test_a_broadcast_is_published_to_the_queues_of_workers(world: World, broker: Any) -> None:
    world.app.conf.task_queues = [COMMON.Broadcast("news-flash")]
    subscription = broker.pubsub()
    subscription.psubscribe("*news-flash*")
    assert subscription.get_message(timeout=5)["type"] == "psubscribe"
    scheduler = world.scheduler_of(RedBeatScheduler)
    for _ in range(2):
        put_due(world, "a", queue="news-flash")
        scheduler.tick()
        assert "periodic_task_name" in subscription.get_message(timeout=5)["data"]
        assert world.run_count("a") == 1
    assert list(broker.scan_iter("bcast.*")) == []  # a queue of the beat, which nobody reads


def test_an_exchange_has_its_type_before_its_first_message(world: World, broker: Any) -> None:
    topic = ENTITIES.Exchange("news", type="topic")
    rest = ENTITIES.Queue("new-orders", topic, routing_key="some.thing")
    world.app.conf.task_queues = [*world.app.conf.task_queues, rest]
    with world.app.connection_for_write() as worker:
        for queue in world.app.amqp.queues.values():
            queue(worker).declare()
    put_due(world, "a", exchange="news", routing_key="some.thing")
    world.scheduler_of(RedBeatScheduler).tick()
    assert [broker.llen(name) for name in ("all", "new-orders")] == [1, 1]


def test_a_queue_may_have_several_exchanges(world: World, broker: Any) -> None:
    topic, other = ENTITIES.Exchange("news", type="topic"), ENTITIES.Exchange("other", "direct")
    bindings = [ENTITIES.binding(topic, "some.*"), ENTITIES.binding(other, "new")]
    world.app.conf.task_queues = [ENTITIES.Queue("all", bindings=bindings)]
    for name, exchange, key in (("a", "news", "some.thing"), ("b", "other", "new")):
        put_due(world, name, exchange=exchange, routing_key=key)
    world.scheduler_of(RedBeatScheduler).tick()
    assert broker.llen("all") == 2
