"""What every measurement needs: a Redis, the sides, sizes, and medians of rounds in turn."""

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

#: The status of ``peerload.py`` for a peer that cannot store so many entries in time.
TOO_SLOW = 3


@cache
def installed(name: str) -> Side:
    """Return a peer; Celery's own scheduler is in our interpreter."""
    return Side("celery", "", sys.executable) if name == "celery" else install_peer(name)


@dataclass(frozen=True)
class Bench:
    """One run of the benchmarks.

    ``url`` is a Redis that may be emptied. ``settings`` are told to our beats where they publish.
    """

    url: str
    quick: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: Callable[[str], None] = print

    def size(self, full: int, quick: int) -> int:
        """Return which of two numbers is for this run."""
        return quick if self.quick else full

    @property
    def ours(self) -> Side:
        """This project."""
        return ours()

    @property
    def release(self) -> Side:
        """The release that it replaces."""
        return installed("peer")

    @property
    def port(self) -> int:
        """The port of the Redis."""
        return urlsplit(self.url).port or 6379

    def scene(self, port: int | None = None, **settings: Any) -> Scene:
        """Return where processes find schedule and broker; ``port`` is that of a proxy to both."""
        at = f"redis://127.0.0.1:{port or self.port}"
        return Scene(f"{at}/0", f"{at}/1", settings)

    def rounds(self, full: int, sides: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        """Do the work for each side in turn; return a list per side, of the rounds."""
        found: dict[int, list[Any]] = {index: [] for index in range(len(sides))}
        for turn in range(self.size(full, 1)):
            for index in in_turn(range(len(sides)), turn):
                found[index].append(work(sides[index]))
        return [found[index] for index in range(len(sides))]

    def times(self, full: int, sides: Sequence[Any], work: Callable[[Any], float]) -> list[float]:
        """Return the median of the rounds for each side."""
        return [statistics.median(each) for each in self.rounds(full, sides, work)]

    def both(self, case: Case, rounds: int = 3, url: str = "") -> tuple[Metrics, Metrics]:
        """Return the medians of a workload for us and for the release."""
        self.note(f"{case.workload}, {case.entries:,} entries, ours and the release")
        sides = (self.ours, self.release)
        mine, theirs = self.rounds(rounds, sides, lambda side: self.case(side, case, url))
        return medians(mine), medians(theirs)

    def case(self, side: Side, case: Case, url: str = "") -> Metrics:
        """Return what one workload took."""
        return run_case(side, url or self.url, case)

    def module(self, name: str, *arguments: Any) -> Metrics:
        """Run a module of this package in a process of our own, and return its metrics."""
        command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
        return output(command, SCRIPTS.parent, self.ours.environment())

    def peer(self, name: str, workload: str, entries: int, seconds: int) -> Metrics | None:
        """Return what a scheduler of somebody else takes; None when it is too slow for that."""
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
    """Return the JSON that a process prints; raises RuntimeError with what it says otherwise."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    if done.returncode == TOO_SLOW:
        raise TimeoutError(done.stderr)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    metrics: Metrics = json.loads(done.stdout)
    return metrics
