"""The benchmark compares equal work with Celery's schedules. No test asserts its timings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from benchmarks.timing import CASES, START, Case, Result, as_text, instants, main, measure, sides


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_both_sides_give_the_same_answer(case: Case) -> None:
    ours, theirs = sides(case, START)
    for moment in instants(300):
        assert ours(moment) == START + theirs(moment), moment


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.title)
def test_a_case_is_measured(case: Case) -> None:
    result = measure(case, rounds=2, calls=20)
    assert result.title == case.title
    assert result.ours > 0
    assert result.celery > 0


def test_instants_are_on_all_days_and_at_all_hours() -> None:
    moments = instants(500)
    assert {moment.weekday() for moment in moments} == set(range(7))
    assert {moment.hour for moment in moments} == set(range(24))
    assert moments[-1] - moments[0] > timedelta(days=700)


def test_the_table_marks_what_misses_the_target() -> None:
    heading, good, bad = as_text([Result("a", 1e-6, 7e-6), Result("b", 2e-6, 3e-6)]).splitlines()
    assert heading.split() == ["schedule", "ours", "Celery", "ratio", "target", "5"]
    assert good.split() == ["a", "1.0", "µs", "7.0", "µs", "7.0"]
    assert bad.split() == ["b", "2.0", "µs", "3.0", "µs", "1.5", "below"]


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--rounds", "1", "--calls", "5"])
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        case.title for case in CASES
    ]
