"""Lines for the inbox of an entry: nothing that was accepted is lost, and nothing comes twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redbeat.entries.state import (
    Ended,
    end_line,
    read_inbox,
    read_results,
    result_line,
    result_start,
)
from redbeat.storage import words
from redbeat.storage.rows import Change, Look, new_mark
from redbeat.storage.store import INBOX_BYTES, INBOX_LINES
from tests.storage.places import KEYS, LOCK, Place, aside, key_of, record


def trigger(name: str) -> str:
    return json.dumps(["trigger", name])


def end(name: str, *more: str) -> str:
    return json.dumps(["end", name, *more])


def say(place: Place, key: str, line: str, **more: Any) -> str:
    kind = json.loads(line)[0]
    return place.store.say(key, line, kind=kind, **more)


def inbox(place: Place, key: str) -> list[Any]:
    """Return the names in an inbox, which is JSON with one element a line."""
    text = place.stored(key).get("inbox", "[]")
    found = json.loads(text)
    assert text == "[" + ",\n".join(json.dumps(element) for element in found) + "]"
    return [element[1] for element in found]


def test_lines_are_appended_and_taken(place: Place) -> None:
    key = place.put("a", place.now + 100)
    for name in "abc":
        assert say(place, key, trigger(name)) == words.DONE
    assert inbox(place, key) == ["a", "b", "c"]
    place.apply(Change(key, new_mark(), take=trigger("b")))
    assert inbox(place, key) == ["c"]
    place.apply(Change(key, new_mark(), take=trigger("b")))
    assert inbox(place, key) == ["c"], "what is not there cuts nothing"
    assert place.client.exists(aside("inbox"))
    place.apply(Change(key, new_mark(), take=trigger("c")))
    assert place.stored(key) == {"definition": "{}"}
    assert not place.client.exists(aside("inbox"))


def test_a_line_is_taken_as_a_whole(place: Place) -> None:
    key = place.put("a")
    for line in ('["end","1"]', '["end","1","x"]', '"1"'):
        place.store.say(key, line, kind=words.END)
    place.apply(Change(key, new_mark(), take='"1"]'))
    place.apply(Change(key, new_mark(), take='["end","1"'))
    assert json.loads(place.stored(key)["inbox"]) == [["end", "1"], ["end", "1", "x"], "1"]
    place.apply(Change(key, new_mark(), take='["end","1","x"]'))
    assert place.stored(key)["inbox"] == '["1"]'


def test_a_repeated_change_takes_nothing_more(place: Place) -> None:
    key = place.put("a")
    say(place, key, trigger("a"))
    change = record(place.row(key), take=trigger("a"))
    assert place.words(change) == [words.DONE]
    say(place, key, trigger("a"))
    assert place.words(change) == [words.DONE]
    assert inbox(place, key) == ["a"]


def test_nothing_is_said_to_an_entry_that_is_not_there(place: Place) -> None:
    assert say(place, key_of("nobody"), trigger("a")) == words.ABSENT
    place.client.set(key_of("text"), "x")
    assert say(place, key_of("text"), trigger("a")) == words.ABSENT
    place.client.hset(key_of("rest"), "meta", "{}")
    assert say(place, key_of("rest"), trigger("a")) == words.ABSENT
    assert not place.client.exists(aside("inbox"), KEYS.schedule)


def test_a_quarantined_entry_takes_ends_only(place: Place) -> None:
    key = place.put("a")
    place.client.hset(aside("quarantine"), key, "{}")
    assert say(place, key, trigger("a")) == words.QUARANTINED
    assert say(place, key, json.dumps(["backfill", "b"])) == words.QUARANTINED
    assert say(place, key, end("c")) == words.DONE
    assert inbox(place, key) == ["c"]


def test_a_trigger_leaves_the_score_and_is_looked_at_at_once(place: Place) -> None:
    later = place.now + 100
    key = place.put("a", later)
    say(place, key, trigger("a"))
    assert place.score(key) == later, "it may be the nominal time of the first run"
    (row,) = place.turn(look=Look()).rows
    assert (row.key, float(row.score), row.inbox) == (key, later, '[["trigger", "a"]]')
    assert place.look() == [], "nobody took it in, so it comes again in a second"
    reply = place.turn(look=Look())
    assert reply.next == pytest.approx(reply.now + 1, abs=0.5)
    place.client.zadd(aside("inbox"), {key: 1})
    assert place.look() == ["a"]


def test_an_end_does_not_delay_a_trigger(place: Place) -> None:
    key = place.put("a", place.now + 100)
    say(place, key, trigger("a"))
    say(place, key, end("b"))
    assert place.look() == ["a"]


def test_an_inbox_is_taken_although_the_clock_went_back(place: Place) -> None:
    key = place.put("a", place.now + 100)
    place.turn(lock=LOCK)
    say(place, key, trigger("a"))
    place.client.zadd(aside("inbox"), {key: place.now + 3600})
    assert [row.key for row in place.turn(look=Look(), lock=LOCK).rows] == [key]
    assert place.turn(look=Look(), lock=LOCK).rows == []


def test_a_due_entry_with_an_inbox_is_one_row(place: Place) -> None:
    key = place.put("a")
    say(place, key, trigger("a"))
    assert place.look() == ["a"]


def test_an_entry_that_is_not_in_the_schedule_stays_outside(place: Place) -> None:
    key = place.put("a", None)
    assert say(place, key, trigger("a")) == words.UNSCHEDULED
    assert inbox(place, key) == []
    assert say(place, key, end("a")) == words.DONE
    assert place.score(key) is None


def test_a_line_that_comes_again_at_another_time_is_there_once(place: Place) -> None:
    key = place.put("a")
    for age in (0, 1):
        assert say(place, key, trigger("a"), age=age) == words.DONE
    ((_, name, at),) = json.loads(place.stored(key)["inbox"])
    assert (name, at) == ("a", pytest.approx(place.now, abs=60))


def test_a_long_state_is_full_of_runs_that_wait(place: Place) -> None:
    key = place.put("a")
    place.client.hset(key, "beat_state", "x" * (INBOX_BYTES + 1))
    assert say(place, key, trigger("a")) == words.FULL
    assert inbox(place, key) == []
    assert say(place, key, end("a")) == words.DONE


def test_an_idle_turn_sees_the_inbox(place: Place) -> None:
    key = place.put("a", place.now + 100)
    place.turn(lock=LOCK)
    assert place.turn(look=Look(), lock=LOCK).next == place.score(key)
    say(place, key, end("x"))
    reply = place.turn(look=Look(), lock=LOCK)
    assert reply.rows == []
    assert reply.next == pytest.approx(reply.now + 1, abs=0.5), "an end may wait for a second"
    say(place, key, trigger("a"))
    assert [row.key for row in place.turn(look=Look(), lock=LOCK).rows] == [key]


@pytest.mark.parametrize(("line", "wakes"), [
    (trigger("x"), True), (end("waited"), True), (end("waited2"), False),
    (end("x", 'said "waited"'), False),
])  # fmt: skip
def test_an_end_wakes_the_leader_only_if_a_run_waits_for_it(
    place: Place, line: str, wakes: bool
) -> None:
    key = place.put("a", place.now + 100, waits='"waited"')
    listener = place.client.pubsub()
    listener.subscribe(KEYS.wakeup)
    assert listener.get_message(timeout=5) is not None
    say(place, key, line)
    place.client.ping()
    message = listener.get_message(timeout=5 if wakes else 0)
    assert (message is not None) == wakes
    assert place.look() == (["a"] if wakes else [])
    assert inbox(place, key) == [json.loads(line)[1]]


def test_what_is_left_makes_the_entry_due_now(place: Place) -> None:
    key = place.put("a")
    say(place, key, trigger("a"))
    row = place.row(key)
    say(place, key, trigger("b"))
    place.apply(record(row, take=trigger("a"), score=place.now + 100))
    assert place.score(key) == pytest.approx(place.now, abs=5)
    assert place.look() == ["a"]
    place.apply(record(place.row(key), score=-1.0))
    assert place.score(key) == pytest.approx(place.now, abs=5), "also one that is to be parked"
    place.apply(record(place.row(key), take=trigger("b"), score=-1.0))
    assert place.score(key) == -1


def test_a_score_alone_stays_in_spite_of_an_inbox(place: Place) -> None:
    key = place.put("a")
    say(place, key, trigger("a"))
    until = place.now + 30
    place.apply(Change(key, score=until))
    assert place.score(key) == until


def test_a_full_inbox_drops_the_oldest_end_and_refuses_a_trigger(place: Place) -> None:
    key = place.put("a")
    names = [str(number) for number in range(INBOX_LINES)]
    for name in names:
        assert say(place, key, (end if name in ("3", "50") else trigger)(name)) == words.DONE
    assert say(place, key, trigger("new")) == words.DONE
    names.remove("3")
    assert inbox(place, key) == [*names, "new"]
    assert say(place, key, end("end")) == words.DONE
    names.remove("50")
    assert inbox(place, key) == [*names, "new", "end"]
    assert say(place, key, trigger("newer")) == words.DONE
    assert inbox(place, key) == [*names, "new", "newer"]
    assert say(place, key, trigger("refused")) == words.FULL
    assert say(place, key, end("lost")) == words.DONE
    assert inbox(place, key) == [*names, "new", "newer"]


def test_a_full_inbox_of_ends_keeps_the_newest(place: Place) -> None:
    key = place.put("a")
    for number in range(INBOX_LINES + 5):
        assert say(place, key, end(str(number))) == words.DONE
    assert inbox(place, key) == [str(number) for number in range(5, INBOX_LINES + 5)]


def test_an_inbox_has_a_most_of_bytes(place: Place) -> None:
    key = place.put("a")
    assert say(place, key, trigger("x" * INBOX_BYTES)) == words.FULL
    assert say(place, key, end("old", "x" * 9000)) == words.DONE
    assert say(place, key, trigger("y" * 9000)) == words.DONE
    assert inbox(place, key) == ["y" * 9000]
    assert say(place, key, trigger("z" * 9000)) == words.FULL


@pytest.mark.parametrize("damaged", ["", "[]", "text", "[", '{"a":1}'])
def test_an_inbox_that_is_none_begins_anew(place: Place, damaged: str) -> None:
    key = place.put("a", inbox=damaged)
    assert say(place, key, trigger("a")) == words.DONE
    assert inbox(place, key) == ["a"]


def test_a_key_with_bytes_that_are_not_utf8_has_an_inbox(place: Place) -> None:
    key = place.put("a\udcff", place.now + 100)
    assert say(place, key, trigger("a")) == words.DONE
    assert place.look() == ["a\udcff"]


# -- ends of runs ----------------------------------------------------------------------------------


def test_redis_says_when_a_run_ended(place: Place) -> None:
    key = place.put("a", place.now + 100)
    assert place.store.say(key, end_line("x", "failed"), kind=words.END, age=3.5) == words.DONE
    assert place.store.say(key, end_line("x", "failed"), kind=words.END, age=0) == words.DONE
    (said,) = read_inbox(place.stored(key)["inbox"])
    assert said.end is not None
    assert (said.end.id, said.end.state) == ("x", "failed")
    assert said.end.at == pytest.approx(place.now - 3.5, abs=3), (
        "a repeated report is no second line"
    )


def test_the_first_report_of_a_schedule_is_noted(place: Place) -> None:
    key = place.put("a", place.now + 100)
    say(place, key, trigger("t"))
    assert not place.client.exists(aside("stats"))
    for name in ("x", "y"):
        place.store.say(key, end_line(name, ""), kind=words.END, age=0)
    since = float(place.client.hget(aside("stats"), "reports_since"))
    end = read_inbox(place.stored(key)["inbox"])[1].end
    assert end is not None
    assert since == end.at


def test_results_are_kept_newest_first_one_a_run(place: Place) -> None:
    key = place.put("a", place.now + 100)

    def keep(*ends: Ended, lines: int = 3) -> list[str]:
        results = [(result_start(end.id), result_line(end)) for end in ends]
        place.apply(Change(key, new_mark(), results=results, lines=lines))
        text = place.stored(key).get("results")
        return [end.id + end.state[:1] for end in read_results(text).values()]

    odd = 'o"\\\u00e9'
    assert keep(Ended("a", "retried", at=1.0)) == ["ar"]
    assert keep(Ended("b", "failed", at=2.0), Ended("a", "succeeded", at=3.0)) == ["as", "bf"]
    assert keep(Ended(odd, "failed", at=4.0), Ended(odd, "retried", at=4.0)) == [
        f"{odd}r",
        "as",
        "bf",
    ]
    assert keep(Ended("bb", "failed", at=5.0)) == ["bbf", f"{odd}r", "as"], "the oldest one goes"
    assert keep(Ended("as", "failed", at=6.0), Ended("a", "failed", at=6.0)) == ["af", "asf", "bbf"]
    assert keep(Ended("c", "failed", at=7.0), lines=0) == []
    assert "results" not in place.stored(key)
