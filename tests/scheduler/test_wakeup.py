"""Changes of the schedule publish a message that wakes up a waiting beat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.wakeup import DUE, LOCK, LONGEST_SILENCE, MAX_DISCARDED, SLICE, WakeUp
from tests.deployments import PREFIX
from tests.servers import RedisServer
from tests.waiting import wait_until

from .conftest import LOCK as LOCK_KEY
from .conftest import Clock, World, world_at

CHANNEL = f"{PREFIX}:wakeup"
END = "end of the test"


class Subscriber:
    """A subscriber that receives all messages on the wake-up channel."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pubsub = client.pubsub()
        self._pubsub.subscribe(CHANNEL)
        assert self._pubsub.get_message(timeout=10)["type"] == "subscribe"

    def received(self) -> list[str]:
        """Return the messages since the last call, in order."""
        self._client.publish(CHANNEL, END)
        received = []
        while (message := self._pubsub.get_message(timeout=10))["data"] != END:
            received.append(message["data"])
        return received

    def close(self) -> None:
        """End the subscription."""
        self._pubsub.close()


@pytest.fixture
def subscriber(redis_client: redis.Redis) -> Iterator[Subscriber]:
    """A subscriber to the wake-up channel of the empty schedule."""
    subscriber = Subscriber(redis_client)
    yield subscriber
    subscriber.close()


def entry_due_in(world: World, name: str, seconds: float) -> RedBeatSchedulerEntry:
    """Return an unsaved hourly entry that is due in ``seconds``."""
    ran = world.ago(3600 - seconds)
    return RedBeatSchedulerEntry(name, "t", 3600, app=world.app, last_run_at=ran)


class TestSaving:
    """A beat waits at most 5 s. A save publishes only if the entry is due before that."""

    @pytest.mark.parametrize(
        ("others", "seconds", "received"),
        [
            ({}, -1, ["due"]),
            ({"earlier": -1000}, -1, ["due"]),
            ({"later": 4}, 3, ["due"]),
            ({"earlier": 2}, 4, []),
            ({}, 60, []),
        ],
    )
    def test_a_save_wakes_the_beat_up_if_it_would_look_too_late(
        self,
        world: World,
        subscriber: Subscriber,
        others: dict[str, float],
        seconds: float,
        received: list[str],
    ) -> None:
        """``others`` are due in some seconds, the saved entry in ``seconds``."""
        world.put("parked", score=-1)
        for name, due in others.items():
            world.put(name, score=world.now() + due)
        entry_due_in(world, "a", seconds).save()
        assert subscriber.received() == received


class TestReleasing:
    def test_a_leader_that_closes_announces_the_free_lock_once(
        self, world: World, subscriber: Subscriber
    ) -> None:
        leader = world.scheduler()
        leader.tick()
        assert subscriber.received() == []
        leader.close()
        leader.close()
        assert world.client.get(LOCK_KEY) is None
        assert subscriber.received() == ["lock"]

    def test_a_standby_that_closes_publishes_nothing(
        self, world: World, subscriber: Subscriber
    ) -> None:
        world.scheduler().tick()
        standby = world.scheduler()
        standby.tick()
        standby.close()
        assert world.client.exists(LOCK_KEY) == 1
        assert subscriber.received() == []

    def test_a_leader_whose_lock_was_taken_publishes_nothing(
        self, world: World, subscriber: Subscriber
    ) -> None:
        leader = world.scheduler()
        leader.tick()
        world.client.set(LOCK_KEY, "somebody else")
        leader.close()
        assert world.client.get(LOCK_KEY) == "somebody else"
        assert subscriber.received() == []


class TestForbiddenToPublish:
    """An entry can be saved and the lock released without the right to publish."""

    @pytest.fixture(params=[("-publish", "allchannels"), ("resetchannels",)], ids=" ".join)
    def bound(self, request: pytest.FixtureRequest) -> Iterator[World]:
        """A schedule on a separate server, whose Redis user has no right to publish."""
        with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
            admin.execute_command(
                "ACL", "SETUSER", "bound", "on", ">pass", "~*", "+@all", *request.param
            )
            url = f"redis://bound:pass@127.0.0.1:{server.port}/0"
            with world_at(url) as world:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    world.client.publish(CHANNEL, "x")
                yield world

    def test_a_save_succeeds_without_the_right_to_publish(self, bound: World) -> None:
        entry_due_in(bound, "a", -1).save()
        score = bound.score("a")
        assert score is not None
        assert 0 <= score <= bound.now()
        assert bound.field("a", "definition")["name"] == "a"


# -- listening --------------------------------------------------------------------------------


def never() -> bool:
    """Return False: the beat is not stopping."""
    return False


def client_of(url: str, **options: Any) -> Any:
    """Return a client without retries, like the client of a beat."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)


#: Pairs of a version of the Redis protocol, and whether the client decodes replies to strings.
PROTOCOLS = [(2, False), (3, True)]


@pytest.fixture(params=PROTOCOLS)
def wakeup(request: pytest.FixtureRequest, redis_url: str) -> Iterator[WakeUp]:
    """The subscription of a beat, for each protocol version of :data:`PROTOCOLS`."""
    protocol, text = request.param
    with client_of(redis_url, protocol=protocol, decode_responses=text) as client:
        wakeup = WakeUp(client, CHANNEL)
        yield wakeup
        wakeup.close()


def subscribers(client: Any) -> int:
    """Return the number of connections that are subscribed to the wake-up channel."""
    return int(dict(client.pubsub_numsub(CHANNEL))[CHANNEL])


class TestListening:
    def test_listening_again_subscribes_once(
        self, wakeup: WakeUp, redis_client: redis.Redis
    ) -> None:
        assert wakeup.listen()
        assert not wakeup.listen()
        assert subscribers(redis_client) == 1

    @pytest.mark.parametrize("word", [DUE, LOCK])
    def test_a_published_message_ends_the_wait(
        self, wakeup: WakeUp, redis_client: redis.Redis, word: bytes
    ) -> None:
        wakeup.listen()
        assert redis_client.publish(CHANNEL, word.decode()) == 1
        assert wakeup.wait(30, word, never)

    @pytest.mark.parametrize("message", [b"\xff", b"", b"\x00", b"9" * 100_000, b"due\xff"])
    def test_any_other_message_only_ends_the_wait(
        self, wakeup: WakeUp, redis_client: redis.Redis, message: bytes
    ) -> None:
        """A message that is not valid UTF-8 must not stop a beat."""
        wakeup.listen()
        assert redis_client.publish(CHANNEL, message) == 1
        assert not wakeup.wait(0.05, DUE, never)
        wakeup.listen()
        redis_client.publish(CHANNEL, DUE.decode())
        assert wakeup.wait(30, DUE, never)

    def test_a_message_of_any_length_only_ends_the_wait(
        self, wakeup: WakeUp, redis_client: redis.Redis
    ) -> None:
        """Redis closes the connection of a subscriber that would have to read 40 MB."""
        wakeup.listen()
        assert redis_client.publish(CHANNEL, b"9" * 40_000_000) == 1
        assert not wakeup.wait(0.05, DUE, never)
        wait_until(lambda: wakeup.listen() or subscribers(redis_client) == 1)
        redis_client.publish(CHANNEL, DUE.decode())
        wait_until(lambda: wakeup.listen() or wakeup.wait(1, DUE, never))

    def test_messages_without_end_do_not_prolong_the_wait(
        self, wakeup: WakeUp, redis_client: redis.Redis
    ) -> None:
        wakeup.listen()
        pipeline = redis_client.pipeline(transaction=False)
        for _ in range(MAX_DISCARDED + 10):
            pipeline.publish(CHANNEL, "due")
        pipeline.execute()
        assert wakeup.wait(30, DUE, never)
        assert wakeup.wait(30, DUE, never)

    @pytest.mark.parametrize("kind", ["spublish", "pattern"])
    def test_messages_of_other_kinds_are_ignored(
        self, wakeup: WakeUp, redis_client: Any, kind: str
    ) -> None:
        """Neither a sharded message, nor a message on a channel with a similar name."""
        wakeup.listen()
        if kind == "spublish":
            with suppress(redis.ResponseError):  # before Redis 7
                redis_client.execute_command("SPUBLISH", CHANNEL, "due")
        else:
            redis_client.publish(f"{CHANNEL}x", "due")
        assert not wakeup.wait(0.05, DUE, never)

    @pytest.mark.parametrize(("other", "expected"), [(DUE, LOCK), (LOCK, DUE)])
    def test_a_wait_for_one_message_ignores_the_other(
        self, wakeup: WakeUp, redis_client: redis.Redis, other: bytes, expected: bytes
    ) -> None:
        wakeup.listen()
        assert redis_client.publish(CHANNEL, other.decode()) == 1
        assert not wakeup.wait(0.05, expected, never)
        redis_client.publish(CHANNEL, other.decode())
        redis_client.publish(CHANNEL, expected.decode())
        assert wakeup.wait(30, expected, never)

    def test_waits_for_the_given_time(self, wakeup: WakeUp) -> None:
        wakeup.listen()
        started = time.monotonic()
        assert not wakeup.wait(0.1, DUE, never)
        assert 0.1 <= time.monotonic() - started < 5

    def test_ends_when_the_service_stops(self, wakeup: WakeUp) -> None:
        wakeup.listen()
        answers = iter([False, False, True])
        started = time.monotonic()
        assert not wakeup.wait(300, DUE, lambda: next(answers))
        assert time.monotonic() - started < 30

    def test_close_ends_the_subscription(self, wakeup: WakeUp, redis_client: redis.Redis) -> None:
        wakeup.listen()
        wakeup.close()
        wakeup.close()
        wait_until(lambda: subscribers(redis_client) == 0)
        assert wakeup.listen()
        assert redis_client.publish(CHANNEL, "due") == 1
        assert wakeup.wait(30, DUE, never)

    def test_a_close_during_the_wait_raises_nothing(
        self, wakeup: WakeUp, redis_client: redis.Redis
    ) -> None:
        """A signal handler may close the scheduler at any time."""
        wakeup.listen()
        actions: list[Callable[[], Any]] = [
            lambda: redis_client.publish(CHANNEL, "due"),
            wakeup.close,
        ]

        def stopping() -> bool:
            while actions:
                actions.pop()()
            return False

        assert not wakeup.wait(0.1, DUE, stopping)
        assert actions == []
        wait_until(lambda: subscribers(redis_client) == 0)
        assert wakeup.listen()

    def test_a_user_who_may_not_listen_waits(self) -> None:
        with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
            admin.execute_command("ACL SETUSER deaf on >pass ~* +@all resetchannels")
            with client_of(f"redis://deaf:pass@127.0.0.1:{server.port}/0") as client:
                clock = Clock()
                wakeup = WakeUp(client, CHANNEL, clock, clock.advance)
                assert not wakeup.listen()
                assert not wakeup.wait(4, DUE, never)
                assert clock() == 1004.0

    def test_a_client_without_subscriptions_sleeps(self) -> None:
        slept: list[float] = []
        clock = Clock()

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            clock.advance(seconds)

        wakeup = WakeUp(object(), CHANNEL, clock, sleep)
        assert not wakeup.listen()
        assert not wakeup.wait(2.125, DUE, never)
        assert sum(slept) == 2.125
        assert max(slept) == SLICE
        answers = iter([False, False, True])
        del slept[:]
        assert not wakeup.wait(300, DUE, lambda: next(answers))
        assert slept == [SLICE] * 2
        wakeup.close()


class TestLostConnection:
    @pytest.fixture
    def server(self) -> Iterator[RedisServer]:
        """A separate server, which the test kills and restarts."""
        with RedisServer() as server:
            yield server

    def test_killed_during_the_wait(self, server: RedisServer) -> None:
        """Setup: a beat listens and waits.

        Fault: the server is killed, and later restarted.

        Invariant: the wait is as long as without the fault, and raises no error. The beat
        subscribes again when the server is back.
        """
        with client_of(server.url) as client:
            wakeup = WakeUp(client, CHANNEL)
            assert wakeup.listen()
            faults = [server.kill]

            def stopping() -> bool:
                while faults:
                    faults.pop()()
                return False

            started = time.monotonic()
            assert not wakeup.wait(0.8, DUE, stopping)
            assert time.monotonic() - started >= 0.8
            assert not server.is_running
            assert not wakeup.listen()
            assert not wakeup.wait(0.1, DUE, never)
            server.restart()
            assert wakeup.listen()
            assert client.publish(CHANNEL, "due") == 1
            assert wakeup.wait(30, DUE, never)
            wakeup.close()

    @pytest.mark.standalone
    def test_connection_killed_by_the_server(
        self, wakeup: WakeUp, redis_client: redis.Redis
    ) -> None:
        """Setup: a beat listens.

        Fault: Redis closes the connection, as it does if a client reads too slowly.

        Invariant: waiting raises no error, and the beat subscribes again immediately.
        """
        wakeup.listen()
        assert redis_client.client_kill_filter(_type="pubsub") == 1
        wait_until(lambda: not wakeup.wait(0.05, DUE, never) and wakeup.listen())
        assert redis_client.publish(CHANNEL, "due") == 1
        assert wakeup.wait(30, DUE, never)


def test_a_silent_connection_is_replaced(
    redis_client: redis.Redis, redis_url: str, clock: Clock
) -> None:
    """A firewall may have dropped it, which nobody tells the beat."""
    with client_of(redis_url) as client:
        wakeup = WakeUp(client, CHANNEL, clock, clock.advance)
        assert wakeup.listen()
        for publishes in (True, False):
            clock.advance(LONGEST_SILENCE - 1)
            if publishes:
                redis_client.publish(CHANNEL, "due")
            assert wakeup.wait(0.02, DUE, partial(next, iter([False]), True)) is publishes
            assert not wakeup.listen(), "given up before its time"
        clock.advance(1)
        assert wakeup.wait(0.02, DUE, partial(next, iter([False]), True)), "the wait goes on"
        assert wakeup.listen(), "not given up"
        assert client.publish(CHANNEL, "due") == 1
        assert wakeup.wait(30, DUE, never)
        wakeup.close()
