"""A beat writes several messages to a Redis broker together, and records confirmed messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import kombu.connection
import kombu.entity
import pytest
import redis

from redbeat.beat.outcome import MAY_PUBLISH
from redbeat.beat.trouble import BROKER_WAIT, ENTRY_WAIT
from redbeat.schedulers import RedBeatScheduler
from redbeat.signals import entry_dispatched
from tests.deployments import PREFIX
from tests.faults.proxy import Proxy
from tests.servers import RedisServer
from tests.waiting import wait_until

from .clients import Wire
from .conftest import SCHEDULE, Clock, World, heard, interval_json

COUNT = 250

ENTITIES: Any = kombu.entity
CONNECTION: Any = kombu.connection.Connection


class Hooked(RedBeatScheduler):
    """A scheduler that calls ``hook`` with the entry's name after it publishes a message."""

    hook: Callable[[str], None] = staticmethod(lambda _name: None)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().apply_async(entry, *args, **kwargs)
        self.hook(entry.name)
        return result


class Broker:
    """A Redis server that is only the broker."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.client = redis.Redis.from_url(server.url, decode_responses=True)

    def messages(self, queue: str = "celery") -> list[tuple[str, str]]:
        """Return the entry name and task id of each message in a queue, oldest first."""
        texts: Any = self.client.lrange(queue, 0, -1)
        headers = [json.loads(text)["headers"] for text in reversed(texts)]
        return [(header["periodic_task_name"], header["id"]) for header in headers]

    def reads(self) -> int:
        """Return the number of reads from sockets that the server counted so far."""
        stats: Any = self.client.info("stats")
        return int(stats["total_reads_processed"])


@pytest.fixture
def broker(world: World) -> Iterator[Broker]:
    """The broker to which the app publishes. A test may kill it."""
    with RedisServer() as server:
        world.app.conf.broker_url = server.url
        yield Broker(server)


NAMES = [f"e{number}" for number in range(COUNT)]


class TestEverythingIsConfirmed:
    @pytest.mark.parametrize("window", [1, 50, 1000])
    def test_a_window_is_written_at_once(self, world: World, broker: Broker, window: int) -> None:
        world.app.conf.redbeat_publish_window = window
        world.put("warm-up")
        scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
        scheduler.tick()
        world.put_many(COUNT)
        before = broker.reads()
        scheduler.tick()
        # Together, the messages take few reads, because a server reads some kilobytes at a time.
        few = broker.reads() - before < COUNT / 4
        assert few is (window > 1)
        sent = dict(broker.messages())
        assert sorted(sent) == sorted([*NAMES, "warm-up"])
        assert len(broker.messages()) == COUNT + 1
        assert {world.run_count(name) for name in NAMES} == {1}

    def test_messages_leave_in_the_order_in_which_they_are_due(
        self, world: World, broker: Broker
    ) -> None:
        now = world.now()
        for number in reversed(range(30)):
            world.put(f"n{number:02}", score=now - 30 + number / 10)
        world.scheduler_of(RedBeatScheduler).tick()
        assert [name for name, _ in broker.messages()] == [f"n{number:02}" for number in range(30)]


class TestHolds:
    @pytest.mark.parametrize("count", [1, 20])
    def test_runs_whose_holds_were_confirmed_too_late_are_held_again(
        self, world: World, wire: Wire, clock: Clock, broker: Broker, count: int
    ) -> None:
        """Setup: Celery makes the message of one run, and most of twenty are rendered."""
        scheduler = world.scheduler_of(RedBeatScheduler, clock=clock)
        scheduler.tick()
        world.put_many(count)
        wire.after_reply(lambda: clock.advance(MAY_PUBLISH), lambda: world.is_held("e0"))
        scheduler.tick()
        assert broker.messages() == []
        scheduler.tick()
        assert sorted(name for name, _ in broker.messages()) == sorted(NAMES[:count])


class TestOneIsRefused:
    def test_the_other_messages_are_sent(
        self, world: World, broker: Broker, log: pytest.LogCaptureFixture
    ) -> None:
        broker.client.set("crooked", "no list")
        for number in range(20):
            world.put(f"good{number}")
        world.put("bad", options={"queue": "crooked"}, score=0.5)
        before = world.now()
        world.scheduler_of(RedBeatScheduler).tick()
        assert len(broker.messages()) == 20
        assert world.run_count("bad") == 0
        score = world.score("bad")
        assert score is not None
        assert before < score - ENTRY_WAIT.first < world.now()
        assert f"Could not send {PREFIX}bad, attempt 1" in log.text
        assert "WRONGTYPE" in log.text
        assert "broker is not available" not in log.text

    @pytest.mark.parametrize("window", [1, 100])
    def test_a_message_of_two_queues_keeps_its_id(
        self, world: World, broker: Broker, window: int
    ) -> None:
        """Setup: the second queue refuses the message until the next run is due."""
        world.app.conf.redbeat_publish_window = window
        exchange = ENTITIES.Exchange("both", "direct")
        with CONNECTION(broker.server.url) as connection:
            for name in ("good", "refusing"):
                queue = ENTITIES.Queue(name, exchange, "key")
                queue(connection.default_channel).declare()
        broker.client.set("refusing", "no list")
        options = {"exchange": "both", "routing_key": "key"}
        world.put("a", interval_json(1), world.ago(1.2), options=options)
        scheduler = world.scheduler_of(RedBeatScheduler)
        scheduler.tick()
        due_again = world.now() + 1.2
        wait_until(lambda: world.now() > due_again)
        broker.client.delete("refusing")
        world.client.zadd(SCHEDULE, {f"{PREFIX}a": 1})
        scheduler.tick()
        world.client.zrem(SCHEDULE, f"{PREFIX}a")
        assert broker.messages("good")[0] == broker.messages("refusing")[0]


class TestTheBrokerBreaks:
    def test_a_lost_reply_loses_no_message(self, world: World, broker: Broker) -> None:
        """Fault: the connection breaks after the broker accepted several messages.

        Invariant: no message is lost, and duplicate messages have the same task id.
        """
        with Proxy(broker.server.port) as proxy:
            world.app.conf.broker_url = proxy.url
            world.put("warm-up")
            scheduler = world.scheduler_of(RedBeatScheduler, clock=Clock())
            scheduler.tick()
            world.put_many(COUNT)
            proxy.swallow_replies(1, b"LPUSH")
            scheduler.tick()
            assert proxy.struck == 1
        sent = Counter(broker.messages())
        assert len(sent) == COUNT + 1
        assert sorted(set(sent.values())) == [1, 2]
        assert {world.run_count(name) for name in NAMES} == {1}

    def test_a_broker_killed_before_its_reply(
        self, world: World, broker: Broker, log: pytest.LogCaptureFixture
    ) -> None:
        """Fault: the broker dies before the collected messages are written.

        Invariant: these messages do not count as sent, and are sent when the broker is back.
        """
        world.put_many(COUNT)
        scheduler = world.scheduler_of(Hooked)
        received: list[str] = []

        def hook(name: str) -> None:
            received.append(name)
            if len(received) == 30:
                broker.server.kill()

        scheduler.hook = hook
        with heard(entry_dispatched) as announced:
            wait = scheduler.tick()
        recorded = [name for name in NAMES if world.run_count(name)]
        assert sorted(recorded) == sorted(one["entry"].name for one in announced)
        assert len(recorded) < 30
        # Messages that fail together count as one failure in the back-off.
        assert wait <= BROKER_WAIT.after(3)
        assert log.text.count("The broker is not available") == 1
        broker.server.restart()
        scheduler.hook = lambda _name: None
        deadline = 200
        while not all(map(world.run_count, NAMES)):
            world.client.zadd(f"{PREFIX}:schedule", dict.fromkeys(self.left(world), 1))
            scheduler.tick()
            deadline -= 1
            assert deadline, "not all were sent"
        assert "The broker is back" in log.text
        sent = broker.messages()
        assert sorted(name for name, _ in sent) == sorted(set(NAMES) - set(recorded))

    @staticmethod
    def left(world: World) -> list[str]:
        return [f"{PREFIX}{name}" for name in NAMES if not world.run_count(name)] or [f"{PREFIX}e0"]
