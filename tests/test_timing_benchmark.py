"""The benchmark compares equal work with Celery's schedules. No test asserts its timings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from benchmarks.timing import CASES, START, Case, instants, main, sides


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_both_sides_give_the_same_answer(case: Case) -> None:
    ours, theirs = sides(case, START)
    for moment in instants(300):
        assert ours(moment) == START + theirs(moment), moment


def test_instants_are_on_all_days_and_at_all_hours() -> None:
    moments = instants(500)
    assert {moment.weekday() for moment in moments} == set(range(7))
    assert {moment.hour for moment in moments} == set(range(24))
    assert moments[-1] - moments[0] > timedelta(days=700)


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--rounds", "1", "--calls", "5"])
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        case.title for case in CASES
    ]
