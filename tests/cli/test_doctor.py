"""Tests of `celery redbeat doctor`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule, clocked, rrule
from redbeat.beat.lock import new_token
from redbeat.entries.state import Pause, Results, State
from redbeat.management import doctor, names
from redbeat.metrics import problems
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.store import store_of
from redbeat.storage.words import STATE
from tests.acceptance.processes import Project
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.histories.snapshots import load, recordings
from tests.stored import put_hold

SCHEDULE = "redbeat::schedule"


@pytest.fixture
def small_memory(redis_client: Any) -> Iterator[None]:
    """Let the server evict entries when its memory is full, until the end of the test."""
    before = redis_client.config_get("maxmemory*")
    redis_client.config_set("maxmemory", 1 << 30)
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    yield
    for name in ("maxmemory", "maxmemory-policy"):
        redis_client.config_set(name, before[name])


@pytest.fixture(autouse=True)
def leader(redis_client: Any) -> None:
    """Let a beat lead, without which a schedule has a problem."""
    redis_client.set("redbeat::lock", new_token(), ex=60)


def kinds(report: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the kind and key of each finding, sorted."""
    return sorted((finding["kind"], finding["key"]) for finding in report)


def test_a_healthy_schedule_of_all_kinds_has_no_findings(
    run: Run, make: Make, redis_client: Any
) -> None:
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    make("interval")
    make("jitter", crontab("0", "4"), jitter=30, timezone="Europe/Paris")
    make("paused").pause("why")
    make("disabled", enabled=False)
    make("clocked", clocked(soon))
    make("rule", rrule("HOURLY", dtstart=soon, count=2))
    make("window", start_time=soon)
    make("finished", max_runs=1, total_run_count=1, last_run_at=soon)
    make("due", 1, last_run_at=soon - timedelta(hours=3))
    make("never", last_run_at=None)
    redis_client.zadd(SCHEDULE, {"redbeat:interval": 0})
    ran = run("doctor")
    assert (ran.out, ran.code) == ("", 0)
    assert "Nothing is wrong" in ran.err


def test_without_a_beat_the_prefix_and_the_database_are_named(
    run: Run, make: Make, redis_client: Any
) -> None:
    """Also for a wrong prefix, under which nothing is."""
    redis_client.delete("redbeat::lock")
    make("late", last_run_at=None)
    redis_client.zadd(SCHEDULE, {"redbeat:late": time.time() - 600})

    found = {report["kind"]: report for report in run("doctor", "--json").json}

    assert found["beats"]["problem"] == "no beat leads"
    assert "the prefix redbeat: in redis://" in found["beats"]["remedy"]
    assert "late is 10 min" in found["late"]["problem"]
    assert {report["severity"] for report in found.values()} == {"error"}


def test_failing_tasks_are_reported(run: Run, make: Make, redis_client: Any) -> None:
    """Also of an entry that is paused for it, after fewer failures."""
    make("fails")
    make("paused", enabled=False)
    failed = Results(None, 21, 1.0, ())
    redis_client.hset("redbeat:fails", STATE, State(results=failed).text())
    pause = Pause(1.0, "2 failed runs in a row, the last with ValueError", "pause_after_failures")
    redis_client.hset("redbeat:paused", STATE, State(results=failed, pause=pause).text())

    told = run("doctor").out

    assert "failed: redbeat:fails fails: its last 21 runs failed; look at the log" in told
    assert "failed: redbeat:paused is paused: 2 failed runs in a row" in told


def test_each_finding_names_its_fix(run: Run, make: Make, redis_client: Any) -> None:
    """Without --fix, the command changes nothing."""
    for name in ("late", "parked", "lost"):
        make(name)
    make("ended", max_runs=1, total_run_count=1, last_run_at=datetime.now(timezone.utc))
    later = float(redis_client.zscore(SCHEDULE, "redbeat:late") or 0) + 3600
    redis_client.zadd(SCHEDULE, {"redbeat:late": later, "redbeat:ended": later})
    redis_client.zadd(SCHEDULE, {"redbeat:parked": -1, "redbeat:gone": later})
    redis_client.zrem(SCHEDULE, "redbeat:lost")
    redis_client.hset("redbeat:bad", "definition", "{")
    redis_client.zadd(SCHEDULE, {"redbeat:bad": later})
    redis_client.set("redbeat:text", "x")
    redis_client.zadd(SCHEDULE, {"redbeat:text": later})
    before = redis_client.zrange(SCHEDULE, 0, -1, withscores=True)

    ran = run("doctor", "--json")
    assert ran.code == 1
    assert kinds(ran.json) == [
        ("missing", "redbeat:gone"),
        ("orphan", "redbeat:lost"),
        ("score", "redbeat:ended"),
        ("score", "redbeat:late"),
        ("score", "redbeat:parked"),
        ("unreadable", "redbeat:bad"),
        ("unreadable", "redbeat:text"),
    ]
    assert redis_client.zrange(SCHEDULE, 0, -1, withscores=True) == before
    told = run("doctor").out
    assert "missing: redbeat:gone" in told
    assert "--fix would remove the key from the schedule" in told
    assert "redbeat:lost is stored, but not scheduled; celery redbeat resume lost" in told


def test_an_unreadable_hash_outside_of_the_schedule_is_reported(
    run: Run, redis_client: Any
) -> None:
    """The finding gives the reason.

    Adding the hash to the schedule would only quarantine the entry.
    """
    texts = {"json": "{", "list": "[]", "wrong": '{"name": "wrong", "task": "t", "schedule": {}}'}
    others = {"longer:prefix": '{"name": "prefix", "task": "t", "schedule": 60}'}
    redis_client.hset("redbeat:foreign", "field", "text")
    for name, text in (texts | others).items():
        redis_client.hset(f"redbeat:{name}", "definition", text)
    before = sorted(redis_client.keys("*"))
    ran = run("doctor", "--fix", "--json")
    assert ran.code == 1
    assert kinds(ran.json) == [("unreadable", f"redbeat:{name}") for name in texts]
    problems = " ".join(report["problem"] for report in ran.json)
    assert problems.count("not in the schedule, and cannot be read: definition") == 3
    assert not any(report["fixed"] for report in ran.json)
    assert sorted(redis_client.keys("*")) == before


def test_fix_repairs_what_can_be_repaired(
    run: Run, make: Make, app: Celery, redis_client: Any
) -> None:
    """A second run reports only what cannot be fixed."""
    for name in ("parked", "lost", "late"):
        make(name)
    right = redis_client.zscore(SCHEDULE, "redbeat:parked")
    redis_client.zadd(SCHEDULE, {"redbeat:parked": -1, "redbeat:gone": 9e9, "redbeat:late": 9e9})
    redis_client.zrem(SCHEDULE, "redbeat:lost")
    redis_client.hset("redbeat:bad", "definition", "{")
    redis_client.zadd(SCHEDULE, {"redbeat:bad": 9e9})

    ran = run("doctor", "--fix", "--json")
    assert ran.code == 1
    fixed = {(report["kind"], report["key"]): report["fixed"] for report in ran.json}
    assert fixed == {
        ("missing", "redbeat:gone"): True,
        ("score", "redbeat:parked"): True,
        ("score", "redbeat:late"): True,
        ("orphan", "redbeat:lost"): False,
        ("unreadable", "redbeat:bad"): False,
    }
    left = [("orphan", "redbeat:lost"), ("unreadable", "redbeat:bad")]
    assert kinds(run("doctor", "--json").json) == left
    redis_client.delete("redbeat:bad")
    redis_client.zrem(SCHEDULE, "redbeat:bad")
    assert run("resume", "lost").code == 0
    assert run("doctor").code == 0

    redis_client.delete("redbeat::lock")
    tick_of_a_beat(app)
    for name in ("parked", "lost", "late"):
        assert redis_client.zscore(SCHEDULE, f"redbeat:{name}") == pytest.approx(right, abs=5)
        entry = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)
        assert entry.total_run_count == 0, "it was looked at, not run"


def tick_of_a_beat(app: Celery) -> None:
    """Run three ticks of a beat without a lock."""
    app.conf.redbeat_lock_key = None
    scheduler = RedBeatScheduler(app, lazy=False, lock_key=None)
    for _ in range(3):
        scheduler.tick()
    scheduler.close()


def test_a_held_entry_has_no_wrong_score(run: Run, make: Make, redis_client: Any) -> None:
    """A hold sets the score to its own end, so the command must not report the score."""
    make("held", 1, last_run_at=datetime(2026, 1, 1, tzinfo=timezone.utc))
    redis_client.zadd(SCHEDULE, {"redbeat:held": 4e9})
    assert run("doctor").code == 1
    put_hold(redis_client, "redbeat:held", 4e9)
    assert run("doctor").code == 0


def test_after_the_clock_of_redis_was_ahead_any_score_is_right(
    run: Run, make: Make, redis_client: Any
) -> None:
    """Beats do not wait for the last run, which is in the future."""
    ran = datetime.now(timezone.utc) + timedelta(hours=1)
    make("ahead", 60, last_run_at=ran, total_run_count=1)
    state = State.read(None, redis_client.hget("redbeat:ahead", "meta"))
    state.at = ran.timestamp()
    redis_client.hset("redbeat:ahead", STATE, state.text())
    redis_client.zadd(SCHEDULE, {"redbeat:ahead": time.time() + 30})
    assert run("doctor").code == 0


def test_quarantined_entries_are_reported_with_their_reasons(
    run: Run, make: Make, redis_client: Any
) -> None:
    """The command cannot fix a quarantined entry; a person must correct its definition."""
    make("bad")
    redis_client.zadd(SCHEDULE, {"redbeat:bad": -1})
    note = {"reason": "definition: broken", "since": 1, "digest": "d"}
    redis_client.hset(".redbeat::quarantine", "redbeat:bad", json.dumps(note))
    (report,) = run("doctor", "--json").json
    assert (report["kind"], report["fixable"]) == ("quarantined", False)
    assert "definition: broken" in report["problem"]


@pytest.mark.usefixtures("small_memory")
def test_a_server_that_may_evict_entries_is_reported(run: Run) -> None:
    """The finding names the server's eviction policy."""
    (report,) = run("doctor", "--json").json
    assert report["kind"] == "eviction"
    assert "allkeys-lru" in report["problem"]


def test_settings_without_effect_are_reported(run: Run, app: Celery) -> None:
    """A misspelled setting is reported with the most similar name."""
    app.conf.redbeat_lock_timout = 3
    (report,) = run("doctor", "--json").json
    assert report["kind"] == "settings"
    assert "redbeat_lock_timeout" in report["remedy"]


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("redisbeater_redis_url", "redis://", "did you mean redbeat_redis_url"),
        ("redbeat_lock_key", "", "use None"),
    ],
)
def test_unwise_settings_are_reported(
    run: Run, app: Celery, name: str, value: str, remedy: str
) -> None:
    app.conf[name] = value
    report, *others = run("doctor", "--json").json
    assert {one["kind"] for one in others} <= {"beats"}, "without a lock, beats say that they work"
    assert name in report["problem"]
    assert remedy in report["remedy"]


def test_impossible_settings_are_reported(run: Run, app: Celery) -> None:
    """An invalid setting is a finding, not a failure of the command."""
    app.conf.redbeat_lock_timeout = "soon"
    ran = run("doctor")
    assert ran.code == 1
    assert ran.out.startswith("settings: redbeat_lock_timeout is 'soon'")


def test_a_schedule_of_many_pages(run: Run, app: Celery, redis_client: Any) -> None:
    """Every wrong score is found and fixed."""
    entry = RedBeatSchedulerEntry("n", "t", 3600, app=app)
    definition, _ = entry.texts()
    pipe = redis_client.pipeline()
    for number in range(1201):
        text = definition.replace('"name": "n"', f'"name": "n{number}"')
        pipe.hset(f"redbeat:n{number}", mapping={"definition": text, "meta": entry.history_text()})
        pipe.zadd(SCHEDULE, {f"redbeat:n{number}": -1})
    pipe.execute()
    assert len(run("doctor", "--fix").lines) == 1201
    assert run("doctor").code == 0


@pytest.mark.long
def test_the_command_runs_as_a_process(project: Project, redis_client: Any) -> None:
    redis_client.zadd(SCHEDULE, {"redbeat:gone": 1})
    process = project.start("redbeat", "doctor", "--fix")
    assert process.popen.wait(30) == 1
    assert "missing: redbeat:gone" in process.output()
    assert project.start("redbeat", "doctor").popen.wait(30) == 0


def test_an_entry_that_needs_other_code_or_settings_is_reported(
    run: Run, make: Make, app: Celery, redis_client: Any
) -> None:
    """The finding names the reason. A beat keeps the entry in the schedule."""
    make("evil")
    lunar = {"name": "odd", "task": "t", "schedule": {"__type__": "lunar"}}
    redis_client.hset("redbeat:odd", "definition", json.dumps(lunar))
    redis_client.zadd(SCHEDULE, {"redbeat:odd": 9e9})
    app.conf.redbeat_task_allowlist = ["t"]
    del app.redbeat_conf
    ran = run("doctor", "--json")
    assert kinds(ran.json) == [("unreadable", "redbeat:evil"), ("unreadable", "redbeat:odd")]
    problems = " ".join(report["problem"] for report in ran.json)
    assert problems.count("cannot run with this code and settings: ") == 2
    assert "no pattern of redbeat_task_allowlist" in problems
    assert "unknown '__type__' 'lunar'" in problems


@pytest.mark.standalone
@pytest.mark.parametrize("name", ["2.0.0", "2.2.0", "2.3.2", "2.4.2", "2.4.2-new-york"])
def test_no_score_of_redbeat_2_is_wrong(app: Celery, redis_client: Any, name: str) -> None:
    """Its scores of crontabs, rules and disabled entries are early, which a beat corrects."""
    recording = recordings()[name]
    app.conf.timezone = recording["timezone"]
    for snapshot in recording["snapshots"].values():
        redis_client.flushdb()
        load(redis_client, snapshot)
        late = {"redbeat:interval, moved by its task", "redbeat:rule, zone"}  # of the saved object
        rows = [row for row in store_of(app).page().rows if row.key not in late]
        assert len(rows) > 10
        for row in rows:
            entry = RedBeatSchedulerEntry.from_key(row.key, app=app)
            assert doctor.wrong_score(row, entry, snapshot["at"]) == "", row.key


@pytest.mark.standalone
def test_only_a_score_that_is_too_late_is_a_finding(
    run: Run, make: Make, redis_client: Any
) -> None:
    make("a", 3600)
    make("off", enabled=False)
    score = redis_client.zscore(SCHEDULE, "redbeat:a")
    redis_client.zadd(SCHEDULE, {"redbeat:a": score - 600, "redbeat:off": score})
    assert run("doctor").code == 0
    redis_client.zadd(SCHEDULE, {"redbeat:a": score + 0.1})
    assert [finding["kind"] for finding in run("doctor", "--json").json] == ["score"]


def test_the_busiest_minutes_are_named_with_what_a_spread_would_do(
    run: Run, redis_client: Any
) -> None:
    at = int(datetime.now(timezone.utc).timestamp()) // 3600 * 3600 + 7200
    pipe = redis_client.pipeline()
    for number in range(1200):
        rule = {"__type__": "crontab", "minute": "0"}
        definition = {"name": f"e{number}", "task": "t", "schedule": rule}
        last = {"last_run_at": {"__type__": "datetime", "timezone": "UTC", **parts_of(at - 3600)}}
        pipe.hset(f"redbeat:e{number}", mapping={"definition": json.dumps(definition)})
        pipe.hset(f"redbeat:e{number}", "meta", json.dumps(last))
        pipe.zadd(SCHEDULE, {f"redbeat:e{number}": at})
    pipe.execute()
    ran = run("doctor", "--json")
    assert ran.code == 1
    assert [finding["kind"] for finding in ran.json] == ["busy"]
    assert "1200 entries are due in the minute of" in ran.json[0]["problem"]
    assert "60 times the mean" in ran.json[0]["problem"]
    # The beat renders messages for a Redis broker only.
    assert "Celery makes the message of e0: " in ran.json[0]["problem"]
    assert "memory" in ran.json[0]["problem"]
    unknown = {"name": "e0", "task": "t", "schedule": {"__type__": "of another project"}}
    redis_client.hset("redbeat:e0", "definition", json.dumps(unknown))
    ran_again = run("doctor", "--json")
    assert sorted(finding["kind"] for finding in ran_again.json) == ["busy", "unreadable"]
    assert "about 20 entries are due in each minute" in ran.json[0]["remedy"]


def test_a_task_that_no_app_knows_is_reported_as_add_does(
    run: Run, make: Make, app: Celery
) -> None:
    """Once for all entries; what a paused entry names does not matter yet."""

    @app.task(name="proj.note", shared=False)
    def note() -> None:
        """Do nothing."""

    make("good")
    for name in ("a", "b", "c"):
        make(name, task="proj.noet")
    make("paused", task="proj.other", enabled=False)
    make("option", options={"que": "slow"})

    told = {report["problem"]: report for report in run("doctor", "--json").json}

    similar = "is not registered in this app; did you mean 'proj.note'?"
    option = "option: 'que' is not an option of apply_async; did you mean 'queue'?"
    assert set(told) == {f"a and 2 other entries: the task 'proj.noet' {similar}", option}
    assert {(report["kind"], report["severity"]) for report in told.values()} == {
        ("task", "warning")
    }


def test_tasks_that_cannot_be_imported_are_a_finding(run: Run, make: Make, app: Celery) -> None:
    make("a")
    app.conf.imports = ["there_is_no_such_module"]
    (report,) = run("doctor", "--json").json
    assert report["kind"] == "task"
    assert "there_is_no_such_module" in report["problem"]


@pytest.mark.standalone
def test_messages_that_nobody_reads_are_reported(
    run: Run, make: Make, app: Celery, redis_url: str, redis_client: Any
) -> None:
    """Without a worker, an empty queue may be one that is read in time."""
    app.conf.broker_url = redis_url
    make("slow", options={"queue": "celry"})
    make("usual")
    assert run("doctor").code == 0
    redis_client.lpush("celry", *"abc")

    (report,) = run("doctor", "--json").json

    assert (report["kind"], report["severity"]) == ("queue", "error")
    nobody = "slow: no worker answers that reads the queue 'celry'"
    assert report["problem"] == f"{nobody}; 3 messages wait in it"


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_away_from_here_is_a_finding(
    run: Run, make: Make, app: Celery, closed_port: int, scheme: str
) -> None:
    """And everything else is checked."""
    make("a", task="proj.note")
    app.conf.broker_url = f"{scheme}://:secret@127.0.0.1:{closed_port}"
    (report,) = run("doctor", "--json").json
    assert report["kind"] == "broker"
    assert "cannot be asked from here" in report["problem"]
    assert "secret" not in report["problem"]


@pytest.mark.long
@pytest.mark.standalone
def test_a_queue_that_no_worker_reads_is_reported(project: Project, make: Make) -> None:
    """Before a message waits there, too."""
    worker = project.start("worker", "--pool", "solo", "--loglevel", "info")
    worker.wait_for("ready.")
    make("usual")
    make("slow", options={"queue": "celry"})
    doctor = project.start("redbeat", "doctor", "--json")
    doctor.popen.wait(30)
    queues = [line for line in doctor.output().splitlines() if '"kind": "queue"' in line]
    assert len(queues) == 1
    assert "slow: no worker that answers reads the queue 'celry'\"" in queues[0]


def test_what_redbeat_2_cannot_read_or_ignores_is_listed(
    run: Run, make: Make, redis_client: Any
) -> None:
    """RedBeat 2.4.2 raises an error for each of these."""
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    make("interval", description="which RedBeat 2 does not need")
    make("crontab", crontab("0", "4"), kwargs={"at": soon, "value": {"__type__": "mine"}})
    make("rule", rrule("DAILY", dtstart=soon)).pause("why")
    make("zone", crontab("0", "4"), timezone="Asia/Tokyo", max_runs=3)
    make("launch", clocked(soon))
    interval = {"__type__": "interval", "every": 5, "relative": False}
    written: dict[str, dict[str, Any]] = {
        "raw": {"schedule": {"every": 5}},
        "half": {"schedule": {"__type__": "interval", "every": 5}},
        "more": {"schedule": interval, "max_runs": 3},
        "less": {},
    }
    for name, fields in written.items():
        definition = {"name": name, "task": "t", **fields}
        redis_client.hset(f"redbeat:{name}", "definition", json.dumps(definition))
        redis_client.zadd(SCHEDULE, {f"redbeat:{name}": 9e9})

    ran = run("doctor", "--for-redbeat-2", "--json")

    assert ran.code == 1
    told = {report["key"].removeprefix("redbeat:"): report["problem"] for report in ran.json}
    cannot = "cannot be read by RedBeat 2: "
    assert told == {
        "zone": "loses max_runs, timezone with RedBeat 2",
        "launch": f"{cannot}it does not know the schedule type 'clocked'",
        "raw": f"{cannot}it does not know the schedule type None",
        "half": f"{cannot}its schedule needs every and relative",
        "more": f"{cannot}it does not know the field 'max_runs' of a definition",
        "less": f"{cannot}its definition is not complete",
    }
    assert "missing" not in run("doctor", "--for-redbeat-2").out
    run("delete", *told, "--yes")
    assert run("doctor", "--for-redbeat-2").code == 0


def test_every_kind_of_finding_is_listed() -> None:
    """Programs may rely on the list of kinds, and the table has no others."""
    modules = (doctor, problems, names)
    sources = [Path(str(module.__file__)).read_text("utf-8") for module in modules]
    made = set(re.findall(r"\bfinding\(\s*\"(\w+)\"", " ".join(sources)))
    assert made | set(problems.STARTS.values()) == set(problems.KINDS)


def parts_of(seconds: int) -> dict[str, int]:
    """Return the parts of an instant, as RedBeat stores them."""
    at = datetime.fromtimestamp(seconds, timezone.utc)
    names = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    return {name: getattr(at, name) for name in names}


def test_a_missing_calendar_is_reported_before_the_entry_is_due(
    run: Run, make: Make, redis_client: Any, app: Celery
) -> None:
    """Also for paused entries."""
    schedule = Schedule(app)
    schedule.save_calendar(Calendar("lost"))
    schedule.save_calendar(Calendar("kept"))
    for number in range(3):
        make(f"kept{number}", exclude=["kept"])
        make(f"lost{number}", exclude=["kept", "lost"], last_run_at=None)
    make("later", crontab("0", "4"), exclude=["lost"])
    make("paused", exclude=["lost"]).pause("why")
    redis_client.hdel(store_of(app).keys.calendars, "lost")
    report = run("doctor", "--json").json
    assert kinds(report) == [
        ("unreadable", f"redbeat:{name}") for name in ("later", "lost0", "lost1", "lost2", "paused")
    ]
    problem = "cannot be read: exclude: there is no calendar 'lost'; save the calendar first, or "
    assert {finding["problem"][: len(problem)] for finding in report} == {problem}
