"""Tests with real beats, a real worker, RabbitMQ as the broker, and the schedule in Redis.

These tests run only if you name them: ``python -m pytest -n 0 tests/rabbitmq``.
"""

from __future__ import annotations

import signal
import time
from datetime import datetime, timedelta
from itertools import pairwise

from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.acceptance.processes import Project
from tests.faults.beats import LOCK_TIMEOUT, Beats
from tests.faults.entries import Schedule, names
from tests.faults.oracle import Report, judge
from tests.faults.trial import Grid
from tests.pages import configurations
from tests.rabbitmq.conftest import CONFIRMS
from tests.rabbitmq.ledger import drain
from tests.rabbitmq.server import RabbitServer
from tests.waiting import wait_until

TASK = "tests.acceptance.project.note"
STATIC = {name: {"task": TASK, "schedule": 1.0, "args": [name]} for name in ("one", "two")}

ENTRIES = names(20)
AHEAD = 1.0
WARNING = "RabbitMQ does not confirm messages"

#: Seconds from the restart of RabbitMQ to the record of the first run. The longest pause between
#: two attempts is 2 s; the rest is a margin for a busy machine.
BACK = 3.0
#: Seconds that a beat may hang: it waits for one confirm and connects again twice. Each of these
#: takes a sixth of a publish's time, here one second; the rest is a margin for a busy machine.
HANGS = 10.0


def runs_go_on(schedule: Schedule, deadline: float = 60.0) -> float:
    """Wait until a run is recorded, and return how many seconds this took."""
    began, before = time.monotonic(), schedule.run_counts(ENTRIES)
    wait_until(lambda: schedule.run_counts(ENTRIES) != before, deadline, "a run")
    return time.monotonic() - began


def finish(beats: Beats, schedule: Schedule, rabbit: RabbitServer, one: Grid) -> Report:
    """Wait until all due runs were sent, stop the beat, and check the messages."""
    until, before = schedule.now(), schedule.run_counts(ENTRIES)
    # An entry whose publish failed has a score in the future while it waits, as if it had run. Of
    # two more runs, the second was due after `until`, so no earlier one still waits.
    wait_until(
        lambda: all(n >= before[name] + 2 for name, n in schedule.run_counts(ENTRIES).items()),
        60.0,
        "two more runs of each entry",
    )
    assert beats[0].is_alive
    assert beats.terminate(0) == 0
    return judge(one.expected(until), drain(rabbit.url))


def begin(beats: Beats, schedule: Schedule) -> Grid:
    """Start a beat with entries that run every second, and wait for the first runs."""
    beats.start()
    one = Grid.begin(schedule, ENTRIES, 1.0, AHEAD)
    wait_until(lambda: all(schedule.run_counts(ENTRIES).values()), 60.0, "the first runs")
    return one


def test_each_entry_runs_once_with_its_headers(
    project: Project, rabbit: RabbitServer, redis_url: str
) -> None:
    """Setup: beat and worker, static entries and one entry saved later. Fault: none.

    Invariant: each entry runs once.
    """
    settings = {"broker_url": rabbit.url, "redbeat_redis_url": redis_url, **CONFIRMS}
    project.worker(settings=settings)
    beat = project.beat(schedule=STATIC, settings=settings)
    beat.wait_for("Acquired lock")
    web = project_app(rabbit.url, redis_url)
    RedBeatSchedulerEntry("saved", TASK, 1.0, args=["saved"], app=web).save()
    for name in ("saved", *STATIC):
        project.wait_for_runs(name, 4)
    assert beat.stop() == 0
    assert WARNING not in beat.output()
    runs = project.ran()
    assert len({run["task_id"] for run in runs}) == len(runs)
    for name in ("saved", *STATIC):
        mine = project.ran(name)
        assert [run["args"] for run in mine] == [[name]] * len(mine)
        instants = sorted(datetime.fromisoformat(run["scheduled_at"]) for run in mine)
        assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(seconds=1)}


def project_app(broker_url: str, redis_url: str) -> Celery:
    """Return the app of another process that edits the schedule."""
    app = Celery("web", broker=broker_url, set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, timezone="UTC", enable_utc=True)
    return app


def test_a_beat_without_confirms_warns(beats: Beats) -> None:
    """Setup: no publisher confirms. Invariant: the log warns and names the setting to change."""
    beats.start_many(1, settings={"broker_transport_options": {}})
    beats[0].wait_for(WARNING)
    assert "'confirm_publish': True" in beats[0].output()


def test_rabbitmq_dies_and_comes_back(
    beats: Beats, schedule: Schedule, rabbit: RabbitServer
) -> None:
    """Setup: one beat with confirms, 20 entries every second.

    Fault: RabbitMQ is killed and restarted, which takes many seconds.

    Invariant: the beat sends again within 2 s after the restart. No run is lost. The run that was
    being published when RabbitMQ died may have a second message with the same id.
    """
    one = begin(beats, schedule)
    rabbit.kill()
    beats[0].wait_for("beat: The broker is not available")
    rabbit.restart()
    waited = runs_go_on(schedule)
    beats[0].wait_for("beat: The broker is back")
    report = finish(beats, schedule, rabbit, one)
    assert not report.lost, report
    assert not report.unknown, report
    assert not report.early, report
    assert report.other_id == 0, report
    assert report.same_id <= 1, report
    assert waited <= BACK


def test_rabbitmq_hangs(beats: Beats, schedule: Schedule, rabbit: RabbitServer) -> None:
    """Setup: one beat with confirms, 20 entries every second, a lock timeout of 5 s.

    Fault: RabbitMQ is frozen: connections stay open and get no reply.

    Invariant: the beat cancels the current publish within seconds, and keeps its lock. When
    RabbitMQ continues, the beat continues too. No run is lost, or sent under another id.
    """
    one = begin(beats, schedule)
    rabbit.pause()
    began = time.monotonic()
    try:
        beats[0].wait_for("beat: The broker is not available", HANGS)
        token = schedule.lock_token()
        # Watch the beat for longer than the lock exists without a renewal.
        wait_until(lambda: time.monotonic() - began > 2 * LOCK_TIMEOUT, 60.0)
        assert token
        assert schedule.lock_token() == token
    finally:
        rabbit.resume()
    runs_go_on(schedule)
    report = finish(beats, schedule, rabbit, one)
    assert not report.lost, report
    assert not report.unknown, report
    assert report.other_id == 0, report


def test_a_beat_stops_while_rabbitmq_hangs(
    beats: Beats, schedule: Schedule, rabbit: RabbitServer
) -> None:
    """Setup: one beat with confirms, 20 entries every second. Fault: RabbitMQ is
    frozen. Invariant: SIGTERM ends the beat.
    """
    begin(beats, schedule)
    rabbit.pause()
    try:
        beats[0].wait_for("beat: The broker is not available", HANGS)
        assert beats[0].stop(signal.SIGTERM, HANGS) == 0
    finally:
        rabbit.resume()
    assert schedule.lock_token() is None


def test_at_most_once(beats: Beats, schedule: Schedule, rabbit: RabbitServer) -> None:
    """Setup: one beat with confirms, 20 entries every second, at-most-once delivery.

    Fault: RabbitMQ is killed and restarted.

    Invariant: no run has two messages, and the log reports each run without a message.
    """
    beats.start(settings={"redbeat_delivery": "at_most_once"})
    one = Grid.begin(schedule, ENTRIES, 1.0, AHEAD)
    wait_until(lambda: all(schedule.run_counts(ENTRIES).values()), 60.0, "the first runs")
    rabbit.kill()
    beats[0].wait_for("beat: The broker is not available")
    rabbit.restart()
    waited = runs_go_on(schedule)
    report = finish(beats, schedule, rabbit, one)
    assert report.same_id == 0, report
    assert report.other_id == 0, report
    assert not report.unknown, report
    assert waited <= BACK
    reported = beats[0].output().count(" is lost")
    # On a busy machine, a lost run may have replaced earlier ones that were missed.
    lost = {run.entry for run in report.lost}
    assert len(lost) <= reported <= len(ENTRIES), report


def test_the_configuration_of_the_manual(
    project: Project, redis_url: str, rabbit: RabbitServer, schedule: Schedule
) -> None:
    """The configuration in the manual works; only the host names differ."""
    replace = {
        "amqp://proj:PASSWORD@rabbitmq.example.com:5672//": rabbit.url,
        "redis://redis.example.com:6379/1": redis_url,
    }
    (settings,) = configurations("rabbitmq.rst", replace)
    beat = project.beat(settings=settings)
    beat.wait_for("Acquired lock")
    app = Celery("web", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url)
    RedBeatSchedulerEntry("a", TASK, 0.5, app=app).save()
    before = schedule.run_counts(["a"])
    wait_until(lambda: schedule.run_counts(["a"]) != before, 60, "a run that is recorded")
    assert beat.stop() == 0
    assert drain(rabbit.url)
    assert WARNING not in beat.output()
