"""Changes: compare-and-set on one entry, all or nothing, safe to repeat."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redbeat.codec.stored import text_of
from redbeat.storage import words
from redbeat.storage.rows import Answer, Change, Look, Row, digest_of, new_mark
from redbeat.storage.scripts import load_script
from tests.storage.places import KEYS, LOCK, Place, aside, key_of, record, state_of


def test_a_change_of_what_was_looked_at_is_done(place: Place) -> None:
    key = place.put("a", meta="old", policy="gone", score=1)
    change = record(place.row(key), set={"meta": "new"}, unset=("policy",), score=place.now + 9)
    assert place.words(change) == [words.DONE]
    assert place.stored(key) == {"definition": "{}", "meta": "new", **change.set}
    assert place.score(key) == pytest.approx(place.now + 9, abs=5)


@pytest.mark.parametrize("field", ["definition", "meta", "policy", "beat_state"])
def test_a_change_differs_if_a_text_is_another(place: Place, field: str) -> None:
    key = place.put("a", score=7)
    change = record(place.row(key), score=99)
    place.client.hset(key, field, "another")
    (answer,) = place.apply(change)
    assert answer.word == words.DIFFERS
    assert answer.row == place.row(key)
    assert getattr(answer.row, field.removeprefix("beat_")) == "another"
    assert place.score(key) == 7


@pytest.mark.parametrize("field", ["meta", "policy", "beat_state"])
def test_an_absent_text_is_not_an_empty_one(place: Place, field: str) -> None:
    key = place.put("a")
    change = record(place.row(key))
    place.client.hset(key, field, "")
    assert place.words(change) == [words.DIFFERS]


def test_texts_do_not_run_into_each_other(place: Place) -> None:
    key = place.put("a", meta="12", policy="3")
    change = record(place.row(key))
    place.client.hset(key, mapping={"meta": "1", "policy": "23"})
    assert place.words(change) == [words.DIFFERS]


def test_a_line_in_the_inbox_disturbs_no_change(place: Place) -> None:
    key = place.put("a")
    change = record(place.row(key))
    place.store.say(key, '["trigger","x"]', kind=words.TRIGGER)
    assert place.words(change) == [words.DONE]


def test_the_score_counts_where_it_is_covered(place: Place) -> None:
    key = place.put("a", score=1795662649.8554249)
    row = place.row(key)
    covered = Change(key, expect=digest_of(row, "s"), covers="s", score=5)
    place.client.zadd(KEYS.schedule, {key: 1795662649.8554251})
    assert place.words(covered) == [words.DIFFERS]
    assert place.words(Change(key, expect=digest_of(row), score=5)) == [words.DONE]
    again = place.row(key)
    assert place.words(Change(key, expect=digest_of(again, "s"), covers="s")) == [words.DONE]


def test_a_score_with_many_decimals_comes_back_as_it_was(place: Place) -> None:
    key = place.put("a")
    for score in (1795662649.8554249, 0.1 + 0.2, 1e22, -1.0):
        assert place.words(Change(key, score=score)) == [words.DONE]
        assert float(place.row(key).score) == score
        expect = digest_of(place.row(key), "s")
        assert place.words(Change(key, expect=expect, covers="s")) == [words.DONE]


def test_the_version_of_calendars_counts_where_it_is_covered(place: Place) -> None:
    key = place.put("a")
    row = place.row(key)
    none = Change(key, expect=digest_of(row, "c", None), covers="c", score=5)
    assert place.words(none) == [words.DONE]
    place.client.set(aside("calendars-version"), "abc")
    assert place.words(none) == [words.DIFFERS]
    assert place.turn(look=Look()).version == "abc"
    known = Change(key, expect=digest_of(place.row(key), "c", "abc"), covers="c", score=6)
    assert place.words(known) == [words.DONE]


@pytest.mark.standalone
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_repeated_turn_finds_its_mark_after_changes_of_others(place: Place, others: int) -> None:
    key = place.put("a")
    change = record(place.row(key), score=50, push=[["LPUSH", "queue", "m"]])
    place.apply(change, server=place.server)
    kept: tuple[str, ...] = (change.mark,)
    for _ in range(others):
        later = record(place.row(key), marks=kept)
        assert place.words(later) == [words.DONE]
        kept = (later.mark, change.mark)
    assert place.words(change, server=place.server) == [words.DONE]
    assert place.client.llen("queue") == 1


@pytest.mark.standalone
def test_a_late_copy_differs_once_its_mark_is_gone(place: Place) -> None:
    key = place.put("a")
    change = record(place.row(key), push=[["LPUSH", "queue", "m"]])
    place.apply(change, server=place.server)
    place.apply(record(place.row(key)))
    assert place.words(change, server=place.server) == [words.DIFFERS]
    assert place.client.llen("queue") == 1


def test_a_mark_is_found_only_between_quotes(place: Place) -> None:
    key = place.put("a", beat_state=json.dumps({"note": 'said "abcdefghijkl" once'}))
    change = Change(key, mark="abcdefghijkl", set={"meta": "new"}, score=8)
    assert place.words(change) == [words.DONE]
    assert place.stored(key)["meta"] == "new"


def test_an_entry_that_is_gone_is_absent(place: Place) -> None:
    key = place.put("a")
    change = record(place.row(key))
    place.client.delete(key)
    assert place.words(change) == [words.ABSENT]
    assert place.words(Change(key, mark=new_mark(), set={"meta": "new"})) == [words.ABSENT]
    assert place.words(Change(key, set={"meta": "new"})) == [words.ABSENT]
    assert place.stored(key) == {}


def test_a_new_entry_needs_a_definition_and_may_expect_nothing_there(place: Place) -> None:
    key = key_of("new")
    nothing = digest_of(Row(key))
    save = Change(
        key, new_mark(), expect=nothing, set={"definition": "{}", "beat_state": "{}"}, add=9
    )
    assert place.words(save) == [words.DONE]
    assert place.score(key) == 9
    assert place.words(save) == [words.DIFFERS]


def test_twins_are_added_like_their_change_unless_they_are_there(place: Place) -> None:
    first, second, *_ = keys = [
        key_of(name) for name in ("first", "second", "there", "text", "bad")
    ]
    place.put("there", 3)
    place.put("text", 3, definition="text")
    place.client.set(keys[4], "x")
    save = Change(
        first,
        new_mark(),
        expect=digest_of(Row(first)),
        set={"definition": "1", "meta": "{}"},
        add=9,
        index=[["HDEL", "quarantine", first]],
        twins=dict.fromkeys(keys[1:], "ü"),
    )
    save.set["beat_state"] = state_of(save.mark)
    place.client.hset(aside("quarantine"), mapping=dict.fromkeys(keys, "{}"))
    for _ in range(2):  # a repeated request gets the same answer
        (answer,) = place.apply(save)
        assert (answer.word, answer.left) == (words.DONE, keys[2:])
    assert place.row(second) == place.row(first)._replace(key=second, definition="ü")
    assert (place.score(second), place.score(keys[2])) == (9, 3)
    assert place.row(keys[3]).definition == "text"
    quarantined = place.client.hkeys(aside("quarantine"))
    assert sorted(map(text_of, quarantined)) == sorted(keys[2:])


def test_twins_stay_out_if_their_change_is_not_done(place: Place) -> None:
    first, second = place.put("first"), key_of("second")
    nothing, texts = digest_of(Row(first)), {"definition": "{}"}
    save = Change(first, new_mark(), nothing, set=texts, add=9, twins={second: "{}"})
    assert place.words(save) == [words.DIFFERS]
    assert place.stored(second) == {}


def test_only_add_puts_an_entry_into_the_schedule(place: Place) -> None:
    key = place.put("a", score=None)
    place.apply(Change(key, score=5))
    assert place.score(key) is None
    place.apply(Change(key, add=5))
    assert place.score(key) == 5


def test_the_member_of_a_missing_hash_is_moved_and_removed(place: Place) -> None:
    key = key_of("lost")
    place.client.zadd(KEYS.schedule, {key: 1})
    row = place.row(key)
    assert row == Row(key, "1")
    assert place.words(Change(key, expect=digest_of(row), score=7)) == [words.DONE]
    assert place.score(key) == 7
    assert place.words(Change(key, expect=digest_of(row), delete=True)) == [words.DONE]
    assert place.score(key) is None


def test_a_delete_drops_everything(place: Place) -> None:
    key = place.put("a", beat_state="{}", other="field")
    place.store.say(key, '["trigger","x"]', kind=words.TRIGGER)
    assert place.words(Change(key, delete=True)) == [words.DONE]
    assert place.stored(key) == {}
    assert place.score(key) is None
    assert not place.client.exists(aside("inbox"))
    assert place.words(Change(key, delete=True)) == [words.ABSENT]


def test_a_delete_that_expects_something_keeps_an_entry_with_a_new_line(place: Place) -> None:
    key = place.put("a")
    row = place.row(key)
    place.store.say(key, '["trigger","x"]', kind=words.TRIGGER)
    delete = Change(key, mark=new_mark(), expect=digest_of(row), delete=True)
    (answer,) = place.apply(delete)
    assert answer.row is not None
    assert answer.row.inbox == '[["trigger","x"]]'
    delete.take = '["trigger","x"]'
    assert place.words(delete) == [words.DONE]


@pytest.mark.parametrize("key", [KEYS.schedule, KEYS.statics, LOCK[0]])
def test_the_keys_of_the_schedule_are_not_deleted(place: Place, key: str) -> None:
    place.put("a")
    place.client.sadd(KEYS.statics, "a")
    place.client.set(LOCK[0], "t")
    assert place.words(Change(key, delete=True), lock=LOCK) == [words.REFUSED]
    assert place.client.exists(key)


def test_a_change_that_comes_too_late_is_stale(place: Place) -> None:
    key = place.put("a", score=1)
    change = record(place.row(key), not_after=place.now - 0.001, score=5)
    assert place.words(change) == [words.STALE]
    assert place.score(key) == 1
    change.not_after = place.now + 60
    assert place.words(change) == [words.DONE]
    change.not_after = 1
    assert place.words(change) == [words.DONE], "it was applied, so it is not too late"


def test_a_change_that_comes_before_its_time_is_stale(place: Place) -> None:
    key = place.put("a", score=1)
    change = record(place.row(key), not_before=place.now + 60, score=5)
    assert place.words(change) == [words.STALE]
    assert place.score(key) == 1
    change.not_before = place.now - 0.001
    assert place.words(change) == [words.DONE]


def test_one_surrogate_refuses_one_change(place: Place) -> None:
    keys = [place.put(name) for name in "abcd"]
    changes = [record(place.row(key), score=9) for key in keys]
    changes[0].set["policy"] = '"\ud800"'
    changes[2].score = float("nan")
    changes[3].set["policy"] = '"\\ud800"'
    first, second, third, fourth = place.apply(*changes)
    assert (first.word, second.word, third.word) == (words.REFUSED, words.DONE, words.REFUSED)
    assert "surrogates" in first.why
    assert fourth.word == words.DONE, "an escape inside a text is no business of the store"
    assert place.stored(keys[0]) == {"definition": "{}"}
    assert place.stored(keys[3])["policy"] == '"\\ud800"'


def test_a_change_that_lua_cannot_read_is_refused_alone(place: Place) -> None:
    key = place.put("a")
    head = json.dumps({"token": "t"})
    changes = ['{"key":"\\ud800"}', json.dumps({"key": key, "score": "9"})]
    keys = [KEYS.schedule, KEYS.statics, KEYS.wakeup]
    _, answers, _ = load_script("turn")(place.client, keys, [head, *changes])
    assert answers[0] == 1
    assert answers[1].startswith(b"refused: ")
    assert len(answers) == 2  # the other change is done
    assert place.score(key) == 9


@pytest.mark.standalone
def test_bytes_that_are_not_utf8_stay_as_they_are(place: Place) -> None:
    key = place.put("a\udcff", meta=b"\xfe\xff")
    row = place.row(key)
    assert row.meta == "\udcfe\udcff"
    assert place.words(record(row, set={"policy": "\udcfd"}, score=4)) == [words.DONE]
    assert (
        place.client.hget("redbeat:a\udcff".encode(errors="surrogateescape"), "policy") == b"\xfd"
    )


def test_history_is_cut_to_its_newest_lines(place: Place) -> None:
    key = place.put("a")
    for number in range(5):
        place.apply(Change(key, new_mark(), line=f'["{number}\\n,"]', lines=3))
    history = place.stored(key)["history"]
    assert history == '[["4\\n,"],\n["3\\n,"],\n["2\\n,"]]'
    assert json.loads(history)[0] == ["4\n,"]


@pytest.mark.parametrize("damaged", ["", "[", "[]", "text", "]["])
def test_a_history_that_is_none_begins_anew(place: Place, damaged: str) -> None:
    key = place.put("a", history=damaged)
    place.apply(Change(key, new_mark(), line='"a"'))
    assert place.stored(key)["history"] == '["a"]'


def test_an_index_is_written_and_its_errors_stop_nothing(place: Place) -> None:
    key = place.put("a")
    place.client.lpush(aside("failing"), "a list")
    index = [["HSET", "failing", key, "why"], ["SADD", "calendar-users", key]]
    reply = place.turn(record(place.row(key), index=[*index, ["SADD", "statics", "a"]]))
    assert reply.answers == [Answer(words.DONE)]
    assert "failing" in reply.side_error
    assert "WRONGTYPE" in reply.side_error
    assert place.client.sismember(aside("calendar-users"), key)
    assert place.client.sismember(KEYS.statics, "a")
    assert place.words(Change("", index=[["SREM", "calendar-users", key]])) == [words.DONE]
    assert not place.client.exists(aside("calendar-users"))


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["", "a", "b,\n", '"c"', "]"]), st.integers(0, 4), st.booleans()),
        max_size=8,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_of_history_are_what_a_list_would_be(
    place: Place, steps: list[tuple[str, int, bool]]
) -> None:
    key, expected = place.put("lines"), list[str]()
    place.client.hdel(key, "history")
    for text, count, replaces in steps:
        line = json.dumps(text) if text else ""
        if line or replaces:
            expected = ([text] if line else []) + expected[1 if replaces else 0 :]
            expected = expected[:count]
        place.apply(Change(key, new_mark(), line=line, lines=count, replaces=replaces))
    assert json.loads(place.stored(key).get("history", "[]")) == expected
