"""Entries whose runs must not overlap: decisions of beats, and reports of workers."""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals, states
from celery.app.task import Context
from celery.exceptions import Reject, TimeLimitExceeded, WorkerLostError

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.message import OVERLAP_HEADER
from redbeat.beat.wakeup import DUE
from redbeat.errors import InvalidEntryError
from redbeat.schedulers import RedBeatScheduler
from redbeat.signals import entry_missed
from tests.deployments import PREFIX
from tests.waiting import wait_until
from tests.workers import Sender, reporting

from .conftest import SCHEDULE, RecordingScheduler, Sent, World, end_run, heard

KEY = f"{PREFIX}a"
HOUR = 3600


@pytest.fixture
def app(app: Celery) -> Iterator[Celery]:
    """An app whose workers report the end of each run."""
    with reporting(app):
        yield app


def store(world: World, overlap: Any, every: float = HOUR, **more: Any) -> RedBeatSchedulerEntry:
    """Store the entry ``a`` with a last run one and a half intervals ago."""
    entry = RedBeatSchedulerEntry(
        "a",
        "tasks.a",
        every,
        app=world.app,
        overlap=overlap,
        last_run_at=world.ago(every * 1.5),
        **more,
    )
    return entry.save()


def begin(world: World, overlap: str, **more: Any) -> RecordingScheduler:
    """Return a scheduler that has sent a run of the entry ``a``, and make the entry due again.

    No worker has reported the end of the run.
    """
    store(world, overlap, **more)
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"]
    make_due(world)
    return scheduler


def make_due(world: World, hours: float = 1.5) -> None:
    """Make the entry due, with a last run ``hours`` ago."""
    world.client.hdel(KEY, "runtime")
    count = world.run_count("a")
    world.put_meta("a", world.ago(hours * HOUR))
    meta = world.field("a", "meta") | {"total_run_count": count}
    world.client.hset(KEY, "meta", json.dumps(meta))
    world.client.zadd(SCHEDULE, {KEY: 0})


def end(scheduler: RecordingScheduler, run: int = -1) -> None:
    """Report the end of a run, as a worker does."""
    end_run(scheduler.app, scheduler.sent[run])


def is_running(world: World) -> bool:
    """Return whether a run of the entry ``a`` is going on, as far as Redis knows."""
    return world.running("a") is not None


def running(world: World) -> tuple[str, float]:
    """Return the task id of the current run, and the UNIX time at which beats stop waiting."""
    found = world.running("a")
    assert found is not None
    return found


# -- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_without_workers_that_report_the_setting_is_refused(
    world: World, overlap: str, app: Celery
) -> None:
    del app.redbeat_tracks_runs
    with pytest.raises(InvalidEntryError, match=r"redbeat\.worker\.enable\(app\)") as caught:
        store(world, overlap)
    assert caught.value.field == "overlap"
    assert world.dump() == {}


def test_a_run_is_stored_with_its_id_and_its_timeout(world: World) -> None:
    scheduler = begin(world, "skip", overlap_timeout=100)
    task_id, until = running(world)
    assert task_id == scheduler.sent[0].id
    assert abs(until - world.now() - 100) < 2
    assert scheduler.sent[0].options["headers"][OVERLAP_HEADER] == KEY


def test_no_run_is_stored_for_entries_that_may_overlap(world: World) -> None:
    scheduler = begin(world, "allow")
    assert not is_running(world)
    assert OVERLAP_HEADER not in scheduler.sent[0].options["headers"]
    scheduler.tick()
    assert scheduler.names == ["a", "a"]


def test_a_new_beat_knows_the_current_run(world: World) -> None:
    begin(world, "skip").close()
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.sent == []


def test_an_id_with_a_blank(world: World) -> None:
    scheduler = begin(world, "skip", options={"task_id": "my own id"})
    assert running(world)[0] == "my own id"
    end(scheduler)
    assert not is_running(world)
    scheduler.tick()
    assert scheduler.names == ["a", "a"]


# -- skip ----------------------------------------------------------------------------------------


def test_skip_drops_the_run_and_plans_the_next(world: World, log: pytest.LogCaptureFixture) -> None:
    scheduler = begin(world, "skip")
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.run_count("a") == 1
    assert "Entry a skips the run of" in log.text
    score = world.score("a")
    assert score is not None
    assert 0 < score - world.now() < HOUR
    assert not world.is_held("a")


def test_skip_counts_the_missed_runs_before_the_skipped_run(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    scheduler = begin(world, "skip")
    make_due(world, hours=4.5)
    with heard(entry_missed) as emitted:
        scheduler.tick()
    assert scheduler.names == ["a"]
    assert "and 3 missed runs: an earlier run is still running" in log.text
    assert [one["count"] for one in emitted] == [3]


def test_an_overlap_is_logged_when_it_begins_and_when_it_ends(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    """Both lines have the task id of the run that goes on, as the status has."""
    scheduler = begin(world, "skip")
    task_id = scheduler.sent[0].id
    for _ in range(3):
        make_due(world)
        scheduler.tick()
    entry = RedBeatSchedulerEntry.from_key(KEY, app=world.app)
    assert entry.status.state == "running"
    reason = "3 runs are skipped, because an earlier run is still running: task"
    assert f"{reason} {task_id}, sent 20" in (entry.status.reason or "")

    end(scheduler)
    world.take_reports(scheduler)

    told = [one.getMessage() for one in log.records if one.levelname == "WARNING"]
    (begins,), (ends,) = (
        [one for one in told if word in one] for word in ("the run of", "no more")
    )
    assert f"an earlier run is still running: task {task_id}, sent 20" in begins
    assert ends == f"beat: Entry a skips no more runs, after 3: task {task_id} has ended"


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_the_status_has_the_task_that_goes_on_and_what_waits_for_it(
    world: World, overlap: str
) -> None:
    scheduler = begin(world, overlap)
    entry, task = RedBeatSchedulerEntry.from_key(KEY, app=world.app), scheduler.sent[0].id
    reason = entry.status.reason or ""
    assert re.fullmatch(f"task {task}, sent 20.*, has not ended", reason)
    make_due(world)
    scheduler.tick()
    reason, told = (
        entry.status.reason or "",
        {
            "skip": "1 run is skipped, because an earlier run is still running",
            "buffer_one": "a run waits until an earlier one has ended",
        },
    )
    assert reason.startswith(f"{told[overlap]}: task {task}, sent 20")
    end(scheduler)
    assert entry.status.reason is None


def test_skip_runs_again_at_the_next_time_after_the_end(world: World) -> None:
    scheduler = begin(world, "skip")
    scheduler.tick()
    score = world.score("a")
    end(scheduler)
    assert not is_running(world)
    assert world.score("a") == score
    scheduler.tick()
    assert scheduler.names == ["a"]
    make_due(world)
    scheduler.tick()
    assert scheduler.names == ["a", "a"]


# -- buffer_one ----------------------------------------------------------------------------------


def test_buffer_one_waits_for_the_end_and_runs_at_once(world: World) -> None:
    scheduler = begin(world, "buffer_one")
    scheduler.tick()
    assert scheduler.names == ["a"]
    until = running(world)[1]
    assert world.score("a") == pytest.approx(until, abs=1e-3)
    end(scheduler)
    assert not is_running(world)
    scheduler.tick()
    assert scheduler.names == ["a", "a"]
    assert scheduler.sent[0].id != scheduler.sent[1].id


def test_the_end_wakes_the_beat_up(world: World) -> None:
    scheduler = begin(world, "buffer_one")
    scheduler.tick()
    with world.client.pubsub() as channel:
        channel.subscribe(f"{PREFIX}:wakeup")
        wait_until(lambda: channel.get_message(timeout=1), message="the subscription")
        end(scheduler)
        message = channel.get_message(timeout=5)
    assert message is not None
    assert message["data"].encode() == DUE


def test_only_the_latest_run_waits(world: World) -> None:
    scheduler = begin(world, "buffer_one")
    scheduler.tick()
    world.put_meta("a", world.ago(5.5 * HOUR))
    end(scheduler)
    scheduler.tick()
    assert scheduler.names == ["a", "a"]
    assert abs(scheduler.sent[1].scheduled_at - world.ago(0.5 * HOUR)) < timedelta(seconds=5)
    assert scheduler.sent[1].options["headers"]["coalesced"] == 4


def test_a_disabled_entry_stays_so_at_the_end(world: World) -> None:
    scheduler = begin(world, "buffer_one")
    scheduler.tick()
    entry = RedBeatSchedulerEntry.from_key(KEY, world.app)
    entry.enabled = False
    entry.save()
    end(scheduler)
    assert not is_running(world)
    assert world.score("a") == -2
    scheduler.tick()
    assert scheduler.names == ["a"]


def test_an_edit_of_a_waiting_entry_keeps_it_waiting(world: World) -> None:
    scheduler = begin(world, "buffer_one")
    scheduler.tick()
    entry = RedBeatSchedulerEntry.from_key(KEY, world.app)
    entry.args = [1]
    entry.save()
    scheduler.tick()
    assert scheduler.names == ["a"]
    end(scheduler)
    scheduler.tick()
    assert scheduler.sent[1].args == [1]


# -- the record of a run -------------------------------------------------------------------------


def test_a_run_that_ends_before_it_is_recorded(world: World) -> None:
    store(world, "buffer_one")

    class Fast(RecordingScheduler):
        def send_task(self, *args: Any, **kwargs: Any) -> None:
            super().send_task(*args, **kwargs)
            end(self)

    scheduler = world.scheduler_of(Fast)
    scheduler.tick()
    assert not is_running(world)
    assert not world.client.hexists(KEY, "ended")
    make_due(world)
    scheduler.tick()
    assert len(scheduler.sent) == 2


def test_at_most_once_notes_the_run_before_it_is_sent(world: World) -> None:
    store(world, "skip", delivery="at_most_once")
    scheduler = world.scheduler()
    noted: list[str] = []
    scheduler.before_send = lambda _task: noted.append(running(world)[0])
    scheduler.tick()
    assert noted == [scheduler.sent[0].id]
    make_due(world)
    scheduler.tick()
    assert len(scheduler.sent) == 1


def test_at_most_once_forgets_a_run_that_is_lost(world: World) -> None:
    store(world, "skip", delivery="at_most_once")
    scheduler = world.scheduler()

    def fail(_task: str) -> None:
        raise ValueError

    scheduler.before_send = fail
    scheduler.tick()
    assert not is_running(world)
    scheduler.before_send = lambda _task: None
    make_due(world)
    scheduler.tick()
    assert len(scheduler.sent) == 1


# -- what workers report ---------------------------------------------------------------------------


class Worker:
    """A fake worker that sends Celery's worker signals for the current run."""

    def __init__(self, world: World, scheduler: RecordingScheduler) -> None:
        self.world = world
        self.id = scheduler.sent[-1].id
        self.headers = {OVERLAP_HEADER: KEY}
        self.request = self.request_with(headers=self.headers)
        self.task = Sender(world.app, self.request)

    def request_with(self, **fields: Any) -> Any:
        """Return a task request for the current run."""
        return Context(id=self.id, **fields)

    @property
    def is_running(self) -> bool:
        """Whether Redis still stores a current run of the entry."""
        return is_running(self.world)

    def postrun(self, state: str | None, retval: Any = None) -> None:
        """Send the signals ``task_prerun`` and ``task_postrun``."""
        signals.task_prerun.send(sender=self.task, task_id=self.id, task=self.task)
        signals.task_postrun.send(
            sender=self.task, task_id=self.id, task=self.task, state=state, retval=retval
        )

    def failure(self, exception: Exception) -> None:
        """Send the signal ``task_failure``."""
        signals.task_failure.send(sender=self.task, task_id=self.id, exception=exception)


@pytest.fixture
def worker(world: World) -> Worker:
    """A fake worker that executes the current run of the entry ``a``."""
    return Worker(world, begin(world, "skip"))


@pytest.mark.parametrize(
    ("state", "retval", "ends"),
    [
        (states.SUCCESS, None, True),
        (states.FAILURE, None, True),
        (states.IGNORED, None, True),
        (states.REJECTED, Reject(requeue=False), True),
        (states.REJECTED, Reject(requeue=True), False),
        (states.RETRY, None, False),
        (None, None, False),
    ],
)
def test_a_run_ends_with_its_task(worker: Worker, state: str, retval: Any, ends: bool) -> None:
    worker.postrun(state, retval)
    assert worker.is_running is not ends


@pytest.mark.standalone  # a cluster's client keeps its own timeouts
def test_a_task_hardly_waits_for_a_redis_that_does_not_answer(worker: Worker) -> None:
    assert worker.is_running  # and the connection of the worker is open
    worker.world.client.client_pause(20_000, all=False)
    began = time.monotonic()
    try:
        worker.postrun(states.SUCCESS)
        assert time.monotonic() - began < 4
    finally:
        worker.world.client.client_unpause()


@pytest.mark.parametrize("exception", [WorkerLostError("gone"), TimeLimitExceeded(1)])
def test_a_run_whose_process_died(worker: Worker, exception: Exception) -> None:
    worker.failure(exception)
    assert not worker.is_running


def test_the_failure_of_a_task_is_reported_by_its_end_only(worker: Worker) -> None:
    worker.failure(ValueError())
    assert worker.is_running
    worker.postrun(states.FAILURE)
    assert not worker.is_running


def test_a_failure_of_celery_itself(worker: Worker) -> None:
    request, error = {"headers": worker.headers}, OSError()
    signals.task_internal_error.send(
        sender=worker.task, task_id=worker.id, request=request, exception=error
    )
    assert not worker.is_running


def test_a_run_that_is_revoked_or_expired(worker: Worker) -> None:
    signals.task_revoked.send(
        sender=worker.task, request=worker.request, terminated=False, expired=True
    )
    assert not worker.is_running


@pytest.mark.parametrize("signal", [signals.task_unknown, signals.task_rejected])
def test_a_message_without_a_known_task(worker: Worker, signal: Any) -> None:
    message = SimpleNamespace(headers={**worker.headers, "id": worker.id})
    signal.send(sender=Sender(worker.world.app), message=message, exc=None)
    assert not worker.is_running


def test_a_worker_without_a_configuration_logs_that_and_goes_on(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    worker.task.app = Celery("none", broker="memory://", set_as_current=False)
    worker.postrun(states.SUCCESS)
    assert worker.is_running
    worker.postrun(states.SUCCESS)
    assert caplog.text.count("Could not record the ends of runs") == 1


def test_a_task_that_runs_within_beat(world: World) -> None:
    """With ``task_always_eager``, the task ends before the beat records the run."""
    world.app.conf.task_always_eager = True
    runs: list[str] = []

    @world.app.task(name="tasks.a", shared=False)
    def task() -> None:
        runs.append("a")

    store(world, "skip")
    scheduler = world.scheduler_of(RedBeatScheduler)
    scheduler.tick()
    make_due(world)
    scheduler.tick()
    assert runs == ["a", "a"]


def test_a_client_made_before_the_fork_works_in_the_child(world: World) -> None:
    """A worker's main process may create a Redis client before it forks its child processes."""
    scheduler = begin(world, "skip")
    end_run(world.app, Sent("", [], {}, {**scheduler.sent[0].options, "task_id": "another"}))
    process = multiprocessing.get_context("fork").Process(target=lambda: end(scheduler))
    process.start()
    process.join(10)
    assert process.exitcode == 0
    assert not is_running(world)
    scheduler.tick()
    assert scheduler.names == ["a", "a"]
