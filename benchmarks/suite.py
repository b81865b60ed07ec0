"""One workload of one side, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .metering import Metrics
from .sides import SCRIPTS, Side

__all__ = ("Case", "in_turn", "run_case")

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


def run_case(side: Side, url: str, case: Case) -> Metrics:
    """Run one workload in a process of its own; raises RuntimeError when that fails."""
    command = [side.python, str(SCRIPTS / "workload.py"), *case.command(url)]
    with tempfile.TemporaryDirectory(prefix="redbeat-benchmark-") as empty:
        done = subprocess.run(
            command,
            cwd=empty,
            env=side.environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{case} failed with {side.version}:\n{done.stderr[-2000:]}")
    metrics: Metrics = json.loads(done.stdout)
    return metrics


def in_turn(sides: Sequence[Any], turn: int) -> Sequence[Any]:
    """Return the sides in an order that changes with every round."""
    return sides if turn % 2 == 0 else sides[::-1]
