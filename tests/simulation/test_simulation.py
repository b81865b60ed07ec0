"""Scenarios by chance, all orders of a few steps, and years: each in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.scenario import PROFILES, Scenario, Step, generate
from tests.simulation.shrink import shrunk

#: Real seconds after which a simulation counts as one that hangs.
LONGEST = 100


def simulation(*arguments: str) -> str:
    """Run the command; return what it printed. Fails with that when it ends with an error."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert ended.returncode == 0, f"{' '.join(command[1:])}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("profile", PROFILES)
def test_everything_goes_on_after_faults(profile: str) -> None:
    printed = simulation("--profile", profile, "--seeds", "1:6", "--no-shrink")
    assert printed.startswith("6 scenarios, 0 failed")


def test_one_fault_at_every_step() -> None:
    assert ", 0 failed" in simulation("--exhaustive", "--switches", "0", "--mode", "no-lock")


def test_a_year_of_wall_clocks() -> None:
    assert "1 scenarios, 0 failed" in simulation("--years", "1", "--zones", "Australia/Lord_Howe")


def test_a_scenario_follows_from_its_seed() -> None:
    one = generate(7, "everything")
    assert Scenario.from_json(one.to_json()).to_json() == one.to_json()
    assert generate(7, "everything").to_json() == one.to_json()
    assert generate(8, "everything").to_json() != one.to_json()


def test_what_does_not_matter_is_left_out() -> None:
    steps = tuple(Step(float(number), "save", "web-1", f"entry-{number}") for number in range(40))

    def fails(scenario: Scenario) -> bool:
        return {"entry-3", "entry-31"} <= {step.entry for step in scenario.steps}

    small = shrunk(Scenario(seed=1, steps=steps), fails)
    assert [step.entry for step in small.steps] == ["entry-3", "entry-31"]
