"""Tests of the clocks of simulated hosts."""

from __future__ import annotations

from tests.simulation.clocks import SECOND, Host


def test_a_drift_counts_from_its_beginning() -> None:
    host = Host("beat-1")
    host.drift_from(100 * SECOND, 10_000)
    assert host.monotonic(100 * SECOND) == 100 * SECOND
    assert host.monotonic(200 * SECOND) == 201 * SECOND


def test_another_drift_does_not_set_a_clock_back() -> None:
    host = Host("beat-1")
    host.drift_from(100 * SECOND, 10_000)
    host.drift_from(200 * SECOND, -10_000)
    assert host.monotonic(200 * SECOND) == 201 * SECOND
    assert host.monotonic(300 * SECOND) == 300 * SECOND


def test_a_fast_clock_ends_a_wait_early() -> None:
    host = Host("beat-1")
    assert host.lasting(1.0) == SECOND
    host.drift_from(0, 250_000)
    assert host.lasting(1.0) == 800_000


def test_a_jump_changes_only_the_wall_clock() -> None:
    host = Host("beat-1")
    host.drift_from(0, 10_000)
    host.offset += 400 * SECOND
    assert host.monotonic(100 * SECOND) == 101 * SECOND
    assert host.wall(100 * SECOND) == 501 * SECOND
