"""Tests of a beat inside a real worker, and of a beat in a thread of a user's program."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from celery import Celery
from celery.beat import EmbeddedService

from redbeat import RedBeatSchedulerEntry
from tests.acceptance.processes import Process, Project
from tests.waiting import wait_until

TASK = "tests.acceptance.project.note"
EVERY_SECOND = {"tick": {"task": TASK, "schedule": 1.0}}
LOCK = "redbeat::lock"


def worker_with_beat(project: Project, name: str, pool: str = "prefork", **kwargs: Any) -> Process:
    """Start a worker with an embedded beat."""
    return project.start(
        *("worker", "-B", "--scheduler", "redbeat", "--pool", pool, "-c", "1", "-n", name),
        *("--without-gossip", "--without-mingle", "-l", "info"),
        schedule=EVERY_SECOND,
        **kwargs,
    )


def instants(runs: list[dict[str, Any]]) -> list[datetime]:
    """Return the scheduled times of runs."""
    return [datetime.fromisoformat(run["scheduled_at"]) for run in runs]


@pytest.mark.parametrize(
    "pool",
    [
        "prefork",
        pytest.param("threads", marks=pytest.mark.long),
        pytest.param("solo", marks=pytest.mark.long),
    ],
)
def test_a_worker_with_an_embedded_beat_runs_entries_and_releases_the_lock(
    project: Project, pool: str
) -> None:
    worker = worker_with_beat(project, "one", pool)
    runs = project.wait_for_runs("tick", 2)
    assert len(set(instants(runs))) == len(runs)
    assert project.client.exists(LOCK) == 1
    assert worker.stop(signal.SIGTERM, deadline=30.0) == 0
    wait_until(lambda: not project.client.exists(LOCK), 10, "the released lock")
    assert "beat: Releasing lock" in worker.output()
    assert "Traceback" not in worker.output()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_the_worker_releases_the_lock(
    project: Project, number: signal.Signals
) -> None:
    """Setup: a worker with an embedded beat.

    Fault: a service manager or Ctrl-C sends a signal to all processes of the worker. The worker
    then sends one more signal to its beat.

    Invariant: the lock is released.
    """
    worker = worker_with_beat(project, "one")
    project.wait_for_runs("tick", 2)
    os.killpg(worker.popen.pid, number)
    worker.popen.wait(30)  # The worker's pool determines the exit code, so it is not checked.
    wait_until(lambda: not project.client.exists(LOCK), 10, "the released lock")
    assert "beat: Releasing lock" in worker.output()


@pytest.mark.long
class TestTwoWorkers:
    """Tests with two workers: each has an embedded beat, and one of the beats leads."""

    @pytest.fixture
    def workers(self, project: Project) -> tuple[Process, Process]:
        """Return the worker with the leader and the worker with the standby."""
        settings = {"redbeat_lock_timeout": 3}
        first = worker_with_beat(project, "first", settings=settings)
        first.wait_for("beat: Acquired lock")
        second = worker_with_beat(project, "second", settings=settings)
        second.wait_for("standing by")
        project.wait_for_runs("tick", 2)
        assert "Sending due task tick" in first.output()
        assert "Sending due task" not in second.output()
        return first, second

    def test_the_other_takes_over_when_one_dies(
        self, project: Project, workers: tuple[Process, Process]
    ) -> None:
        """Setup: two workers, each with an embedded beat.

        Fault: SIGKILL for all processes of the worker with the leader.

        Invariant: the standby leads after the lock timeout, and runs continue with new ids. If a
        run is sent twice, both messages have the same task id.
        """
        first, second = workers
        first.end()
        assert project.client.exists(LOCK) == 1
        killed_at = max(instants(project.ran("tick")))
        second.wait_for("beat: Acquired lock")
        project.wait_for_runs("tick", len(project.ran("tick")) + 3)
        runs = project.ran("tick")
        assert max(instants(runs)) > killed_at
        assert len({run["task_id"] for run in runs}) == len(set(instants(runs)))
        assert "Sending due task tick" in second.output()


class TestThread:
    """Tests of a beat in a thread of a program; a thread receives no signals."""

    @pytest.fixture
    def app(self, redis_url: str) -> Iterator[Celery]:
        """Return the app of the program with the thread."""
        app = Celery("threaded", broker=redis_url, set_as_current=False)
        app.conf.update(timezone="UTC", enable_utc=True, beat_schedule=EVERY_SECOND)
        yield app
        app.redbeat_redis.close()
        app.close()

    def test_a_beat_in_a_thread_runs_and_stops(self, project: Project, app: Celery) -> None:
        project.worker()
        thread: Any = EmbeddedService(app, thread=True, scheduler_cls="redbeat.RedBeatScheduler")
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        thread.start()
        try:
            project.wait_for_runs("tick", 2)
            entry = RedBeatSchedulerEntry("live", TASK, 1, app=app).save()
            project.wait_for_runs("live", 1)
            entry.delete()
            assert project.client.exists(LOCK) == 1
        finally:
            stopper = threading.Thread(target=thread.stop, daemon=True)
            stopper.start()
            stopper.join(10)
            thread.join(10)
        assert not stopper.is_alive()
        assert not thread.is_alive()
        assert project.client.exists(LOCK) == 0
        assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.parametrize(
    ("command", "settings", "warned"),
    [
        (("worker", "-B", "-S", "redbeat", "--pool", "solo"), {}, True),
        (("beat",), {"redbeat_lock_timeout": 60}, True),
        (("beat",), {}, False),
        pytest.param(("beat", "-s", "redbeat"), {}, True, marks=pytest.mark.long),
        pytest.param(("beat", "-S", "redbeat"), {}, False, marks=pytest.mark.long),
    ],
)
def test_another_scheduler_than_the_one_that_is_meant_is_warned_about(
    project: Project, command: tuple[str, ...], settings: dict[str, int], warned: bool
) -> None:
    beat = project.start(*command, "-l", "info", schedule=EVERY_SECOND, settings=settings)
    beat.wait_for("Sending due task tick")
    warning = "This beat is PersistentScheduler, not RedBeat: it sends nothing of the schedule in"
    assert (warning in beat.output()) is warned, beat.output()
