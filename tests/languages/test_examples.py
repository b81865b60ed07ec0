"""Tests that a real beat runs, changes and removes tasks as the programs in docs/examples request.

These tests need Node.js, Ruby and redis-cli, and the network to install the client for Node.js.
Therefore they are collected only if the command line names this directory, as ``.ci/run`` does.
"""

from __future__ import annotations

from tests.acceptance.processes import Project
from tests.languages.conftest import Writer
from tests.waiting import wait_until

TASK = "tests.acceptance.project.note"
KEY, SCHEDULE = "redbeat:poll", "redbeat::schedule"


def test_an_entry_is_written_run_changed_and_removed(writer: Writer, project: Project) -> None:
    project.worker()
    beat = project.beat()
    beat.wait_for("beat: Starting")
    writer.run("save", "poll", TASK, "0.5")
    first, second = project.wait_for_runs("poll", 2)[:2]
    assert first["task_id"] != second["task_id"]
    assert writer.problem("poll") == ""

    writer.run("save", "poll", TASK, "3600")
    wait_until(lambda: (project.client.zscore(SCHEDULE, KEY) or 0) > now(project) + 3000)

    writer.run("remove", "poll")
    assert not project.client.exists(KEY)
    assert project.client.zscore(SCHEDULE, KEY) is None


def test_a_mistake_is_reported_and_can_be_corrected(writer: Writer, project: Project) -> None:
    project.worker()
    project.beat()
    writer.run("save", "poll", TASK, "1e300")
    reason = wait_until(lambda: writer.problem("poll"), 30, "the entry is set aside")
    assert "definition.schedule.every" in reason
    assert project.ran() == []

    writer.run("save", "poll", TASK, "0.5")
    project.wait_for_runs("poll", 1)
    wait_until(lambda: not writer.problem("poll"), 30, "the note of the mistake goes")


def now(project: Project) -> float:
    """Return the time of Redis, in UNIX seconds."""
    seconds, _micros = project.client.time()
    return float(seconds)
