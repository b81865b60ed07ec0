"""Runs workloads with the compared schedulers and computes medians, for all measurements."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .drain import Scene
from .metering import Metrics
from .sides import SCRIPTS, Side, install_peer, ours
from .suite import Case, in_turn, run_case

__all__ = ("Bench",)

#: Exit code of ``peerload.py`` if a scheduler cannot store the entries in time.
TOO_SLOW = 3


@cache
def installed(name: str) -> Side:
    """Install a scheduler and return it; Celery's own scheduler needs no installation."""
    return Side("celery", "", sys.executable) if name == "celery" else install_peer(name)


@dataclass(frozen=True)
class Bench:
    """One run of the benchmarks.

    ``url`` is the URL of a Redis server; the benchmarks delete all its data. ``settings`` are extra
    settings for the beats of RedBeat 3 in measurements that publish messages. ``note`` is a
    function that prints progress messages.
    """

    url: str
    quick: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: Callable[[str], None] = print

    def size(self, full: int, quick: int) -> int:
        """Return ``quick`` if the option ``--quick`` was given, otherwise ``full``."""
        return quick if self.quick else full

    @property
    def ours(self) -> Side:
        """RedBeat 3, imported from this checkout."""
        return ours()

    @property
    def release(self) -> Side:
        """RedBeat 2, the version of celery-redbeat that RedBeat 3 replaces."""
        return installed("peer")

    @property
    def port(self) -> int:
        """The port of the Redis server."""
        return urlsplit(self.url).port or 6379

    def scene(self, port: int | None = None, **settings: Any) -> Scene:
        """Return the URLs and settings for beats; ``port`` may be the port of a delaying proxy."""
        server = f"redis://127.0.0.1:{port or self.port}"
        return Scene(f"{server}/0", f"{server}/1", settings)

    def rounds(self, full: int, sides: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        """Call ``work`` for each scheduler in each round; return a list of results per scheduler.

        With the option ``--quick``, there is only one round.
        """
        results: dict[int, list[Any]] = {index: [] for index in range(len(sides))}
        for number in range(self.size(full, 1)):
            for index in in_turn(range(len(sides)), number):
                results[index].append(work(sides[index]))
        return [results[index] for index in range(len(sides))]

    def times(self, full: int, sides: Sequence[Any], work: Callable[[Any], float]) -> list[float]:
        """Return the median of the results of :meth:`rounds` for each scheduler."""
        return [statistics.median(each) for each in self.rounds(full, sides, work)]

    def both(self, case: Case, rounds: int = 3, url: str = "") -> tuple[Metrics, Metrics]:
        """Return the median metrics of a workload for RedBeat 3 and for RedBeat 2."""
        self.note(
            f"measuring the workload {case.workload} with {case.entries:,} entries, "
            "for RedBeat 3 and RedBeat 2"
        )
        sides = (self.ours, self.release)
        mine, theirs = self.rounds(rounds, sides, lambda side: self.case(side, case, url))
        return medians(mine), medians(theirs)

    def case(self, side: Side, case: Case, url: str = "") -> Metrics:
        """Run one workload and return its metrics."""
        return run_case(side, url or self.url, case)

    def module(self, name: str, *arguments: Any) -> Metrics:
        """Run a module of this package in a subprocess and return its metrics."""
        command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
        return output(command, SCRIPTS.parent, self.ours.environment())

    def peer(self, name: str, workload: str, entries: int, seconds: int) -> Metrics | None:
        """Run a workload with another scheduler; return the metrics, or None after a timeout."""
        side = installed(name)
        self.note(f"{name}: {workload}, {entries:,} entries")
        script, sizes = str(SCRIPTS / "peerload.py"), ("--entries", entries, "--seconds", seconds)
        command = [side.python, script, name, self.url, workload, *map(str, sizes)]
        with tempfile.TemporaryDirectory(prefix="redbeat-benchmark-") as scratch:
            variables = side.environment(TMPDIR=scratch)
            try:
                return output(command, Path(scratch), variables, 4 * seconds)
            except (TimeoutError, subprocess.TimeoutExpired):
                return None


def medians(samples: Sequence[Metrics]) -> Metrics:
    """Return the median of each metric."""
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


def output(
    command: Sequence[str], directory: Path, variables: dict[str, str], limit: float = 600
) -> Metrics:
    """Run a command and return its JSON output.

    Raises TimeoutError if the command exits with ``TOO_SLOW``. Raises RuntimeError with the end of
    stderr if the command fails with an exit code other than ``TOO_SLOW``.
    """
    result = subprocess.run(
        command,
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    if result.returncode == TOO_SLOW:
        raise TimeoutError(result.stderr)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    metrics: Metrics = json.loads(result.stdout)
    return metrics
