"""Tests of `celery redbeat simulate` and `backfill`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import redis
from celery import Celery
from celery.platforms import EX_OK
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry, hashed_crontab
from redbeat.cli.command import Exit
from redbeat.management import forecast
from redbeat.management.schedule import Schedule
from tests.conftest import Make
from tests.scheduler.conftest import RecordingScheduler, World

from .conftest import Run

UTC = timezone.utc
JSONLINES = ("--format", "jsonlines")
BERLIN = ("--from", "2027-03-27T12:00", "--to", "2027-03-29T12:00")


@pytest.fixture
def nightly(app: Celery) -> RedBeatSchedulerEntry:
    """An entry that runs at 02:30 in Berlin."""
    schedule = crontab(minute=30, hour=2)
    return RedBeatSchedulerEntry("n", "t", schedule, app=app, timezone="Europe/Berlin").save()


@pytest.mark.usefixtures("nightly")
def test_simulate_shows_zones_and_clock_changes(run: Run) -> None:
    ran = run("simulate", "n", *BERLIN)
    assert ran.code == EX_OK
    assert [" ".join(line.split()) for line in ran.lines[1:]] == [
        "2027-03-28 01:00:00 -- clocks go forward to +02:00 (Europe/Berlin)",
        "2027-03-28 01:00:00 Sun 03:00:00 +02:00 n",
        "2027-03-29 00:30:00 Mon 02:30:00 +02:00 n",
    ]
    (found,) = run("simulate", "n", *BERLIN, "--json").json
    assert found["clock_changes"] == [
        {
            "zone": "Europe/Berlin",
            "at": "2027-03-28T01:00:00+00:00",
            "utc_offset_before": "+01:00",
            "utc_offset_after": "+02:00",
        }
    ]
    (entry,) = found["entries"]
    assert (entry["name"], entry["timezone"], entry["compared"]) == ("n", "Europe/Berlin", False)
    assert [one["local"] for one in entry["runs"]] == [
        "2027-03-28T03:00:00+02:00",
        "2027-03-29T02:30:00+02:00",
    ]


@pytest.mark.usefixtures("nightly")
def test_simulate_compares_with_other_rules(run: Run) -> None:
    arguments = ("simulate", "n", *BERLIN, "--cron", "30 2,4 * * *", "--timezone", "Europe/Berlin")
    ran = run(*arguments)
    assert "Runs of n: 2 unchanged, 0 only before the change, 2 only after" in ran.err
    assert sum("+ only after" in line for line in ran.lines) == 2
    (entry,) = run(*arguments, "--json").json[0]["entries"]
    changes = [one["change"] for one in entry["runs"]]
    assert changes == ["same", "added", "same", "added"]
    (entry,) = run("simulate", "n", *BERLIN, "--timezone", "UTC", "--json").json[0]["entries"]
    assert (entry["same"], entry["removed"], entry["added"]) == (0, 2, 2)


def test_simulate_compares_with_a_hashed_crontab(run: Run, make: Make) -> None:
    """H is the number that ``edit`` would store for each entry."""
    make("a")
    make("b")
    (found,) = run("simulate", "a", "b", *BERLIN, "--cron", "H H * * *", "--json").json
    for entry in found["entries"]:
        runs = [run["scheduled_at"] for run in entry["runs"] if run["change"] == "added"]
        first = datetime.fromisoformat(runs[0])
        expected = hashed_crontab(entry["name"], "H", "H")
        assert ({first.minute}, {first.hour}) == (expected.minute, expected.hour)
        assert len(runs) == 2


def test_simulate_compares_with_a_file(run: Run, app: Celery, tmp_path: Path) -> None:
    RedBeatSchedulerEntry("a", "t", crontab(minute=0), app=app).save()
    RedBeatSchedulerEntry("b", "t", crontab(minute=0), app=app).save()
    plan = tmp_path / "plan.jsonl"
    run("export", str(plan))
    plan.write_text(plan.read_text().replace('"minute": 0', '"minute": 30'))
    span = ("--from", "2027-01-01T00:00", "--to", "2027-01-01T05:00", "--json")
    (found,) = run("simulate", *span, "--file", str(plan), *JSONLINES).json
    assert [(one["name"], one["same"], one["removed"], one["added"]) for one in found["entries"]]
    for one in found["entries"]:
        assert (one["same"], one["removed"], one["added"]) == (0, 5, 5)
    (found,) = run("simulate", "b", *span, "--file", str(plan), *JSONLINES).json
    assert [one["name"] for one in found["entries"]] == ["b"]
    run("delete", "b", "--yes")
    (found,) = run("simulate", "b", *span, "--file", str(plan), *JSONLINES).json
    assert [(one["removed"], one["added"]) for one in found["entries"]] == [(0, 5)]


def test_simulate_compares_with_a_file_to_apply(run: Run, app: Celery, tmp_path: Path) -> None:
    RedBeatSchedulerEntry("a", "t", crontab(minute=0), app=app).save()
    plan = tmp_path / "plan.json"
    plan.write_text('{"managed_by": "x", "entries": {"a": {"task": "t", "cron": "30 * * * *"}}}')
    span = ("--from", "2027-01-01T00:00", "--to", "2027-01-01T05:00")
    ran = run("simulate", *span, "--file", str(plan))
    assert "Runs of a: 0 unchanged, 5 only before the change, 5 only after" in ran.err
    plan.write_text('{"managed_by": "x", "entries": {"a": {"task": "t", "cron": "soon"}}}')
    assert run("simulate", *span, "--file", str(plan)).code == Exit.USAGE


def test_all_enabled_entries_are_simulated(run: Run, app: Celery) -> None:
    RedBeatSchedulerEntry("a", "t", crontab(minute=0), app=app).save()
    RedBeatSchedulerEntry("off", "t", crontab(minute=0), app=app, enabled=False).save()
    span = ("--from", "2026-01-01T00:00", "--to", "2026-01-01T05:00")
    (found,) = run("simulate", *span, "--json").json
    assert [one["name"] for one in found["entries"]] == ["a"]
    ran = run("simulate", "off", *span)
    assert len(ran.lines) == 6
    assert "off is paused" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "2027-01-02T00:00", "--to", "2027-01-01T00:00"), "must be later"),
        ((*BERLIN, "--cron", "0 * * * *"), "needs the names"),
        ((*BERLIN, "--cron", "0 *", "n"), "--cron"),
        ((*BERLIN, "--cron", "0 * * * *", "--file", "x", "n"), "not both"),
        (("--from", "2027-01-02T00:00"), "--to"),
        (("--from", "0001-01-01T00:00+05:00", "--to", "2027-01-01"), "Invalid value for '--from'"),
        (("--from", "0001-01-01T00:00Z", "--to", "2027-01-01"), "Invalid value for '--from'"),
        (("--from", "2027-01-01", "--to", "9999-12-31T23:59:59-05:00"), "Invalid value for '--to'"),
    ],
)
@pytest.mark.usefixtures("nightly")
def test_wrong_options_of_simulate(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = run("simulate", *arguments)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert message in ran.err


@pytest.mark.parametrize("output", [(), ("--json",)])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_simulate_at_the_ends_of_the_range(
    run: Run, app: Celery, make: Make, zone: str, output: tuple[str, ...]
) -> None:
    """The wall-clock times of some runs would be in the year 0 or 10000."""
    app.conf.timezone = zone
    make("n", 3600, timezone=zone)
    for span in (("0001-01-01T01:01Z", "0001-01-02"), ("9999-12-31T16:00Z", "9999-12-31T22:00Z")):
        ran = run("simulate", "n", "--from", span[0], "--to", span[1], *output)
        assert (ran.code, ran.out != "") == (EX_OK, True)


@pytest.mark.long
def test_too_many_runs_are_reported(run: Run, app: Celery) -> None:
    RedBeatSchedulerEntry("a", "t", 1, app=app).save()
    ran = run("simulate", "--from", "2027-01-01T00:00", "--to", "2027-01-03T00:00", "--json")
    (found,) = ran.json
    assert not found["complete"]
    assert len(found["entries"][0]["runs"]) == 100_000
    assert "the simulation ends at 2027-01-02 03:46:" in ran.err


@pytest.fixture
def ran(app: Celery) -> RedBeatSchedulerEntry:
    """An hourly entry that ran at noon."""
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return RedBeatSchedulerEntry("a", "t", 3600, app=app, last_run_at=at).save()


SPAN = ("--from", "2026-01-01T08:00", "--to", "2026-01-01T12:00")


def test_a_dry_run_lists_the_runs(run: Run, ran: RedBeatSchedulerEntry) -> None:
    found = run("backfill", "a", *SPAN, "--dry-run")
    runs = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (8, 9, 10, 11)]
    assert [line.split("  ") for line in found.lines[1:]] == [
        [f"{at:%Y-%m-%d %H:%M:%S}", ran.task_id_of(at)] for at in runs
    ]
    assert "a: 4 runs would be sent" in found.err
    summary, *lines = run("backfill", "a", *SPAN, "--dry-run", "--json").json
    assert (summary["runs"], summary["left_out"], summary["dry_run"]) == (4, 0, True)
    assert [line["task_id"] for line in lines] == [ran.task_id_of(at) for at in runs]
    assert ran.backfills == []


@pytest.mark.usefixtures("ran")
def test_backfill_shows_its_progress(run: Run) -> None:
    assert "a has no backfills" in run("backfill", "a").err
    assert "a: 4 runs will be sent" in run("backfill", "a", *SPAN, "--rate", "30/m").err
    found = run("backfill", "a", *SPAN)
    assert "a: 0 runs will be sent, 4 runs skipped (sent or requested earlier)" in found.err
    (line,) = run("backfill", "a").lines
    assert line.endswith("12:00:00: 0 of 4 runs sent, about 8 s left")
    (found_json,) = run("backfill", "a", "--json").json
    assert found_json["rate"] == 0.5
    assert (found_json["sent"], found_json["total"], found_json["finished"]) == (0, 4, False)
    assert "0 of 4 runs sent" in run("show", "a").out
    assert run("show", "a", "--json").json[0]["backfills"][0]["total"] == 4
    assert "Cancelled a" in run("backfill", "a", "--cancel").err
    assert "a has no backfills" in run("backfill", "a").err


def test_backfill_waits_until_a_beat_has_sent_the_runs(
    run: Run, app: Celery, ran: RedBeatSchedulerEntry
) -> None:
    scheduler, stop = RecordingScheduler(app), Event()

    def beat() -> None:
        while not stop.wait(0.01):
            scheduler.tick()

    thread = Thread(target=beat)
    thread.start()
    try:
        found = run("backfill", "a", *SPAN, "--wait")
    finally:
        stop.set()
        thread.join()
        scheduler.close()
    assert found.lines[-1].endswith("12:00:00: 4 of 4 runs sent, finished")
    sent = {str(message.options["task_id"]) for message in scheduler.sent}
    runs = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (8, 9, 10, 11)]
    assert {ran.task_id_of(at) for at in runs} <= sent


@pytest.mark.usefixtures("ran")
def test_backfill_warns(run: Run) -> None:
    found = run("backfill", "a", "--from", "2026-01-01T11:00", "--to", "2026-01-01T15:00")
    assert "the backfill ends at 2026-01-01 12:00:00" in found.err
    assert "a: 2 runs will be sent" in found.err
    run("pause", "a")
    assert "a is paused" in run("backfill", "a", *SPAN).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (SPAN[:2], "Give both --from and --to"),
        ((*SPAN, "--rate", "many"), "'many' is not a rate; for example: --rate 10/s"),
        ((*SPAN, "--rate", "0"), "--rate"),
        ((*SPAN, "--cancel"), "cannot be combined with"),
        (("--from", "2026-01-02T00:00", "--to", "2026-01-01T00:00"), "must be later"),
        (("--from", "0001-01-01T00:00+05:00", "--to", "2026-01-01"), "Invalid value for '--from'"),
        (("--from", "2026-01-01", "--to", "9999-12-31T23:59:59-05:00"), "Invalid value for '--to'"),
    ],
)
@pytest.mark.usefixtures("ran")
def test_wrong_options_of_backfill(run: Run, arguments: tuple[Any, ...], message: str) -> None:
    found = run("backfill", "a", *arguments)
    assert (found.code, found.out) == (Exit.USAGE, "")
    assert message in found.err


@pytest.mark.long
def test_a_simulation_of_too_many_entries_says_so(
    app: Celery, run: Run, redis_client: redis.Redis
) -> None:
    """The JSON is not complete, and a warning says what to do."""
    World(app, redis_client).put_many(forecast.MAX_SIMULATED + 1)
    span = ("--from", "2027-01-01T00:00:00", "--to", "2027-01-01T00:00:01")
    ran = run("simulate", *span, "--json")
    (found,) = ran.json
    assert (found["complete"], len(found["entries"])) == (False, forecast.MAX_SIMULATED)
    assert "too many entries: only 50,000 are simulated; name the entries" in ran.err
    assert "too many runs" not in ran.err


def test_an_entry_that_is_deleted_during_a_backfill(
    run: Run, make: Make, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = make("a").save()
    load = Schedule.__getitem__

    def loaded(self: Schedule, name: str) -> Any:
        found = load(self, name)
        redis_client.delete(entry.key)
        return found

    monkeypatch.setattr(Schedule, "__getitem__", loaded)
    for options in ((), ("--cancel",), ("--from", "2026-01-01", "--to", "2026-01-02")):
        entry.save()
        result = run("backfill", "a", *options)
        assert (result.code, "There is no entry 'a'" in result.err) == (3, True)
