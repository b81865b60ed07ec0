"""What became of runs, as real workers report it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.history import RunResult
from tests.acceptance.processes import Process, Project
from tests.waiting import wait_until
from tests.workers import reporting

MODULE = "tests.acceptance.outcomes"


class Site:
    """The project with a worker and entries that end in different ways."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.app = Celery("outcomes", broker=project.url, set_as_current=False)
        self.app.conf.result_expires = None

    def entry(self, name: str, task: str, *args: Any, **fields: Any) -> RedBeatSchedulerEntry:
        """Save an entry that is due once, now."""
        entry = RedBeatSchedulerEntry(
            name, f"{MODULE}.{task}", 3600, list(args), app=self.app, **fields
        )
        entry.save()
        entry.trigger()
        return entry

    def beat(self) -> Process:
        return self.project.beat(settings={"include": [MODULE]})

    def worker(self, *pool: str) -> Process:
        worker = self.project.start(
            *("worker", "--without-gossip", "--without-mingle", "-l", "info", *pool),
            settings={
                "include": [MODULE],
                "worker_cancel_long_running_tasks_on_connection_loss": True,
            },
        )
        worker.wait_for("ready.")
        return worker

    def result(self, entry: RedBeatSchedulerEntry, *states: str) -> RunResult:
        """Wait until the last run of an entry has ended in one of the states."""

        def ended() -> RunResult | None:
            history = entry.history
            result = history[0].result if history else None
            return result if result is not None and result.state in states else None

        try:
            wait_until(ended, 30, f"{entry.name} to end with {states}")
        except AssertionError as error:
            logs = "\n".join(process.output() for process in self.project.processes)
            raise AssertionError(f"{error}: {entry.history}\n{logs}") from None
        result = ended()
        assert result is not None
        return result


@pytest.fixture
def site(project: Project) -> Iterator[Site]:
    """The project, with an app that expects reports of workers."""
    site = Site(project)
    with reporting(site.app):
        yield site


@pytest.mark.long
def test_every_way_to_end(site: Site) -> None:
    site.worker("--pool", "prefork", "-c", "3")
    site.beat()
    succeed, fail = site.entry("succeed", "succeed"), site.entry("fail", "fail")
    retry, die = site.entry("retry", "retry"), site.entry("die", "leave")
    limited = site.entry("limited", "take", 60, options={"time_limit": 1})
    expired = site.entry("expired", "succeed", options={"expires": 0.000001})
    unknown = site.entry("unknown", "unknown")

    result = site.result(succeed, "succeeded")
    assert result.seconds is not None
    assert result.seconds < 5
    assert succeed.status.last_success == result.ended_at
    assert site.result(fail, "failed").error == "ValueError: no room"
    assert fail.status.consecutive_failures == 1
    result = site.result(retry, "succeeded")
    assert (result.retries, result.error) == (1, None)
    result = site.result(limited, "failed")
    assert result.error is not None
    assert result.error.startswith("TimeLimitExceeded")
    result = site.result(die, "failed")
    assert result.error is not None
    assert result.error.startswith("WorkerLostError")
    assert site.result(expired, "revoked").error == "expired"
    result = site.result(unknown, "failed")
    assert result.error is not None
    assert "unknown" in result.error


@pytest.mark.long
def test_a_revoked_run_and_a_killed_worker(site: Site) -> None:
    worker = site.worker("--pool", "prefork", "-c", "2")
    site.beat()
    first = site.entry("first", "succeed")
    site.result(first, "succeeded")
    entry = site.entry("long", "take", 60, overlap_timeout=2)
    task_id = wait_until(lambda: [run.task_id for run in entry.history], 20, "the run")[0]
    worker.wait_for(f"take[{task_id}] received")
    site.app.control.revoke(task_id, terminate=True)
    assert site.result(entry, "revoked").error == "terminated"

    entry.trigger()
    wait_until(lambda: len(entry.history) == 2, 20, "the second run")
    task_id = entry.history[0].task_id
    worker.wait_for(f"take[{task_id}] received")
    worker.end()
    assert site.result(entry, "lost").ended_at is None


def test_a_failing_entry_is_paused(site: Site) -> None:
    site.worker("--pool", "solo")
    site.beat()
    entry = site.entry("fail", "fail", pause_after_failures=1)
    wait_until(lambda: entry.status.state == "paused", 30, "the pause")
    assert entry.status.note == "1 failed run in a row, the last with ValueError: no room"
