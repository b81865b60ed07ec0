"""Tests of `celery redbeat edit`."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry, clocked, from_ical
from redbeat.cli.command import Exit
from tests.cli.conftest import Run
from tests.conftest import Make

AT = datetime(2027, 1, 1, 9, tzinfo=timezone.utc)


def load(app: Celery, name: str = "old") -> RedBeatSchedulerEntry:
    """Load an entry."""
    return RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--every", "30"], {"schedule": schedule(30)}),
        (["--cron", "0 9 * * *"], {"schedule": crontab("0", "9")}),
        (["--at", "2027-01-01T09:00"], {"schedule": clocked(AT)}),
        (["--rrule", "FREQ=DAILY"], {"schedule": from_ical("FREQ=DAILY")}),
        (["--task", "proj.other"], {"task": "proj.other"}),
        (["--args", "[]", "--kwargs", "{}"], {"args": [], "kwargs": {}}),
        (["--queue", "slow"], {"options": {"queue": "slow", "priority": 5}}),
        (["--queue", "none"], {"options": {"priority": 5}}),
        (["--options", '{"expires": 9}'], {"options": {"expires": 9}}),
        (
            ["--options", '{"expires": 9}', "--queue", "slow"],
            {"options": {"expires": 9, "queue": "slow"}},
        ),
        (["--max-runs", "3", "--start", "2027-01-01T09:00"], {"max_runs": 3, "start_time": AT}),
        (["--jitter", "none", "--end", "none"], {"jitter": 0.0, "end_time": None}),
        (["--coalesce", "all", "--catch-up-limit", "3"], {"coalesce": "all", "catch_up_limit": 3}),
        (["--paused"], {"enabled": False}),
    ],
)
def test_given_options_change_and_the_rest_stays(
    run: Run, make: Make, app: Celery, options: list[str], expected: dict[str, Any]
) -> None:
    before: dict[str, Any] = {
        "schedule": schedule(3600),
        "task": "proj.note",
        "args": [1],
        "kwargs": {"a": 2},
        "options": {"queue": "fast", "priority": 5},
        "jitter": 5.0,
        "end_time": AT,
        "max_runs": None,
        "enabled": True,
    }
    make("old", **{**before, "last_run_at": datetime(2026, 1, 1, tzinfo=timezone.utc)})
    ran = run("edit", "old", *options)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("Changed old: ")
    entry = load(app)
    after = {name: getattr(entry, name) for name in {**before, **expected}}
    assert after == {**before, **expected}
    assert entry.last_run_at == datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_new_times_are_in_the_time_zone_of_the_crontab(run: Run, make: Make, app: Celery) -> None:
    make("old", crontab("0", "9"), timezone="Asia/Tokyo")
    assert run("edit", "old", "--start", "2027-01-01T18:00").code == 0
    assert load(app).start_time == AT
    assert run("edit", "old", "--timezone", "none").code == 0
    assert load(app).timezone is None


def test_another_schedule_restarts_a_finished_entry(
    run: Run, make: Make, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    ran = datetime.now(timezone.utc) - timedelta(days=2)
    make("old", 3600, max_runs=1, total_run_count=1, last_run_at=ran)
    assert run("edit", "old", "--args", "[1]").code == 0
    assert load(app).runs_left == 0
    assert "stays finished" in caplog.text
    assert run("edit", "old", "--every", "7200").code == 0
    (after,) = load(app).upcoming()
    assert abs(after - datetime.now(timezone.utc) - timedelta(hours=2)) < timedelta(minutes=1)


def test_a_time_zone_alone_is_refused_for_an_interval(run: Run, make: Make, app: Celery) -> None:
    make("old")
    ran = run("edit", "old", "--timezone", "Asia/Tokyo")
    assert ran.code == 2
    assert "--timezone" in ran.err.splitlines()[-1]
    assert "for example" not in ran.err
    assert load(app).timezone is None


@pytest.mark.parametrize(
    ("options", "example"),
    [
        ([], "for example: --every 5m"),
        (["--every", "0"], "for example: --every 5m"),
        (["--max-runs", "-1"], "above 0, not -1"),
        (["--cron", "x"], "such as '30 9 * * mon-fri'"),
        (["--start", "2028-01-01"], "Invalid value for '--end'"),
    ],
)
def test_a_wrong_option_changes_nothing(
    run: Run, make: Make, redis_client: redis.Redis, options: list[str], example: str
) -> None:
    make("old", end_time=AT)
    before = redis_client.hgetall("redbeat:old")
    ran = run("edit", "old", *options)
    assert ran.code == 2
    assert example in ran.err
    assert redis_client.hgetall("redbeat:old") == before


def test_a_concurrent_edit_is_not_lost(
    run: Run, make: Make, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("old")
    encode = RedBeatSchedulerEntry.texts

    def texts(entry: RedBeatSchedulerEntry) -> tuple[str, str]:
        monkeypatch.setattr(RedBeatSchedulerEntry, "texts", encode)
        other = load(app)
        other.args = ["theirs"]
        other.save()
        return entry.texts()

    monkeypatch.setattr(RedBeatSchedulerEntry, "texts", texts)
    ran = run("edit", "old", "--every", "30")
    assert ran.code == Exit.CONFLICT
    assert "Somebody else has just changed 'old'" in ran.err
    assert (load(app).args, load(app).schedule) == (["theirs"], schedule(3600))


def test_an_unknown_name_suggests_the_nearest_or_says_where_it_looked(
    run: Run, make: Make, redis_url: str
) -> None:
    where = f"under the prefix redbeat: in {redis_url}"
    ran = run("edit", "nightly", "--every", "30")
    assert (ran.code, ran.err) == (
        Exit.NOT_FOUND,
        f"Error: There is no entry 'nightly' {where}; the schedule is empty\n",
    )
    make("hourly")
    assert run("show", "cleanup").err == f"Error: There is no entry 'cleanup' {where}\n"
    make("nightly-report")
    ran = run("edit", "nightly-reprot", "--every", "30")
    assert ran.code == Exit.NOT_FOUND
    assert "did you mean 'nightly-report'?" in ran.err
    assert "did you mean" not in run("edit", "zzz", "--every", "30").err


def test_editing_a_static_entry_warns(run: Run, make: Make, redis_client: redis.Redis) -> None:
    make("old")
    redis_client.sadd("redbeat::statics", "old")
    ran = run("edit", "old", "--every", "30")
    assert ran.code == 0
    assert "Warning: old is in beat_schedule" in ran.err


def test_an_unreadable_entry_cannot_be_edited(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    make("old")
    redis_client.hset("redbeat:old", "definition", "{")
    ran = run("edit", "old", "--every", "30")
    assert ran.code == Exit.UNREADABLE
    assert "The entry cannot be read: definition" in ran.err
    assert redis_client.hget("redbeat:old", "definition") == "{"


def test_json_prints_the_edited_entry(run: Run, make: Make) -> None:
    make("old")
    (edited,) = run("edit", "old", "--every", "30", "--json").json
    assert edited["schedule_text"] == "every 30 s"


@pytest.mark.parametrize(
    ("words", "enabled"),
    [
        (["old", "--paused", "no"], True),
        (["old", "--paused=no"], True),
        (["old", "--paused", "yes"], False),
        (["old", "--paused"], False),
        (["--paused", "old"], False),
        (["old", "--paused", "--jitter", "1"], False),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_paused_is_yes_or_no(
    run: Run, make: Make, words: list[str], enabled: bool, before: bool
) -> None:
    make("old")
    if not before:
        assert run("pause", "old", "--note", "closed").code == 0
    assert run("edit", *words).code == 0
    (shown,) = run("show", "old", "--json").json
    assert (shown["enabled"], shown["state"] == "scheduled") == (enabled, enabled)
    assert bool(shown["note"]) == (not enabled and not before)
    assert run("edit", "old", "--paused=maybe").code == 2


def test_paused_alone_may_come_before_the_name(run: Run) -> None:
    assert run("add", "--paused", "new", "proj.note", "--every", "5m").code == 0
    assert run("add", "other", "proj.note", "--every", "5m", "--paused", "no").code == 0
    found = {line["name"]: line["state"] for line in run("list", "--json").json}
    assert found == {"new": "paused", "other": "scheduled"}
