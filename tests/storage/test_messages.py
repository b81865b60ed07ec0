"""`claim.lua` records a run and sends its messages together, or does neither."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from redbeat.storage.records import (
    CHANGED,
    ELSEWHERE,
    NOT_SENT,
    OVERTAKEN,
    RAN,
    RECORDED,
    REFUSED,
    RETRY,
    Broker,
    Claim,
    Completion,
    Result,
)
from redbeat.storage.store import Store
from tests.storage.conftest import KEYS, ClaimOne, Put

#: A cluster cannot be the broker, so the tests need a single server.
pytestmark = pytest.mark.standalone

NEXT = 4_000_000_000.5


def packed(*commands: tuple[str, ...]) -> str:
    """Return broker commands in the format that the script expects."""
    sizes = [" ".join(str(len(arg.encode())) for arg in args) for _, *args in commands]
    heads = [f"{name} {size};" for (name, *_), size in zip(commands, sizes, strict=True)]
    return "".join(heads) + "\n" + "".join(arg for _, *args in commands for arg in args)


@pytest.fixture
def broker(redis_client: redis.Redis) -> Broker:
    """A broker that is on the server and in the database of the schedule."""
    info: Any = redis_client.info("server")
    return Broker(info["run_id"], 0, 0)


def ran(
    claim: Claim, *commands: tuple[str, ...], seen: tuple[str, ...] | None = None
) -> Completion:
    """Return a completion that records a run and sends broker commands."""
    done = claim.done(RAN, NEXT, "ran", "r")
    return done._replace(messages=packed(*commands), seen=seen)


def complete(store: Store, broker: Broker | None, *completions: Completion) -> list[Result]:
    """Record completions, and return their results."""
    return store.claim("other", 0, 30, completions, broker=broker).results


def state(client: redis.Redis, key: str, queue: str = "q") -> tuple[Any, Any, bool]:
    """Return the messages in a queue, the entry's ``meta``, and whether the entry is claimed."""
    return client.lrange(queue, 0, -1), client.hget(key, "meta"), client.hexists(key, "claim")


class TestMessageAndRecordAreWritten:
    @pytest.mark.parametrize("text", ["m", "", "a;b\nc 3;", "ä€\U0001f600", "x" * 100_000])
    def test_message_and_record(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
        text: str,
    ) -> None:
        key = put("a")
        done = ran(claim_one(), ("LPUSH", "q", text))
        assert complete(store, broker, done) == [Result(RECORDED)]
        assert state(redis_client, key) == ([text], "ran", False)
        assert redis_client.zscore(KEYS.schedule, key) == NEXT

    def test_bytes_that_are_no_text(
        self, store: Store, redis_url: str, put: Put, claim_one: ClaimOne, broker: Broker
    ) -> None:
        put("a")
        done = claim_one().done(RAN, NEXT, "ran")
        messages = "LPUSH 1 3;\nq" + b"\xff\x00\xfe".decode("utf-8", "surrogateescape")
        assert complete(store, broker, done._replace(messages=messages)) == [Result(RECORDED)]
        with redis.Redis.from_url(redis_url) as client:
            assert client.lrange("q", 0, -1) == [b"\xff\x00\xfe"]

    def test_many_commands(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
    ) -> None:
        put("a")
        client: Any = redis_client
        subscription = client.pubsub()
        subscription.subscribe("news")
        assert subscription.get_message(timeout=5)
        done = ran(
            claim_one(),
            ("LPUSH", "q", "one"),
            ("PEXPIRE", "q", "90000"),
            ("LPUSH", "other", "two"),
            ("PUBLISH", "news", "three"),
        )
        assert complete(store, broker, done) == [Result(RECORDED)]
        assert redis_client.lrange("q", 0, -1) == ["one"]
        assert redis_client.lrange("other", 0, -1) == ["two"]
        ttl: Any = redis_client.pttl("q")
        assert 0 < ttl <= 90000
        message: Any = subscription.get_message(timeout=5)
        assert message["data"] == "three"
        subscription.close()

    def test_another_database(
        self,
        store: Store,
        redis_client: redis.Redis,
        redis_url: str,
        put: Put,
        broker: Broker,
    ) -> None:
        """The script selects the database of the schedule again after it sends a message."""
        keys = [put("a"), put("b", 2)]
        first, second = store.claim("c1", 500, 30).claims
        done = ran(first, ("LPUSH", "q", "m")), ran(second, ("LPUSH", "q", "n"))
        away = broker._replace(database=3)
        assert complete(store, away, *done) == [Result(RECORDED)] * 2
        assert not redis_client.exists("q")
        assert [redis_client.hget(key, "meta") for key in keys] == ["ran", "ran"]
        other = f"{redis_url.rpartition('/')[0]}/3"
        with redis.Redis.from_url(other, decode_responses=True) as client:
            assert client.lrange("q", 0, -1) == ["n", "m"]
            assert client.keys() == ["q"]

    def test_a_call_that_is_repeated(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
    ) -> None:
        """A call that is repeated after a lost reply sends nothing and returns RECORDED."""
        key = put("a")
        done = [ran(claim_one(), ("LPUSH", "q", "m"))]
        store.claim("b-2", 0, 30, done, broker=broker)
        again = store.claim("b-2", 0, 30, done, reply_lost=True, broker=broker)
        assert again.results == [Result(RECORDED)]
        assert state(redis_client, key) == (["m"], "ran", False)

    def test_a_call_that_is_repeated_after_another_run(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
    ) -> None:
        key = put("a")
        done = [ran(claim_one(), ("LPUSH", "q", "m"))]
        store.claim("b-2", 0, 30, done, broker=broker)
        redis_client.hset(key, "runtime", "of another run")
        again = store.claim("b-2", 0, 30, done, reply_lost=True, broker=broker)
        assert again.results == [Result(OVERTAKEN)]
        assert redis_client.lrange("q", 0, -1) == ["m"]

    def test_a_call_that_never_arrived(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
    ) -> None:
        key = put("a")
        done = [ran(claim_one(), ("LPUSH", "q", "m"))]
        again = store.claim("b-2", 0, 30, done, reply_lost=True, broker=broker)
        assert again.results == [Result(RECORDED)]
        assert state(redis_client, key) == (["m"], "ran", False)


class TestNeitherIsWritten:
    def test_a_claim_of_another(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
    ) -> None:
        key = put("a")
        done = ran(claim_one(lease=-1), ("LPUSH", "q", "m"))
        claim_one("c2")
        assert complete(store, broker, done) == [Result(REFUSED)]
        assert state(redis_client, key) == ([], None, True)

    def test_an_entry_that_is_gone(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
    ) -> None:
        key = put("a")
        done = ran(claim_one(), ("LPUSH", "q", "m"))
        redis_client.delete(key)
        assert complete(store, broker, done) == [Result(REFUSED)]
        assert not redis_client.exists("q", key)

    @pytest.mark.parametrize("field", ["definition", "policy", "meta"])
    def test_a_text_that_changed(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
        field: str,
    ) -> None:
        """The script returns the changed fields. It accepts a record that is based on them."""
        key = put("a", policy="p", meta="m")
        claim = claim_one()
        redis_client.hset(key, field, "changed")
        texts = {"definition": "definition of a", "policy": "p", "meta": "m", field: "changed"}
        seen = tuple(texts.values())
        done = ran(claim, ("LPUSH", "q", "m"))
        assert complete(store, broker, done) == [Result(CHANGED, seen)]
        assert state(redis_client, key) == ([], texts["meta"], True)
        again = ran(claim, ("LPUSH", "q", "m"), seen=seen)
        assert complete(store, broker, again) == [Result(RECORDED)]
        assert state(redis_client, key) == (["m"], "ran", False)

    def test_a_message_of_a_triggered_run(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
    ) -> None:
        """If the entry was edited, the script does not send the old message."""
        key = put("a")
        done = claim_one().done(RETRY, 5)._replace(messages=packed(("LPUSH", "q", "m")))
        redis_client.hset(key, "definition", "changed")
        seen = ("changed", "", "")
        assert complete(store, broker, done) == [Result(CHANGED, seen)]
        assert not redis_client.exists("q")

    @pytest.mark.parametrize("crooked", ["q", "other"])
    @pytest.mark.parametrize("database", [0, 2])
    def test_a_queue_of_a_wrong_type(
        self,
        store: Store,
        redis_client: redis.Redis,
        redis_url: str,
        put: Put,
        broker: Broker,
        crooked: str,
        database: int,
    ) -> None:
        key, good = put("a"), put("b", 2)
        claim, second = store.claim("c1", 500, 30).claims
        there = f"{redis_url.rpartition('/')[0]}/{database}"
        with redis.Redis.from_url(there, decode_responses=True) as client:
            client.set(crooked, "no list")
            done = ran(claim, ("PUBLISH", "x", "m"), ("LPUSH", "q", "m"), ("LPUSH", "other", "m"))
            both = done, ran(second, ("LPUSH", "good", "n"))
            result, other = complete(store, broker._replace(database=database), *both)
            assert (result.code, other) == (NOT_SENT, Result(RECORDED))
            (why,) = result.texts
            assert why.startswith("WRONGTYPE")
            assert crooked in why
            assert not client.exists({"q": "other", "other": "q"}[crooked])
            assert client.lrange("good", 0, -1) == ["n"]
        assert redis_client.hget(key, "meta") is None
        assert redis_client.hexists(key, "claim")
        assert redis_client.hget(good, "meta") == "ran"

    @pytest.mark.parametrize("known", [False, True])
    def test_a_broker_elsewhere(
        self,
        store: Store,
        redis_client: redis.Redis,
        put: Put,
        claim_one: ClaimOne,
        broker: Broker,
        known: bool,
    ) -> None:
        key = put("a")
        other = broker._replace(run_id="f" * 40) if known else None
        done = ran(claim_one(), ("LPUSH", "q", "m"))
        assert complete(store, other, done) == [Result(ELSEWHERE)]
        assert state(redis_client, key) == ([], None, True)
