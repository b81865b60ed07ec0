"""A look returns what is due: the right rows, within its limits, whatever else is stored."""

from __future__ import annotations

import json

import pytest
import redis

from redbeat.storage import reading, words
from redbeat.storage.rows import Change, Look, Row, digest_of, new_mark
from tests.deployments import PREFIX
from tests.storage.places import KEYS, LOCK, Place, aside, key_of, place_at, record


def test_a_look_returns_what_is_due_and_when_there_is_more(place: Place) -> None:
    key = place.put("due", 1, meta="m", policy="p", beat_state="s", inbox="i")
    place.put("parked", -1)
    place.put("later", place.now + 100)
    reply = place.turn(look=Look())
    assert reply.rows == [Row(key, "1", "{}", "m", "p", "s", "i")]
    assert reply.next == place.score(key_of("later"))
    assert reply.members == 3
    assert reply.now == pytest.approx(place.now, abs=5)
    assert place.turn().rows == []


def test_an_empty_schedule_has_no_next(place: Place) -> None:
    assert place.turn(look=Look()).next is None
    place.put("parked", -1)
    assert place.turn(look=Look()).next is None


def test_rows_are_the_same_until_they_are_changed(place: Place) -> None:
    place.put("a")
    assert place.look() == place.look() == ["a"]


def test_a_look_that_left_something_says_that_there_is_more_now(place: Place) -> None:
    for number in range(5):
        place.put(str(number), number + 1)
    reply = place.turn(look=Look(limit=4))
    assert [row.key for row in reply.rows] == [key_of(name) for name in "0123"]
    assert reply.next == reply.now
    assert place.turn(look=Look(limit=5)).next is None


def test_a_third_are_the_oldest_and_the_rest_the_newest(place: Place) -> None:
    for number in range(20):
        place.put(f"late{number:02}", 100 + number)
        place.put(f"fresh{number:02}", None)
    now = place.now
    scores = {key_of(f"fresh{number:02}"): now - (20 - number) / 1000 for number in range(20)}
    place.client.zadd(KEYS.schedule, scores)
    found = place.look(limit=9)
    late, fresh = ["late00", "late01", "late02"], [f"fresh{number}" for number in range(19, 13, -1)]
    assert found == [late[0], *fresh[:2], late[1], *fresh[2:4], late[2], *fresh[4:]]


@pytest.mark.parametrize(("late", "fresh", "expected"), [(20, 2, (7, 2)), (1, 20, (1, 8))])
def test_a_part_that_is_not_full_is_filled_from_the_other(
    place: Place, late: int, fresh: int, expected: tuple[int, int]
) -> None:
    names = [f"fresh{number}" for number in range(fresh)]
    for number in range(late):
        place.put(f"late{number}", 100 + number)
    for name in names:
        place.put(name, None)
    place.client.zadd(KEYS.schedule, dict.fromkeys(map(key_of, names), place.now))
    found = place.look(limit=9)
    counts = [sum(name.startswith(kind) for name in found) for kind in ("late", "fresh")]
    assert tuple(counts) == expected


def test_a_look_that_stops_early_has_late_and_fresh_rows(place: Place) -> None:
    for number in range(20):
        place.put(f"late{number:02}", 100 + number)
    place.put("fresh", place.now)
    assert place.look(max_bytes=1) == ["late00"]
    row = len(json.dumps(place.row(key_of("late00"))._asdict()))
    assert place.look(max_bytes=3 * row)[:2] == ["late00", "fresh"]


def test_the_rate_limits_late_rows_alone(place: Place) -> None:
    for number in range(5):
        place.put(f"late{number}", number + 1)
    place.put("fresh", place.now)
    place.put("later", place.now + 50)
    assert sorted(place.look(late=2)) == ["fresh", "late0", "late1"]
    reply = place.turn(look=Look(late=0))
    assert [row.key for row in reply.rows] == [key_of("fresh")]
    assert reply.next == place.score(key_of("later"))


def test_one_key_is_looked_at_due_or_not(place: Place) -> None:
    place.put("due")
    key = place.put("later", place.now + 100)
    assert place.look(only=key) == ["later"]
    assert place.row(key_of("nobody")) == Row(key_of("nobody"))


def test_skipped_keys_are_left_out_until_their_texts_change(place: Place) -> None:
    keys = [place.put(f"bad{number}", number + 1) for number in range(5)]
    place.put("good", 10)
    skip = {key: digest_of(place.row(key)) for key in keys}
    reply = place.turn(look=Look(limit=2, skip=skip))
    assert [row.key for row in reply.rows] == [key_of("good")]
    assert reply.next is None
    place.client.hset(keys[3], "meta", "edited")
    assert place.look(skip=skip) == ["bad3", "good"]


def test_what_is_in_hand_already_is_left_out_and_noted(place: Place) -> None:
    keys = [place.put(str(number), number + 1) for number in range(6)]
    reply = place.turn(look=Look(limit=2, in_hand=keys[:3]), lock=LOCK)
    assert reply.standing == words.NEW_LEADER
    reply = place.turn(look=Look(limit=2, in_hand=keys[:3]), lock=LOCK, in_hand=True)
    assert [row.key for row in reply.rows] == keys[3:5]
    assert reply.next == reply.now, "there is more"
    (noted,) = place.client.hvals(aside("hands"))
    assert set(json.loads(noted)) == set(keys[:5])
    place.client.delete(KEYS.schedule)
    place.turn(look=Look(in_hand=keys[:1]), lock=LOCK, in_hand=True)
    assert place.client.exists(aside("hands"))
    place.turn(look=Look(), lock=LOCK, in_hand=True)
    assert not place.client.exists(aside("hands"))


def test_what_the_turn_answered_with_differs_or_refused_is_left_out(place: Place) -> None:
    keys = [place.put(name) for name in "abc"]
    text = aside("text")  # in the slot of the schedule
    place.client.set(text, "x")
    changes = [record(place.row(key)) for key in keys]
    changes[0].expect = "0" * 40
    changes[1].push = [["LPUSH", text, "m"]]
    reply = place.turn(*changes, look=Look(), server=place.server)
    assert [answer.word for answer in reply.answers] == [words.DIFFERS, words.REFUSED, words.DONE]
    assert [row.key for row in reply.rows] == [keys[2]]


def test_a_turn_that_does_not_look_applies_changes_only(place: Place) -> None:
    key = place.put("a")
    reply = place.turn(Change(key, score=2), look=Look(limit=0))
    assert reply.rows == []
    assert place.score(key) == 2


def test_a_look_ends_at_its_bytes(place: Place) -> None:
    for number in range(6):
        place.put(str(number), number + 1, meta="x" * 1000)
    reply = place.turn(look=Look(max_bytes=3500))
    assert len(reply.rows) == 3
    assert reply.next == reply.now


def test_a_look_ends_when_its_time_is_over(place: Place) -> None:
    for number in range(100):
        place.put(f"{number:02}", number + 1)
    reply = place.turn(look=Look(max_ms=0.0))
    assert len(reply.rows) == 8
    assert reply.next == reply.now


def test_long_texts_are_looked_at_alone(place: Place) -> None:
    place.put("a", 1)
    place.put("long", 2, policy="x" * 70_000)
    place.put("b", 3)
    place.put("long2", 4, policy="x" * 70_000)
    assert place.look() == ["a"]
    place.apply(Change(key_of("a"), score=-1))
    reply = place.turn(look=Look())
    assert [row.key for row in reply.rows] == [key_of("long")]
    assert reply.next == reply.now
    assert place.words(record(reply.rows[0], score=-1)) == [words.DONE]
    assert place.look() == ["b"]
    place.apply(Change(key_of("b"), score=-1))
    assert place.look() == ["long2"]


def test_a_key_that_is_no_hash_is_a_row_with_a_problem(place: Place) -> None:
    key = key_of("text")
    place.client.set(key, "x")
    place.client.zadd(KEYS.schedule, {key: 1})
    place.put("good", 2)
    bad, good = place.turn(look=Look()).rows
    assert good.key == key_of("good")
    assert (bad.key, bad.definition) == (key, None)
    assert "WRONGTYPE" in bad.problem
    write = Change(key, new_mark(), expect=digest_of(bad), set={"beat_state": "{}"}, score=9)
    (refused,) = place.apply(write)
    assert refused.word == words.REFUSED
    assert "WRONGTYPE" in refused.why
    assert place.words(Change(key, take='"x"'), Change(key, replaces=True)) == [words.REFUSED] * 2
    note = Change(key, score=-1, index=[["HSET", "quarantine", key, "{}"]])
    assert place.words(note) == [words.DONE]
    assert place.score(key) == -1
    assert place.words(Change(key, delete=True)) == [words.DONE]
    assert not place.client.exists(key)


def test_a_member_that_is_a_name_becomes_a_key(place: Place) -> None:
    place.put("a", None)
    place.client.zadd(KEYS.schedule, {"a": 5})
    (row,) = place.turn(look=Look()).rows
    assert (row.key, row.score, row.definition) == (key_of("a"), "5", "{}")
    assert place.client.zrange(KEYS.schedule, 0, -1, withscores=True) == [(row.key.encode(), 5)]


def test_a_member_that_is_no_entry_is_never_read(place: Place) -> None:
    place.client.hset("elsewhere", "definition", "{}")
    place.client.zadd(KEYS.schedule, {"elsewhere": 5})
    (row,) = place.turn(look=Look()).rows
    assert row == Row("elsewhere", "5", problem=row.problem)
    assert "prefix" in row.problem
    assert place.words(Change("elsewhere", new_mark(), set={"definition": "x"}))[0] == words.REFUSED
    assert place.words(Change("elsewhere", score=7)) == [words.DONE]
    assert place.words(Change("elsewhere", delete=True, expect=digest_of(row))) == [words.DONE]
    assert not place.client.exists(KEYS.schedule)
    assert place.client.exists("elsewhere")


SIDE_KEYS = (
    *("inbox", "hands", "beats", "stats", "quarantine", "calendars-version"),
    *("failing", "expected", "calendars", "calendar-users"),
)


@pytest.mark.parametrize("wrong", [*map(aside, SIDE_KEYS), KEYS.statics])
def test_a_side_key_of_a_wrong_type_stops_nothing(place: Place, wrong: str) -> None:
    key, other = place.put("a"), place.put("b")
    place.client.xadd(wrong, {"a": "stream"})
    assert place.turn(lock=LOCK, counts_id="1").standing == words.NEW_LEADER
    change = record(place.row(other), score=-1, take='"x"', index=[["SADD", "statics", "b"]])
    reply = place.turn(change, look=Look(), lock=LOCK, counts_id="2", in_hand=True)
    assert [answer.word for answer in reply.answers] == [words.DONE]
    assert [row.key for row in reply.rows] == [key]
    idle = record(reply.rows[0], score=-1)
    assert place.turn(idle, look=Look(), lock=LOCK, in_hand=True).next is None
    assert place.turn(look=Look(), lock=LOCK, in_hand=True).rows == []
    line = '["trigger","x"]'
    assert place.store.say(key, line, kind=words.TRIGGER) == words.DONE
    assert place.look(shares=True) == ["a"]
    assert place.words(Change(key, delete=True)) == [words.DONE]


def test_a_user_without_side_keys_runs_and_is_told(place: Place) -> None:
    place.client.acl_setuser(
        "beat",
        enabled=True,
        nopass=True,
        keys=[f"{PREFIX}*"],
        channels=["*"],
        categories=["+@all"],
    )
    key = place.put("a")
    port = place.client.connection_pool.connection_kwargs["port"]
    with place_at(f"redis://beat:any@127.0.0.1:{port}") as narrow:
        try:
            narrow.turn(lock=LOCK, counts_id="1")
            reply = narrow.turn(look=Look(), lock=LOCK, counts_id="2", in_hand=True)
            assert [row.key for row in reply.rows] == [key]
            assert reading.NO_KEY.search(reply.side_error)  # servers word it differently
            change = record(reply.rows[0], score=-1)
            assert narrow.words(change, lock=LOCK) == [words.DONE]
            assert narrow.turn(look=Look(), lock=LOCK, in_hand=True).rows == []
            line = '["trigger","x"]'
            assert narrow.store.say(key, line, kind=words.TRIGGER) == words.DONE
            assert narrow.look() == ["a"]
        finally:
            place.client.acl_deluser("beat")


def test_a_schedule_of_a_wrong_type_ends_the_turn_before_its_first_write(place: Place) -> None:
    key = place.put("a", None)
    place.client.set(KEYS.schedule, "x")
    for look in (Look(), None):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            place.turn(Change(key, new_mark(), set={"meta": "new"}, score=5), look=look)
    assert place.stored(key) == {"definition": "{}"}


def test_what_is_known_of_calendars_outlasts_turns_that_do_not_look(place: Place) -> None:
    place.client.set(aside("calendars-version"), "7")
    key = place.put("a")
    assert place.turn(look=Look()).version == "7"
    place.turn(Change(key, score=place.now + 1000))
    assert place.turn(look=Look()).version == "7", "an idle turn reads nothing"
