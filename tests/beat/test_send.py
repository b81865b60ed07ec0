"""Runs are published in windows, and each comes back with what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from amqp import Channel, spec
from amqp.exceptions import NotFound
from celery import Celery
from redis.exceptions import ResponseError

from redbeat.beat.send import Sender, SharedError
from redbeat.entries.run import Run
from tests.beat.sending import (
    Clock,
    Closed,
    Elsewhere,
    Renamed,
    Single,
    app_of,
    call_of,
    messages,
    note,
    put,
    rule_of,
    run_of,
)
from tests.beat.test_amqp_pipe import RabbitConnection

pytestmark = pytest.mark.standalone

#: The most messages that wait together.
WINDOW = 50


class World:
    """A sender, and an app whose broker it uses."""

    def __init__(self, url: str, window: int = WINDOW, **settings: Any) -> None:
        self.clock = Clock()
        self.sender = Sender(window, self.clock)
        self.app: Celery = app_of(url, **settings)
        for base in (Single, Renamed, Elsewhere):
            self.app.task(base=base, shared=False, name=f"proj.{base.__name__.lower()}")(note)
        self.connection = self.app.connection_for_write()
        self.producer: Any = self.app.amqp.Producer(self.connection, auto_declare=False)

    def publish(self, run: Run, **options: Any) -> None:
        own = options.pop("own", False)
        once = options.pop("once", False)
        call = call_of(self.app, run, self.producer, **{"retry": False, **options})
        self.sender.publish(run, call, self.producer, own=own, once=once)

    def close(self) -> None:
        self.sender.close()
        self.connection.release()
        self.app.close()


@pytest.fixture
def make_world(redis_url: str) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(url: str = redis_url, window: int = WINDOW, **settings: Any) -> World:
        worlds.append(World(url, window, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(params=["pipe", "channel", "plain"])
def world(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    """A world with a Redis pipe, with a Redis channel, and with a broker in memory."""
    if request.param == "plain":
        return make_world("memory://")
    return make_world(window=1 if request.param == "channel" else WINDOW)


def runs_of(number: int) -> list[Run]:
    return [run_of(f"e{index}") for index in range(number)]


def fate(run: Run) -> tuple[bool, str, str]:
    """Return what became of a run: whether it left, its id, and its error."""
    return run.left, run.task_id, type(run.error).__name__ if run.error else ""


# -- what left -------------------------------------------------------------------------------------


def test_runs_come_back_in_order_with_their_ids(world: World) -> None:
    runs = runs_of(5)
    for run in runs:
        world.publish(run)
    assert world.sender.finish() == runs
    assert [fate(run) for run in runs] == [(True, f"e{index}-id", "") for index in range(5)]
    assert not world.sender.busy
    assert world.sender.finish() == world.sender.settle() == []


@pytest.mark.parametrize("own", [True, False])
def test_a_call_that_returns_an_older_result_has_sent_nothing(world: World, own: bool) -> None:
    run = run_of(rule=rule_of("a", "proj.single"))
    before, after = runs_of(2)
    for one in (before, run, after):
        world.publish(one, own=own)
    assert world.sender.finish() == [before, run, after]
    assert fate(run) == (False, "a-id", "")
    assert before.left
    assert after.left


def test_the_id_is_the_one_that_the_call_returned(world: World) -> None:
    run = run_of(rule=rule_of("a", "proj.renamed"))
    world.publish(run)
    world.sender.finish()
    assert fate(run) == (True, "chosen-id", "")


def test_a_message_on_a_channel_of_its_own_has_left(world: World) -> None:
    run = run_of(rule=rule_of("a", "proj.elsewhere"))
    world.publish(run, own=True)
    world.sender.finish()
    assert fate(run) == (True, "a-id", "")


def test_a_call_that_returns_nothing_has_the_id_of_its_message(world: World) -> None:
    def call() -> None:
        world.app.send_task("proj.note", producer=world.producer, task_id="unknown-id")

    run = run_of()
    world.sender.publish(run, call, world.producer, own=True)
    world.sender.finish()
    assert fate(run) == (True, "unknown-id", "")


def test_a_message_that_is_put_into_its_queue_has_left(
    make_world: Callable[..., World], redis_client: redis.Redis
) -> None:
    world, run = make_world(), run_of()
    world.sender.publish(run, partial(put, world.producer), world.producer)
    world.sender.finish()
    assert fate(run) == (True, "a-id", "")
    assert len(messages(redis_client)) == 1


@pytest.mark.parametrize("own", [True, False])
def test_an_error_before_the_message(world: World, own: bool) -> None:
    def call() -> None:
        raise ZeroDivisionError

    run = run_of()
    world.sender.publish(run, call, world.producer, own=own)
    assert world.sender.finish() == [run]
    assert fate(run) == (own, "a-id", "ZeroDivisionError")


def test_an_error_after_the_message(world: World) -> None:
    def call() -> None:
        call_of(world.app, run, world.producer)()
        raise ZeroDivisionError

    run, other = run_of(), run_of("b")
    world.sender.publish(run, call, world.producer)
    world.publish(other)
    assert world.sender.finish() == [run, other]
    assert fate(run) == (True, "a-id", "ZeroDivisionError")
    assert fate(other) == (True, "b-id", "")


def test_an_interrupted_call_leaves_the_others_their_results(world: World) -> None:
    def call() -> None:
        call_of(world.app, run, world.producer)()
        raise SystemExit

    (first, last), run = runs_of(2), run_of()
    world.publish(first)
    with pytest.raises(SystemExit):
        world.sender.publish(run, call, world.producer)
    world.publish(last)
    assert world.sender.finish() == [first, run, last]
    assert [fate(one) for one in (first, run, last)] == [
        (True, "e0-id", ""),
        (True, "a-id", "StoppedError"),
        (True, "e1-id", ""),
    ]


def test_without_a_channel_nothing_has_left(world: World) -> None:
    run = run_of()
    world.sender.publish(run, lambda: None, Closed())
    assert world.sender.finish() == [run]
    assert fate(run) == (False, "a-id", "OperationalError")


# -- windows ---------------------------------------------------------------------------------------


def test_a_window_is_sent_and_confirmed_when_it_is_full(
    make_world: Callable[..., World], redis_client: redis.Redis
) -> None:
    world, runs = make_world(), runs_of(WINDOW + 1)
    for run in runs[: WINDOW - 1]:
        world.publish(run)
    assert world.sender.settle() == []
    assert messages(redis_client) == []
    for run in runs[WINDOW - 1 :]:
        world.publish(run)
    assert world.sender.settle() == runs[:WINDOW]
    assert world.sender.busy
    assert world.sender.finish() == runs[WINDOW:]
    assert len(messages(redis_client)) == WINDOW + 1


def test_a_window_is_sent_after_a_moment(
    make_world: Callable[..., World], redis_client: redis.Redis
) -> None:
    world, run = make_world(), run_of()
    world.publish(run)
    assert world.sender.settle() == []
    world.clock.now += 0.03
    assert world.sender.settle() == [run]
    assert not world.sender.busy
    assert len(messages(redis_client)) == 1


def test_a_window_of_large_messages_is_sent_early(
    make_world: Callable[..., World], redis_client: redis.Redis
) -> None:
    world = make_world()
    runs = [run_of(name, rule_of(name, args=["x" * 700_000])) for name in "abc"]
    for run in runs:
        world.publish(run)
    assert world.sender.settle() == runs[:2]
    assert world.sender.finish() == runs[2:]
    assert len(messages(redis_client)) == 3


def test_at_most_once_is_outside_the_window(
    make_world: Callable[..., World], redis_client: redis.Redis
) -> None:
    world, first, second = make_world(), run_of("a"), run_of("b")
    world.publish(first)
    world.publish(second, once=True)
    assert len(messages(redis_client)) == 1
    assert world.sender.finish() == [first, second]
    assert len(messages(redis_client)) == 2


def test_a_new_channel_while_messages_are_in_flight(
    make_world: Callable[..., World], redis_client: redis.Redis
) -> None:
    world, (first, second, third) = make_world(), runs_of(3)
    world.publish(first)
    with world.app.connection_for_write() as connection:
        world.producer = world.app.amqp.Producer(connection, auto_declare=False)
        world.publish(second)
        assert world.sender.finish() == [first, second]
        world.publish(third)
        assert world.sender.finish() == [third]
    assert len(messages(redis_client)) == 3


# -- errors of Redis -------------------------------------------------------------------------------


def test_a_run_with_one_crooked_queue_of_two_has_left_in_part(
    make_world: Callable[..., World], redis_client: redis.Redis
) -> None:
    world, run = make_world(), run_of()
    declare(world, redis_client, "news", "first", "second")
    redis_client.set("second", "text")
    world.publish(run, exchange="news", routing_key="news")
    assert world.sender.finish() == [run]
    assert isinstance(run.error, ResponseError)
    assert run.left
    assert redis_client.llen("first") == 1


def declare(world: World, client: redis.Redis, exchange: str, *queues: str) -> None:
    """Declare empty queues, as a publish to each does, and bind them to an exchange."""
    channel = world.producer.channel
    if exchange:
        channel.exchange_declare(exchange, "direct")
    for queue in queues:
        world.publish(run_of(queue), queue=queue)
        world.sender.finish()
        if exchange:
            channel.queue_bind(queue, exchange, exchange)
        client.delete(queue)


# -- errors of RabbitMQ ----------------------------------------------------------------------------


class Replying(RabbitConnection):
    """A connection to RabbitMQ that replies to messages at once while there are replies."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Callable[[], None]] = []

    def frame_writer(self, _type: int, _channel: int, method: Any, _args: Any, body: Any) -> None:
        super().frame_writer(_type, _channel, method, _args, body)
        if method == spec.Basic.Publish and self.replies:
            self.replies.pop(0)()


class Rabbit:
    """A sender on a channel of py-amqp."""

    def __init__(self) -> None:
        self.connection = Replying()
        self.channel: Any = Channel(self.connection)
        self.producer: Any = type("Producer", (), {"channel": self.channel})()
        self.sender = Sender(WINDOW, Clock())

    def publish(self, run: Run, **options: Any) -> None:
        def call() -> None:
            self.channel.basic_publish(run.rule.name, routing_key="celery")

        self.sender.publish(run, call, self.producer, **options)


def test_a_refused_message_is_perhaps_not_alone_to_blame() -> None:
    rabbit, (first, second) = Rabbit(), runs_of(2)
    rabbit.publish(first)
    rabbit.publish(second)
    rabbit.connection.acknowledge(1)
    rabbit.connection.refuse(2)
    assert rabbit.sender.finish() == [first, second]
    assert fate(first) == (True, "e0-id", "")
    assert isinstance(second.error, SharedError)
    assert "nack" in str(second.error)


def test_after_a_shared_error_a_run_is_published_alone() -> None:
    rabbit, (first, second, third) = Rabbit(), runs_of(3)
    rabbit.publish(first)
    rabbit.publish(second)
    rabbit.connection.close_channel()
    assert rabbit.sender.finish() == [first, second]
    assert all(isinstance(run.error, SharedError) for run in (first, second))
    assert all(run.left for run in (first, second))
    broker = rabbit.connection
    broker.replies = [lambda: broker.acknowledge(1), broker.close_channel]
    rabbit.publish(first)
    assert not broker.incoming, "it waited for its confirmation"
    rabbit.publish(second)
    assert rabbit.sender.finish() == [first, second]
    assert fate(first) == (True, "e0-id", "")
    assert isinstance(second.error, NotFound), "its own error"
    rabbit.publish(third)
    rabbit.publish(first)
    broker.acknowledge(2, multiple=True)
    assert rabbit.sender.finish() == [third, first], "nobody waited for the first again"
    assert (third.error, first.error) == (None, None)


@pytest.mark.parametrize("others", [True, False])
def test_an_error_of_a_call_may_come_from_an_earlier_message(others: bool) -> None:
    def call() -> None:
        raise NotFound("no exchange")

    rabbit, (first, second) = Rabbit(), runs_of(2)
    if others:
        rabbit.publish(first)
    rabbit.sender.publish(second, call, rabbit.producer)
    rabbit.connection.acknowledge(1)
    rabbit.sender.finish()
    assert isinstance(second.error, SharedError if others else NotFound)


# -- rendered messages -----------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "other:"])
def test_a_rendered_message_goes_where_kombu_sends_it(
    make_world: Callable[..., World], redis_client: redis.Redis, prefix: str
) -> None:
    world = make_world(broker_transport_options={"global_keyprefix": prefix})
    by_celery, rendered = runs_of(2)
    world.publish(by_celery)
    ((command, queue, message),) = world.sender.made

    assert (command, queue) == ("LPUSH", f"{prefix}celery")
    assert world.sender.collects(rendered, world.producer)
    world.sender.push(rendered, [[command, queue, message]])

    assert world.sender.finish() == [by_celery, rendered]
    assert [fate(run) for run in (by_celery, rendered)] == [
        (True, "e0-id", ""),
        (True, "e1-id", ""),
    ]
    assert len(set(messages(redis_client, queue))) == 1
    assert redis_client.llen(queue) == 2


@pytest.mark.parametrize(("url", "window"), [("memory://", WINDOW), ("", 1)])
def test_only_what_is_collected_for_redis_may_be_rendered(
    make_world: Callable[..., World], redis_url: str, url: str, window: int
) -> None:
    world = make_world(url or redis_url, window)
    (run,) = runs_of(1)
    world.publish(run)
    assert not world.sender.collects(run, world.producer)
    assert not world.sender.made
