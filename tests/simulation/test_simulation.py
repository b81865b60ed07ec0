"""Random scenarios, all orders of a few steps, and years, each in a separate interpreter."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.scenario import PROFILES, Scenario, Step, generate
from tests.simulation.shrink import shrunk

ROOT = Path(__file__).parents[2]
#: Real seconds after which a simulation is considered hanging.
LONGEST = 300
pytestmark = pytest.mark.timeout(LONGEST)
#: Profiles of the short run; the others take longer, or occur in tests/faults too.
QUICK = (
    *("calm", "data", "failovers", "legacy"),
    *("raw", "limits", "network", "policies", "unrecorded", "early"),
)
#: Number of tests that share these profiles. Each starts an interpreter, which takes a second.
PARTS = 3


def simulation(*arguments: str, longest: float = LONGEST) -> str:
    """Run the simulator and return its output; if it fails, fail with its output."""
    words = [sys.executable, "-m", "tests.simulation", *arguments]
    ended = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=longest, check=False
    )
    assert ended.returncode == 0, f"{' '.join(words[1:])}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("part", range(PARTS))
def test_random_scenarios_recover_from_faults(part: int) -> None:
    profiles = [word for name in QUICK[part::PARTS] for word in ("--profile", name)]
    assert ", 0 failed" in simulation(*profiles, "--seeds", "1", "--no-shrink")


@pytest.mark.parametrize("broker", [pytest.param("same", marks=pytest.mark.long), "separate"])
def test_one_fault_at_every_step(broker: str) -> None:
    faults = ("--fault", "kill", "--beat", "beat-1")
    options = ("--switches", "0", "--mode", "no-lock", "--broker", broker, *faults)
    assert ", 0 failed" in simulation("--exhaustive", *options)


@pytest.mark.long
def test_a_year_of_wall_clocks() -> None:
    assert "1 scenarios, 0 failed" in simulation("--years", "1", "--zones", "Australia/Lord_Howe")


def test_simulations_and_backfills_equal_what_beats_send() -> None:
    assert "1 spans, 0 wrong" in simulation("--look-back", "0")


@pytest.mark.long
def test_backfills_of_new_entries() -> None:
    assert "1 spans, 0 wrong" in simulation("--first-backfills", "0")


def test_a_scenario_follows_from_its_seed() -> None:
    one = generate(7, "everything")
    assert Scenario.from_json(one.to_json()).to_json() == one.to_json()
    assert generate(7, "everything").to_json() == one.to_json()
    assert generate(8, "everything").to_json() != one.to_json()


def test_steps_that_do_not_matter_are_left_out() -> None:
    steps = tuple(Step(float(number), "save", "web-1", f"entry-{number}") for number in range(40))

    def fails(scenario: Scenario) -> bool:
        return {"entry-3", "entry-31"} <= {step.entry for step in scenario.steps}

    small = shrunk(Scenario(seed=1, steps=steps), fails)
    assert [step.entry for step in small.steps] == ["entry-3", "entry-31"]


class TestFailure:
    """Tests what a failing run prints."""

    #: A scenario that fails, because there is no such beat.
    failing = Scenario(
        seed=3,
        leader="beat-9",
        duration=6.0,
        calm=2.0,
        steps=tuple(Step(at, "stall", "redis", seconds=0.1) for at in (1.5, 2.0, 2.5)),
    )

    def commands(self, path: Path) -> dict[str, list[str]]:
        """Run the failing scenario, and return the commands that it prints, by purpose."""
        words = [sys.executable, "-m", "tests.simulation", "--replay", str(path), "--no-shrink"]
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        lines = [line.strip().partition(": ") for line in ended.stdout.splitlines()]
        return {
            what: shlex.split(command)
            for what, _, command in lines
            if "tests.simulation" in command
        }

    def test_it_prints_commands_that_replay_and_shrink_it(self, tmp_path: Path) -> None:
        path = tmp_path / "scenario.json"
        path.write_text(self.failing.to_json())
        commands = self.commands(path)
        assert [*commands] == ["replay", "shrink"]
        assert "--trace" in commands["replay"]
        words = [sys.executable, *commands["shrink"][1:-1], str(tmp_path / "kept")]
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        small = Scenario.from_json((tmp_path / "kept" / "scenario.json").read_text())
        assert len(small.steps) == 1

    def test_a_case_of_the_exhaustive_search_can_be_replayed(self) -> None:
        printed = simulation("--case", "no-lock/separate/reply lost/beat-1/2/3,5")
        assert "1 scenarios, 0 failed" in printed
        assert "1 reply lost" in printed


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestAtLength:
    """Longer versions of the same tests."""

    @pytest.mark.parametrize("profile", PROFILES)
    def test_random_scenarios_recover_from_faults(self, profile: str) -> None:
        printed = simulation("--profile", profile, "--seeds", "2:12", "--no-shrink", longest=900)
        assert ", 0 failed" in printed

    @pytest.mark.parametrize("mode", ["lock", "no-lock"])
    def test_one_fault_at_every_step_with_one_switch(self, mode: str) -> None:
        cases = simulation("--exhaustive", "--switches", "1", "--mode", mode, longest=900)
        assert ", 0 failed" in cases

    def test_a_year_in_all_zones(self) -> None:
        assert ", 0 failed" in simulation("--years", "1", "--all-zones", longest=900)

    def test_simulations_and_backfills_in_all_zones(self) -> None:
        assert "4 spans, 0 wrong" in simulation("--look-back", "4", longest=900)

    def test_backfills_of_new_entries(self) -> None:
        assert "4 spans, 0 wrong" in simulation("--first-backfills", "4", longest=900)
