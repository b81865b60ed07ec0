"""Shrinks a failing scenario: removes parts while it still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.scenario import Scenario

#: A word of a violation that differs between similar violations: a number, an id or a name.
VARIABLE = re.compile(r"\S*\d\S*")


def kind_of(violation: str) -> str:
    """Return what the oracle reports in a violation, without time, entry, numbers and ids."""
    _, _, what = violation.partition(": ")
    return VARIABLE.sub("#", what)


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool], attempts: int = 80) -> Scenario:
    """Return a smaller scenario that still fails, after at most ``attempts`` simulations.

    Steps are removed first, then static entries.
    """
    budget = [attempts]

    def with_steps(steps: Sequence[Any]) -> Scenario:
        return replace(scenario, steps=tuple(steps))

    scenario = with_steps(_fewest(scenario.steps, with_steps, fails, budget))

    def with_statics(statics: Sequence[Any]) -> Scenario:
        return replace(scenario, statics=dict(statics))

    statics = [*scenario.statics.items()]
    return with_statics(_fewest(statics, with_statics, fails, budget))


def _fewest(
    parts: Sequence[Any],
    scenario_with: Callable[[Sequence[Any]], Scenario],
    fails: Callable[[Scenario], bool],
    budget: list[int],
) -> Sequence[Any]:
    """Return the fewest parts found with which a scenario still fails.

    ``budget`` has the number of simulations that are left.
    """
    size = max(len(parts) // 2, 1)
    while budget[0] > 0:
        fewer = None
        for first in range(0, len(parts), size):
            left = [*parts[:first], *parts[first + size :]]
            candidate = scenario_with(left)
            if not (candidate.steps or candidate.statics):
                continue
            budget[0] -= 1
            if fails(candidate):
                fewer = left
                break
            if budget[0] <= 0:
                break
        if fewer is not None:
            parts = fewer
        elif size == 1:
            break
        else:
            size = max(size // 2, 1)
    return parts
