"""What is measured, and how: both sides in turn, on the same server, medians of the rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .beats import BeatCase, run_beat
from .sides import SCRIPTS, Side, environment
from .workload import Metrics

__all__ = ("FULL", "QUICK", "Case", "Plan", "Results", "run_case", "run_plan")

#: Seconds one measurement may take.
LIMIT = 600


@dataclass(frozen=True, slots=True)
class Case:
    """One workload, with its options."""

    workload: str
    entries: int
    repeat: int = 3
    schedule: str = "interval"

    def command(self, url: str) -> list[str]:
        """Return the arguments of ``workload.py``."""
        sizes = ["--entries", str(self.entries), "--repeat", str(self.repeat)]
        return [url, self.workload, *sizes, "--schedule", self.schedule]


@dataclass(frozen=True, slots=True)
class Plan:
    """The cases of one run of the benchmarks; ``beat`` is measured once, it takes its time."""

    rounds: int
    cases: tuple[Case, ...]
    beat: BeatCase


FULL = Plan(
    rounds=5,
    cases=(
        Case("tick", 1, repeat=100),
        Case("tick", 500, repeat=10),
        Case("tick", 1000, repeat=5),
        Case("tick", 5000),
        Case("tick", 1000, repeat=5, schedule="crontab"),
        Case("startup", 10_000),
        Case("idle", 0, repeat=200),
        Case("idle", 10_000, repeat=200),
        Case("idle", 100_000, repeat=200),
        Case("save", 1000),
        Case("memory", 5000),
    ),
    beat=BeatCase(entries=100, seconds=30),
)

QUICK = Plan(
    rounds=1,
    cases=(
        Case("tick", 1, repeat=10),
        Case("tick", 500),
        Case("tick", 1000),
        Case("tick", 600, schedule="crontab"),
        Case("startup", 1000),
        Case("idle", 0, repeat=20),
        Case("idle", 1000, repeat=20),
        Case("save", 100),
        Case("memory", 500),
    ),
    beat=BeatCase(entries=20, seconds=3),
)

#: Case -> name of the side -> metrics.
Results = dict[Case | BeatCase, dict[str, Metrics]]


def run_case(side: Side, url: str, case: Case) -> Metrics:
    """Run one workload in a process of its own; raises RuntimeError when that fails."""
    command = [side.python, str(SCRIPTS / "workload.py"), *case.command(url)]
    with tempfile.TemporaryDirectory(prefix="redbeat-benchmark-") as empty:
        done = subprocess.run(
            command,
            cwd=empty,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{case} failed with {side.version}:\n{done.stderr[-2000:]}")
    metrics: Metrics = json.loads(done.stdout)
    return metrics


def run_plan(
    plan: Plan, sides: Sequence[Side], url: str, note: Callable[[str], None] = print
) -> Results:
    """Measure everything; ``note`` is told about the progress."""
    samples: dict[Case | BeatCase, dict[str, list[Metrics]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for turn in range(plan.rounds):
        for case in plan.cases:
            note(f"round {turn + 1} of {plan.rounds}: {case.workload}, {case.entries} entries")
            for side in in_turn(sides, turn):
                samples[case][side.name].append(run_case(side, url, case))
    for side in sides:
        note(f"a real beat, {plan.beat.seconds} s: {side.version}")
        samples[plan.beat][side.name].append(run_beat(side, url, plan.beat))
    return {
        case: {side: medians(found) for side, found in by_side.items()}
        for case, by_side in samples.items()
    }


def in_turn(sides: Sequence[Side], turn: int) -> Sequence[Side]:
    """Return the sides in an order that changes with every round."""
    return sides if turn % 2 == 0 else sides[::-1]


def medians(samples: list[Metrics]) -> Metrics:
    """Return the median of each metric."""
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}
