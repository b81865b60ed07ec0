"""Runs a workload with RedBeat 3 or RedBeat 2 in a subprocess."""

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

#: Timeout of a measurement, in seconds.
LIMIT = 600


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and its options."""

    workload: str
    entries: int
    repeat: int = 3
    schedule: str = "interval"
    lock: bool = True

    def command(self, url: str) -> list[str]:
        """Return the command-line arguments for ``workload.py``."""
        sizes = ["--entries", str(self.entries), "--repeat", str(self.repeat)]
        lock = [] if self.lock else ["--no-lock"]
        return [url, self.workload, *sizes, "--schedule", self.schedule, *lock]


def run_case(side: Side, url: str, case: Case) -> Metrics:
    """Run a workload in a subprocess and return its metrics.

    Raises RuntimeError with the stderr of the subprocess if the subprocess fails.
    """
    command = [side.python, str(SCRIPTS / "workload.py"), *case.command(url)]
    with tempfile.TemporaryDirectory(prefix="redbeat-benchmark-") as empty:
        result = subprocess.run(
            command,
            cwd=empty,
            env=side.environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    if result.returncode:
        raise RuntimeError(f"{case} failed with {side.version}:\n{result.stderr[-2000:]}")
    metrics: Metrics = json.loads(result.stdout)
    return metrics


def in_turn(sides: Sequence[Any], number: int) -> Sequence[Any]:
    """Return the items unchanged if the round number is even, otherwise in reverse order."""
    return sides if number % 2 == 0 else sides[::-1]
