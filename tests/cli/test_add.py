"""Tests of `celery redbeat add`."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatSchedulerEntry, clocked, from_ical, hashed_crontab
from redbeat.cli.command import Exit
from tests.cli.conftest import Run
from tests.conftest import Make

RULE = "RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=0"
PARIS = ZoneInfo("Europe/Paris")


def load(app: Celery, name: str) -> RedBeatSchedulerEntry:
    """Load an entry."""
    return RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--every", "30"], schedule(30)),
        (["--every", "1.5"], schedule(1.5)),
        (["--every", "5m"], schedule(300)),
        (["--every", "2h"], schedule(7200)),
        (["--cron", "*/5 1 2 3 mon"], crontab("*/5", "1", "mon", "2", "3")),
        (["--rrule", RULE], from_ical(RULE)),
        (
            ["--rrule", "DTSTART:20260101T090000Z", "--rrule", "RRULE:FREQ=WEEKLY;COUNT=3"],
            from_ical("DTSTART:20260101T090000Z\nRRULE:FREQ=WEEKLY;COUNT=3"),
        ),
        (["--at", "2027-01-01T09:00+01:00"], clocked(datetime(2027, 1, 1, 8, tzinfo=timezone.utc))),
        (["--at", "2027-01-01 09:00"], clocked(datetime(2027, 1, 1, 9, tzinfo=timezone.utc))),
        (["--solar", "sunset,52.52,13.41"], solar("sunset", 52.52, 13.41)),
    ],
)
def test_each_type_of_schedule_can_be_added(
    run: Run, app: Celery, options: list[str], expected: object
) -> None:
    ran = run("add", "new", "proj.note", *options)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("Added new: ")
    entry = load(app, "new")
    assert (entry.schedule, entry.task, entry.enabled) == (expected, "proj.note", True)


def test_a_crontab_with_two_kinds_of_days_is_explained(run: Run, tmp_path: Path) -> None:
    either = "For either, make two entries, '0 9 13 * *' and '0 9 * * fri'"
    both = "for both, keep '0 9 13 * fri'"
    added = run("add", "new", "proj.note", "--cron", "0 9 13 * fri")
    assert either in added.err
    assert both in added.err
    assert either not in run("edit", "new", "--max-runs", "5").err
    assert either in run("edit", "new", "--cron", "0 9 13 * fri").err
    file = tmp_path / "entries.json"
    table = {"task": "proj.note", "cron": "0 9 13 * fri"}
    file.write_text(json.dumps({"managed_by": "me", "entries": {"a": table}}), encoding="utf-8")
    planned = run("plan", str(file))
    assert "a: the day of the month and the weekday must both match" in planned.err
    for plain in ("0 9 13 * *", "0 9 * * fri", "0 9 */2 * fri", "@monthly"):
        assert "either" not in run("edit", "new", "--cron", plain).err


def test_all_weekdays_of_cron_are_accepted(run: Run, app: Celery) -> None:
    for text in ("fri-7", "5-7", "Fri-sun"):
        run("add", text, "proj.note", "--cron", f"0 9 * * {text}")
        assert load(app, text).schedule.day_of_week == {5, 6, 0}


def test_an_entry_without_a_next_run_is_reported(run: Run) -> None:
    ran = run("add", "past", "proj.note", "--every", "30", "--end", "2026-01-01")
    assert (ran.code, ran.err) == (0, "Added past: every 30 s, no run left\n")


def test_all_options_of_an_entry_can_be_added(run: Run, app: Celery) -> None:
    options = {
        "--cron": "0 9 * * *",
        "--args": "[1, null]",
        "--kwargs": '{"user": 7}',
        "--options": '{"priority": 5, "expires": 60}',
        "--queue": "reports",
        "--timezone": "Europe/Paris",
        "--start": "2026-12-01T00:00",
        "--end": "2026-12-31T23:00Z",
        "--max-runs": "10",
        "--on-finish": "delete",
        "--misfire-grace-time": "1m",
        "--coalesce": "all",
        "--catch-up-limit": "5",
        "--jitter": "2.5",
        "--spread": "1h",
        "--delivery": "at_most_once",
    }
    words = [word for pair in options.items() for word in pair]
    ran = run("add", "new", "proj.note", *words, "--paused")
    assert ran.code == 0
    entry = load(app, "new")
    assert (entry.args, entry.kwargs) == ([1, None], {"user": 7})
    assert entry.options == {"priority": 5, "expires": 60, "queue": "reports"}
    assert not entry.enabled
    given = entry.policy.non_defaults()
    assert given == {
        "timezone": "Europe/Paris",
        "start_time": datetime(2026, 11, 30, 23, tzinfo=timezone.utc),
        "end_time": datetime(2026, 12, 31, 23, tzinfo=timezone.utc),
        "max_runs": 10,
        "on_finish": "delete",
        "misfire_grace_time": 60,
        "coalesce": "all",
        "catch_up_limit": 5,
        "jitter": 2.5,
        "spread": 3600,
        "delivery": "at_most_once",
    }


def test_a_spread_is_shown_with_the_schedule_in_every_listing(run: Run) -> None:
    text = "every 1 h +12 min 39 s (spread 30 min)"
    added = run("add", "new", "proj.note", "--every", "1h", "--spread", "30m")
    assert text in added.out + added.err
    assert text in run("list").out
    shown = run("show", "new").out
    assert "Schedule  every 1 h\n" in shown
    assert "Offset    12 min 38.586 s after" in shown
    assert run("show", "new", "--json").json[0]["schedule_text"] == text


def test_h_in_a_crontab_is_a_value_that_the_name_determines(run: Run, app: Celery) -> None:
    assert run("add", "new", "proj.note", "--cron", "H H(0-5) * * *").code == 0
    expected = hashed_crontab("new", "H", "H(0-5)")
    assert load(app, "new").schedule == expected
    assert run("edit", "new", "--cron", "H/20 * * * *").code == 0
    assert load(app, "new").schedule == hashed_crontab("new", "H/20")


def test_an_overlap_policy_of_an_app_whose_workers_report_ends(run: Run, app: Celery) -> None:
    app.redbeat_tracks_runs = True
    options = ("--every", "1", "--overlap", "buffer_one", "--overlap-timeout", "2m")
    assert run("add", "new", "proj.note", *options).code == 0
    entry = load(app, "new")
    assert (entry.overlap, entry.overlap_timeout) == ("buffer_one", 120)


@pytest.mark.parametrize("given", [["--timezone", "Europe/Paris"], []])
def test_times_without_an_offset_are_in_the_given_zone_or_that_of_the_app(
    run: Run, app: Celery, given: list[str]
) -> None:
    if not given:
        app.conf.timezone = "Europe/Paris"
    assert run("add", "once", "proj.note", "--at", "2027-07-01T09:00", *given).code == 0
    assert run("add", "rule", "proj.note", "--rrule", RULE, *given).code == 0
    assert load(app, "once").schedule == clocked(datetime(2027, 7, 1, 9, tzinfo=PARIS))
    after = datetime(2027, 7, 1, tzinfo=timezone.utc)
    assert load(app, "rule").upcoming(1, after) == [datetime(2027, 7, 1, 7, tzinfo=timezone.utc)]
    assert load(app, "rule").timezone is None  # the rule itself contains the time zone


def test_the_value_none_sets_no_option(run: Run, app: Celery) -> None:
    options = ("--end", "none", "--max-runs", "none", "--queue", "none", "--timezone", "none")
    assert run("add", "new", "proj.note", "--cron", "* * * * *", *options).code == 0
    entry = load(app, "new")
    assert (entry.policy.non_defaults(), entry.options) == ({}, {})


WRONG = [
    ([], "for example: --every 5m", "Give a schedule"),
    (["--every", "soon"], "for example: --every 5m", "'soon' is not a duration"),
    (["--every", "0"], "for example: --every 5m", "must be above 0"),
    (["--every", "999999999999"], "for example: --every 5m", "1000 years"),
    (["--every", "1", "--cron", "* * * * *"], "", "--every or --cron"),
    (["--cron", "30 9 * *"], "such as '30 9 * * *'", "has 4 fields"),
    (["--cron", "0 30 9 * * mon"], "such as '30 9 * * mon-fri'", "has 6 fields"),
    (["--cron", "0 9 * * Mon#1"], "", "'Mon#1' must be *, a number or a name"),
    (["--cron", "H 9 * * fri,Mon#1"], "", "'Mon#1' must be *, a number"),
    (["--cron", "0/15 * * * *"], "", "a step such as /2 follows * or a range"),
    (["--cron", "0 9 ? * fri"], "", "must be *, a number"),
    (["--cron", "0 9 * febtember *"], "", "'febtember' must be *, a number"),
    (["--cron", "0 9 * mon *"], "", "a name (feb, february)"),
    (["--cron", "mon 9 * * *"], "", "'mon' must be *, a number, or a range"),
    (["--cron", "*/15# * * * *"], "", "'*/15#' must be *, a number"),
    (["--cron", "99 * * * *"], "", "99"),
    (["--cron", "H(70-80) * * * *"], "", "is not within 0-59"),
    (["--cron", "@reboot"], "", "@reboot is unknown; use one of @yearly"),
    (["--rrule", "FREQ=SOMETIMES"], "for example: --rrule 'RRULE:", "'SOMETIMES' is not one of"),
    (["--rrule", "FREQ=DAILY;COUNT=3"], "for example: --rrule 'RRULE:", "DTSTART: missing"),
    (["--at", "tomorrow"], "such as 2026-12-31T09:00", "'tomorrow' is not a time"),
    (["--solar", "sunset,52"], "for example: --solar sunset,52.52,13.41", "EVENT,LAT,LON"),
    (["--solar", "tea,52,13"], "for example: --solar sunset,52.52,13.41", "tea"),
    (["--every", "1", "--args", "{}"], "for example: --args '[1, 2]'", "not an array"),
    (["--every", "1", "--kwargs", "a=1"], "for example: --kwargs '{", "Expecting value"),
    (["--every", "1", "--options", '{"expires": "x"}'], "", "options.expires"),
    (["--every", "1", "--max-runs", "0"], "", "above 0"),
    (["--every", "1", "--max-runs", "few"], "for example: --max-runs 10", "not a valid integer"),
    (["--every", "1", "--coalesce", "all"], "such as 100", "needs a bound"),
    (["--every", "1", "--coalesce", "x"], "'latest'", "not one of"),
    (["--every", "1", "--jitter", "-1"], "for example: --jitter 10", "is not a duration"),
    (["--every", "1", "--overlap", "skip"], "", "redbeat.worker.enable(app)"),
    (["--every", "1", "--timezone", "Mars"], "such as 'Europe/Paris'", "unknown time zone"),
    (
        ["--every", "1", "--start", "2027-01-02", "--end", "2027-01-01"],
        "",
        "before start_time",
    ),
    (
        ["--every", "1", "--start", "9999-12-31T23:59:59", "--timezone", "America/New_York"],
        "",
        "9999-12-31T23:59:59-05:00 is not between the years 1 and 9999 in UTC",
    ),
    (["--every", "1", "--end", "0001-01-01T00:00+05:00"], "", "the years 1 and 9999"),
    (["--every", "1", "--delivery", "fast"], "'at_most_once'", "not one of"),
]


@pytest.mark.parametrize(("options", "example", "problem"), WRONG)
def test_a_wrong_option_is_named_and_nothing_is_written(
    run: Run, redis_client: redis.Redis, options: list[str], example: str, problem: str
) -> None:
    """An example is shown if the form is wrong, once, and not if the value is."""
    ran = run("add", "new", "proj.note", *options)
    assert ran.code == 2
    error = ran.err.splitlines()[-1]
    assert problem in error
    assert example in error
    shown = bool(example) and "such as" not in example and not example.startswith("'")
    assert ("for example: " in error) == shown
    assert redis_client.keys() == []


@pytest.mark.parametrize("name", [":lock", ":schedule", ""])
def test_an_impossible_name_is_refused(run: Run, redis_client: redis.Redis, name: str) -> None:
    ran = run("add", name, "proj.note", "--every", "30")
    assert ran.code == 2
    assert "NAME" in ran.err
    assert redis_client.keys() == []


def test_an_existing_entry_is_not_changed(run: Run, app: Celery) -> None:
    assert run("add", "new", "proj.note", "--every", "30").code == 0
    ran = run("add", "new", "proj.other", "--every", "60")
    assert ran.code == Exit.CONFLICT
    assert "celery redbeat edit new" in ran.err
    assert load(app, "new").task == "proj.note"


def test_quiet_prints_nothing_and_json_prints_the_entry(run: Run) -> None:
    ran = run("add", "new", "proj.note", "--every", "30", before=("--quiet",))
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    (added,) = run("add", "other", "proj.note", "--every", "30", "--json").json
    assert (added["name"], added["schedule"]["every"]) == ("other", 30)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--every", "1h30m"], "every 1 h 30 min"),
        (["--every", "1w"], "every 7 d"),
        (["--every", "1 d relative"], "every 1 d (relative)"),
        (["--cron", "@daily"], "cron 0 0 * * *"),
        (["--cron", "@hourly"], "cron 0 * * * *"),
        (["--cron", "@weekly"], "cron 0 0 * * 0"),
        (["--cron", "@monthly"], "cron 0 0 1 * *"),
        (["--cron", "@yearly"], "cron 0 0 1 1 *"),
    ],
)
def test_durations_with_units_and_nicknames_of_crontabs(
    run: Run, words: list[str], text: str
) -> None:
    assert run("add", "new", "proj.note", *words, "--json").json[0]["schedule_text"] == text


def test_other_options_take_durations_with_units_too(run: Run) -> None:
    assert run("add", "new", "t", "--every", "1h", "--jitter", "1m30s").code == 0
    assert run("show", "new", "--json").json[0]["policy"] == {"jitter": 90.0}
    assert run("status", "--max-late", "1h30m").code == 1


@pytest.fixture
def task(app: Celery) -> str:
    """Register a task in the app; return its name."""

    @app.task(name="proj.tasks.report", shared=False)
    def report() -> None:
        pass

    return str(report.name)


def test_an_unregistered_task_is_accepted_with_the_closest_match(run: Run, task: str) -> None:
    ran = run("add", "new", "proj.tasks.reprot", "--every", "1h")
    assert ran.code == 0
    problem = "the task 'proj.tasks.reprot' is not registered in this app"
    assert f"{problem}; did you mean '{task}'?" in ran.err
    assert "did you mean" in run("edit", "new", "--task", "proj.tasks.reportt").err
    assert "Warning" not in run("edit", "new", "--task", task).err
    assert "Warning" not in run("add", "other", task, "--every", "1h").err


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_an_import_warns_once_of_each_unknown_name(
    run: Run, task: str, tmp_path: Path, dry_run: tuple[str, ...]
) -> None:
    lines = [("0", "proj.tasks.reprot"), ("1", "proj.tasks.reprot"), ("2", task)]
    file = tmp_path / "crontab"
    crontab = "".join(f"{minute} * * * * {name}\n" for minute, name in lines)
    file.write_text(crontab + "".join(f"0 0 * * * no.{n}\n" for n in range(25)), encoding="ascii")
    words = ("import", str(file), "--format", "crontab", *dry_run)
    ran = run(*words)
    assert ran.code == 0
    warnings = [line for line in ran.err.splitlines() if line.startswith("Warning")]
    entries = "proj.tasks.reprot-1 and 1 other entry"
    problem = "the task 'proj.tasks.reprot' is not registered in this app"
    assert warnings[0] == f"Warning: {entries}: {problem}; did you mean '{task}'?"
    assert "no.0" in warnings[1]
    assert warnings[20:] == ["Warning: 6 other unknown names are not listed"]
    if not dry_run:
        assert "Warning" not in run(*words).err, "nothing is written"


def test_an_app_without_tasks_accepts_any_task(run: Run) -> None:
    assert "Warning" not in run("add", "new", "somewhere.else", "--every", "1h").err


def test_an_unknown_option_is_accepted_with_the_closest_match(run: Run) -> None:
    ran = run("add", "new", "t", "--every", "1h", "--options", '{"prioritty": 5}')
    assert ran.code == 0
    problem = "'prioritty' is not an option of apply_async; did you mean 'priority'?"
    assert problem in ran.err
    assert problem in run("edit", "new", "--options", '{"prioritty": 6}').err


KNOWN = {
    "queue": "q",
    "exchange": "e",
    "routing_key": "k",
    "priority": 5,
    "expires": 60,
    "eta": "2030-01-01",
    "countdown": 1,
    "serializer": "json",
    "compression": "gzip",
    "headers": {},
    "retry": True,
    "retry_policy": {},
    "time_limit": 5,
    "soft_time_limit": 4,
    "shadow": "s",
    "task_id": "i",
    "link": [],
    "link_error": [],
    "chain": [],
    "chord": None,
    "delivery_mode": 1,
    "reply_to": "r",
    "correlation_id": "c",
    "ignore_result": True,
    "mandatory": True,
    "expiration": 1,
    "timeout": 1,
    "confirm_timeout": 1,
    "user_id": "u",
    "stamped_headers": ["team"],
    "team": "blue",
    "replaced_task_nesting": 1,
    "root_id": "i",
}


def test_the_options_of_celery_and_kombu_are_known(run: Run) -> None:
    ran = run("add", "new", "t", "--every", "1h", "--options", json.dumps(KNOWN))
    assert (ran.code, "Warning" in ran.err) == (0, False), ran.err


def test_modules_that_cannot_be_imported_are_named(run: Run, app: Celery) -> None:
    app.conf.imports = ["no_such_module"]
    ran = run("add", "new", "t", "--every", "1h")
    assert ran.code == 0
    assert "task names are not checked" in ran.err
    assert "no_such_module" in ran.err


def test_an_edit_of_a_managed_entry_warns(run: Run, make: Make) -> None:
    make("a", 60, managed_by="billing")
    assert "a is managed by billing" in run("edit", "a", "--every", "1h").err
    assert "Warning" not in run("edit", "a", "--managed-by", "none").err


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ([], "so it runs at once"),
        (["--misfire-grace-time", "60"], "so it never runs"),
        (["--paused"], "so it runs when it is resumed"),
    ],
)
def test_a_time_in_the_past_is_a_warning(run: Run, options: list[str], runs: str) -> None:
    words = ["new", "proj.note", "--at", "2020-01-01T00:00", *options]
    ran = run("add", *words)
    assert ran.code == 0
    said = rf"Warning: new: its time is 2020-01-01 00:00:00 UTC, \d+ d.* ago, {runs}\n"
    assert re.search(said, ran.err)
    assert "its time is" not in run("add", "later", *words[1:3], "2999-01-01").err
    assert "its time is" in run("edit", "later", "--at", "2020-01-01").err


def test_a_file_with_a_time_in_the_past_is_a_warning(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    entries = {"old": {"task": "proj.note", "at": "2020-01-01T00:00:00Z"}}
    file.write_text(json.dumps({"managed_by": "x", "entries": entries}), encoding="utf-8")
    assert "so it runs at once" in run("plan", str(file)).err


@pytest.mark.parametrize("verb", ["pause", "delete", "show"])
def test_a_pattern_in_the_place_of_a_name(run: Run, make: Make, verb: str) -> None:
    make("sync")
    ran = run(verb, "s*")
    assert ran.code == Exit.NOT_FOUND
    assert ("for all that match, use --match 's*'" in ran.err) == (verb != "show")
