"""A message is captured as kombu would send it, and what leaves on another way is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import kombu.common
import kombu.entity
import pytest
import redis
from celery.signals import before_task_publish
from kombu.exceptions import OperationalError

from redbeat.beat.one_step import REFUSED_FOR, OneStep
from redbeat.calendar.zones import UTC
from redbeat.config import ensure_conf
from tests.beat.sending import (
    NOTE,
    Clock,
    Closed,
    Elsewhere,
    Renamed,
    Single,
    app_of,
    call_of,
    note,
    put,
    rule_of,
    run_of,
)
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.standalone

#: What Redis says about a queue that its user may not write, and about a command.
NO_QUEUE = "ACL failure in script: No permissions to access a key"


class World:
    """A beat's view of a broker and a schedule."""

    def __init__(self, url: str, schedule: str = "", **settings: Any) -> None:
        self.clock = Clock()
        self.app = app_of(url, **settings)
        self.client: Any = redis.Redis.from_url(schedule or url)
        self.connection = self.app.connection_for_write()
        self.producer: Any = self.app.amqp.Producer(self.connection, auto_declare=False)
        self.one_step = OneStep(self.client, ensure_conf(self.app), self.clock)

    def server(self) -> Any:
        return self.one_step.server(self.producer)

    def reconnect(self) -> None:
        """Replace the producer, as a scheduler does after an error of the broker."""
        self.connection.release()
        self.connection = self.app.connection_for_write()
        self.producer = self.app.amqp.Producer(self.connection, auto_declare=False)

    def close(self) -> None:
        self.one_step.close()
        self.connection.release()
        self.client.close()
        self.app.close()


@pytest.fixture
def make_world(redis_url: str) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(url: str = redis_url, schedule: str = "", **settings: Any) -> World:
        worlds.append(World(url, schedule, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


class Effects:
    """What publishing does to a server: the queues, which of them expire, and what is heard."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def of(self, publish: Callable[[], object]) -> Any:
        """Call ``publish`` with empty queues."""
        client = self._client
        for key in self.queues:
            client.delete(key)
        with client.pubsub(ignore_subscribe_messages=True) as heard:
            heard.psubscribe("*")
            publish()
            lists = {key: (client.lrange(key, 0, -1), client.ttl(key) > 0) for key in self.queues}
            client.publish("end", "")
            published: list[Any] = []
            wait_until(lambda: self._heard(heard, published))
        return lists, published

    @property
    def queues(self) -> list[Any]:
        return sorted(self._client.scan_iter(_type="list"))

    def _heard(self, heard: Any, published: list[Any]) -> bool:
        message = heard.get_message()
        if message is None or message["channel"] == b"end":
            return message is not None
        published.append((message["channel"], message["data"]))
        return False


@contextmanager
def same_tags(channel: Any) -> Iterator[None]:
    """Give all messages the same delivery tag, which kombu draws at random."""
    with patch.object(channel, "_next_delivery_tag", lambda: "tag"):
        yield


ENTITIES: Any = kombu.entity
COMMON: Any = kombu.common
TOPIC = ENTITIES.Exchange("news", "topic")

#: The settings of an app, and the options of a run.
ROUTES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "priority": ({}, {"priority": 9}),
    "own steps": (
        {"broker_transport_options": {"priority_steps": list(range(10)), "sep": ":"}},
        {"priority": 4},
    ),
    "queue": ({}, {"queue": "other"}),
    "several queues": (
        {"task_queues": [ENTITIES.Queue(name, TOPIC, "news.#") for name in ("a", "b")]},
        {"exchange": "news", "routing_key": "news.today"},
    ),
    "broadcast": (
        {"task_queues": [COMMON.Broadcast("all")]},
        {"exchange": "all", "routing_key": ""},
    ),
    "broadcast in a database": (
        {
            "task_queues": [COMMON.Broadcast("all")],
            "broker_transport_options": {"fanout_prefix": True, "fanout_patterns": True},
        },
        {"exchange": "all", "routing_key": "x"},
    ),
    "expiring queue": (
        {"task_queues": [ENTITIES.Queue("brief", expires=60.0)]},
        {"queue": "brief"},
    ),
    "prefix": ({"broker_transport_options": {"global_keyprefix": "{app}:"}}, {}),
    "pickle": ({}, {"serializer": "pickle", "compression": "zlib"}),
    "not ASCII": ({}, {"queue": "Käse", "headers": {"wer": "日本"}}),
    "eta": ({}, {"eta": datetime(2030, 1, 1, tzinfo=UTC), "reply_to": "me"}),
}


@pytest.mark.parametrize("name", ROUTES)
def test_the_captured_commands_do_what_kombu_would_do(
    make_world: Callable[..., World], name: str
) -> None:
    settings, options = ROUTES[name]
    world = make_world(**settings)
    for queue in settings.get("task_queues", ()):
        queue(world.producer.channel).declare()
    run, effects = run_of(), Effects(world.client)
    call = call_of(world.app, run, world.producer, **options)
    call()  # declares what is not declared

    def captured() -> None:
        assert world.one_step.capture(run, world.producer, call)
        assert effects.queues == []
        for command in run.push:
            world.client.execute_command(*command)

    with same_tags(world.producer.channel):
        expected = effects.of(call)
        found = effects.of(captured)
    assert found == expected
    assert any(expected), "something was sent"
    assert (run.left, run.task_id, run.error) == (True, "a-id", None)
    assert all(isinstance(part, (str, bytes)) for command in run.push for part in command)
    assert world.one_step.takes(run.rule.key, run.rule.task)


@pytest.mark.parametrize("own", [True, False])
def test_nothing_is_sent_by_a_call_that_fails(world: World, own: bool) -> None:
    def call() -> None:
        call_of(world.app, run, world.producer)()
        raise ZeroDivisionError

    run = run_of()
    assert world.one_step.capture(run, world.producer, call, own)
    assert isinstance(run.error, ZeroDivisionError)
    assert (run.left, run.push) == (False, [])
    assert world.client.llen("celery") == 0
    assert world.one_step.capture(run, world.producer, call_of(world.app, run, world.producer))
    assert run.error is None


def test_after_a_capture_the_channel_sends_again(world: World) -> None:
    run = run_of()
    call = call_of(world.app, run, world.producer)
    world.one_step.capture(run, world.producer, call)
    assert world.client.llen("celery") == 0
    call()
    assert world.client.llen("celery") == 1


def test_a_message_that_is_put_into_its_queue_is_captured(world: World) -> None:
    run = run_of()
    assert world.one_step.capture(run, world.producer, partial(put, world.producer))
    assert (run.left, len(run.push)) == (True, 1)
    assert world.client.llen("celery") == 0


def test_a_new_channel_is_captured_too(world: World) -> None:
    for _ in range(2):
        run = run_of()
        call = call_of(world.app, run, world.producer)
        assert world.one_step.capture(run, world.producer, call)
        assert len(run.push) == 1
        world.reconnect()
    assert world.client.llen("celery") == 0


def test_a_channel_that_cannot_be_opened_is_an_error_of_the_run(world: World) -> None:
    run = run_of()
    with pytest.raises(OperationalError, match="refused"):
        world.one_step.capture(run, Closed(), call_of(world.app, run, world.producer))
    assert (run.left, run.push) == (False, [])


@pytest.mark.parametrize("own", [True, False])
def test_a_call_that_returns_an_older_result_has_sent_nothing(world: World, own: bool) -> None:
    world.app.task(base=Single, shared=False, name="proj.single")(note)
    run = run_of(rule=rule_of("a", "proj.single"))
    call = call_of(world.app, run, world.producer)
    assert world.one_step.capture(run, world.producer, call, own)
    assert (run.left, run.push, run.task_id) == (False, [], "a-id")
    assert world.one_step.takes(run.rule.key, run.rule.task), "the task may send its next message"


def test_the_id_is_the_one_that_the_call_returned(world: World) -> None:
    world.app.task(base=Renamed, shared=False, name="proj.renamed")(note)
    run = run_of(rule=rule_of("a", "proj.renamed"))
    call = call_of(world.app, run, world.producer)
    assert world.one_step.capture(run, world.producer, call)
    assert (run.left, run.task_id) == (True, "chosen-id")


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_the_protocol_are_heard(
    make_world: Callable[..., World], version: int
) -> None:
    world = make_world(task_protocol=version)
    world.app.task(base=Elsewhere, shared=False, name="proj.elsewhere")(note)
    run = run_of(rule=rule_of("a", "proj.elsewhere"))

    def call() -> None:
        call_of(world.app, run, world.producer, task_id="chosen-id")()

    assert not world.one_step.capture(run, world.producer, call, own=True)
    assert (run.left, run.task_id) == (True, "chosen-id")


def test_an_error_after_a_message_on_another_channel(world: World) -> None:
    world.app.task(base=Elsewhere, shared=False, name="proj.elsewhere")(note)
    run = run_of(rule=rule_of("a", "proj.elsewhere"))

    def call() -> None:
        call_of(world.app, run, world.producer)()
        raise ZeroDivisionError

    assert not world.one_step.capture(run, world.producer, call, own=True)
    assert isinstance(run.error, ZeroDivisionError)
    assert (run.left, run.push) == (True, [])


def test_a_publish_that_kombu_repeated_on_a_new_connection_is_out(world: World) -> None:
    run = run_of()

    def call() -> Any:
        with world.app.connection_for_write() as connection:
            world.producer.revive(connection.default_channel)
            return call_of(world.app, run, world.producer)()

    assert not world.one_step.capture(run, world.producer, call)
    assert (run.left, run.push, run.task_id) == (True, [], "a-id")
    assert world.client.llen("celery") == 1
    assert world.one_step.takes(run.rule.key, run.rule.task), "it is not the fault of the task"


def test_another_message_of_a_call_does_not_count_for_a_run_that_sent_nothing(
    world: World,
) -> None:
    class Noisy(Single):
        def apply_async(self, *args: Any, **options: Any) -> Any:
            self.app.send_task("proj.count_copies")
            return super().apply_async(*args, **options)

    world.app.task(base=Noisy, shared=False, name="proj.noisy")(note)
    run = run_of(rule=rule_of("a", "proj.noisy"))
    call = call_of(world.app, run, world.producer)
    assert world.one_step.capture(run, world.producer, call, own=True)
    assert not run.left


def test_a_handler_that_sends_another_message_changes_nothing(world: World) -> None:
    def handler(sender: str, **_: Any) -> None:
        if sender == NOTE:
            world.app.send_task("proj.audit")

    before_task_publish.connect(handler, weak=False, dispatch_uid="audit")
    try:
        run = run_of()
        call = call_of(world.app, run, world.producer)
        assert world.one_step.capture(run, world.producer, call, own=True)
    finally:
        before_task_publish.disconnect(dispatch_uid="audit")
    assert (run.left, run.task_id, len(run.push)) == (True, "a-id", 1)
    assert world.client.llen("celery") == 1, "the other message left at once"


def test_a_message_that_goes_to_no_queue_is_sent(world: World) -> None:
    run = run_of()
    call = call_of(world.app, run, world.producer, exchange="nowhere", routing_key="x")
    assert not world.one_step.capture(run, world.producer, call)
    assert (run.left, run.push) == (True, [])


# -- one server ------------------------------------------------------------------------------------


def test_databases_of_one_server(make_world: Callable[..., World], redis_url: str) -> None:
    base = redis_url.rpartition("/")[0]
    world = make_world(f"{base}/3", f"{base}/5")
    run_id = world.client.info("server")["run_id"]
    assert world.server() == (run_id, 3, 5)
    assert world.server() == (run_id, 3, 5)


@pytest.mark.parametrize("database", [0, 1])
def test_queues_in_the_database_of_the_schedule_may_not_have_its_keys(
    make_world: Callable[..., World], redis_url: str, database: int
) -> None:
    world = make_world(f"{redis_url.rpartition('/')[0]}/{database}", redis_url)
    own_keys = world.producer.own_keys = SimpleNamespace(shared=False)
    world.server()
    assert own_keys.shared is (database == 0)


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_another_chosen_delivery(make_world: Callable[..., World], delivery: str) -> None:
    assert make_world(redbeat_delivery=delivery).server() is None


def test_a_check_that_failed_is_made_again(make_world: Callable[..., World]) -> None:
    with RedisServer() as own:
        world = make_world(own.url)
        before = world.server()
        own.kill()
        world.clock.now += 1
        with pytest.raises(OperationalError):
            world.server()
        own.restart()
        after = world.server()
        assert before is not None
        assert after is not None
        assert before[0] != after[0]


def test_a_new_channel_is_looked_at_again(world: World) -> None:
    found = world.server()
    asked = world.client.info("commandstats")["cmdstat_info"]["calls"]
    world.reconnect()
    assert world.server() == found
    assert world.client.info("commandstats")["cmdstat_info"]["calls"] > asked + 1


# -- refusals --------------------------------------------------------------------------------------


def test_a_forbidden_queue_sends_its_entry_the_other_order(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    rule, other = rule_of("a"), rule_of("b")
    assert world.server() is not None
    assert world.one_step.refused(rule.key, NO_QUEUE)
    assert not world.one_step.takes(rule.key, rule.task)
    assert world.one_step.takes(other.key, other.task)
    assert world.one_step.refused(other.key, NO_QUEUE)
    assert caplog.text.count("at least once") == 1, "one line for all entries"
    assert world.server() is not None
    world.clock.now += REFUSED_FOR
    assert world.one_step.takes(rule.key, rule.task)


def test_an_entry_that_code_edits_during_its_publish_goes_the_other_order(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of()
    world.one_step.bypassed(run)
    world.one_step.bypassed(run)
    assert not world.one_step.takes(run.rule.key, run.rule.task)
    assert world.one_step.takes("redbeat:b", NOTE)
    assert caplog.text.count("changes the entry") == 1


def test_a_script_that_ran_elsewhere(world: World) -> None:
    found = world.server()
    world.one_step.elsewhere(("another", 0, 0))
    assert world.server() == found
    world.one_step.elsewhere(found)
    assert world.server() == found, "it may have restarted, so it is looked for again"
    world.one_step.elsewhere(found)
    assert world.server() is None


def test_refusals_of_very_many_entries_take_bounded_memory(world: World) -> None:
    world.server()
    rules = [rule_of(str(number)) for number in range(1100)]
    for rule in rules:
        world.one_step.refused(rule.key, NO_QUEUE)
    assert world.one_step.takes(rules[0].key, rules[0].task), "the oldest is tried again"
    assert not world.one_step.takes(rules[-1].key, rules[-1].task)
