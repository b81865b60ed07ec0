"""Tests of the field ``state`` and of the lines of inbox and history."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.entries.backfill import Backfill
from redbeat.entries.decide import Trigger
from redbeat.entries.state import (
    BACKFILLED,
    LONGEST_ERROR,
    SCHEDULED,
    TRIGGERED,
    Ended,
    Failing,
    Hold,
    Marks,
    Pause,
    Quarantine,
    Results,
    Running,
    State,
    digest_of_meta,
    end_line,
    read_inbox,
    read_results,
    result_line,
    result_start,
    runtime_of,
    trigger_line,
    with_runtime,
)

META = '{"last_run_at": null}'
OF = digest_of_meta(META)
DAY = datetime(2026, 11, 26, tzinfo=UTC)
FILLING = Backfill(
    "b1", DAY, DAY + timedelta(days=1), 10.0, 0, 24, ((DAY, DAY + timedelta(days=1)),), 1.5
)

times = st.integers(0, 4_000_000_000_000_000).map(lambda us: us / 1_000_000)
words = st.text("abcXYZ019_-", max_size=12)
texts = st.text(max_size=12)
ids = st.text("abc:/ é\n", min_size=1, max_size=12)
instants = times.map(from_timestamp)
triggers = st.builds(Trigger, ids, instants)
ends = st.builds(
    Ended,
    texts,
    st.sampled_from(["succeeded", "failed", "retried", ""]),
    st.none() | st.floats(0, 1e6),
    st.integers(0, 9),
    texts,
    times,
)
states = st.builds(
    State,
    st.builds(Marks, words, words, words),
    texts,
    st.just(OF),
    st.none() | times,
    st.none() | times,
    st.none()
    | st.builds(
        Hold,
        st.sampled_from([SCHEDULED, TRIGGERED, BACKFILLED]),
        times,
        texts,
        times,
        texts,
        st.integers(0, 99),
        st.none() | times,
    ),
    st.none() | st.builds(Running, texts, times, times, st.integers(0, 9)),
    st.none() | st.builds(Failing, times, st.integers(0, 99), texts, times, times, texts),
    st.lists(triggers | st.just(FILLING), max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    st.none() | st.builds(Pause, times, texts, texts),
    st.none() | st.builds(Quarantine, times, texts),
    st.builds(
        Results,
        st.none() | times,
        st.integers(0, 9),
        st.none() | times,
        st.lists(texts, max_size=2).map(tuple),
        st.sampled_from(["succeeded", "failed", "revoked", "ignored", ""]),
    ),
)


@settings(max_examples=60, deadline=None)
@pytest.mark.long
@given(states)
def test_a_state_survives_its_text(state: State) -> None:
    text = state.text()
    assert State.read(text, META) == state
    assert text.isascii()
    for mark in state.marks:
        assert f'"{mark}"' in text


def test_what_most_states_are_is_short() -> None:
    state = State(Marks("abcdefghijkl", "", "abcdefghijkl"), "identity", OF, 1764189960.5)
    text = state.text()
    assert len(text) <= 110
    assert State.read(text, META) == state
    state.running = Running("0c7ee5a0-6a23-5f8b-8d33-3a5b3a5b3a5b", 1764193560.5)
    assert State.read(state.text(), META) == state
    state.results = Results(1764193560.123456, 0, 1764193500.5)
    assert State.read(state.text(), META) == state


@given(ends)
def test_the_end_of_a_run_survives_its_line(end: Ended) -> None:
    line = result_line(end)
    assert line.isascii()
    assert "\n" not in line
    assert line.startswith(result_start(end.id))
    assert read_results(f"[{line}]") == {end.id: end}


def test_the_newest_line_of_a_run_counts() -> None:
    ends = [
        Ended("b", "failed", 0.5, 1, 'ValueError: "\n', 3.0),
        Ended("a", "succeeded", at=2.0),
        Ended("a", "retried", at=1.0),
    ]
    lines = ["zonk", *map(result_line, ends), '["c"]', "5"]
    text = "[" + ",\n".join(lines) + "]"
    assert read_results(text) == {"b": ends[0], "a": ends[1]}
    assert read_results(None) == {}


def full() -> State:
    return State(
        Marks("last", "hold", "run"),
        "identity",
        OF,
        at=1.0,
        due=2.0,
        hold=Hold(SCHEDULED, 3.0, "id", 33.0),
        running=Running("other", 4.0),
        failing=Failing(5.0, 1, "away"),
        waiting=(Trigger("t1", from_timestamp(6.0)),),
        ids=("t0",),
        pause=Pause(8.0, "note", "ann"),
        quarantine=Quarantine(9.0, "reason"),
        results=Results(10.0, 1, 11.0, ()),
    )


@pytest.mark.parametrize("name", ["at", "due", "hold", "failing"])
def test_under_another_meta_it_is_void(name: str) -> None:
    text = full().text()
    assert getattr(State.read(text, META), name) is not None
    for other in (None, '{"last_run_at":null}'):
        assert getattr(State.read(text, other), name) is None


@pytest.mark.parametrize(
    "name", ["running", "identity", "waiting", "ids", "pause", "quarantine", "results", "marks"]
)
def test_under_another_meta_it_stays(name: str) -> None:
    text = full().text()
    assert getattr(State.read(text, None), name) == getattr(full(), name)


def test_what_is_void_does_not_come_back_with_the_next_change() -> None:
    stored = State.read(full().text(), None).text()
    again = State.read(stored, META)
    assert (again.at, again.due, again.hold, again.failing) == (None,) * 4
    assert again.marks.hold == "hold"  # by which its owner still finds the run


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "1",
        '{"m":["a\\"b","",""]}',
        '{"m":"abcd"}',
        '{"at":"soon"}',
        '{"at":1e999}',
        '{"at":null}',
        '{"hold":["lost",1,"id",2,"",0]}',
        '{"hold":[]}',
        '{"running":["x"]}',
        '{"waiting":["no backfill"]}',
        '{"waiting":[["",1]]}',
        '{"results":[null,-1]}',
        '{"results":{"failures":1}}',
        '{"id":5}',
        "[" * 100_000,
    ],
)
def test_an_unreadable_state_is_a_fresh_one_with_a_problem(text: str) -> None:
    state = State.read(text, META)
    assert bool(state.problem) == bool(text)
    state.problem = ""
    assert state == State(meta=OF)


def test_signing() -> None:
    state = State(Marks("a", "b", "c"))
    state.sign("d")
    assert state.marks == ("d", "b", "c")
    state.sign("e", hold=True)
    assert state.marks == ("e", "e", "c")
    state.sign("f")
    assert state.marks == ("f", "e", "c")
    state.sign("g", run=True)
    assert state.marks == ("g", "", "g")


@pytest.mark.parametrize("meta", ["", "{}", "\udcff", "ä"])
def test_each_meta_has_a_digest(meta: str) -> None:
    assert digest_of_meta(meta) not in ("", digest_of_meta(META), digest_of_meta(meta + " "))
    assert digest_of_meta(None) == ""


def test_inbox() -> None:
    lines = [
        trigger_line("t1", 1.5),
        dated(end_line("id", "failed", 0.5, 3, 'ValueError("\n\u00e9")'), 2.5),
        dated(end_line("id", ""), 2.5),
    ]
    assert all(line.isascii() and "\n" not in line for line in lines)
    said = read_inbox("[" + ",\n".join(lines) + "]")
    assert [one.line for one in said] == lines
    assert [one.trigger for one in said] == [Trigger("t1", from_timestamp(1.5)), None, None]
    assert said[1].end == Ended("id", "failed", 0.5, 3, 'ValueError("\n\u00e9")', 2.5)
    assert said[2].end == Ended("id", "", at=2.5)
    assert not any(one.error for one in said)


def dated(line: str, at: float) -> str:
    """Return a line to which Redis has added the time."""
    return f"{line[:-1]},{at!r}]"


def test_the_error_of_a_run_is_cut() -> None:
    line = dated(end_line("id", "failed", error="x" * 5000), 1.0)
    end = read_inbox(f"[{line}]")[0].end
    assert end is not None
    assert end.error == "x" * LONGEST_ERROR


@pytest.mark.parametrize(
    "line",
    [
        "zonk",
        "[]",
        "5",
        '["who"]',
        '["trigger"]',
        '["trigger","t1"]',
        '["trigger","",1]',
        '["trigger","t1","soon"]',
        '["trigger","' + "x" * 201 + '",1]',
        '["backfill","b1"]',
        '["end","id","dead",null,0,"",1]',
        '["end","id","failed",null,0.5,"",1]',
        '["end"]',
    ],
)
def test_a_bad_line_disturbs_no_other(line: str) -> None:
    good = trigger_line("t1", 1.0)
    said = read_inbox(f"[{line},\n{good}]")
    assert [bool(one.error) for one in said] == [True, False]
    assert said[0].line == line


def test_files_have_the_last_run() -> None:
    assert with_runtime(State(meta=OF), runtime_of(full())) == State(meta=OF, at=1.0)
    assert runtime_of(State()) == ""
    assert with_runtime(State(at=5.0), "") == State()


@pytest.mark.parametrize(
    "runtime",
    [
        '{"scheduled_at": "soon"}',
        '["scheduled_at"]',
        '{"scheduled_at": ',
    ],
)
def test_what_cannot_be_read_in_a_file_is_left_out(runtime: str) -> None:
    assert with_runtime(State(at=5.0), runtime) == State()
