"""Tests of `celery redbeat show` and `history`."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import rrule
from redbeat.calendar.zones import from_timestamp
from redbeat.cli.command import Exit
from redbeat.entries.decide import PARKED
from redbeat.entries.history import run_line
from redbeat.entries.state import Ended
from redbeat.worker import enable
from tests.cli.commands import CommandResult, in_terminal
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.stored import put_history, put_results, put_state

RAN = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def line(at: datetime, late: float, task_id: str, outcome: str) -> str:
    """Return a line of the history, in the format that a beat writes."""
    return f"{at.timestamp():.6f} +{late:.6f} {outcome} {task_id}"


@pytest.fixture
def ran_twice(make: Make, redis_client: redis.Redis) -> None:
    """Store an entry with values in all fields and two recorded runs."""
    make(
        "nightly",
        crontab("15", "3"),
        task="proj.report",
        args=[1],
        kwargs={"to": "a"},
        options={"queue": "slow"},
        timezone="Europe/Paris",
        max_runs=100,
        last_run_at=RAN,
        total_run_count=2,
    )
    earlier = line(RAN - timedelta(days=1), 0.25, "id-1", "failed:OperationalError")
    put_history(redis_client, "redbeat:nightly", [line(RAN, 90, "id-2", "sent"), earlier])


@pytest.mark.usefixtures("ran_twice")
def test_show_prints_everything(run: Run) -> None:
    ran = run("show", "nightly")
    assert ran.code == 0
    fields = {name: value for name, _, value in (text.partition("  ") for text in ran.lines)}
    values = {name: value.strip() for name, value in fields.items()}
    assert values["Name"] == "nightly"
    assert (values["Task"], values["Args"]) == ("proj.report", "[1]")
    assert values["Kwargs"] == '{"to": "a"}'
    assert values["Schedule"] == "cron 15 3 * * *"
    assert values["Options"] == '{"queue": "slow"}'
    assert values["Timezone"] == "Europe/Paris"
    assert values["Max runs"] == "100"
    assert values["Kind"] == "dynamic"
    assert values["State"] == "scheduled"
    assert re.fullmatch(r"2026-01-01 13:00:00 Europe/Paris, \d+ d.* ago", values["Last run"])
    assert values["Runs"] == "2"
    assert any("  0.25 s  " in text for text in ran.lines)
    assert any("  1 min 30 s  " in text for text in ran.lines)


def fields_of(ran: CommandResult) -> dict[str, str]:
    """Return the fields that ``show`` prints, each with its first line."""
    pairs = (text.partition("  ") for text in ran.lines)
    return {name: value.strip() for name, _, value in pairs}


def test_show_says_that_no_beat_sends_what_is_due(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    """Also of a failing entry, whose next attempt nobody starts."""
    make("a")
    assert "Reason" not in fields_of(run("show", "a"))
    assert run("show", "a").err == run("list").err == ""
    redis_client.zadd("redbeat::schedule", {"redbeat:a": RAN.timestamp()})
    shown = fields_of(run("show", "a"))
    assert re.fullmatch(
        r"due since 2026-01-01 12:00:00 UTC, \d+ d.* ago, but no beat has sent it", shown["Reason"]
    )
    assert re.fullmatch(r"2026-01-01 12:00:00 UTC, [0-9]+ d .* ago", shown["Due"])
    warning = "Warning: no beat leads; start a beat; this schedule has the prefix redbeat: in"
    for words in (["show", "a"], ["list"]):
        assert run(*words).err.startswith(warning)
    (found,) = run("show", "a", "--json").json
    assert found["reason"] == "due since 2026-01-01T12:00:00+00:00, but no beat has sent it"
    assert run("list", "--json").err == ""
    put_state(redis_client, "redbeat:a", failing=[1.0, 2, "away", RAN.timestamp(), 2.0])
    assert fields_of(run("show", "a"))["State"] == "failing"
    assert run("show", "a").err.startswith(warning)


def test_times_are_in_the_zone_of_the_entry(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    made = {"timezone": "Asia/Tokyo", "last_run_at": RAN, "total_run_count": 1}
    make("a", crontab("0", "9"), **made).backfill(RAN - timedelta(days=1), RAN)
    put_history(redis_client, "redbeat:a", [line(RAN, 0, "id", "sent")])
    ran = run("show", "a")
    shown = fields_of(ran)
    assert shown["Last run"].startswith("2026-01-01 21:00:00 Asia/Tokyo, ")
    assert " Asia/Tokyo, " in shown["Due"]
    assert " 09:00:00 Asia/Tokyo, in " in shown["Upcoming"]
    assert shown["Backfill"].startswith("2025-12-31 21:00:00 to 2026-01-01 21:00:00")
    assert ran.lines[-2].startswith("SCHEDULED (Asia/Tokyo)")
    for lines in (ran.lines, run("history", "a").lines):
        assert lines[-1].split()[:4] == ["2026-01-01", "21:00:00"] * 2


def test_show_of_an_unreadable_entry(run: Run, make: Make, redis_client: redis.Redis) -> None:
    make("a", description="x")
    redis_client.hset("redbeat:a", "definition", b'{"name": "a\n\x80')
    ran = run("show", "a")
    assert ran.code == Exit.UNREADABLE
    assert "The entry cannot be read: definition: " in ran.err
    shown = fields_of(ran)
    assert (shown["Name"], shown["State"]) == ("a", "quarantined")
    assert shown["Definition"] == '{"name": "a\\n\\x80'
    assert shown["Policy"] == '{"description": "x"}'
    assert "Since" not in shown
    note = {"reason": "broken", "since": RAN.timestamp()}
    redis_client.hset(".redbeat::quarantine", "redbeat:a", json.dumps(note))
    redis_client.zadd("redbeat::schedule", {"redbeat:a": PARKED})
    assert fields_of(run("show", "a"))["Since"].startswith("2026-01-01 12:00:00 UTC, ")
    ran = run("show", "a", "--json")
    (found,) = ran.json
    assert (ran.code, found["quarantined_since"]) == (Exit.UNREADABLE, RAN.isoformat())
    assert found["stored"]["policy"] == '{"description": "x"}'


def test_show_says_that_an_entry_is_overdue(run: Run, make: Make, app: Celery) -> None:
    enable(app)
    make("backup", expect_within=0.001)
    ran = run("show", "backup")
    assert any(line.startswith("Overdue") and "had no success" in line for line in ran.lines)
    (found,) = run("show", "backup", "--json").json
    assert found["overdue"]["expect_within"] == 0.001


def test_the_upcoming_runs_of_an_entry_with_spread_include_its_offset(run: Run, make: Make) -> None:
    make("nightly", schedule=crontab(minute="0"), spread=3600)
    (found,) = run("show", "nightly", "--json").json
    assert found["upcoming"][0] == found["due_at"]
    lines = run("show", "nightly").lines
    (due,) = (line.split()[1:3] for line in lines if line.startswith("Due"))
    (first,) = (line.split()[1:3] for line in lines if line.startswith("Upcoming"))
    assert first == due


def test_the_upcoming_runs_of_a_paused_entry_depend_on_a_resume(run: Run, make: Make) -> None:
    make("nightly").pause()
    assert any(line.startswith("Upcoming, if resumed") for line in run("show", "nightly").lines)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"max_runs": 3, "last_run_at": RAN, "total_run_count": 3},
            "max_runs is reached (3)",
        ),
        (
            {"end_time": RAN, "last_run_at": RAN},
            "no run is left before end_time, 2026-01-01T12:00:00+00:00",
        ),
        (
            {"schedule": rrule("DAILY", dtstart=RAN, count=1), "last_run_at": RAN},
            "the schedule has no later run",
        ),
    ],
)
def test_show_says_why_an_entry_has_finished(
    run: Run, make: Make, redis_client: redis.Redis, settings: dict[str, Any], reason: str
) -> None:
    make("done", **settings)
    redis_client.zadd("redbeat::schedule", {"redbeat:done": PARKED})  # as a beat does
    fields = dict(line.split(None, 1) for line in run("show", "done").lines if " " in line)
    shown = re.sub(r" UTC, \d+ d.* ago", "+00:00", fields["Reason"])
    assert (fields["State"], shown) == ("finished", reason.replace("01T12", "01 12"))
    (found,) = run("show", "done", "--json").json
    assert found["reason"] == reason


@pytest.mark.usefixtures("ran_twice")
def test_show_as_json(run: Run) -> None:
    (found,) = run("show", "nightly", "--json").json
    assert (found["name"], found["state"], found["static"]) == ("nightly", "scheduled", False)
    assert found["policy"] == {"timezone": "Europe/Paris", "max_runs": 100}
    assert found["last_run_at"] == "2026-01-01T12:00:00+00:00"
    assert len(found["upcoming"]) == 5
    assert [item["task_id"] for item in found["history"]] == ["id-2", "id-1"]


@pytest.mark.usefixtures("ran_twice")
def test_history_prints_the_runs(run: Run) -> None:
    first, second = run("history", "nightly", "--json").json
    assert first == {
        "name": "nightly",
        "scheduled_at": "2026-01-01T12:00:00+00:00",
        "dispatched_at": "2026-01-01T12:01:30+00:00",
        "task_id": "id-2",
        "outcome": "sent",
        "result": None,
        "missed": 0,
    }
    assert second["outcome"] == "failed:OperationalError"
    ran = run("history", "nightly", "--wide")
    assert [text.split()[-1] for text in ran.lines[1:]] == ["id-2", "id-1"]
    assert "id-" not in run("history", "nightly").out + run("show", "nightly").out


def test_an_entry_that_never_ran(run: Run, make: Make) -> None:
    make("new")
    assert "Last run  never" in run("show", "new").lines
    assert run("show", "new", "--json").json[0]["last_run_at"] is None
    ran = run("history", "new")
    assert (ran.code, ran.out) == (0, "")
    assert "new has no recorded runs" in ran.err
    assert run("history", "new", "--json").json == []


def test_show_marks_a_static_entry(run: Run, make: Make, redis_client: redis.Redis) -> None:
    make("code")
    redis_client.sadd("redbeat::statics", "code")
    assert "Kind      static, from beat_schedule" in run("show", "code").lines


def test_the_key_of_an_entry_suggests_its_name(run: Run, make: Make) -> None:
    make("nightly")
    ran = run("show", "redbeat:nightly")
    expected = "There is no entry 'redbeat:nightly'; did you mean 'nightly'?"
    assert (ran.code, ran.err) == (Exit.NOT_FOUND, f"Error: {expected}\n")


def test_an_unknown_name_suggests_the_nearest_of_many(run: Run, redis_client: redis.Redis) -> None:
    names = [f"tenant-{number}:report" for number in range(6000)]
    redis_client.zadd("redbeat::schedule", {f"redbeat:{name}": 4e9 for name in names})
    ran = run("show", "tenant-5999:reprot")
    assert ran.code == Exit.NOT_FOUND
    assert "did you mean 'tenant-5999:report' or" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "gone"],
        ["upcoming", "gone"],
        ["edit", "gone", "--description", "new"],
        ["simulate", "gone", "--from", "2026-01-01", "--to", "2026-01-02"],
    ],
)
def test_a_name_without_a_definition_is_not_its_own_suggestion(
    run: Run, redis_client: redis.Redis, arguments: list[str]
) -> None:
    redis_client.zadd("redbeat::schedule", {"redbeat:gone": 4e9})
    ran = run(*arguments)
    expected = (
        "There is no entry 'gone', although the schedule lists the name: the definition is missing"
    )
    assert (ran.code, ran.err) == (Exit.NOT_FOUND, f"Error: {expected}\n")


def test_jitter_is_no_lateness(run: Run, make: Make, redis_client: redis.Redis) -> None:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    entry = make("a", 3600, jitter=1800, last_run_at=now)
    scheduled_at = now + timedelta(hours=1)
    assert entry.due_at is not None
    jitter = (entry.due_at - scheduled_at).total_seconds()
    assert jitter > 0
    text = f"{scheduled_at.timestamp():.6f} {jitter + 0.25:+.6f}"
    put_history(redis_client, "redbeat:a", [text])
    row = run("history", "a").lines[-1]
    assert "  0.25 s  sent" in row


def test_runs_that_another_one_replaces_are_told(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    entry = make("a", 3600)
    put_history(redis_client, "redbeat:a", [run_line(9000, 9001, missed=2)])
    assert "  sent, 2 missed" in run("history", "a").lines[-1]
    (found,) = run("history", "a", "--json").json
    assert (found["outcome"], found["missed"]) == ("sent", 2)
    assert found["task_id"] == entry.own_task_id(from_timestamp(9000))


def test_an_error_is_cut_by_the_width_of_the_terminal_alone(
    run: Run, make: Make, redis_url: str, redis_client: redis.Redis
) -> None:
    make("a", 3600)
    error = f"ValueError: {'no stock ' * 25}."
    put_history(redis_client, "redbeat:a", [run_line(9000, 9001, "sent", "id-1")])
    put_results(
        redis_client, "redbeat:a", 0.0, 1, 0.0, (9000, Ended("id-1", "failed", error=error))
    )
    for columns, words in ((80, ()), (400, ()), (80, ("--wide",))):
        variables = {"COLUMNS": str(columns), "TERM": "dumb"}
        text, _ = in_terminal(redis_url, "history", "a", *words, environ=variables)
        title, row = text.splitlines()
        whole = columns == 400 or bool(words)
        assert (error in row, "DISPATCHED" in title, "LATE" in title) == (whole, whole, True)
        assert (len(row) <= columns, row[-1:]) == (not words, "1" if words else ".~"[not whole])
    assert error in run("history", "a").out
    assert run("history", "a", "--json").json[0]["result"]["error"] == error


def test_a_triggered_run_is_the_last_run(run: Run, make: Make, redis_client: redis.Redis) -> None:
    make("a", 3600)
    put_history(redis_client, "redbeat:a", [f"{RAN.timestamp():.6f} +0.5 triggered id-1"])
    assert f"Last run  {RAN + timedelta(seconds=0.5):%Y-%m-%d %H:%M:%S}" in run("show", "a").out


def test_an_entry_that_is_not_scheduled(run: Run, make: Make, redis_client: redis.Redis) -> None:
    make("a b", 3600)
    redis_client.zrem("redbeat::schedule", "redbeat:a b")
    shown = run("show", "a b").out
    assert re.search("^State +not scheduled$", shown, re.MULTILINE)
    assert "celery redbeat resume 'a b' schedules it" in shown
    assert "Upcoming, if resumed" in shown
    assert not re.search("^Due ", shown, re.MULTILINE)
    (found,) = run("show", "a b", "--json").json
    assert (found["state"], found["due_at"]) == ("not scheduled", None)
    assert run("resume", "a b").code == 0
    assert "not scheduled" not in run("show", "a b").out


def test_show_says_who_makes_the_messages(
    run: Run, make: Make, app: Celery, redis_url: str
) -> None:
    app.conf.broker_url = redis_url
    make("plain")
    make("odd", options={"countdown": 5})

    rows = [run("show", name).lines[-1].split() for name in ("plain", "odd")]

    assert [" ".join(row) for row in rows] == [
        "Messages rendered",
        "Messages made by Celery: its option countdown is a time",
    ]


def test_a_task_that_the_app_does_not_know_is_named(run: Run, app: Celery, make: Make) -> None:
    @app.task(name="proj.report", shared=False)
    def report() -> None: ...

    make("nightly", task="proj.raport")
    assert "'proj.raport' is not registered in this app; did you mean 'proj.report'?" in (
        run("show", "nightly").err
    )
