"""Tests of the counters of a beat; they need no Redis."""

from __future__ import annotations

from collections import Counter

import pytest

from redbeat.entries.status import LAST_RESULTS
from redbeat.metrics.counters import KINDS, LATENESS, RESULTS, Counters, split


@pytest.fixture
def counters() -> Counters:
    """Return the counters of a beat with two entries."""
    counters = Counters(2)
    counters.confirm(2)
    return counters


def test_counts_are_reported_until_they_are_confirmed(counters: Counters) -> None:
    counters.add("missed", "a", 3)
    first = counters.take()
    counters.dispatched("a", 0.02)
    assert counters.take() == first
    assert dict(first.counts) == {"missed": 3, "missed a": 3}
    counters.confirm(2)
    second = counters.take()
    late = {"lateness:0.025": 1, "lateness:sum": 20_000}
    assert dict(second.counts) == {"dispatched": 1, "dispatched a": 1, **late}
    assert second.id not in ("", first.id)
    assert counters.totals() == {**first.counts, **second.counts}
    counters.confirm(2)
    assert counters.take().id == ""


def test_a_run_that_is_retried_has_not_ended(counters: Counters) -> None:
    counters.ended({"a": "failed", "b": "retried", "c": "failed", "d": "revoked"})
    assert dict(counters.take().counts) == {"runs:failed": 2, "runs:revoked": 1}
    assert {*RESULTS, "running"} == {*LAST_RESULTS}


def test_entries_that_come_and_go_do_not_add_up(counters: Counters) -> None:
    for number in range(1000):
        counters.dispatched(f"once-{number}", None)
        counters.dispatched("always", None)
        counters.take()
        counters.confirm(2)
    totals = counters.totals()
    names = [found[1] for found in map(split, totals) if found]
    assert len(names) == 2 * len(KINDS)
    assert totals["dispatched"] == 2000
    assert totals["dispatched always"] == 1000


def test_a_standby_reports_no_counts(counters: Counters) -> None:
    counters.ticked(0.003, 5, active=False)
    assert counters.take().id == ""
    ticked = {"tick:0.005": 1, "tick:sum": 3000, "round_trips": 5}
    assert counters.totals() == ticked
    counters.ticked(0.003, 7, active=True)
    assert dict(counters.take().counts) == {**ticked, "round_trips": 2}


@pytest.mark.parametrize(
    ("late", "field"),
    [(0.0, "lateness:0.01"), (0.01, "lateness:0.01"), (0.011, "lateness:0.025"), (1e9, "+Inf")],
)
def test_a_step_holds_its_bound(late: float, field: str) -> None:
    assert LATENESS.field(late).endswith(field)
    assert LATENESS.counts([late, 1e8, late]) == Counter(map(LATENESS.field, [late, 1e8, late]))


def test_a_clock_that_is_behind_does_not_count_backwards(counters: Counters) -> None:
    counters.dispatched("a", -3.0)
    assert counters.totals()["lateness:sum"] == 0
