"""Tests of `celery redbeat export` and `import`."""

from __future__ import annotations

import dbm.dumb
import json
import os
import pickle
import shelve
import sys
from collections import deque
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytz
from celery import Celery
from celery.beat import BeatLazyFunc, PersistentScheduler, ScheduleEntry
from celery.schedules import crontab, schedule, solar
from celery.utils.time import LocalTimezone
from dateutil.tz import tzutc

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule, clocked, rrule
from redbeat.cli.command import Exit
from redbeat.cli.import_export import FORMATS
from redbeat.transfer.jsonlines import MAX_LINE
from tests.acceptance.processes import Project
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.scheduler.test_cached import GOOD
from tests.stored import put_history, put_nominal

UTC = timezone.utc
RAN = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def load(app: Celery, name: str) -> RedBeatSchedulerEntry:
    """Load an entry."""
    return RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)


def stored(client: Any) -> dict[str, Any]:
    """Return all stored fields of the entries, without scores."""
    keys = [key for key in client.keys("redbeat:*") if not key.startswith("redbeat::")]
    return {key: client.hgetall(key) for key in keys}


def write(path: Path, *lines: Any) -> str:
    """Write lines to a file, with objects as JSON; return its path."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(path)


def line(name: str, every: float = 60, **more: Any) -> dict[str, Any]:
    """Return the exported line of an entry, as an object."""
    when = {"__type__": "interval", "every": every, "relative": False}
    return {"name": name, "definition": {"name": name, "task": "t", "schedule": when}, **more}


# -- JSON lines ------------------------------------------------------------------------------------


def test_an_export_with_history_can_be_restored_exactly(
    run: Run, make: Make, redis_client: Any, tmp_path: Path
) -> None:
    """The import restores every field, every score, and the set of static entries."""
    make("interval", 61, args=[1], kwargs={"when": RAN}, options={"queue": "q"})
    make("cron", crontab("5", "4"), timezone="Europe/Paris", max_runs=7, jitter=3)
    make("rule", rrule("DAILY", dtstart=RAN))
    make("paused").pause("broken")
    make("näme with : / and \u2028")
    last = datetime.now(UTC)
    make("ran", 3600, last_run_at=last, total_run_count=4)
    put_nominal(redis_client, "redbeat:ran", last.timestamp())
    redis_client.sadd("redbeat::statics", "cron")
    file = str(tmp_path / "all.jsonl")
    before, scores = stored(redis_client), redis_client.zrange("redbeat::schedule", 0, -1)
    assert run("export", "--history", file).code == 0
    redis_client.flushall()

    assert run("import", file).code == 0
    after = stored(redis_client)
    assert after.keys() == before.keys()
    for key, fields in before.items():
        for field, text in fields.items():
            found, expected = json.loads(after[key][field]), json.loads(text)
            if field == "beat_state":
                found["m"] = expected["m"]  # the marks of changes differ
            assert found == expected, (key, field)
    assert redis_client.zrange("redbeat::schedule", 0, -1) == scores
    assert redis_client.smembers("redbeat::statics") == {"cron"}


def test_an_export_restores_calendars_before_the_entries_that_name_them(
    run: Run, make: Make, app: Celery, redis_client: Any, tmp_path: Path
) -> None:
    """The import stores the calendars, and a later change of one reaches the imported entries."""
    saturdays = Calendar("sat", [], ["FREQ=WEEKLY;BYDAY=SA"], "Europe/Paris")
    schedule = Schedule(app)
    schedule.save_calendar(saturdays)
    schedule.save_calendar(Calendar("hol", ["2026-12-25", ("2026-12-27", "2027-01-03")]))
    daily = make("daily", crontab("0", "9"), exclude=("sat", "hol"))
    calendars, file = schedule.calendars, str(tmp_path / "all.jsonl")
    exported = run("export", file)
    assert exported.code == 0
    assert "RedBeat 2 ignores calendars" in exported.err
    redis_client.flushall()

    planned = run("import", "--dry-run", file)
    assert planned.code == 0
    assert "created     calendar hol: days: none -> " in planned.out
    assert "2 calendars" in planned.err
    assert redis_client.keys() == []
    ran = run("import", file)
    assert (ran.code, ran.err) == (
        0,
        "Imported: 1 created, 0 changed, 0 unchanged, 0 kept, 0 removed, 2 calendars\n",
    )
    assert schedule.calendars == calendars
    assert load(app, "daily").due_at == daily.due_at
    due_at = load(app, "daily").due_at
    assert due_at is not None
    schedule.save_calendar(Calendar("hol", [due_at.date()]))
    moved = load(app, "daily").due_at
    assert moved is not None
    assert moved > due_at
    again = run("import", file, "--json")
    assert (again.code, Schedule(app).calendars["hol"].days) == (4, (due_at.date().isoformat(),))
    (problem,) = again.json
    assert problem["problem"] == "calendar 'hol' is already stored with other content"
    assert run("import", "--on-conflict", "keep", file).code == 0
    assert Schedule(app).calendars != calendars
    assert run("import", "--on-conflict", "replace", file).code == 0
    assert Schedule(app).calendars == calendars
    assert load(app, "daily").due_at == due_at


def test_a_wrong_calendar_of_a_file_is_named(run: Run, app: Celery, tmp_path: Path) -> None:
    """Each wrong line is named, nothing is written, and an export names an unreadable calendar."""
    lines = (
        {"calendar": "hol", "days": ["soon"]},
        {"calendar": "", "days": []},
        {"calendar": "hol", "dys": []},
        {"calendar": "hol", "rules": "FREQ=DAILY"},
        {"calendar": "hol"},
        {"calendar": "hol", "days": ["2026-12-25"]},
        line("late", policy={"exclude": ["later"]}),
        {"calendar": "later"},
    )
    ran = run("import", write(tmp_path / "wrong.jsonl", *lines), "--json")
    assert ran.code == 1
    assert [(found["where"], found["problem"].partition(":")[0]) for found in ran.json] == [
        ("line 1", "calendar 'hol'.days"),
        ("line 2", "calendar ''.name"),
        ("line 3", "dys"),
        ("line 4", "rules"),
        ("line 6", "calendar"),
        ("line 7", "exclude"),
    ]
    assert "there is no calendar 'later'" in ran.json[-1]["problem"]
    assert Schedule(app).calendars == {}


def test_an_export_leaves_out_a_calendar_that_cannot_be_read(
    run: Run, redis_client: Any, tmp_path: Path
) -> None:
    """The other lines are exported; the calendar is named, and the exit code is 1."""
    run("calendar", "good", "--day", "2026-12-25")
    redis_client.hset(".redbeat::calendars", "bad", "{")
    ran = run("export", str(tmp_path / "all.jsonl"))
    assert ran.code == 1
    assert "calendar bad is not exported" in ran.err
    assert json.loads((tmp_path / "all.jsonl").read_text())["calendar"] == "good"


def test_an_import_stores_what_a_save_stores(
    run: Run, app: Celery, redis_client: Any, tmp_path: Path
) -> None:
    """The import shares the objects of equal schedules; the stored definitions are the same."""
    named = [{**fields, "name": f"e{n}"} for n, fields in enumerate((*GOOD, *reversed(GOOD)))]
    for fields in named:
        RedBeatSchedulerEntry.from_definition(app, json.dumps(fields), "").save()
    saved = stored(redis_client)
    redis_client.flushall()
    lines = ({"name": fields["name"], "definition": fields} for fields in named)
    assert run("import", write(tmp_path / "all.jsonl", *lines)).code == 0
    imported = stored(redis_client)
    assert imported.keys() == saved.keys()
    for key, fields in saved.items():
        assert imported[key]["definition"] == fields["definition"]


def test_an_export_with_history_has_the_last_runs(
    run: Run, make: Make, app: Celery, redis_client: Any, tmp_path: Path
) -> None:
    """The import restores recorded runs unchanged. Their ids stay the same under another prefix."""
    key = make("ran", 3600, last_run_at=RAN, total_run_count=4).key
    lines = ("1795289048.5 +0.25", "1795289000 +1 triggered my id", "1 +1 sent old")
    put_history(redis_client, key, lines)
    before, file = load(app, "ran").history, str(tmp_path / "all.jsonl")
    assert [item.task_id for item in before][1:] == ["my id", "old"]
    assert run("export", "--history", file).code == 0
    redis_client.flushall()
    assert run("import", file).code == 0
    assert load(app, "ran").history == before
    app.conf.redbeat_key_prefix = "other:"
    del app.redbeat_conf
    assert run("import", file).code == 0
    other = RedBeatSchedulerEntry.from_key("other:ran", app=app)
    assert other.history == before


def test_a_restored_entry_is_the_same(
    run: Run, make: Make, app: Celery, redis_client: Any, tmp_path: Path
) -> None:
    """With its history, a restored entry keeps its run ids; without a history it gets new ids."""
    entry, file = make("ran", 3600, last_run_at=RAN), str(tmp_path / "all.jsonl")
    task_id = entry.task_id_of(RAN)
    for options, same in ((["--history"], True), ([], False)):
        assert run("export", *options, file).code == 0
        redis_client.flushall()
        assert run("import", file).code == 0
        assert (load(app, "ran").task_id_of(RAN) == task_id) is same


def test_a_bad_identity_in_a_line_is_an_error(run: Run, tmp_path: Path) -> None:
    """The error names the field."""
    ran = run("import", write(tmp_path / "f", line("a", identity=7)))
    assert (ran.code, "identity: must be a string, not 7" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ("1 +1", "history: must be a list of at most 30 lines"),
        (["1 +1"] * 31, "history: must be a list of at most 30 lines"),
        (["1 +1", "soon"], "history: 'soon' is not a run; write"),
        (["1 +1\n2 +1"], "history: '1 +1\\n2 +1' is not a run"),
        ([7], "history: 7 is not a run"),
    ],
)
def test_a_bad_history_in_a_line_is_an_error(
    run: Run, redis_client: Any, tmp_path: Path, history: Any, problem: str
) -> None:
    """The error names the problem, and nothing is written."""
    ran = run("import", write(tmp_path / "f", line("a", history=history)))
    assert ran.code == 1
    assert problem in ran.err.replace("\\\\n", "\\n")
    assert redis_client.keys("*") == []


def test_the_score_of_a_restored_entry_counts_from_its_nominal_run(
    run: Run, redis_client: Any, tmp_path: Path
) -> None:
    """Later runs count from the nominal time, even if the last run was late."""
    seconds, _ = redis_client.time()
    ran = datetime.fromtimestamp(seconds, UTC)
    stamp = {"__type__": "datetime", **dict(zip(FIELDS, ran.timetuple(), strict=False))}
    runtime = {"scheduled_at": seconds - 40.0, "last_run_at": float(seconds)}
    exported_line = line(
        "late", 100, meta={"last_run_at": stamp, "total_run_count": 3}, runtime=runtime
    )
    assert run("import", write(tmp_path / "f", exported_line)).code == 0
    assert redis_client.zscore("redbeat::schedule", "redbeat:late") == seconds + 60


FIELDS = ("year", "month", "day", "hour", "minute", "second")


def test_export_without_history_leaves_it_out(run: Run, make: Make) -> None:
    """A line without a history contains only the name and the definition."""
    make("a")
    (exported,) = run("export").json
    assert exported.keys() == {"name", "definition"}
    assert exported["definition"]["task"] == "proj.note"


def test_an_unreadable_entry_is_left_out_and_reported(
    run: Run, make: Make, redis_client: Any
) -> None:
    """The other entries are exported, and the exit code reports the problem."""
    make("good")
    redis_client.hset("redbeat:bad", "definition", "{")
    redis_client.zadd("redbeat::schedule", {"redbeat:bad": 0, "redbeat:gone": 1})
    ran = run("export")
    assert [found["name"] for found in ran.json] == ["good"]
    assert ran.code == 1
    assert "redbeat:bad is not exported: definition" in ran.err
    assert "redbeat:gone is not exported" in ran.err


def test_a_file_is_replaced_only_when_all_is_written(
    run: Run, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing file is not changed if the export fails."""
    make("a")
    file = tmp_path / "backup"
    file.write_text("yesterday")
    monkeypatch.setattr("os.fsync", lambda _fd: (_ for _ in ()).throw(OSError(28, "disk full")))
    ran = run("export", str(file))
    assert (ran.code, file.read_text()) == (1, "yesterday")
    assert "disk full" in ran.err
    assert os.listdir(tmp_path) == ["backup"]  # noqa: PTH208 - it must return names


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("{", "line: cannot be read as JSON"),
        ("[1]", "line: must be a JSON object"),
        ({"name": "x"}, "definition: is missing"),
        (line("x", defintion={}), "defintion: is an unknown field; did you mean definition?"),
        (line("x", policy=[1]), "policy: must be an object"),
        (line("x", policy={"jitter": -1}), "policy.jitter: must be a number of seconds"),
        (line("x", meta={"last_run_at": 3}), "meta.last_run_at: must be a datetime"),
        (line("x", static="yes"), "static: must be true or false"),
        ({**line("x"), "name": "y"}, "name: is 'y', but the definition has 'x'"),
        (
            {**line("x"), "definition": {"name": "x", "task": "t"}},
            "definition.schedule: is missing",
        ),
        (line(":schedule"), "name: ':schedule' is a key that RedBeat uses itself"),
        (line("good"), "name: 'good' is already used in this source"),
        (line("x", "soon"), "definition.schedule.every"),  # type: ignore[arg-type]
        (
            {**line("x"), "definition": {**line("x")["definition"], "options": {"expires": "?"}}},
            "definition.options.expires: must be a number of seconds, a timedelta, a datetime",
        ),
        ({**line(""), "definition": {**line("")["definition"], "name": ""}}, "definition.name"),
        (
            {**line("x"), "definition": {**line("x")["definition"], "kwarg": {}}},
            "definition.kwarg: is an unknown field of RedBeatSchedulerEntry; did you mean kwargs?",
        ),
        (
            {**line("x"), "definition": {**line("x")["definition"], "app": 1}},
            "definition.app: is an unknown field of RedBeatSchedulerEntry; ",
        ),
        (line("x", policy={"max_run": 3}), "policy.max_run: is an unknown field; did you mean max"),
        (line("x", identity="a\nb"), "identity: must be at most 200 printable ASCII characters"),
    ],
)
def test_a_bad_line_is_reported_and_nothing_is_written(
    run: Run, redis_client: Any, tmp_path: Path, bad: Any, problem: str
) -> None:
    """The error contains the line number and the field."""
    ran = run("import", write(tmp_path / "f", line("good"), "", bad, line("better")))
    assert ran.code == 1
    assert f"line 3: {problem}" in ran.err
    assert "Nothing was written" in ran.err
    assert redis_client.keys("*") == []


def test_all_bad_lines_are_reported(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "f", "{", line("a"), "[]")
    assert [found["where"] for found in run("import", file, "--json").json] == ["line 1", "line 3"]


def test_invalid_lines_are_skipped_on_demand(run: Run, app: Celery, tmp_path: Path) -> None:
    """The error names the option. With it, each invalid line is reported, and the others count."""
    bad = [line(f"bad-{number}", 10**12) for number in range(120)]
    lost = line("lost", policy={"exclude": ["hol"]})
    lines = (line("a"), {"calendar": "hol", "days": ["soon"]}, lost, *bad, line("a"), line("z"))
    file = write(tmp_path / "f", *lines)
    refused = run("import", file)
    assert (refused.code, "--skip-invalid imports the others" in refused.err) == (1, True)
    assert "a" not in RedBeatNames(app)

    planned = run("import", file, "--skip-invalid", "--dry-run")
    assert planned.code == 0
    assert "2 created, 0 changed, 0 unchanged, 0 kept, 0 removed, 123 skipped" in planned.err
    assert "a" not in RedBeatNames(app)
    *problems, result = run("import", file, "--skip-invalid", "--json").json
    numbers = [int(found["where"].removeprefix("line ")) for found in problems]
    assert sorted(numbers) == [*range(2, 125)]
    assert all(found["problem"] for found in problems)
    assert (result["created"], result["skipped"]) == (2, 123)
    assert "a" in RedBeatNames(app)
    assert "z" in RedBeatNames(app)
    assert "lost" not in RedBeatNames(app)


def test_a_skipped_line_never_deletes_its_entry(run: Run, make: Make, tmp_path: Path) -> None:
    """``--prune`` would delete the stored entry of an invalid line."""
    make("a")
    ran = run("import", write(tmp_path / "f", line("a", 10**12)), "--skip-invalid", "--prune")
    assert (ran.code, "cannot delete entries with --skip-invalid" in ran.err) == (2, True)


def test_skipping_ignores_no_conflict(run: Run, make: Make, app: Celery, tmp_path: Path) -> None:
    make("a", 10)
    file = write(tmp_path / "f", line("a", 20), line("b", 10**12), line("c"))
    ran = run("import", file, "--skip-invalid")
    assert (ran.code, "c" in RedBeatNames(app)) == (Exit.CONFLICT, False)
    kept = run("import", file, "--skip-invalid", "--on-conflict", "keep")
    assert (kept.code, "1 kept, 0 removed, 1 skipped as invalid" in kept.err) == (0, True)


def test_a_line_that_is_too_long_is_skipped_whole(run: Run, tmp_path: Path) -> None:
    """The rest of the long line is not read as another line."""
    ran = run("import", write(tmp_path / "f", "x" * (2 * MAX_LINE), "{"))
    assert f"line 1: line: is longer than {MAX_LINE} bytes" in ran.err
    assert "line 2: line: cannot be read" in ran.err
    assert "2 entries of " in ran.err


def test_an_entry_that_differs_is_a_conflict(
    run: Run, make: Make, app: Celery, tmp_path: Path
) -> None:
    """By default, nothing is written; ``--on-conflict`` keeps or replaces the stored entry."""
    make("a", 10)
    file = write(tmp_path / "f", line("a", 20), line("b", 20))
    ran = run("import", file)
    assert ran.code == Exit.CONFLICT
    assert "line 1: 'a' is already stored with other content" in ran.err
    assert "b" not in RedBeatNames(app)

    assert (
        "1 created, 0 changed, 0 unchanged, 1 kept"
        in run(*("import", file, "--on-conflict", "keep")).err
    )
    assert load(app, "a").schedule == schedule(10)

    assert (
        "0 created, 1 changed, 1 unchanged, 0 kept"
        in run(*("import", file, "--on-conflict", "replace")).err
    )
    assert load(app, "a").schedule == schedule(20)


class RedBeatNames:
    """A container of the stored entry names."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def __contains__(self, name: str) -> bool:
        try:
            load(self.app, name)
        except KeyError:
            return False
        return True


def test_the_same_import_again_changes_nothing(run: Run, redis_client: Any, tmp_path: Path) -> None:
    """An identical entry is not a conflict."""
    file = write(tmp_path / "f", line("a"), line("b"))
    assert run("import", file).code == 0
    before = stored(redis_client)
    ran = run("import", file, "--json")
    assert (ran.code, ran.json[0]["unchanged"], ran.json[0]["created"]) == (0, 2, 0)
    assert stored(redis_client) == before


def test_replacing_keeps_the_history(run: Run, make: Make, app: Celery, tmp_path: Path) -> None:
    """A line without a history does not change the stored history."""
    make("a", 10, last_run_at=RAN, total_run_count=4)
    run("import", write(tmp_path / "f", line("a", 3600)), "--on-conflict", "replace")
    entry = load(app, "a")
    assert (entry.schedule, entry.last_run_at, entry.total_run_count) == (schedule(3600), RAN, 4)


@pytest.mark.parametrize("with_history", [True, False])
@pytest.mark.parametrize(("every", "armed"), [(60, True), (3600, False)])
def test_another_schedule_restarts_a_finished_entry(
    run: Run, make: Make, app: Celery, tmp_path: Path, every: float, armed: bool, with_history: bool
) -> None:
    make("once", 3600, max_runs=1, args=[1], last_run_at=RAN, total_run_count=1)
    exported = json.loads(run("export", *(["--history"] if with_history else [])).out)
    exported["definition"]["schedule"]["every"] = every
    exported["definition"]["args"] = [2]
    source = write(tmp_path / "in", exported)
    run("import", source, "--on-conflict", "replace")
    entry = load(app, "once")
    assert (entry.args, entry.runs_left) == ([2], int(armed))
    begins = datetime.now(UTC) if armed else RAN
    assert entry.last_run_at is not None
    assert abs(entry.last_run_at - begins) < timedelta(seconds=5)


def test_an_edited_history_in_a_file_is_imported_unchanged(
    run: Run, make: Make, app: Celery, redis_client: Any, tmp_path: Path
) -> None:
    make("once", 3600, max_runs=1, last_run_at=RAN, total_run_count=1)
    exported = json.loads(run("export", "--history").out)
    exported["definition"]["schedule"]["every"] = 60
    redis_client.hset("redbeat:once", "meta", '{"last_run_at": null, "total_run_count": 1}')
    run("import", write(tmp_path / "in", exported), "--on-conflict", "replace")
    assert (load(app, "once").last_run_at, load(app, "once").runs_left) == (RAN, 0)


def test_another_history_is_no_conflict(
    run: Run, make: Make, app: Celery, redis_client: Any, tmp_path: Path
) -> None:
    """By default the stored history stays; ``--on-conflict replace`` replaces it."""
    make("a", last_run_at=RAN, total_run_count=4)
    file = str(tmp_path / "backup")
    run("export", "--history", file)
    make("a", last_run_at=datetime.now(UTC), total_run_count=9)
    assert "0 changed, 0 unchanged, 1 kept" in run("import", file).err
    assert load(app, "a").total_run_count == 9
    assert "1 changed" in run("import", file, "--on-conflict", "replace").err
    assert (load(app, "a").last_run_at, load(app, "a").total_run_count) == (RAN, 4)
    assert redis_client.zscore("redbeat::schedule", "redbeat:a") <= redis_client.time()[0] + 1


def test_an_entry_of_beat_schedule_is_not_replaced(
    run: Run, make: Make, redis_client: Any, tmp_path: Path
) -> None:
    """A beat would restore the entry from beat_schedule."""
    make("a", 10)
    redis_client.sadd("redbeat::statics", "a")
    ran = run("import", write(tmp_path / "f", line("a", 20)), "--on-conflict", "replace")
    assert ran.code == 1
    assert "line 1: name: 'a' is an entry of beat_schedule" in ran.err


def test_prune_removes_dynamic_entries_that_are_not_in_the_file(
    run: Run, make: Make, redis_client: Any, tmp_path: Path
) -> None:
    """Static entries stay. A dry run removes nothing."""
    for name in ("old", "static", "a"):
        make(name)
    redis_client.sadd("redbeat::statics", "static")
    file = write(tmp_path / "f", line("a"), line("b"))
    options = ("import", file, "--prune", "--on-conflict", "keep")
    ran = run(*options, "--dry-run")
    assert "1 created, 0 changed, 0 unchanged, 1 kept, 1 removed" in ran.err
    assert sorted(redis_client.zrange("redbeat::schedule", 0, -1)) == sorted(
        ["redbeat:a", "redbeat:old", "redbeat:static"]
    )
    assert run(*options).code == 0
    assert sorted(redis_client.zrange("redbeat::schedule", 0, -1)) == sorted(
        ["redbeat:a", "redbeat:b", "redbeat:static"]
    )


def test_a_key_that_is_not_a_hash_is_an_error_of_its_line(
    run: Run, redis_client: Any, tmp_path: Path
) -> None:
    """The command finds the error before it writes anything."""
    redis_client.set("redbeat:b", "something")
    ran = run("import", write(tmp_path / "f", line("a"), line("b")))
    assert ran.code == 1
    assert "line 2: name: 'b': the key is not a hash" in ran.err
    assert not redis_client.exists("redbeat:a")


def test_import_reads_the_standard_input(run: Run, app: Celery) -> None:
    """The FILE argument "-" means the standard input."""
    assert run("import", "-", answer=json.dumps(line("a"))).code == 0
    assert load(app, "a").task == "t"


def test_imports_of_several_pages_are_complete(run: Run, tmp_path: Path) -> None:
    """No entry is lost between pages."""
    names = {f"n{number}" for number in range(1203)}
    file = write(tmp_path / "f", *(line(name) for name in names))
    assert run("import", file).code == 0
    assert {found["name"] for found in run("export").json} == names


def test_the_help_describes_every_format(run: Run) -> None:
    lines = run("import", "--help").out.splitlines()
    starts = [line.split()[0] for line in lines if line.strip()]
    assert [each for each in FORMATS if each not in starts] == []


# -- crontab ---------------------------------------------------------------------------------------


def test_a_crontab_file_is_imported(run: Run, app: Celery, tmp_path: Path) -> None:
    """Each entry is named after its task, with a number. A time zone applies to later lines."""
    text = (
        "# comment",
        "*/5 1-3 * * * proj.a",
        "",
        "CRON_TZ=Europe/Paris",
        '@daily proj.b {"x": "a b"}',
        "0 0 1 jan * proj.a",
        "0 9 * * 5-7 proj.c",
    )
    assert run("import", "--format", "crontab", write(tmp_path / "f", *text)).code == 0
    first, second = load(app, "proj.a-1"), load(app, "proj.a-2")
    assert first.schedule == crontab("*/5", "1-3")
    assert (first.task, first.timezone) == ("proj.a", None)
    assert second.schedule == crontab("0", "0", day_of_month="1", month_of_year="jan")
    daily = load(app, "proj.b-1")
    assert daily.schedule == crontab("0", "0")
    assert (daily.kwargs, daily.timezone) == ({"x": "a b"}, "Europe/Paris")
    assert load(app, "proj.c-1").schedule.day_of_week == {0, 5, 6}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("* * * * *", "task: is missing"),
        ("61 * * * * t", "minute: '61' is not valid"),
        ("* * * * x t", "day_of_week: 'x' is not valid"),
        ("0 9 * * Mon#1 t", "day_of_week: 'Mon#1' is not valid"),
        ("0 9 * * mon-fri#1 t", "day_of_week: 'mon-fri#1' is not valid"),
        ("0 9 * febtember * t", "month_of_year: 'febtember' is not valid"),
        ("0 9 * * sundae t", "day_of_week: 'sundae' is not valid"),
        ("* * 1 * 1 t", "day_of_week: is given together with day_of_month"),
        ("@reboot t", "schedule: @reboot is unknown"),
        ("* * ? * 1 t", "day_of_month: '?' is not valid: '?' must be *, a number, or a range"),
        ("0/15 * * * * t", "minute: '0/15' is not valid"),
        ("RANDOM_DELAY=5", "assignment: RANDOM_DELAY is not supported"),
        ("START_HOURS_RANGE=3-22", "assignment: START_HOURS_RANGE is not supported"),
        ("cron_tz=UTC", "assignment: cron_tz is not supported"),
        ("TZ=Asia/Tokyo", "TZ: means the time zone of the following lines in some crons"),
        ("CRON_TZ=Nowhere", "CRON_TZ: unknown time zone"),
        ("* * * * * t [1]", "kwargs: must be a JSON object"),
        ("* * * * * t {", "kwargs: cannot be read as JSON"),
    ],
)
def test_a_bad_line_of_a_crontab_is_an_error(
    run: Run, tmp_path: Path, text: str, problem: str
) -> None:
    """The error contains the line number and the field."""
    ran = run("import", "--format", "crontab", write(tmp_path / "f", "# one", text))
    assert ran.code == 1
    assert f"line 2: {problem}" in ran.err


def test_all_weekdays_of_cron_are_imported(run: Run, app: Celery, tmp_path: Path) -> None:
    text = ("0 9 * * fri-7 t", "0 9 * * 7-2 t", "0 9 * * mon,7 t")
    assert run("import", "--format", "crontab", write(tmp_path / "f", *text)).code == 0
    found = [load(app, f"t-{number}").schedule.day_of_week for number in (1, 2, 3)]
    assert found == [{5, 6, 0}, {0, 1, 2}, {0, 1}]


def test_variables_without_an_effect_on_tasks_are_ignored_with_a_note(
    run: Run, app: Celery, tmp_path: Path
) -> None:
    text = ("MAILTO=me", "SHELL = /bin/sh", '"PATH"="/bin"', "PYTHONPATH=/", "0 9 * * * t")
    ran = run("import", "--format", "crontab", write(tmp_path / "f", *text))
    assert ran.code == 0
    assert load(app, "t-1").timezone is None
    for number, name in enumerate(("MAILTO", "SHELL", "PATH", "PYTHONPATH"), 1):
        assert f"line {number}: {name} has no effect on tasks and is ignored" in ran.err


def test_lines_after_an_unclear_time_zone_are_not_read_in_another(run: Run, tmp_path: Path) -> None:
    text = ("0 8 * * * t", "TZ='Asia/Tokyo'", "0 9 * * * t", "CRON_TZ=Asia/Tokyo", "1 9 * * * t")
    ran = run("import", "--format", "crontab", write(tmp_path / "f", *text))
    assert "line 2: TZ: " in ran.err
    assert "write CRON_TZ=Asia/Tokyo if" in ran.err
    assert "or remove TZ if" in ran.err
    assert "line 3: timezone: is not clear because of line 2" in ran.err
    assert "Nothing was written: 2 entries" in ran.err


# -- django-celery-beat ----------------------------------------------------------------------------


def table(name: str, pk: int, /, **fields: Any) -> dict[str, Any]:
    """Return a row of a Django fixture."""
    return {"model": f"django_celery_beat.{name}", "pk": pk, "fields": fields}


def task(pk: int, name: str, /, **fields: Any) -> dict[str, Any]:
    """Return a periodic task of a Django fixture, with all fields of its table."""
    names = "interval crontab solar clocked queue exchange routing_key priority expires "
    empty = dict.fromkeys((names + "expire_seconds start_time last_run_at").split())
    rest = {"one_off": False, "enabled": True, "total_run_count": 0, "description": "why"}
    texts = {"args": "[]", "kwargs": "{}", "headers": "{}"}
    every = {**empty, **rest, **texts, "date_changed": "2026-01-01T00:00:00Z", "task": "t"}
    return table("periodictask", pk, **{**every, "name": name, **fields})


CRON = {"minute": "5", "hour": "4", "day_of_month": "*", "month_of_year": "*", "day_of_week": "1"}

FIXTURE = [
    table("intervalschedule", 1, every=3, period="hours"),
    table("crontabschedule", 1, **CRON, timezone="Europe/Paris"),
    table("solarschedule", 1, event="sunset", latitude="52.520008", longitude="13.404954"),
    table("clockedschedule", 1, clocked_time="2027-01-01T09:00:00Z"),
    table("periodictasks", 1, last_update="2026-01-01T00:00:00Z"),
]


def test_a_fixture_of_django_celery_beat_is_imported(run: Run, app: Celery, tmp_path: Path) -> None:
    """The fixture contains every kind of schedule, every option, and a history."""
    tasks = [
        task(
            *(1, "every"),
            interval=1,
            args="[1, 2]",
            kwargs='{"a": "b"}',
            headers='{"h": 1}',
            queue="q",
            priority=5,
            expire_seconds=30,
            last_run_at="2026-01-02T03:04:05.000678Z",
            total_run_count=8,
        ),
        task(2, "cron", crontab=1, enabled=False, start_time="2026-05-01T00:00:00Z"),
        task(3, "sun", solar=1, expires="2030-01-01T00:00:00+01:00"),
        task(4, "once", clocked=1, one_off=True),
        task(5, "never", interval=1, date_changed="2026-01-02T00:10:00Z"),
        task(6, "later", interval=1, start_time="2031-01-02T00:10:00Z"),
        task(7, "counted", interval=1, total_run_count=5),
        task(8, "counted-cron", crontab=1, total_run_count=5),
    ]
    file = write(tmp_path / "f.json", json.dumps([*FIXTURE, *tasks]))
    ran = run("import", "--format", "django-celery-beat", file)
    assert (ran.code, "8 created" in ran.err) == (0, True), ran.err

    changed = datetime(2026, 1, 2, 0, 10, tzinfo=UTC)
    never, later = load(app, "never"), load(app, "later")
    assert (never.last_run_at, never.total_run_count) == (changed, 0)
    assert later.last_run_at not in (None, changed)
    assert [load(app, name).total_run_count for name in ("counted", "counted-cron")] == [5, 5]
    every, cron, sun, once = (load(app, name) for name in ("every", "cron", "sun", "once"))
    assert every.schedule == schedule(timedelta(hours=3))
    assert (every.args, every.kwargs) == ([1, 2], {"a": "b"})
    assert every.options == {"queue": "q", "priority": 5, "headers": {"h": 1}, "expires": 30}
    assert (every.last_run_at, every.total_run_count) == (RAN, 8)
    assert cron.schedule == crontab("5", "4", day_of_week="1")
    assert (cron.enabled, cron.timezone) == (False, "Europe/Paris")
    assert cron.start_time == datetime(2026, 5, 1, tzinfo=UTC)
    assert sun.schedule == solar("sunset", 52.520008, 13.404954)
    assert sun.end_time == datetime(2029, 12, 31, 23, tzinfo=UTC)
    assert (sun.options["expires"], sun.on_finish) == (sun.end_time, "disable")
    assert once.schedule == clocked(datetime(2027, 1, 1, 9, tzinfo=UTC))
    assert (once.max_runs, once.on_finish) == (1, "disable")


def test_a_fixture_as_json_lines_is_imported(run: Run, app: Celery, tmp_path: Path) -> None:
    """`dumpdata --format jsonl` writes this format."""
    file = write(tmp_path / "f.jsonl", *FIXTURE, task(1, "a", interval=1))
    assert run("import", "--format", "django-celery-beat", file).code == 0
    assert load(app, "a").schedule == schedule(timedelta(hours=3))


#: Rows of tables that no entry can use.
BAD_ROWS: list[dict[str, Any]] = [
    {"model": f"django_celery_beat.{table}schedule", "pk": number, "fields": row}
    for table, number, row in (
        ("interval", 2, {"every": 1, "period": "fortnights"}),
        ("interval", 3, {"every": 0, "period": "days"}),
        ("crontab", 2, {"minute": "x"}),
        ("solar", 2, {}),
        ("solar", 3, {"event": "sunset"}),
        ("clocked", 2, {}),
        ("clocked", 3, []),
    )
]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "must be exactly one of interval, crontab, solar, clocked; this task has 0 of them"),
        ({"interval": 9}, "interval: the file has no django_celery_beat.intervalschedule 9"),
        ({"interval": 1, "args": "{"}, "args: cannot be read as JSON"),
        ({"interval": 1, "kwargs": "[]"}, "kwargs: must be a JSON object"),
        ({"interval": 1, "start_time": "soon"}, "start_time: must be a datetime or ISO"),
        ({"interval": 1, "start_time": "0001-01-01T00:00+14:00"}, "start_time: 0001-01-01T00:00"),
        ({"interval": 1, "name": ""}, "name: must be a text"),
        ({"interval": 1, "total_run_count": True}, "total_run_count: must be an integer, not True"),
        ({"interval": 2}, "interval.period: must be one of days, hours"),
        ({"interval": 3}, "interval.every: must be an integer greater than 0, not 0"),
        ({"crontab": 2}, "crontab: is not valid: ValueError"),
        ({"solar": 2}, "solar.event: must be the name of an event, not None"),
        ({"solar": 3}, "solar.latitude: must be a number, not None"),
        ({"clocked": 2}, "clocked_time: must be a datetime"),
        ({"clocked": 3}, "clocked: must be an object, not []"),
        ({"clocked": ["a", "b"]}, "clocked: the file has no django_celery_beat.clockedschedule"),
    ],
)
def test_a_bad_task_of_a_fixture_is_an_error(
    run: Run, redis_client: Any, tmp_path: Path, fields: dict[str, Any], problem: str
) -> None:
    """The error contains the row number and the field, and nothing is written."""
    objects = [*FIXTURE, *BAD_ROWS, task(1, "good", interval=1), task(7, "bad", **fields)]
    ran = run(
        "import", "--format", "django-celery-beat", write(tmp_path / "f", json.dumps(objects))
    )
    assert ran.code == 1
    assert "periodictask 7" in ran.err
    assert problem in ran.err
    assert redis_client.keys("*") == []


CLEANUP = "celery.backend_cleanup"
AT_FOUR = table("crontabschedule", 4, minute="0", hour="4", timezone="UTC")


def test_the_cleanup_of_results_is_left_out(
    run: Run, make: Make, redis_client: Any, tmp_path: Path
) -> None:
    """django-celery-beat makes this row, and a beat has made its own static entry."""
    make(CLEANUP, crontab("0", "4"))
    redis_client.sadd("redbeat::statics", CLEANUP)
    usual = {"task": CLEANUP, "crontab": 4, "description": "", "expire_seconds": 43200}
    cleanup = task(1, CLEANUP, **usual)
    file = write(tmp_path / "f", json.dumps([*FIXTURE, AT_FOUR, cleanup, task(2, "a", interval=1)]))
    before = redis_client.hgetall(f"redbeat:{CLEANUP}")
    ran = run("import", "--format", "django-celery-beat", file)
    assert (ran.code, "1 created" in ran.err) == (0, True), ran.err
    assert CLEANUP not in ran.err
    assert redis_client.hgetall(f"redbeat:{CLEANUP}") == before


@pytest.mark.parametrize(
    ("fields", "edits"),
    [
        ({"enabled": False}, "(enabled)"),
        ({"crontab": 1, "queue": "slow"}, "(options, schedule)"),
        ({"task": "shop.clean", "kwargs": '{"a": 1}'}, "(task, kwargs)"),
        ({"crontab": 9}, "(crontab: the file has no"),
    ],
)
def test_an_edited_cleanup_of_results_is_reported(
    run: Run, app: Celery, tmp_path: Path, fields: dict[str, Any], edits: str
) -> None:
    """The others are imported."""
    usual = {"task": CLEANUP, "crontab": 4, "description": ""}
    cleanup = task(1, CLEANUP, **{**usual, **fields})
    file = write(tmp_path / "f", json.dumps([*FIXTURE, AT_FOUR, cleanup, task(2, "a", interval=1)]))
    ran = run("import", "--format", "django-celery-beat", file)
    assert (ran.code, "1 created" in ran.err) == (0, True), ran.err
    assert f"Warning: periodictask 1 ('{CLEANUP}') is not imported" in ran.err
    assert edits in ran.err
    assert list(Schedule(app)) == ["a"]


def test_dead_rows_of_a_fixture_can_be_skipped(
    run: Run,
    make: Make,
    app: Celery,
    redis_client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All are named, and so is the option that goes on without them."""
    monkeypatch.setitem(sys.modules, "ephem", None)
    make("static", 60)
    redis_client.sadd("redbeat::statics", "static")
    mars = table("crontabschedule", 3, minute="0", hour="4", timezone="Mars/Olympus")
    window = {"start_time": "2026-05-01T00:00:00Z", "expires": "2026-04-01T00:00:00Z"}
    bad = {
        "never": (task(1, "never", interval=1, **window), "end_time: is before start_time"),
        "zone": (task(2, "zone", crontab=3), "timezone: "),
        "sun": (task(3, "sun", solar=1), "install it with: pip install 'celery-redbeat[solar]'"),
        "args": (task(4, "args", interval=1, args="[1"), "args: cannot be read as JSON"),
        "static": (task(5, "static", interval=1), "'static' is an entry of beat_schedule"),
        "good": (task(7, "good", interval=1), "name: 'good' is already used in this source"),
    }
    rows = [*FIXTURE, mars, task(6, "good", crontab=1), *(row for row, _ in bad.values())]
    file = write(tmp_path / "f", json.dumps(rows))
    refused = run("import", "--format", "django-celery-beat", file)
    assert refused.code == 1
    assert "6 entries of" in refused.err
    assert "--skip-invalid" in refused.err
    ran = run("import", "--format", "django-celery-beat", file, "--skip-invalid")
    assert (ran.code, "1 created" in ran.err, "6 skipped" in ran.err) == (0, True, True), ran.err
    for name, (_, problem) in bad.items():
        lines = [text for text in ran.err.splitlines() if f"('{name}'): " in text]
        assert (len(lines), problem in lines[0]) == (1, True), lines
        assert lines[0] in refused.err
    assert set(Schedule(app)) == {"static", "good"}


@pytest.mark.parametrize(
    ("fields", "expires"),
    [
        ({"expire_seconds": 0}, None),
        ({"expire_seconds": 30}, 30),
        ({"expires": "2031-01-01T00:00:00Z"}, datetime(2031, 1, 1, tzinfo=UTC)),
        (
            {"expires": "2031-01-01T00:00:00Z", "expire_seconds": 30},
            datetime(2031, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_messages_expire_as_in_django_celery_beat(
    run: Run, app: Celery, tmp_path: Path, fields: dict[str, Any], expires: Any
) -> None:
    file = write(tmp_path / "f", json.dumps([*FIXTURE, task(1, "a", interval=1, **fields)]))
    assert run("import", "--format", "django-celery-beat", file).code == 0
    assert load(app, "a").options.get("expires") == expires


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_fixture_that_a_windows_shell_has_written(
    run: Run, app: Celery, tmp_path: Path, encoding: str
) -> None:
    file = tmp_path / "f"
    rows = [*FIXTURE, task(1, "täglich", interval=1)]
    file.write_text(json.dumps(rows, ensure_ascii=False), encoding=encoding)
    ran = run("import", "--format", "django-celery-beat", str(file))
    assert (ran.code, list(Schedule(app))) == (0, ["täglich"]), ran.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<?xml", "manage.py dumpdata --format json"),
        ("[]", "has no django"),
        ("{", "as JSON"),
        ("[5]", "is not a fixture"),
        ("5", "a fixture"),
    ],
)
def test_a_file_that_is_not_a_fixture_is_an_error(
    run: Run, tmp_path: Path, text: str, problem: str
) -> None:
    """The error says what is wrong with the file."""
    ran = run("import", "--format", "django-celery-beat", write(tmp_path / "f", text))
    assert ran.code == Exit.UNREADABLE
    assert problem in ran.err


# -- celery-shelve ---------------------------------------------------------------------------------


def now_text() -> str:
    """Return a constant; an entry of the shelf refers to this function."""
    return "now"


def change_shelf(shelf: Path, changes: dict[str, Any]) -> None:
    """Change attributes of the entry ``every`` of a schedule file."""
    with shelve.open(str(shelf)) as file:
        entries = file["entries"]
        vars(entries["every"]).update(changes)
        file["entries"] = entries


@pytest.fixture
def shelf(app: Celery, tmp_path: Path) -> Path:
    """Write a schedule file with Celery's own scheduler; return its path."""
    app.conf.timezone = "Europe/Paris"
    app.conf.beat_schedule = {
        "every": {"task": "t", "schedule": timedelta(minutes=5), "args": (1,)},
        "cron": {
            "task": "t",
            "schedule": crontab("5", "4"),
            "kwargs": {"when": RAN},
            "options": {"queue": "q"},
        },
        "sun": {"task": "t", "schedule": solar("sunset", 52.5, 13.4)},
        "lazy": {"task": "t", "schedule": 60, "kwargs": {"now": BeatLazyFunc(now_text)}},
    }
    file = tmp_path / "celerybeat-schedule"
    scheduler = PersistentScheduler(app, schedule_filename=str(file), lazy=True)
    scheduler.setup_schedule()
    entry = scheduler.schedule["every"]
    entry.last_run_at, entry.total_run_count = RAN, 12
    scheduler.close()
    return file


def test_the_file_of_celerys_own_scheduler_is_imported(
    run: Run, app: Celery, redis_client: Any, shelf: Path
) -> None:
    """The entries are imported as static, with histories, so the beat can continue them."""
    ran = run("import", "--format", "celery-shelve", str(shelf))
    assert ran.code == 0, ran.err
    every, cron, sun = (load(app, name) for name in ("every", "cron", "sun"))
    assert (every.schedule, every.args) == (schedule(timedelta(minutes=5)), [1])
    assert (every.last_run_at, every.total_run_count) == (RAN, 12)
    assert cron.schedule == crontab("5", "4")
    assert (cron.kwargs, cron.options) == ({"when": RAN}, {"queue": "q"})
    assert sun.schedule == solar("sunset", 52.5, 13.4)
    assert redis_client.smembers("redbeat::statics") >= {"every", "cron", "sun", "lazy"}
    assert load(app, "lazy").kwargs["now"].function == f"{__name__}.now_text"


class Bomb:
    """A class whose instances run a command when they are unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_runs_no_code(run: Run, redis_client: Any, shelf: Path, tmp_path: Path) -> None:
    """The import loads only the classes of schedules, and reports all others."""
    trap = tmp_path / "trap"
    with shelve.open(str(shelf)) as file:
        entries = file["entries"]
        entries["cron"].kwargs = {"deep": [Bomb(trap)]}
        file["entries"] = entries
    ran = run("import", "--format", "celery-shelve", str(shelf))
    assert ran.code == 1
    assert "entry 'cron': kwargs.deep.0: contains posix.mkdir, which is not loaded" in ran.err
    assert not trap.exists()
    assert redis_client.keys("*") == []
    pickle.loads(pickle.dumps(Bomb(trap)))
    assert trap.exists(), "the bomb is none"


#: A pickle that sets the state of the class itself: ``ScheduleEntry.is_due = "forged"``.
CLASS_STATE = (
    b"\x80\x04ccelery.beat\nScheduleEntry\nN}X\x06\x00\x00\x00is_dueX\x06\x00\x00\x00forgeds\x86b."
)

ZONE = b"zoneinfo._zoneinfo\nZoneInfo._unpickle"


def test_a_pickle_cannot_change_a_class(run: Run, redis_client: Any, shelf: Path) -> None:
    """The state of an object in a pickle may name attributes of a live class."""
    before = ScheduleEntry.is_due
    for forged in (CLASS_STATE, CLASS_STATE.replace(b"celery.beat\nScheduleEntry", ZONE)):
        with dbm.open(str(shelf), "w") as file:
            file[b"entries"] = forged
        ran = run("import", "--format", "celery-shelve", str(shelf))
        assert ran.code == Exit.UNREADABLE
        assert "the entries cannot be loaded" in ran.err
        assert ScheduleEntry.is_due is before
    assert redis_client.keys("*") == []
    pickle.loads(CLASS_STATE)
    forged_value, ScheduleEntry.is_due = ScheduleEntry.is_due, before
    assert forged_value == "forged", "the pickle is harmless"


@pytest.mark.parametrize(
    "forged", [b"\x80\x02}r\x00\x00\x00\x01.", b"\x80\x02}p16777216\n."], ids=["binary", "text"]
)
def test_a_pickle_cannot_take_all_memory(run: Run, shelf: Path, forged: bytes) -> None:
    """Python allocates memory for the largest number that a pickle gives an object."""
    with dbm.open(str(shelf), "w") as file:
        file[b"entries"] = forged
    ran = run("import", "--format", "celery-shelve", str(shelf))
    assert ran.code == Exit.UNREADABLE
    assert "gives an object the number 16777216" in ran.err
    assert pickle.loads(forged) == {}, "the pickle is invalid"


@pytest.mark.parametrize("content", [b"", b"nothing of the kind"])
def test_a_file_that_is_not_a_shelf_is_an_error(run: Run, tmp_path: Path, content: bytes) -> None:
    """The error is a message without a traceback."""
    file = tmp_path / "f"
    file.write_bytes(content)
    ran = run("import", "--format", "celery-shelve", str(file))
    assert ran.code == Exit.UNREADABLE
    assert "is not a database that this Python can open" in ran.err or "cannot be opened" in ran.err


def test_a_damaged_shelf_is_an_error(run: Run, tmp_path: Path) -> None:
    """Python's own database raises any error for a damaged index."""
    file = tmp_path / "f"
    with dbm.dumb.open(str(file), "c") as database:
        database[b"entries"] = pickle.dumps({})
    file.with_suffix(".dir").write_text("'entries', (0, ")
    ran = run("import", "--format", "celery-shelve", str(file))
    assert (ran.code, "cannot be opened" in ran.err) == (Exit.UNREADABLE, True), ran.err


def test_a_shelf_with_other_content_is_an_error(run: Run, tmp_path: Path) -> None:
    """The error is a message without a traceback."""
    with shelve.open(str(tmp_path / "f")) as file:
        file["other"] = 1
    ran = run("import", "--format", "celery-shelve", str(tmp_path / "f"))
    assert "is not a file of Celery's scheduler" in ran.err


class Own:
    """A class that the import does not know."""


class Numbers(list[int]):
    """A list of a class that the import does not know."""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task": None}, "task: is missing, or is not a string"),
        ({"last_run_at": 5}, "last_run_at: must be a datetime, not 5"),
        ({"last_run_at": datetime(1, 1, 1)}, "last_run_at: 0001-01-01T00:00:00+"),
        ({"total_run_count": "many"}, "total_run_count: must be an integer, not 'many'"),
        ({"args": ({Own},)}, "args.0.0: contains tests.cli.test_transfer.Own, which is not loaded"),
        ({"args": (crontab,)}, "args.0: must be a value, not the class crontab"),
        ({"kwargs": {"a": Own()}}, "kwargs.a: contains tests.cli.test_transfer.Own"),
    ],
)
def test_a_bad_entry_of_a_shelf_is_an_error(
    run: Run, redis_client: Any, shelf: Path, changes: dict[str, Any], problem: str
) -> None:
    """The error names the entry and the field, and nothing is written."""
    change_shelf(shelf, changes)
    ran = run("import", "--format", "celery-shelve", str(shelf))
    assert (ran.code, f"entry 'every': {problem}" in ran.err) == (1, True), ran.err
    assert redis_client.keys("*") == []


class Reduced:
    """An object whose pickle calls a function with these arguments."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


#: The second 02:30 of a night in which the clock is put back.
PARIS = pytz.timezone("Europe/Paris").localize(datetime(2026, 10, 25, 2, 30), is_dst=False)
LOCAL = datetime(2026, 7, 1, 2, 3, tzinfo=LocalTimezone())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schedule": crontab(minute=range(0, 60, 20))}, crontab("0,20,40")),
        ({"schedule": crontab(hour={1, 2})}, crontab("*", "1,2")),
        ({"schedule": crontab("5", app=Celery("shop", set_as_current=False))}, crontab("5")),
        ({"last_run_at": RAN.replace(tzinfo=pytz.utc)}, RAN),
        ({"last_run_at": PARIS}, datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
        ({"last_run_at": RAN.replace(tzinfo=pytz.timezone("Etc/GMT+5"))}, RAN + timedelta(hours=5)),
        ({"last_run_at": RAN.replace(tzinfo=pytz.FixedOffset(90))}, RAN - timedelta(minutes=90)),
        ({"last_run_at": LOCAL}, LOCAL),
    ],
)
def test_the_objects_of_older_files_are_read(
    run: Run, app: Celery, shelf: Path, changes: dict[str, Any], expected: Any
) -> None:
    """Celery before 5.3 wrote time zones of pytz."""
    change_shelf(shelf, changes)
    ran = run("import", "--format", "celery-shelve", str(shelf))
    assert ran.code == 0, ran.err
    every = load(app, "every")
    assert expected in (every.schedule, every.last_run_at)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schedule": crontab(minute=iter([0]))}, "schedule: contains builtins.iter"),
        ({"schedule": crontab(minute=deque([0]))}, "schedule: contains collections.deque"),
        ({"schedule": Reduced(crontab, "x")}, "schedule: contains celery."),
        ({"schedule": crontab(minute=Numbers([0]))}, "schedule: contains tests.cli.test_transfer"),
        (
            {"schedule": Reduced(crontab, Reduced(range, 1 << 40))},
            "schedule: contains builtins.range, which cannot be made: a range of",
        ),
        ({"schedule": schedule(60, nowfun=now_text)}, "schedule: contains tests."),
        (
            {"schedule": Reduced(solar, "dusk", 1, 2)},
            "schedule: contains celery",
        ),
        ({"last_run_at": RAN.replace(tzinfo=tzutc())}, "last_run_at: contains"),
        ({"kwargs": {"numbers": range(3)}}, "kwargs.numbers: a value of type range"),
        ({"args": [Reduced(partial(int), "5")]}, "args.0: contains functools.partial"),
    ],
)
def test_one_odd_entry_of_a_shelf_costs_no_other(
    run: Run, app: Celery, shelf: Path, changes: dict[str, Any], problem: str
) -> None:
    """The error names the entry and the class, and the others can be imported."""
    change_shelf(shelf, changes)
    ran = run("import", "--format", "celery-shelve", str(shelf), "--skip-invalid")
    assert (ran.code, f"entry 'every': {problem}" in ran.err) == (0, True), ran.err
    assert {"cron", "sun", "lazy"} <= set(Schedule(app))
    assert "every" not in Schedule(app)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"a": Own()}, "entry 'a': entry: is a tests.cli.test_transfer.Own, not a ScheduleEntry"),
        ({"a": 5}, "entry 'a': entry: is a int, not a ScheduleEntry"),
        ({5: ScheduleEntry("a", "t", schedule=60)}, "entry 5: name: must be a string, not 5"),
        ([], "the entries are not a dict"),
    ],
)
def test_other_objects_in_a_shelf_are_an_error(
    run: Run, redis_client: Any, tmp_path: Path, entries: Any, problem: str
) -> None:
    file = str(tmp_path / "f")
    with shelve.open(file) as database:
        database["entries"] = entries
    ran = run("import", "--format", "celery-shelve", file)
    assert ran.code != 0
    assert problem in ran.err
    assert redis_client.keys("*") == []


def test_a_reference_to_an_object_outside_of_a_shelf_is_an_error(run: Run, shelf: Path) -> None:
    with dbm.open(str(shelf), "w") as file:
        file[b"entries"] = b"Poutside\n."
    ran = run("import", "--format", "celery-shelve", str(shelf))
    assert (ran.code, "outside of the file" in ran.err) == (Exit.UNREADABLE, True), ran.err


def test_a_shelf_that_does_not_exist_is_an_error(run: Run, tmp_path: Path) -> None:
    ran = run("import", "--format", "celery-shelve", str(tmp_path / "f"))
    assert (ran.code, "does not exist" in ran.err) == (Exit.UNREADABLE, True), ran.err


# -- as processes ----------------------------------------------------------------------------------


@pytest.mark.long
def test_export_and_import_run_as_processes(project: Project, tmp_path: Path) -> None:
    file = write(tmp_path / "in", line("a"), line("b"))
    imported = project.start("redbeat", "import", file)
    assert imported.popen.wait(30) == 0, imported.output()
    assert "2 created" in imported.output()
    exported = project.start("redbeat", "export", str(tmp_path / "out"))
    assert exported.popen.wait(30) == 0, exported.output()
    lines = (tmp_path / "out").read_text().splitlines()
    assert {json.loads(text)["name"] for text in lines} == {"a", "b"}
