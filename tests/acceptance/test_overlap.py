"""Tests of runs that must not overlap, with real beats and with prefork and solo workers.

Some tests kill the workers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tests.acceptance.ledger import SPANS
from tests.acceptance.processes import Process, Project
from tests.waiting import wait_until

MODULE = "tests.acceptance.overlapping"

PREFORK = ("--pool", "prefork", "-c", "3")
SOLO = ("--pool", "solo")
THREADS = ("--pool", "threads", "-c", "3")

#: Seconds after the end of a run within which a waiting run starts.
PROMPTLY = 0.5


@dataclass
class Run:
    """One execution of a task; times are UNIX seconds, and ``end`` is None while the task runs."""

    id: str
    begin: float
    end: float | None = None


class Site:
    """The project with one entry whose runs must not overlap."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def beat(self, overlap: str, task: str = "take", **fields: Any) -> Process:
        """Start a beat with an entry that is due every second."""
        entry = {"task": f"{MODULE}.{task}", "schedule": 1.0, "overlap": overlap, **fields}
        return self._start("beat", "-S", "redbeat", schedule={"a": entry})

    def worker(self, *pool: str) -> Process:
        return self._start("worker", "--without-gossip", "--without-mingle", *pool)

    def _start(self, *command: str, **more: Any) -> Process:
        return self.project.start(*command, "-l", "info", settings={"include": [MODULE]}, **more)

    def runs(self) -> list[Run]:
        """Return the runs so far, ordered by start."""
        runs: list[Run] = []
        for text in self.project.client.lrange(SPANS, 0, -1):
            line = json.loads(text)
            if line["what"] == "begin":
                runs.append(Run(line["id"], line["at"]))
            else:
                open_run = next(run for run in runs if run.id == line["id"] and run.end is None)
                open_run.end = line["at"]
        return runs

    def wait_for(self, count: int, deadline: float = 40.0) -> list[Run]:
        """Wait until ``count`` runs have started."""
        try:
            wait_until(lambda: len(self.runs()) >= count, deadline, f"{count} runs")
        except AssertionError as error:
            logs = "\n".join(process.output() for process in self.project.processes)
            raise AssertionError(f"{error}; ran: {self.runs()}\n{logs}") from None
        return self.runs()


@pytest.fixture
def site(project: Project) -> Site:
    """Return the project with this entry."""
    return Site(project)


def gaps(runs: list[Run]) -> list[float]:
    """Return the seconds from the end of each run to the start of the next run."""
    found = []
    for earlier, later in pairwise(runs):
        assert earlier.end is not None, "two runs at the same time"
        found.append(later.begin - earlier.end)
    return found


@pytest.mark.long
@pytest.mark.parametrize("pool", [PREFORK, SOLO], ids=["prefork", "solo"])
def test_skip_never_runs_twice_at_the_same_time(site: Site, pool: tuple[str, ...]) -> None:
    site.worker(*pool)
    beat = site.beat("skip", args=[3])
    runs = site.wait_for(3)
    assert min(gaps(runs)) >= 0
    assert max(gaps(runs)) < 1 + PROMPTLY
    assert "Entry a skips the run of" in beat.output()
    assert len({run.id for run in runs}) == len(runs)


@pytest.mark.long
@pytest.mark.parametrize("pool", [PREFORK, SOLO, THREADS], ids=["prefork", "solo", "threads"])
def test_a_waiting_run_begins_promptly(site: Site, pool: tuple[str, ...]) -> None:
    site.worker(*pool)
    site.beat("buffer_one", args=[2.5])
    runs = site.wait_for(4)
    assert min(gaps(runs)) >= 0
    assert max(gaps(runs)) < PROMPTLY


@pytest.mark.long
def test_the_wait_for_a_killed_worker_ends_with_the_timeout(site: Site) -> None:
    worker = site.worker(*PREFORK)
    site.beat("skip", args=[600], overlap_timeout=5)
    first = site.wait_for(1)[0]
    worker.end()
    site.worker(*PREFORK)
    second = site.wait_for(2)[1]
    assert second.id != first.id
    assert 4 < second.begin - first.begin < 15


@pytest.mark.long
def test_a_retried_run_counts_as_running(site: Site) -> None:
    site.worker(*PREFORK)
    site.beat("buffer_one", args=[1], kwargs={"retries": 1})
    runs = site.wait_for(5)
    assert min(gaps(runs)) >= 0
    assert [run.id for run in runs[:4]] == [runs[0].id] * 2 + [runs[2].id] * 2
    assert runs[4].id != runs[2].id != runs[0].id
