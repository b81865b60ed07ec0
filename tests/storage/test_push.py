"""A change pushes its message and writes its record together, or neither."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from redbeat.storage import reading, words
from redbeat.storage.rows import Change, Look, Request, digest_of, new_mark
from redbeat.storage.store import Store
from tests.deployments import PREFIX
from tests.servers import RedisServer
from tests.storage.places import KEYS, Place, aside, place_at, record

#: The queues are on the server of the schedule, and its user may use them.
pytestmark = pytest.mark.standalone


@pytest.fixture
def small_server() -> Iterator[RedisServer]:
    """A server of its own, whose memory a test may fill."""
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


def fill(client: redis.Redis) -> None:
    """Let the server refuse all writes that need memory."""
    client.config_set("maxmemory", 1)


def push_of(*commands: list[str | bytes]) -> list[list[str | bytes]]:
    return list(commands)


def test_a_message_is_pushed_with_its_record(place: Place) -> None:
    key = place.put("a")
    body = b'{"body": "\xc3\xa9\x00", "n": 1}'
    change = record(place.row(key), push=push_of(["LPUSH", "queue", body]), score=9)
    assert place.words(change, server=place.server) == [words.DONE]
    assert place.client.lrange("queue", 0, -1) == [body]
    assert place.stored(key)["beat_state"] == change.set["beat_state"]


def test_each_change_has_its_own_messages(place: Place) -> None:
    keys = [place.put(name) for name in "abcd"]
    queues: list[list[str | bytes]] = [["x", b"x"], ["\ud800"], ["y"], []]  # one is no text
    changes = [
        record(place.row(key), push=push_of(*(["LPUSH", f"q-{key}", end] for end in ends)))
        for key, ends in zip(keys, queues, strict=True)
    ]
    found = place.words(*changes, server=place.server)
    assert found == [words.DONE, words.REFUSED, words.DONE, words.DONE]
    left = [place.client.lrange(f"q-{key}", 0, -1) for key in keys]
    assert left == [[b"x", b"x"], [], [b"y"], []]


def test_a_message_does_not_leave_if_the_entry_was_edited(place: Place) -> None:
    key = place.put("a")
    change = record(place.row(key), push=push_of(["LPUSH", "queue", "m"]), score=9)
    place.client.hset(key, "definition", '{"task": "another"}')
    assert place.words(change, server=place.server) == [words.DIFFERS]
    assert not place.client.exists("queue")


def test_a_message_is_pushed_in_the_database_of_the_broker(place: Place) -> None:
    key = place.put("a")
    run_id, database, _ = place.server
    changes = [
        record(place.row(key), push=push_of(["LPUSH", "queue", "m"], ["SADD", "bind", "b"])),
        Change(place.put("b"), score=5),
    ]
    found = place.words(*changes, server=(run_id, database + 1, database))
    assert found == [words.DONE, words.DONE]
    assert not place.client.exists("queue", "bind")
    with redis.Redis(port=place.client.connection_pool.connection_kwargs["port"], db=1) as other:
        assert other.llen("queue") == 1
        assert other.scard("bind") == 1
        assert not other.exists(key)
    assert place.score(changes[1].key) == 5


@pytest.mark.parametrize("server", [None, ("0" * 40, 0, 0)])
def test_a_message_for_another_server_is_not_pushed(
    place: Place, server: tuple[str, int, int] | None
) -> None:
    key = place.put("a")
    change = record(place.row(key), push=push_of(["LPUSH", "queue", "m"]), score=9)
    assert place.words(change, server=server) == [words.ELSEWHERE]
    assert not place.client.exists("queue")
    assert place.stored(key) == {"definition": "{}"}


def test_a_message_of_which_a_part_is_out_counts_as_sent(place: Place) -> None:
    key = place.put("a")
    pushes = push_of(["LPUSH", "queue", "m"], ["EXPIRE", "queue", "soon"])
    change = record(place.row(key), push=pushes, score=9)
    assert place.words(change, server=place.server) == [words.DONE]
    assert place.client.lrange("queue", 0, -1) == [b"m"]
    assert place.stored(key)["beat_state"] == change.set["beat_state"]


def test_a_queue_of_a_wrong_type_refuses_before_the_first_write(place: Place) -> None:
    key, good = place.put("a"), place.put("b")
    place.client.set("text", "x")
    first: list[str | bytes] = ["LPUSH", "queue", "m"]
    wrong = record(place.row(key), push=push_of(first, ["LPUSH", "text", "m"]), score=9)
    right = record(place.row(good), push=push_of(first))
    refused, done, again = place.apply(wrong, right, wrong, server=place.server)
    assert refused.word == again.word == words.REFUSED
    assert "text must be a list, but is a string" in refused.why
    assert done.word == words.DONE
    assert place.client.llen("queue") == 1
    assert place.stored(key) == {"definition": "{}"}
    assert place.score(key) == 1


def test_a_queue_has_one_type_in_a_turn(place: Place) -> None:
    keys = [place.put(name) for name in "ab"]
    pushes = push_of(["LPUSH", "queue", "m"]), push_of(["ZADD", "queue", "1", "m"])
    changes = [record(place.row(key), push=push) for key, push in zip(keys, pushes, strict=True)]
    assert place.words(*changes, server=place.server) == [words.DONE, words.REFUSED]


def test_only_commands_that_publish_are_run(place: Place) -> None:
    key = place.put("a")
    change = record(place.row(key), push=push_of(["FLUSHALL", "queue"]))
    assert place.words(change, server=place.server) == [words.REFUSED]
    assert place.stored(key) == {"definition": "{}"}


def test_a_queue_that_is_forbidden_refuses_one_change(place: Place) -> None:
    place.client.acl_setuser(
        "beat",
        enabled=True,
        nopass=True,
        keys=[f"{PREFIX}*", f".{PREFIX}*", "open"],
        channels=["open"],
        categories=["+@all"],
    )
    keys = [place.put(name) for name in "abc"]
    changes = [
        record(place.row(keys[0]), push=push_of(["LPUSH", "closed", "m"])),
        record(place.row(keys[1]), push=push_of(["LPUSH", "open", "m"])),
        record(place.row(keys[2]), push=push_of(["PUBLISH", "closed", "m"])),
    ]
    port = place.client.connection_pool.connection_kwargs["port"]
    server = place.server
    try:
        with redis.Redis(port=port, username="beat", password="any") as client:
            answers = Store(client, KEYS).turn(Request("t", None, changes, server=server)).answers
    finally:
        place.client.acl_deluser("beat")
    assert [answer.word for answer in answers] == [words.REFUSED, words.DONE, words.REFUSED]
    assert reading.NO_KEY.search(answers[0].why)  # servers word it differently
    assert place.stored(keys[0]) == {"definition": "{}"}
    assert place.stored(keys[2]) == {"definition": "{}"}
    assert place.client.llen("open") == 1


@pytest.mark.parametrize("command", ["LPUSH", "PUBLISH"])
def test_full_memory_refuses_before_the_first_write(
    small_server: RedisServer, command: str
) -> None:
    with place_at(small_server.url) as place:
        key = place.put("a", meta="old", policy="old")
        change = record(
            place.row(key),
            push=push_of([command, "queue", "m"]),
            set={"meta": "new"},
            unset=("policy",),
            line='"a"',
            score=9,
        )
        listener = place.client.pubsub()
        listener.subscribe("queue")
        assert listener.get_message(timeout=5) is not None
        server = place.server
        fill(place.client)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            place.turn(change, server=server)
        assert listener.get_message() is None
        assert not place.client.exists("queue")
        assert place.stored(key) == {"definition": "{}", "meta": "old", "policy": "old"}
        assert place.score(key) == 1
        place.client.config_set("maxmemory", 0)
        assert place.words(change, server=server) == [words.DONE]


def test_full_memory_keeps_a_leader_that_has_nothing_to_write(small_server: RedisServer) -> None:
    lock = (f"{PREFIX}:lock", 50000, "")
    with place_at(small_server.url) as place:
        key = place.put("a")
        place.turn(lock=lock)
        fill(place.client)
        for _ in range(2):
            reply = place.turn(look=Look(), lock=lock, in_hand=True, counts_id="1")
            assert (reply.standing, [row.key for row in reply.rows]) == (words.LEADS, [key])
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            place.turn(record(place.row(key)), look=Look(), lock=lock, in_hand=True)
        assert place.stored(key) == {"definition": "{}"}


def test_full_memory_lets_a_delete_pass(small_server: RedisServer) -> None:
    with place_at(small_server.url) as place:
        key = place.put("a")
        fill(place.client)
        assert place.words(Change(key, delete=True)) == [words.DONE]


def test_a_field_is_removed_after_all_that_needs_memory(small_server: RedisServer) -> None:
    with place_at(small_server.url) as place:
        key = place.put("a", policy="old")
        row = place.row(key)
        fill(place.client)
        mark = new_mark()
        change = Change(key, mark, expect=digest_of(row), unset=("policy",), line='"a"')
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            place.turn(change)
        assert place.stored(key) == {"definition": "{}", "policy": "old"}
        assert not place.client.exists(aside("inbox"))
