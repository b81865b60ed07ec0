"""If broker and schedule are on one Redis server, a run is sent and recorded in one step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import kombu.connection
import kombu.entity
import pytest
import redis
from celery import Task
from celery.signals import after_task_publish, before_task_publish
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import Transport

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.one_step import CHECK_INTERVAL
from redbeat.errors import ConfigurationError
from redbeat.schedulers import RedBeatScheduler
from redbeat.settings import AT_MOST_ONCE
from redbeat.signals import entry_dispatched, entry_failed
from tests.deployments import PREFIX
from tests.faults.proxy import Proxy
from tests.samples import long
from tests.servers import RedisServer
from tests.waiting import wait_until
from tests.workers import reporting

from .clients import Wire
from .conftest import SCHEDULE, Clock, World, heard, interval_json, lines, void

#: In these tests, broker and schedule share a single server.
pytestmark = pytest.mark.standalone

ENTITIES: Any = kombu.entity
CONNECTION: Any = kombu.connection.Connection

#: Part of the log message that a beat writes if it can only send runs at least once.
AT_LEAST_ONCE = "at least once"

#: The ``dispatch_uid`` of the receiver that :func:`before_publish` connects.
BEFORE = "before publish"

#: Maximum size in bytes of one request to Redis.
MOST_BYTES = 4 << 20


class Queues:
    """The queues of a Redis broker, in one database of the server."""

    def __init__(self, url: str, database: int = 0) -> None:
        self.url = f"{url.rpartition('/')[0]}/{database}"
        self.client: Any = redis.Redis.from_url(self.url, decode_responses=True)

    def messages(self, queue: str = "celery") -> list[dict[str, Any]]:
        """Return the messages in a queue, oldest first."""
        return [json.loads(text) for text in reversed(self.client.lrange(queue, 0, -1))]

    def names(self, queue: str = "celery") -> list[str]:
        """Return the entry names of the messages in a queue, oldest first."""
        return [message["headers"]["periodic_task_name"] for message in self.messages(queue)]

    def bodies(self, queue: str = "celery") -> list[Any]:
        """Consume all messages of a queue, and return the positional arguments of each."""
        with CONNECTION(self.url) as connection:
            simple = connection.SimpleQueue(queue, accept=["json", "pickle", "yaml"])
            count = self.client.llen(queue)
            return [simple.get(timeout=5).decode()[0] for _ in range(count)]


@pytest.fixture
def queues(world: World, redis_url: str) -> Queues:
    """The queues to which the app publishes. They are on the server of the schedule."""
    world.app.conf.broker_url = f"{redis_url.rpartition('/')[0]}/0"
    return Queues(redis_url)


@pytest.fixture
def announced() -> Iterator[list[str]]:
    """The names of the entries for which the signal ``entry_dispatched`` was sent."""
    names: list[str] = []

    def receiver(entry: Any, **_: Any) -> None:
        names.append(entry.name)

    entry_dispatched.connect(receiver)
    yield names
    entry_dispatched.disconnect(receiver)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that a test may kill or reconfigure."""
    with RedisServer() as server:
        yield server


def elsewhere(world: World, server: RedisServer) -> Queues:
    """Configure the app to use ``server`` as broker and schedule, and return its queues."""
    url = server.url
    world.app.conf.update(broker_url=f"{url.rpartition('/')[0]}/0", redbeat_redis_url=url)
    return Queues(url)


def with_forbidden_queues(world: World, server: RedisServer, admin: Any) -> tuple[Queues, World]:
    """Use ``server``, where the Redis user of the schedule may only write to the queue "celery"."""
    keys = "~redbeat* ~.redbeat* ~celery* ~_kombu*"
    admin.execute_command("ACL SETUSER beat on >pw &* +@all", *keys.split())
    queues = elsewhere(world, server)
    world.app.conf.redbeat_redis_url = f"redis://beat:pw@127.0.0.1:{server.port}/0"
    return queues, World(world.app, admin, world.schedulers)


@contextmanager
def before_publish(action: Callable[[], object]) -> Iterator[None]:
    """Run ``action`` once, after the beat has decided a run, before it records it.

    The action runs in another thread, because a beat recognizes changes by its own user code.
    """
    actions = [action]

    def receiver(**_: Any) -> None:
        while actions:
            with ThreadPoolExecutor(1) as other_thread:
                other_thread.submit(actions.pop()).result()

    # Without a dispatch_uid, old Celery may confuse this receiver with a deleted one whose address
    # in memory was the same.
    before_task_publish.connect(receiver, weak=False, dispatch_uid=BEFORE)
    try:
        yield
    finally:
        before_task_publish.disconnect(dispatch_uid=BEFORE)
    assert not actions, "nothing was published"


def put_one_off(world: World, name: str, **definition: Any) -> None:
    """Store an hourly entry that is due now."""
    world.put(name, interval_json(3600), **definition)


def saved(
    world: World, name: str, text: str = "", ran: float = 3601, **more: Any
) -> RedBeatSchedulerEntry:
    """Save an hourly entry with the argument ``text`` that last ran ``ran`` seconds ago."""
    ran_at: Any = world.ago(ran)
    return RedBeatSchedulerEntry(
        name, f"tasks.{name}", 3600, args=[text], last_run_at=ran_at, app=world.app, **more
    ).save()


def register(world: World, base: type[Task], action: Callable[[], object] = lambda: None) -> None:
    """Register the task of the entry ``a`` in the app, with ``base`` as its class."""

    def run() -> None:
        action()

    # A shared task would be registered in all apps.
    world.app.task(name="tasks.a", base=base, shared=False)(run)


class TestOneStep:
    def test_a_run_is_sent_and_recorded(
        self, world: World, queues: Queues, announced: list[str]
    ) -> None:
        put_one_off(world, "a", args=[1, "ä"], kwargs={"b": 2})
        world.scheduler_of(RedBeatScheduler).tick()
        (message,) = queues.messages()
        assert message["headers"]["task"] == "tasks.a"
        assert queues.bodies() == [[1, "ä"]]
        assert (world.run_count("a"), announced) == (1, ["a"])
        assert not world.is_held("a")

    def test_a_message_is_not_sent_before_its_record(self, world: World, queues: Queues) -> None:
        put_one_off(world, "a")
        seen: list[int] = []

        def receiver(**_: Any) -> None:
            seen.append(len(queues.messages()))

        after_task_publish.connect(receiver)
        try:
            world.scheduler_of(RedBeatScheduler).tick()
        finally:
            after_task_publish.disconnect(receiver)
        assert (seen, len(queues.messages())) == ([0], 1)

    def test_a_lost_reply_repeats_nothing(
        self, world: World, queues: Queues, wire: Wire, announced: list[str]
    ) -> None:
        """Invariant: the repeated script sends no second message, and the signal is sent once."""
        put_one_off(world, "a")
        scheduler = world.scheduler_of(RedBeatScheduler)
        wire.lose(lambda: world.run_count("a") == 1)
        scheduler.tick()
        assert (wire.lost, announced) == (1, [])
        scheduler.tick()
        assert (queues.names(), world.run_count("a"), announced) == (["a"], 1, ["a"])

    def test_a_deleted_entry_sends_nothing(
        self, world: World, queues: Queues, announced: list[str]
    ) -> None:
        entry = saved(world, "a", "old")
        with before_publish(entry.delete):
            world.scheduler_of(RedBeatScheduler).tick()
        assert (queues.names(), announced) == ([], [])
        assert not world.client.exists(f"{PREFIX}a")

    def test_an_edit_before_the_record(
        self, world: World, queues: Queues, announced: list[str]
    ) -> None:
        """Invariant: after an edit has returned, no message of the old definition is sent."""
        saved(world, "a", "old")
        with before_publish(lambda: saved(world, "a", "new")):
            world.scheduler_of(RedBeatScheduler).tick()
        assert queues.bodies() == [["new"]]
        assert (world.run_count("a"), announced) == (1, ["a"])

    def test_a_policy_that_was_edited(self, world: World, queues: Queues) -> None:
        entry = saved(world, "a")
        with before_publish(lambda: entry.pause("for a test")):
            scheduler = world.scheduler_of(RedBeatScheduler)
            scheduler.tick()
            scheduler.tick()
        assert (queues.names(), world.run_count("a")) == ([], 0)

    def test_a_program_with_its_own_tick(
        self, world: World, queues: Queues, wire: Wire, announced: list[str]
    ) -> None:
        saved(world, "a")
        scheduler = world.scheduler_of(RedBeatScheduler)
        scheduler.tick()
        assert queues.names() == ["a"]
        world.client.hdel(f"{PREFIX}a", "meta")
        world.make_due("a")
        wire.lose(lambda: len(queues.messages()) == 2)
        for _ in range(3):
            for entry in scheduler.schedule.values():
                scheduler.maybe_due(entry)
        assert wire.lost == 1
        assert (queues.names(), announced, world.run_count("a")) == (["a", "a"], ["a", "a"], 1)


class TestWhatCelerySends:
    """Routing, priorities and serializers work in the same way as in Celery and kombu."""

    def test_a_broker_in_another_database_of_the_server(
        self, world: World, redis_url: str, log: pytest.LogCaptureFixture
    ) -> None:
        other = Queues(redis_url, 1)
        world.app.conf.broker_url = other.url
        put_one_off(world, "a")
        put_one_off(world, "b")
        world.scheduler_of(RedBeatScheduler).tick()
        assert sorted(other.names()) == ["a", "b"]
        assert [world.run_count(name) for name in "ab"] == [1, 1]
        assert not Queues(redis_url).messages()
        assert world.client.zcard(SCHEDULE) == 2
        assert not lines(log, AT_LEAST_ONCE)

    def bind_two(self, world: World) -> dict[str, Any]:
        """Bind the queues ``one`` and ``two`` to one exchange, and return its routing options."""
        exchange = ENTITIES.Exchange("twice", type="direct")
        names = ("one", "two")
        world.app.conf.task_queues = [ENTITIES.Queue(name, exchange, "both") for name in names]
        with world.app.connection_for_write() as connection:
            for queue in world.app.conf.task_queues:
                queue(connection.default_channel).declare()
        return {"exchange": "twice", "routing_key": "both"}

    @pytest.mark.parametrize("crooked", ["one", "two"])
    def test_all_queues_get_the_message_or_none(
        self, world: World, queues: Queues, crooked: str
    ) -> None:
        """Setup: one queue is a string, not a list. Invariant: the other queue gets no message."""
        put_one_off(world, "a", options=self.bind_two(world))
        put_one_off(world, "b")
        queues.client.set(crooked, "no list")
        scheduler = world.scheduler_of(RedBeatScheduler)
        scheduler.tick()
        good = "two" if crooked == "one" else "one"
        assert (queues.names(good), world.run_count("a")) == ([], 0)
        assert (queues.names(), world.run_count("b")) == (["b"], 1)
        queues.client.delete(crooked)
        world.make_due("a")
        scheduler.tick()
        assert queues.names("one") == queues.names("two") == ["a"]
        assert world.run_count("a") == 1

    def listen(self, queues: Queues) -> Any:
        """Return a subscription to all pub/sub channels of the server."""
        subscription = queues.client.pubsub()
        subscription.psubscribe("*")
        assert subscription.get_message(timeout=5)["type"] == "psubscribe"
        return subscription

    def received(self, subscription: Any, channel: str) -> list[dict[str, Any]]:
        """Return the messages received so far on channels whose name contains ``channel``."""
        found = iter(lambda: subscription.get_message(timeout=0.2), None)
        return [json.loads(f["data"]) for f in found if channel in f["channel"]]

    def test_a_broadcast(self, world: World, queues: Queues) -> None:
        exchange = ENTITIES.Exchange("fan", type="fanout")
        world.app.conf.task_queues = [ENTITIES.Queue("fanned", exchange)]
        put_one_off(world, "a", options={"queue": "fanned"})
        subscription = self.listen(queues)
        world.scheduler_of(RedBeatScheduler).tick()
        (message,) = self.received(subscription, "fan")
        assert message["headers"]["periodic_task_name"] == "a"
        assert world.run_count("a") == 1

    def test_task_sent_travels_with_the_message(self, world: World, queues: Queues) -> None:
        world.app.conf.task_send_sent_event = True
        entry = saved(world, "a")
        saved(world, "b")
        subscription = self.listen(queues)
        with before_publish(entry.delete):
            world.scheduler_of(RedBeatScheduler).tick()
        (message,) = queues.messages()
        events = self.received(subscription, "celeryev")
        assert [event["headers"].get("hostname") for event in events]
        assert len(events) == 1
        assert message["headers"]["periodic_task_name"] == "b"

    def test_celery_signals_are_sent_once_for_each_attempt(
        self, world: World, queues: Queues
    ) -> None:
        put_one_off(world, "a")
        with heard(before_task_publish) as before, heard(after_task_publish) as after:
            world.scheduler_of(RedBeatScheduler).tick()
        assert (len(before), len(after), queues.names()) == (1, 1, ["a"])


class TestAMessageIsRefused:
    def test_a_queue_of_a_wrong_type(
        self, world: World, queues: Queues, log: pytest.LogCaptureFixture
    ) -> None:
        queues.client.set("crooked", "no list")
        names = [f"good{number}" for number in range(20)]
        for name in names:
            put_one_off(world, name)
        put_one_off(world, "bad", score=0.5, options={"queue": "crooked"})
        with heard(entry_failed) as failed:
            world.scheduler_of(RedBeatScheduler).tick()
        assert sorted(queues.names()) == sorted(names)
        assert (world.run_count("bad"), [one["name"] for one in failed]) == (0, ["bad"])
        assert queues.client.get("crooked") == "no list"
        assert len(lines(log, f"Could not send {PREFIX}bad, attempt 1", "WRONGTYPE")) == 1
        assert not lines(log, "broker is not available")

    def test_a_queue_of_a_wrong_type_stops_no_later_run(
        self, world: World, queues: Queues, log: pytest.LogCaptureFixture
    ) -> None:
        """Kombu replaces the connection in its own retry, but not the channel of the producer."""
        queues.client.set("crooked", "no list")
        scheduler = world.scheduler_of(RedBeatScheduler)
        put_one_off(world, "bad", options={"queue": "crooked"})
        for name in ("first", "second", "third"):
            for _ in range(3):
                world.make_due("bad")
                scheduler.tick()
            put_one_off(world, name)
            scheduler.tick()
        assert queues.names() == ["first", "second", "third"]
        assert not lines(log, "AttributeError") + lines(log, AT_LEAST_ONCE)

    def test_a_full_memory_records_no_unsent_run(
        self, world: World, own_server: RedisServer
    ) -> None:
        """Invariant: no unsent run is recorded. All runs are sent when memory is available."""
        queues = elsewhere(world, own_server)
        names = [f"e{number}" for number in range(5)]
        with redis.Redis.from_url(own_server.url, decode_responses=True) as client:
            there = World(world.app, client, world.schedulers)
            there.put_many(5)
            scheduler = there.scheduler_of(RedBeatScheduler)
            with before_publish(lambda: client.config_set("maxmemory", "1")):
                scheduler.tick()
            assert queues.messages() == []
            assert {there.run_count(name) for name in names} == {0}
            client.config_set("maxmemory", "0")

            def all_sent() -> bool:
                there.make_due(*(name for name in names if not there.run_count(name)))
                scheduler.tick()
                return {there.run_count(name) for name in names} == {1}

            wait_until(all_sent)
            assert sorted(queues.names()) == names


class TestMessagesOfUserCode:
    """Runs are sent at least once if user code publishes the messages itself."""

    def twice(self, world: World, scheduler: RedBeatScheduler, *names: str) -> None:
        """Run each entry twice."""
        for _ in range(2):
            world.make_due(*names)
            for name in names:
                world.client.hdel(f"{PREFIX}{name}", "meta")
            scheduler.tick()

    def test_a_task_on_its_own_connection(
        self, world: World, queues: Queues, log: pytest.LogCaptureFixture, announced: list[str]
    ) -> None:
        app = world.app

        class Foreign(Task):
            def apply_async(self, *args: Any, **kwargs: Any) -> Any:
                with app.connection_for_write() as connection:
                    kwargs["producer"] = app.amqp.Producer(connection)
                    return super().apply_async(*args, **kwargs)

        register(world, Foreign)
        put_one_off(world, "a")
        put_one_off(world, "b")
        self.twice(world, world.scheduler_of(RedBeatScheduler), "a", "b")
        assert sorted(queues.names()) == sorted(announced) == ["a", "a", "b", "b"]
        assert [world.run_count(name) for name in "ab"] == [1, 1]
        assert len(lines(log, AT_LEAST_ONCE)) == 1

    def test_eager_tasks(
        self, world: World, queues: Queues, log: pytest.LogCaptureFixture, announced: list[str]
    ) -> None:
        world.app.conf.task_always_eager = True
        ran: list[int] = []
        register(world, Task, lambda: ran.append(1))
        put_one_off(world, "a")
        self.twice(world, world.scheduler_of(RedBeatScheduler), "a")
        assert (queues.messages(), len(ran), announced) == ([], 2, ["a", "a"])
        assert world.run_count("a") == 1
        assert len(lines(log, AT_LEAST_ONCE)) == 1

    @pytest.mark.parametrize("kind", ["Rpush", "Piped"])
    def test_unknown_commands_are_sent_at_least_once(
        self,
        world: World,
        queues: Queues,
        log: pytest.LogCaptureFixture,
        announced: list[str],
        kind: str,
    ) -> None:
        world.app.conf.broker_transport = f"{__name__}:{kind}"
        put_one_off(world, "a")
        self.twice(world, world.scheduler_of(RedBeatScheduler), "a")
        assert (queues.names(), announced, world.run_count("a")) == (["a", "a"], ["a", "a"], 1)
        assert len(lines(log, AT_LEAST_ONCE)) == 1


@pytest.fixture
def proxy(world: World, redis_server: RedisServer) -> Iterator[Proxy]:
    """A proxy that the app uses as its broker. It forwards to the server of the schedule."""
    with Proxy(redis_server.port) as proxy:
        world.app.conf.broker_url = proxy.url
        yield proxy


def run_again(world: World, scheduler: RedBeatScheduler, name: str) -> None:
    """Make an entry due and tick, again and again, until the entry has run."""

    def has_run() -> bool:
        world.make_due(name)
        scheduler.tick()
        return world.run_count(name) > 0

    wait_until(has_run)


def ticks(scheduler: RedBeatScheduler, clock: Clock, count: int = 5) -> None:
    """Tick several times. At each tick, the beat checks again which server is the broker."""
    for _ in range(count):
        clock.advance(CHECK_INTERVAL + 1)
        scheduler.tick()


class TestUserCodeThatChangesTheEntry:
    """RedBeat 2 sent the run of an entry that a hook of the program deletes or changes."""

    def delete(self, entry: RedBeatSchedulerEntry) -> None:
        entry.delete()

    def disable(self, entry: RedBeatSchedulerEntry) -> None:
        stored = RedBeatSchedulerEntry.from_key(entry.key, app=entry.app)
        stored.enabled = False
        stored.save()

    def renumber(self, entry: RedBeatSchedulerEntry) -> None:
        entry.kwargs = {"number": entry.kwargs.get("number", 0) + 1}
        entry.save()

    def rewrite(self, entry: RedBeatSchedulerEntry) -> None:
        client: Any = redis.Redis.from_url(entry.app.conf.redbeat_redis_url)
        definition = json.loads(client.hget(entry.key, "definition"))
        definition["kwargs"] = {"number": definition["kwargs"].get("number", 0) + 1}
        client.hset(entry.key, "definition", json.dumps(definition))

    @pytest.mark.parametrize("change", ["delete", "disable", "renumber", "rewrite"])
    @pytest.mark.parametrize("method", ["maybe_due", "apply_async", "reserve"])
    @pytest.mark.parametrize("first", [False, True])
    def test_in_a_method_of_the_scheduler(
        self, world: World, queues: Queues, change: str, method: str, first: bool
    ) -> None:
        act = getattr(self, change)

        def own(scheduler: Any, entry: Any, **kwargs: Any) -> Any:
            is_due = scheduler.is_due(entry)[0]
            if is_due and first:
                act(entry)
            result = getattr(super(cls, scheduler), method)(entry, **kwargs)
            if is_due and not first:
                act(entry)
            return result

        cls = type("Own", (RedBeatScheduler,), {method: own})
        saved(world, "a")
        scheduler: RedBeatScheduler = world.scheduler_of(cls)
        scheduler.tick()
        scheduler.tick()
        assert queues.names() == ["a"]
        assert world.client.exists(f"{PREFIX}a") == (change != "delete")
        assert change == "delete" or world.run_count("a") == 1

    def test_in_a_receiver_of_celery(
        self, world: World, queues: Queues, announced: list[str]
    ) -> None:
        entry = saved(world, "a")
        saved(world, "b")

        def receiver(headers: Any, **_: Any) -> None:
            if headers["periodic_task_name"] == "a":
                entry.delete()

        after_task_publish.connect(receiver, weak=False, dispatch_uid=BEFORE)
        try:
            world.scheduler_of(RedBeatScheduler).tick()
        finally:
            after_task_publish.disconnect(dispatch_uid=BEFORE)
        assert sorted(queues.names()) == sorted(announced) == ["a", "b"]
        assert (world.client.exists(f"{PREFIX}a"), world.run_count("b")) == (0, 1)

    def test_a_save_after_a_delete(self, world: World, queues: Queues) -> None:
        """The stored texts equal those that were looked at, but not what beats keep."""

        class Own(RedBeatScheduler):
            def reserve(self, entry: Any) -> Any:
                after = super().reserve(entry)
                entry.delete()
                after.save()
                return after

        saved(world, "a")
        scheduler = world.scheduler_of(Own)
        scheduler.tick()
        scheduler.tick()
        assert queues.names() == ["a"]


class TestNotTheSameServer:
    """If broker and schedule are on different servers, runs are sent at least once."""

    def run(self, world: World, clock: Clock, names: str = "ab") -> None:
        """Run each entry twice."""
        scheduler = world.scheduler_of(RedBeatScheduler, clock=clock)
        for _ in range(2):
            for name in names:
                put_one_off(world, name)
                world.client.hdel(f"{PREFIX}{name}", "meta")
            ticks(scheduler, clock, 3)

    def test_a_broker_in_memory(
        self, world: World, clock: Clock, announced: list[str], log: pytest.LogCaptureFixture
    ) -> None:
        self.run(world, clock)
        with world.app.connection_for_read() as connection:
            assert connection.default_channel.queue_purge("celery") == 4
        assert sorted(announced) == ["a", "a", "b", "b"]
        assert lines(log, AT_LEAST_ONCE) == [
            "beat: Runs are sent at least once: messages do not go to Redis"
        ]

    def test_two_servers(
        self,
        world: World,
        clock: Clock,
        own_server: RedisServer,
        announced: list[str],
        log: pytest.LogCaptureFixture,
    ) -> None:
        world.app.conf.broker_url = own_server.url
        self.run(world, clock)
        assert sorted(Queues(own_server.url).names()) == sorted(announced) == ["a", "a", "b", "b"]
        assert [world.run_count(name) for name in "ab"] == [1, 1]
        assert lines(log, AT_LEAST_ONCE) == [
            "beat: Runs are sent at least once: broker and schedule are on two Redis servers"
        ]

    @pytest.mark.parametrize("rules", ["-info", "-select", "-lpush", "-type", "resetkeys ~*red*"])
    @pytest.mark.parametrize("database", [0, long(1)])
    def test_a_user_without_a_needed_right(
        self,
        world: World,
        clock: Clock,
        own_server: RedisServer,
        announced: list[str],
        log: pytest.LogCaptureFixture,
        rules: str,
        database: int,
    ) -> None:
        """Setup: the Redis user of the schedule lacks a right that the user of the broker has."""
        with redis.Redis.from_url(own_server.url, decode_responses=True) as admin:
            admin.execute_command("ACL SETUSER beat on >pw ~* &* +@all", *rules.split())
            queues = Queues(own_server.url, database)
            world.app.conf.broker_url = queues.url
            world.app.conf.redbeat_redis_url = f"redis://beat:pw@127.0.0.1:{own_server.port}/0"
            there = World(world.app, admin, world.schedulers)
            self.run(there, clock, "abcdef")
            assert sorted(queues.names()) == sorted(announced) == sorted("abcdef" * 2)
            assert {there.run_count(name) for name in "abcdef"} == {1}
            possible = rules == "-select" and database == 0
            assert len(lines(log, AT_LEAST_ONCE)) == (0 if possible else 1)
            assert not lines(log, "on one Redis server again")

    @pytest.mark.parametrize("delivery", ["exactly_once", None])
    def test_a_forbidden_queue_affects_only_its_entry(
        self,
        world: World,
        clock: Clock,
        own_server: RedisServer,
        log: pytest.LogCaptureFixture,
        delivery: str | None,
    ) -> None:
        """Setup: the Redis user of the schedule may not write to the queue of one entry."""
        world.app.conf.redbeat_delivery = delivery
        with redis.Redis.from_url(own_server.url, decode_responses=True) as admin:
            queues, there = with_forbidden_queues(world, own_server, admin)
            scheduler = there.scheduler_of(RedBeatScheduler, clock=clock)
            names = ["first", *(f"good{number}" for number in range(20))]
            put_one_off(there, "first")
            ticks(scheduler, clock)
            there.put("bad", interval_json(3600), options={"queue": "forbidden"}, score=1)
            for name in names[1:]:
                there.put(name, interval_json(3600), score=2)
                scheduler.tick()
                clock.advance(5)
            ticks(scheduler, clock)
            assert sorted(queues.names()) == sorted(names)
            # The user of the broker may write to that queue, so the run is sent at least once.
            assert queues.names("forbidden") == ([] if delivery else ["bad"])
            assert not lines(log, "PROBLEM")
            assert len(lines(log, "bad", AT_LEAST_ONCE)) == (0 if delivery else 1)


def move(proxy: Proxy, server: RedisServer) -> None:
    """Let the proxy forward to another server, and close its open connections."""
    proxy.lead_to(server.port)
    proxy.cut()


class TestTheBrokerMoves:
    """Setup: the app's broker is a proxy, which later forwards to another server."""

    def part(
        self, world: World, clock: Clock, proxy: Proxy, own_server: RedisServer
    ) -> tuple[RedBeatScheduler, Queues]:
        """Run ``a``, move the broker, and make ``b`` due. Return the beat and the new queues."""
        scheduler = world.scheduler_of(RedBeatScheduler, clock=clock)
        put_one_off(world, "a")
        scheduler.tick()
        move(proxy, own_server)
        put_one_off(world, "b")
        return scheduler, Queues(own_server.url)

    def test_after_the_move_runs_are_sent_at_least_once(
        self,
        world: World,
        queues: Queues,
        clock: Clock,
        proxy: Proxy,
        own_server: RedisServer,
        redis_server: RedisServer,
        log: pytest.LogCaptureFixture,
    ) -> None:
        """Invariant: each message is sent to the server that is the broker at that time."""
        scheduler, other = self.part(world, clock, proxy, own_server)
        ticks(scheduler, clock)
        put_one_off(world, "c")
        ticks(scheduler, clock)
        assert (queues.names(), other.names()) == (["a"], ["b", "c"])
        assert len(lines(log, "at least once from now on", "on two Redis servers")) == 1
        move(proxy, redis_server)
        put_one_off(world, "d")
        ticks(scheduler, clock)
        entry = saved(world, "e")
        with before_publish(entry.delete):
            scheduler.tick()
        assert (queues.names(), other.names()) == (["a", "d"], ["b", "c"])
        assert len(lines(log, "on one Redis server again")) == 1
        assert [world.run_count(name) for name in "abcd"] == [1, 1, 1, 1]

    def test_a_run_sent_at_least_once_is_held_first(
        self, world: World, clock: Clock, proxy: Proxy, own_server: RedisServer
    ) -> None:
        """Invariant: a run that is published before its record is held.

        If this beat ends in between, another beat sends the run again with the same task id.
        """
        scheduler, other = self.part(world, clock, proxy, own_server)
        held: list[bool] = []
        with before_publish(lambda: held.append(world.is_held("b"))):
            ticks(scheduler, clock)
        assert (other.names(), held) == (["b"], [True])

    def test_after_the_move_nothing_is_sent_if_only_exactly_once_is_allowed(
        self,
        world: World,
        queues: Queues,
        clock: Clock,
        proxy: Proxy,
        own_server: RedisServer,
        redis_server: RedisServer,
        log: pytest.LogCaptureFixture,
    ) -> None:
        world.app.conf.redbeat_delivery = "exactly_once"
        scheduler, other = self.part(world, clock, proxy, own_server)
        for _ in range(5):
            world.make_due("b")
            ticks(scheduler, clock, 1)
        assert (queues.names(), other.names(), world.run_count("b")) == (["a"], [], 0)
        assert len(lines(log, "PROBLEM", "nothing is sent", "two Redis servers")) == 1
        move(proxy, redis_server)
        run_again(world, scheduler, "b")
        assert (queues.names(), other.names(), world.run_count("b")) == (["a", "b"], [], 1)

    def test_older_data_have_neither_the_message_nor_the_record(
        self, world: World, clock: Clock, own_server: RedisServer
    ) -> None:
        """Invariant: the run is sent again, with its id."""
        queues = elsewhere(world, own_server)
        with redis.Redis.from_url(own_server.url, decode_responses=True) as client:
            there = World(world.app, client, world.schedulers)
            scheduler = there.scheduler_of(RedBeatScheduler, clock=clock)
            scheduler.tick()
            put_one_off(there, "a", last_run_at=there.ago(3601))
            client.save()
            scheduler.tick()
            ids = [message["headers"]["id"] for message in queues.messages()]
            own_server.restart()
            assert (queues.names(), there.run_count("a")) == ([], 0)
            run_again(there, scheduler, "a")
            assert [message["headers"]["id"] for message in queues.messages()] == ids
            assert len(ids) == 1

    @pytest.mark.parametrize("seconds", [0, 1])
    def test_a_restart_of_redis_between_publish_and_record(
        self,
        world: World,
        clock: Clock,
        own_server: RedisServer,
        announced: list[str],
        log: pytest.LogCaptureFixture,
        seconds: int,
    ) -> None:
        """If ``seconds`` is 1, the beat checks the broker again while it sends the records."""
        queues = elsewhere(world, own_server)

        with redis.Redis.from_url(own_server.url, decode_responses=True) as client:
            there = World(world.app, client, world.schedulers)
            scheduler = there.scheduler_of(RedBeatScheduler, clock=clock)
            scheduler.tick()
            there.put_many(3)

            def restart() -> None:
                client.save()
                own_server.restart()
                clock.advance(seconds)

            with before_publish(restart):
                scheduler.tick()
            names = ["e0", "e1", "e2"]

            def all_ran() -> bool:
                scheduler.tick()
                return {there.run_count(name) for name in names} == {1}

            wait_until(all_ran)
            assert sorted(queues.names()) == sorted(announced) == names
            assert not lines(log, AT_LEAST_ONCE)


class TestImpossibleFromTheStart:
    def refused(self, world: World, **settings: Any) -> str:
        """Return the message of the error that prevents a scheduler from starting."""
        world.app.conf.update(settings, redbeat_delivery="exactly_once")
        with pytest.raises(ConfigurationError, match="redbeat_delivery is 'exactly_once'") as error:
            RedBeatScheduler(world.app)
        return str(error.value)

    def test_a_broker_that_is_not_redis(self, world: World) -> None:
        assert "messages do not go to Redis" in self.refused(world)
        reason = self.refused(world, broker_url="amqp://127.0.0.1:1//")
        assert "messages do not go to Redis" in reason

    def test_eager_tasks(self, world: World, queues: Queues) -> None:
        assert queues.url == world.app.conf.broker_url
        assert "task_always_eager" in self.refused(world, task_always_eager=True)

    def test_a_schedule_in_a_cluster(self, world: World, closed_port: int) -> None:
        url = f"redis://127.0.0.1:{closed_port}/0"
        options = {"cluster": True, "startup_nodes": [{"host": "127.0.0.1", "port": closed_port}]}
        settings = {"broker_url": url, "redbeat_redis_options": options}
        cluster = "redis-cluster://"
        assert "Cluster" in self.refused(world, redbeat_redis_url=cluster, **settings)

    def test_an_unavailable_broker_is_waited_for(
        self, world: World, queues: Queues, proxy: Proxy, log: pytest.LogCaptureFixture
    ) -> None:
        world.app.conf.redbeat_delivery = "exactly_once"
        proxy.refuse()
        put_one_off(world, "a")
        scheduler = world.scheduler_of(RedBeatScheduler)
        for _ in range(3):
            scheduler.tick()
            world.make_due("a")
        assert (queues.names(), world.run_count("a")) == ([], 0)
        proxy.refuse(False)
        run_again(world, scheduler, "a")
        assert queues.names() == ["a"]
        assert lines(log, "The broker is back")
        assert not lines(log, "PROBLEM")


class TestCosts:
    def reads(self, client: Any) -> int:
        """Return the server's count of reads from sockets. A small request takes one read."""
        return int(client.info("stats")["total_reads_processed"])

    @pytest.mark.long
    def test_bytes_of_a_call_are_bounded(
        self, world: World, own_server: RedisServer, log: pytest.LogCaptureFixture
    ) -> None:
        """Invariant: requests are smaller than the buffer limit at which Redis would disconnect."""
        queues = elsewhere(world, own_server)
        with redis.Redis.from_url(own_server.url, decode_responses=True) as client:
            client.config_set("client-query-buffer-limit", str(MOST_BYTES))
            there = World(world.app, client, world.schedulers)
            for number in range(100):
                put_one_off(there, f"e{number}", args=["x" * 200_000])
            scheduler = there.scheduler_of(RedBeatScheduler)
            for _ in range(20):  # on a slow machine, a tick ends before it has sent all runs
                scheduler.tick()
            assert sorted(queues.names()) == sorted(f"e{number}" for number in range(100))
            assert {there.run_count(f"e{number}") for number in range(100)} == {1}
        assert not lines(log, "Redis is not available")


class Rpush(Transport):
    """A transport that adds messages to queues with ``RPUSH``."""

    class Channel(RedisChannel):
        def _put(self, queue: str, message: Any, **_: Any) -> None:
            with self.conn_or_acquire() as client:
                client.rpush(queue, json.dumps(message))


class Piped(Transport):
    """A transport that adds messages to queues in a pipeline with other commands."""

    class Channel(RedisChannel):
        def _put(self, queue: str, message: Any, **_: Any) -> None:
            with self.conn_or_acquire() as client, client.pipeline() as pipe:
                pipe.lpush(queue, json.dumps(message))
                pipe.sadd("seen", queue)
                pipe.execute()


# -- a beat dies or stops amid a run ---------------------------------------------------------------


KEY = f"{PREFIX}a"
HOUR = 3600.0


class DeadError(BaseException):
    """An exception that no handler of a beat catches. It simulates SIGKILL."""


def kill(world: World, wire: Wire, scheduler: Any, when: Callable[[], object]) -> None:
    """Let ``scheduler`` die in a tick, before the first command that is sent while ``when`` holds.

    The lock is free afterwards, as after its time has passed.
    """

    def die() -> None:
        raise DeadError

    world.schedulers.remove(scheduler)  # a killed beat does not close its scheduler
    wire.before_command(die, when)
    with pytest.raises(DeadError):
        scheduler.tick()
    world.client.delete(f"{PREFIX}:lock")


# -- a held run is not decided again ---------------------------------------------------------------


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
def test_what_a_killed_beat_had_looked_at_is_sent_by_the_next_beat(
    world: World, wire: Wire, queues: Queues, locked: bool
) -> None:
    """With exactly-once delivery, nothing was sent, so there is nothing to wait for."""
    if not locked:
        world.app.conf.redbeat_lock_key = None
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    world.put("a", interval_json(60), world.ago(90))
    commands = count(1)
    kill(world, wire, scheduler, lambda: next(commands) == 2)
    heir = world.scheduler_of(RedBeatScheduler)

    def sent() -> list[str]:
        heir.tick()
        return queues.names()

    assert wait_until(sent, 0.5 if locked else 2.0) == ["a"]


# -- user code around a run ------------------------------------------------------------------------


class Singleton(Task):
    """A task that sends nothing while an earlier message of it is waiting."""

    def apply_async(self, *_: Any, **__: Any) -> Any:
        """Send nothing, and return the result of the earlier message."""
        return self.AsyncResult("the earlier message")


def test_a_task_that_sends_nothing_is_not_running(world: World, queues: Queues) -> None:
    with reporting(world.app):
        world.app.task(name="tasks.a", base=Singleton, shared=False)(void)
        RedBeatSchedulerEntry(
            "a", "tasks.a", HOUR, overlap="skip", last_run_at=world.ago(5000), app=world.app
        ).save()
        scheduler = world.scheduler_of(RedBeatScheduler)
        scheduler.tick()
        entry = RedBeatSchedulerEntry.from_key(KEY, world.app)
        assert queues.messages() == []
        assert entry.history[0].outcome == "not_sent"
        assert world.running("a") is None


# -- ends of runs ----------------------------------------------------------------------------------


# -- a stop while the broker is away ---------------------------------------------------------------


def test_a_stop_while_the_broker_is_away_puts_back_what_was_not_tried(
    world: World, wire: Wire
) -> None:
    """The broker goes away when a group of at-most-once runs is recorded, and the beat stops."""
    world.app.conf.redbeat_delivery = AT_MOST_ONCE
    with RedisServer() as server, Proxy(server.port) as proxy:
        world.app.conf.broker_url = proxy.url
        queues = Queues(server.url)
        stopping = world.scheduler_of(RedBeatScheduler)
        stopping.tick()
        world.put_many(100)

        def lose_broker() -> None:
            proxy.refuse()
            proxy.cut()

        wire.after_reply(lose_broker, lambda: any(world.run_count(f"e{n}") for n in range(100)))
        stopping.tick()
        stopping.close()
        assert queues.names() == []
        proxy.refuse(False)
        heir = world.scheduler_of(RedBeatScheduler)
        for _ in range(3):
            heir.tick()
        names = queues.names()
        queues.client.close()
    assert len(names) == len({*names}), "no run is sent twice"
    assert len(names) >= 99, "only a run that was tried may be lost"
