"""What became of runs: reports of workers, and what they change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from threading import Barrier
from typing import Any

import pytest
from celery import Celery, signals, states
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.config import ensure_conf
from redbeat.entries.history import RunResult
from redbeat.entries.status import Overdue
from redbeat.errors import InvalidEntryError
from redbeat.management.doctor import examine
from redbeat.metrics.prometheus import counters_of, overdue_gauge
from redbeat.metrics.snapshot import take_snapshot
from redbeat.signals import run_failed, run_succeeded
from redbeat.storage.store import store_of
from tests.cli.commands import run_command
from tests.deployments import PREFIX
from tests.servers import RedisServer
from tests.stored import put_state
from tests.waiting import wait_until
from tests.workers import Sender, reporting, run_task

from .conftest import RecordingScheduler, World, heard

KEY = f"{PREFIX}a"
HOUR = 3600.0


@pytest.fixture
def app(app: Celery) -> Iterator[Celery]:
    """An app whose workers report what became of each run."""
    with reporting(app):
        yield app


class Site:
    """The entry ``a``, a beat that sends its runs, and a fake worker that executes them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scheduler: RecordingScheduler = world.scheduler()

    def save(self, **fields: Any) -> RedBeatSchedulerEntry:
        """Save the entry, which is due in an hour."""
        return RedBeatSchedulerEntry("a", "tasks.a", HOUR, app=self.world.app, **fields).save()

    @property
    def entry(self) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry.from_key(KEY, app=self.world.app)

    def send(self) -> Any:
        """Send a triggered run, and return its message."""
        self.entry.trigger()
        self.scheduler.tick()
        return self.scheduler.sent[-1]

    def run(self, state: str = states.SUCCESS, retval: Any = None, **request: Any) -> Any:
        """Send and execute a run, and return its message."""
        message = self.send()
        self.execute(message, state, retval, **request)
        return message

    def execute(self, message: Any, state: str, retval: Any = None, **request: Any) -> None:
        """Execute a message."""
        headers = message.options["headers"]
        run_task(self.world.app, message.id, headers, state, retval, **request)

    def fail(self, times: int = 1) -> None:
        """Send and execute runs that fail."""
        for number in range(times):
            self.run(states.FAILURE, ValueError(f"number {number}"))
        self.world.take_reports(self.scheduler)

    @property
    def stored(self) -> int:
        """How many runs have a stored result."""
        self.world.take_reports(self.scheduler)
        return len(json.loads(self.world.client.hget(KEY, "results") or "[]"))

    def age(self) -> None:
        """Let the last success, and since when one is expected, be long ago."""
        client, long_ago = self.world.client, self.world.now() - HOUR
        state = json.loads(client.hget(KEY, "beat_state"))
        _, failures, _, *rest = state["results"]
        put_state(client, KEY, results=[long_ago, failures, 0, *rest])

    @property
    def result(self) -> RunResult | None:
        """The result of the last run."""
        return self.entry.history[0].result


@pytest.fixture
def site(world: World) -> Site:
    """The entry ``a``, which is due in an hour."""
    site = Site(world)
    site.save()
    return site


REJECTED = "Reject: ('bad', False)"


def test_a_run_that_cannot_be_reported_does_not_affect_the_task(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A header is wrong, or there is no request."""
    message = site.send()
    headers = message.options["headers"]
    run_task(site.world.app, message.id, headers, retries="three")
    assert "Could not record the end of a run of a: ValueError" in caplog.text
    task = Sender(site.world.app)
    before = site.world.calls()
    signals.task_internal_error.send(sender=task, task_id="x", request=None, exception=OSError())
    assert site.world.calls() == before


def test_a_message_that_runs_in_two_threads_is_reported_by_both(site: Site) -> None:
    message = site.send()
    task = Sender(site.world.app, Context(id=message.id, headers=message.options["headers"]))
    both_run = Barrier(2, timeout=20)

    def execute(_number: int) -> None:
        signals.task_prerun.send(sender=task, task_id=message.id, task=task)
        both_run.wait()
        ended = {"state": states.SUCCESS, "retval": None}
        signals.task_postrun.send(sender=task, task_id=message.id, task=task, **ended)

    with heard(run_succeeded) as ends, ThreadPoolExecutor(2) as threads:
        list(threads.map(execute, range(2)))
    assert [end["result"].seconds >= 0 for end in ends] == [True, True]


# -- the result of a run ---------------------------------------------------------------------------


def test_a_run_by_the_schedule_has_its_result(site: Site) -> None:
    site.save(last_run_at=site.world.ago(HOUR * 1.5))
    site.scheduler.tick()
    (message,) = site.scheduler.sent
    assert site.result is None
    site.execute(message, states.SUCCESS)
    (run,) = site.entry.history
    assert run.outcome == "sent"
    assert run.task_id == message.id
    result = run.result
    assert result is not None
    assert result.ended_at is not None
    assert result.started_at is not None
    assert result.state == "succeeded"
    assert run.dispatched_at <= result.started_at <= result.ended_at
    assert abs(result.ended_at.timestamp() - site.world.now()) < 5
    assert site.entry.status.last_success == result.ended_at


@pytest.mark.parametrize(
    ("state", "retval", "expected", "error"),
    [
        (states.SUCCESS, 5, "succeeded", None),
        (states.FAILURE, ValueError("no\nroom"), "failed", "ValueError: no room"),
        (states.FAILURE, KeyError(), "failed", "KeyError"),
        (states.RETRY, Retry("again", OSError("away")), "retried", "OSError: away"),
        (
            states.REJECTED,
            Reject("bad", requeue=False),
            "failed",
            REJECTED,
        ),
        (states.IGNORED, Ignore(), "ignored", None),
        (states.REVOKED, None, "revoked", None),
    ],
)
def test_the_states_of_celery(
    site: Site, state: str, retval: Any, expected: str, error: str | None
) -> None:
    site.run(state, retval)
    result = site.result
    assert result is not None
    assert (result.state, result.error) == (expected, error)


def test_runs_are_told_apart(site: Site) -> None:
    first, second = site.send(), site.send()
    site.execute(second, states.FAILURE, ValueError())
    site.execute(first, states.SUCCESS)
    results = {run.task_id: run.result and run.result.state for run in site.entry.history}
    assert results == {first.id: "succeeded", second.id: "failed"}


def test_a_retry_is_replaced_by_its_success(site: Site) -> None:
    message = site.run(states.RETRY, Retry("again", OSError("away")))
    site.execute(message, states.SUCCESS, retries=1)
    result = site.result
    assert result is not None
    assert (result.state, result.retries, result.error) == ("succeeded", 1, None)
    assert site.stored == 1


@pytest.mark.parametrize(("terminated", "expired"), [(True, False), (False, True), (False, False)])
def test_a_revoked_run(site: Site, terminated: bool, expired: bool) -> None:
    message = site.send()
    request = Sender(site.world.app)
    request.id, request.headers = message.id, message.options["headers"]  # type: ignore[attr-defined]
    request.get = message.options["headers"].get  # type: ignore[attr-defined]
    signals.task_revoked.send(
        sender=request, request=request, terminated=terminated, expired=expired
    )
    reason = "terminated" if terminated else "expired" if expired else None
    result = site.result
    assert result is not None
    assert (result.state, result.error, result.seconds) == ("revoked", reason, None)
    assert site.entry.status.consecutive_failures == 0


class UnprintableError(Exception):
    """An exception whose message cannot be computed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x" * 100_000), "ValueError: " + "x" * 285 + "..."),
        (ValueError('\x1b[31m \\n " \ud800'), 'ValueError: \\x1b[31m \\n " \\ud800'),
        (UnprintableError(), "UnprintableError"),
    ],
    ids=["long", "controls", "unprintable"],
)
def test_the_error_is_bounded_and_printable(site: Site, error: Exception, text: str) -> None:
    site.run(states.FAILURE, error)
    result = site.result
    assert result is not None
    assert result.error == text


def test_the_history_keeps_as_many_results_as_runs(site: Site) -> None:
    for _ in range(12):
        site.run()
    assert site.stored == 10
    assert all(run.result for run in site.entry.history)


def test_without_a_history_only_the_last_success_and_failures(world: World) -> None:
    world.app.conf.redbeat_history_size = 0
    site = Site(world)
    site.save()
    site.fail(2)
    status = site.entry.status
    assert (status.last_success, status.consecutive_failures) == (None, 2)
    site.run()
    status = site.entry.status
    assert status.last_success is not None
    assert status.consecutive_failures == 0
    assert site.stored == 0


def test_a_deleted_entry_does_not_come_back(site: Site) -> None:
    message = site.send()
    site.entry.delete()
    site.execute(message, states.FAILURE, ValueError())
    assert not site.world.client.exists(KEY)


# -- lost runs -------------------------------------------------------------------------------------


def test_a_run_without_an_end_is_lost_after_its_limit(site: Site) -> None:
    site.run()
    lost = site.send()
    entry = site.entry
    assert [run.result and run.result.state for run in entry.history] == [None, "succeeded"]
    entry.overlap_timeout = 0.001
    wait_until(lambda: entry.history[0].result is not None, 5, "the limit")
    assert [run.result and run.result.state for run in entry.history] == ["lost", "succeeded"]
    site.execute(lost, states.SUCCESS)
    assert [run.result and run.result.state for run in entry.history] == ["succeeded"] * 2


def test_without_reports_no_run_is_lost(site: Site, app: Celery) -> None:
    site.run()
    site.send()
    del app.redbeat_tracks_runs
    entry = site.entry
    entry.overlap_timeout = 0.001
    assert entry.history[0].result is None


# -- signals ---------------------------------------------------------------------------------------


def test_the_signals(site: Site) -> None:
    seen: list[Any] = []

    def receive(signal: Any, result: RunResult, **arguments: Any) -> None:
        seen.append((signal.name, arguments["name"], arguments["task_id"], result.state))
        raise RuntimeError("a receiver's error has no effect")

    run_succeeded.connect(receive)
    run_failed.connect(receive)
    try:
        good, bad = site.run(), site.run(states.FAILURE, ValueError())
        site.run(states.RETRY, Retry())
    finally:
        run_succeeded.disconnect(receive)
        run_failed.disconnect(receive)
    assert seen == [
        ("run_succeeded", "a", good.id, "succeeded"),
        ("run_failed", "a", bad.id, "failed"),
    ]


# -- cost and outages ------------------------------------------------------------------------------


def test_one_round_trip_a_run_and_none_for_other_tasks(site: Site) -> None:
    site.run()
    message = site.send()
    before = site.world.calls()
    site.execute(message, states.FAILURE, ValueError())
    assert site.world.calls() - before == 1
    before = site.world.calls()
    run_task(site.world.app, "other", {})
    assert site.world.calls() == before


def test_redis_away_costs_no_time_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    away = Celery("away", broker="memory://", set_as_current=False)
    # Packets to this address get no answer: RFC 5737 reserves it for documentation.
    away.conf.redbeat_redis_url = "redis://192.0.2.1:6379/0"
    with reporting(away):
        headers = {"periodic_task_name": "a", "scheduled_at": "2026-01-01T00:00:00+00:00"}
        started = time.monotonic()
        for number in range(1500):
            run_task(away, f"t{number}", headers, states.FAILURE, ValueError())
        assert time.monotonic() - started < 4
    assert caplog.text.count("Could not record the end of a run of a") == 1


def test_reports_are_sent_when_redis_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next attempt follows after half a minute."""
    monotonic, ahead = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead)
    app = Celery("back", broker="memory://", set_as_current=False)
    with RedisServer() as server, reporting(app):
        app.conf.redbeat_redis_url = f"redis://127.0.0.1:{server.port}/0"
        RedBeatSchedulerEntry("a", "tasks.a", HOUR, app=app).save()
        headers = {"periodic_task_name": "a", "scheduled_at": "2026-01-01T00:00:00+00:00"}
        server.kill()
        run_task(app, "t1", headers, states.FAILURE, ValueError())
        server.restart()
        entry = RedBeatSchedulerEntry("a", "tasks.a", HOUR, app=app).save()
        later = {**headers, "scheduled_at": "2026-01-01T00:01:00+00:00"}
        run_task(app, "t2", later, states.FAILURE, ValueError())
        assert entry.status.consecutive_failures == 0
        ahead = 31.0
        last = {**headers, "scheduled_at": "2026-01-01T00:02:00+00:00"}
        run_task(app, "t3", last, states.FAILURE, ValueError())
        assert entry.status.consecutive_failures == 3
    assert "Redis answers again" in caplog.text


def test_a_report_that_waited_has_the_time_when_its_run_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monotonic, ahead = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead)
    app = Celery("waited", broker="memory://", set_as_current=False)
    with RedisServer() as server, reporting(app):
        app.conf.redbeat_redis_url = f"redis://127.0.0.1:{server.port}/0"
        headers = {"periodic_task_name": "a", "scheduled_at": "2026-01-01T00:00:00+00:00"}
        server.kill()
        run_task(app, "t1", headers, states.SUCCESS, None)
        server.restart()
        entry = RedBeatSchedulerEntry("a", "tasks.a", HOUR, app=app).save()
        ahead = 1000.0
        run_task(app, "t2", headers, states.FAILURE, ValueError())
        last_success = entry.status.last_success
    assert last_success is not None
    assert 1000 <= (datetime.now(timezone.utc) - last_success).total_seconds() < 1100


# -- pause after failures --------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["pause_after_failures", "expect_within"])
def test_without_reports_the_fields_are_refused(site: Site, app: Celery, field: str) -> None:
    del app.redbeat_tracks_runs
    with pytest.raises(InvalidEntryError, match=r"redbeat\.worker\.enable\(app\)") as caught:
        site.save(**{field: 3})
    assert caught.value.field == field


def test_an_entry_is_paused_after_failures(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.save(pause_after_failures=3)
    site.fail(2)
    assert site.entry.enabled
    site.run()
    site.fail(2)
    assert site.entry.enabled
    site.fail()
    status = site.entry.status
    assert (status.state, status.consecutive_failures) == ("paused", 3)
    assert status.note == "3 failed runs in a row, the last with ValueError: number 0"
    assert status.reason is not None
    assert status.reason.endswith("by pause_after_failures")
    assert f"Entry {KEY} is paused: 3 failed runs in a row" in caplog.text


def test_entries_whose_tasks_fail_are_problems_within_seconds(site: Site) -> None:
    """Until a success, or until somebody resumes the entry."""
    site.save()
    schedule = Schedule(site.world.app)

    def told() -> list[str]:
        return [one.problem for one in schedule.status().problems if one.kind == "failed"]

    site.fail(2)
    assert told() == []
    site.fail()
    assert told() == ["the last 3 runs of a failed"]
    site.run()
    site.world.take_reports(site.scheduler)
    assert told() == []
    site.fail(4)
    assert told() == ["the last 4 runs of a failed"]
    site.entry.resume()
    assert told() == []
    site.save(pause_after_failures=1)
    site.fail()
    assert told() == ["a is paused, because its runs failed"]
    site.entry.delete()
    assert told() == []


def test_a_message_that_no_beat_sent_ends_no_run(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody who reaches the broker may send the headers of a run, and any task id."""
    site.save(pause_after_failures=1)
    sent = site.send()
    real = sent.options["headers"]
    forged = {**real, "scheduled_at": "2030-01-01T00:00:00+00:00"}
    for headers in (real, forged):
        run_task(site.world.app, "forged", headers, states.FAILURE, ValueError("no"))
    run_task(site.world.app, "forged", {**real, "scheduled_at": None}, states.SUCCESS)
    site.world.take_reports(site.scheduler)

    assert site.entry.status.consecutive_failures == 0
    assert site.entry.status.last_success is None
    assert site.entry.enabled
    assert caplog.text.count("it is the end of no run of this entry") == 3

    site.execute(sent, states.FAILURE, ValueError())
    site.world.take_reports(site.scheduler)
    assert not site.entry.enabled


def test_a_paused_entry_keeps_its_note(site: Site) -> None:
    site.save(pause_after_failures=1)
    late = site.send()
    site.entry.pause("broken", "me")
    site.execute(late, states.FAILURE, ValueError())
    assert site.entry.status.note == "broken"


def test_a_static_entry_stays_paused(world: World) -> None:
    schedule = {"a": {"task": "tasks.a", "schedule": HOUR, "pause_after_failures": 1}}
    world.app.conf.beat_schedule = schedule
    site = Site(world)
    site.scheduler.tick()
    site.fail()
    assert not site.entry.enabled
    world.scheduler().tick()
    assert not site.entry.enabled


# -- expect_within ---------------------------------------------------------------------------------


def overdue(world: World) -> list[Overdue]:
    """Return the overdue entries, which status, metrics and doctor all report."""
    found = Schedule(world.app).status().overdue
    store = store_of(world.app)
    snapshot = take_snapshot(store, ensure_conf(world.app))
    assert [item.name for item in snapshot.overdue] == [item.name for item in found]
    gauge = overdue_gauge(snapshot)
    assert [sample.labels["entry"] for sample in gauge.samples] == [item.name for item in found]
    findings = examine(Schedule(world.app))
    keys = sorted(finding.key for finding in findings if finding.kind == "overdue")
    assert keys == sorted(f"{PREFIX}{item.name}" for item in found)
    return found


def wait_until_overdue(world: World) -> None:
    """Wait until the status reports an overdue entry."""
    wait_until(lambda: bool(Schedule(world.app).status().overdue), 5, "an overdue entry")


def test_an_entry_that_was_never_sent_is_overdue(world: World) -> None:
    site = Site(world)
    site.save(expect_within=0.05)
    wait_until_overdue(world)
    (item,) = overdue(world)
    assert (item.name, item.last_success, item.expect_within) == ("a", None, 0.05)
    assert 0.05 < item.seconds < 10


def test_a_success_ends_the_problem_until_the_time_has_passed_again(world: World) -> None:
    site = Site(world)
    site.save(expect_within=0.3)
    wait_until_overdue(world)
    site.fail()
    assert overdue(world)
    site.run()
    assert not overdue(world)
    wait_until_overdue(world)
    assert overdue(world)[0].last_success == site.entry.status.last_success


def test_the_last_result_is_shown_and_found_within_seconds_of_the_report(world: World) -> None:
    """No beat has taken the reports in yet."""
    site = Site(world)
    RedBeatSchedulerEntry("b", "tasks.b", HOUR, app=world.app).save()
    schedule = Schedule(world.app)
    site.save()
    assert [record.last_result for record in schedule.records()] == [None, None]
    site.run(states.FAILURE, ValueError())
    assert site.entry.status.last_result == "failed"
    assert [entry.name for entry in schedule.find(last_result="failed")] == ["a"]
    ran = run_command(world.app, "list", "--json", "--last-result", "failed")
    assert [(line["name"], line["last_result"]) for line in ran.json] == [("a", "failed")]
    title, row = run_command(world.app, "list", "--last-result", "failed").lines
    assert row[title.index("LAST RESULT") :].startswith("failed")
    site.entry.pause()
    site.entry.resume()  # lets the failures count again from 0
    assert site.entry.status.last_result == "failed"
    site.run()
    assert list(schedule.find(last_result="failed")) == []
    assert "Last result" in run_command(world.app, "show", "a").out
    with pytest.raises(InvalidEntryError, match="last_result: must be one of succeeded, failed"):
        schedule.records(last_result="bad")  # type: ignore[arg-type]


def runs_by_result(families: Iterable[Any]) -> dict[str, float]:
    (family,) = (family for family in families if family.name == "redbeat_runs")
    return {sample.labels["result"]: sample.value for sample in family.samples}


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_runs_are_counted_by_their_results(world: World, overlap: str) -> None:
    """In the beat and, for the exporter, in Redis; a repeated report counts once."""
    site = Site(world)
    site.save(overlap=overlap)
    message = site.run(states.FAILURE, ValueError())
    site.execute(message, states.FAILURE, ValueError())
    site.run(states.REVOKED)
    site.run(states.SUCCESS)
    site.run(states.RETRY, Retry(exc=ValueError()))
    for _ in range(2):
        world.take_reports(site.scheduler)
        site.scheduler.tick()
    expected = {"succeeded": 1, "failed": 1, "revoked": 1, "ignored": 0}
    assert runs_by_result(counters_of(site.scheduler.beat.totals())) == expected
    store, conf = store_of(world.app), ensure_conf(world.app)
    assert runs_by_result(counters_of(take_snapshot(store, conf).totals(9))) == expected


def test_paused_and_deleted_entries_are_not_overdue(world: World) -> None:
    site = Site(world)
    site.save(expect_within=0.01)
    wait_until_overdue(world)
    site.entry.pause()
    assert overdue(world) == []
    site.entry.resume()
    wait_until_overdue(world)
    site.entry.delete()
    assert overdue(world) == []


def test_a_resumed_entry_has_its_whole_time(world: World) -> None:
    site = Site(world)
    site.save(expect_within=60)
    site.run()
    world.take_reports(site.scheduler)
    site.age()
    entry = site.entry
    world.client.zadd(f".{PREFIX}:expected", {KEY: 0})
    assert [item.name for item in overdue(world)] == ["a"]
    entry.pause()
    entry.resume()
    assert overdue(world) == []


def test_more_than_a_page_of_overdue_entries(world: World) -> None:
    entries = [
        RedBeatSchedulerEntry(f"e{n}", "t", HOUR, app=world.app, expect_within=0.001)
        for n in range(1100)
    ]
    Schedule(world.app).save_all(entries)
    wait_until(lambda: len(Schedule(world.app).status().overdue) == 1100, 5, "all overdue")
