"""Shrinks a failing scenario: removes steps while the scenario still fails."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.scenario import Scenario

__all__ = ("shrunk",)


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool], attempts: int = 80) -> Scenario:
    """Return a smaller scenario that still fails, after at most ``attempts`` simulations."""
    size = max(len(scenario.steps) // 2, 1)
    while attempts > 0:
        smaller = None
        for first in range(0, len(scenario.steps), size):
            attempts -= 1
            candidate = scenario.without(set(range(first, first + size)))
            if candidate.steps and fails(candidate):
                smaller = candidate
                break
            if attempts <= 0:
                break
        if smaller is not None:
            scenario = smaller
        elif size == 1:
            break
        else:
            size = max(size // 2, 1)
    return scenario
