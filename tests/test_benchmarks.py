"""The benchmarks run, on this side alone; only what can be counted is asserted, never a time."""

from __future__ import annotations

import pytest

from benchmarks.beats import BeatCase, Message, metrics_of, run_beat
from benchmarks.report import as_rst, as_text, rows
from benchmarks.sides import Side, ours
from benchmarks.suite import QUICK, Case, Plan, Results, in_turn, run_case, run_plan
from benchmarks.workload import Metrics


def measure(url: str, workload: str, entries: int, repeat: int = 2) -> Metrics:
    return run_case(ours(), url, Case(workload, entries, repeat=repeat))


@pytest.mark.parametrize(("entries", "most"), [(1, 2), (500, 2), (1001, 4)])
def test_a_tick_makes_two_round_trips_per_500(redis_url: str, entries: int, most: int) -> None:
    # A machine that stalls has a tick record in between, or end early; more trips are in all.
    found: list[object] = []
    for _ in range(5):
        try:
            found.append(measure(redis_url, "tick", entries, repeat=9)["round_trips"])
        except RuntimeError as error:
            found.append(str(error))
        if found[-1] in range(most + 1):
            return
    raise AssertionError(found)


@pytest.mark.parametrize("entries", [0, 600])
def test_an_idle_tick_is_one_round_trip(redis_url: str, entries: int) -> None:
    assert measure(redis_url, "idle", entries)["round_trips"] == 1


def test_a_start_does_not_ask_for_every_entry(redis_url: str) -> None:
    few, many = (measure(redis_url, "startup", entries) for entries in (500, 1500))

    assert many["cold_round_trips"] - few["cold_round_trips"] <= 2
    assert many["warm_round_trips"] - few["warm_round_trips"] <= 2


def test_a_new_entry_is_saved_in_one_round_trip(redis_url: str) -> None:
    saved = measure(redis_url, "save", 20)

    assert saved["new_round_trips"] == 1
    assert saved["again_round_trips"] <= 2


def test_memory_is_measured(redis_url: str) -> None:
    assert measure(redis_url, "memory", 200)["saved_each"] > 0


def test_a_workload_that_fails_says_so(redis_url: str) -> None:
    with pytest.raises(RuntimeError, match="invalid choice"):
        measure(redis_url, "nothing", 1)


def test_a_real_beat_sends_what_is_expected(redis_url: str) -> None:
    found = run_beat(ours(), redis_url, BeatCase(entries=2, seconds=1))

    assert found["share"] > 0
    assert {"late_p50", "late_p99"} <= found.keys()


def test_regularity_is_measured_for_each_entry() -> None:
    messages = [Message(at, name, at - 0.25) for at in (1.0, 2.0, 4.0) for name in ("a", "b")]

    found = metrics_of(messages, BeatCase(entries=2, seconds=4))

    assert found == {"share": 0.75, "gap_p50": 1, "gap_p99": 2, "late_p50": 0.25, "late_p99": 0.25}


def test_a_release_that_does_not_tell_the_nominal_instant_has_no_lateness() -> None:
    assert metrics_of([Message(1.0, "a", None)], BeatCase(1, 1)) == {"share": 1}


def test_a_plan_tells_what_it_does(redis_url: str) -> None:
    plan = Plan(rounds=2, cases=(Case("idle", 0),), beat=BeatCase(entries=1, seconds=1))
    notes: list[str] = []

    results = run_plan(plan, (ours(),), redis_url, notes.append)

    assert list(results) == [*plan.cases, plan.beat]
    assert len(notes) == 3


def test_the_sides_change_their_order() -> None:
    one, other = Side("ours", "3", "python"), Side("peer", "2", "python")

    assert list(in_turn((one, other), 0)) == [one, other]
    assert list(in_turn((one, other), 1)) == [other, one]


RESULTS: Results = {
    Case("tick", 1): {"ours": {"later_each": 1e-3}, "peer": {"later_each": 2e-3}},
    Case("idle", 10_000): {"ours": {"round_trips": 1.0}, "peer": {"round_trips": 2.0}},
    BeatCase(100, 30): {"ours": {"share": 1.0, "late_p50": 0.002}, "peer": {"share": 0.9}},
}


def test_the_table_shows_ratios() -> None:
    assert [(row.ours, row.peer, row.ratio, row.aim) for row in rows(RESULTS)] == [
        ("1,000 µs", "2,000 µs", "2.0", ""),
        ("1", "2", "2.0", "1"),
        ("100.0%", "90.0%", "-", "100 %"),
        ("2.0 ms", "-", "-", ""),
    ]


def test_both_forms_of_the_table_tell_what_they_depend_on() -> None:
    text, rst = as_text(RESULTS, "redis-server 1.2"), as_rst(RESULTS, "redis-server 1.2", "--quick")

    assert "round trips of an idle tick, 10,000 stored" in text
    assert '"round trips of an idle tick, 10,000 stored", "1", "2", "2.0", "1"' in rst
    assert "``python -m benchmarks --quick``" in rst
    assert all("redis-server 1.2" in form for form in (text, rst))


def test_quick_looks_at_every_workload() -> None:
    assert {case.workload for case in QUICK.cases} == {"idle", "memory", "save", "startup", "tick"}
