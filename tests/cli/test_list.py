"""Tests of `celery redbeat list`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.state import Failing, State
from redbeat.management.schedule import Schedule
from redbeat.storage.words import STATE
from tests.cli.commands import CommandResult, in_terminal
from tests.cli.conftest import Run
from tests.conftest import Make
from tests.scheduler.clients import CountingRedis, counting_client

MANY = 30_000


@pytest.fixture
def entries(make: Make, redis_client: redis.Redis) -> None:
    """Store entries of different kinds."""
    make("hour")
    make("billing-day", 86400, task="billing.day")
    make("billing-minute", 60, task="billing.minute", kwargs={"a": 1})
    make("off", 30, enabled=False)
    make("old", 30)
    redis_client.sadd("redbeat::statics", "old")
    redis_client.hset("redbeat:old", "definition", "{")


def names(ran: CommandResult) -> list[str]:
    """Return the entry names in the order of the output."""
    assert ran.code == 0
    return [line["name"] for line in ran.json]


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["old", "billing-minute", "hour", "billing-day", "off"]),
        (["--limit", "2"], ["old", "billing-minute"]),
        (["--match", "billing-*"], ["billing-minute", "billing-day"]),
        (["--task", "billing.*"], ["billing-minute", "billing-day"]),
        (["--state", "paused"], ["off"]),
        (["--state", "paused", "--state", "quarantined"], ["off", "old"]),
        (["--static"], ["old"]),
        (["--dynamic", "--task", "proj.*"], ["hour", "off"]),
        (["--sort", "name"], ["billing-day", "billing-minute", "hour", "off", "old"]),
        (["--sort", "name", "--limit", "1"], ["billing-day"]),
        (["--sort", "task"], ["old", "billing-day", "billing-minute", "hour", "off"]),
        (["--sort", "state"], ["off", "old", "billing-day", "billing-minute", "hour"]),
        (["--match", "nothing"], []),
    ],
)
def test_filters_select_entries(run: Run, options: list[str], expected: list[str]) -> None:
    assert names(run("list", "--json", *options)) == expected


def test_due_before_outside_of_the_range_is_refused(run: Run) -> None:
    ran = run("list", "--due-before", "9999-12-31T23:59:59-05:00")
    assert (ran.code, ran.out) == (2, "")
    assert "Invalid value for '--due-before'" in ran.err
    assert "is not between the years 1 and 9999" in ran.err


@pytest.mark.usefixtures("tokyo", "entries")
def test_due_before_is_in_the_zone_of_the_app(run: Run, app: Celery) -> None:
    soon = datetime.now(app.timezone) + timedelta(minutes=5)
    assert str(app.timezone) == "Asia/Tokyo"
    text = f"{soon:%Y-%m-%dT%H:%M:%S}"
    assert names(run("list", "--json", "--due-before", text)) == ["old", "billing-minute"]


@pytest.mark.usefixtures("entries")
def test_the_table(run: Run) -> None:
    ran = run("list")
    titles, *rows = ran.lines
    assert titles.split("  ")[0] == "NAME"
    assert "DUE (UTC)" in titles
    assert [row.split()[0] for row in rows] == [
        "old",
        "billing-minute",
        "hour",
        "billing-day",
        "off",
    ]
    start = titles.index("STATE")
    states = ["quarantined", "scheduled", "scheduled", "scheduled", "paused"]
    assert [row[start:].split()[0] for row in rows] == states
    assert "every 1 min" in rows[1]
    assert "static" in rows[0]


def test_an_empty_schedule(run: Run, make: Make) -> None:
    found = run("list")
    assert (found.out, found.code) == ("", 0)
    assert found.err.startswith("No entries under the prefix redbeat: in redis://127.0.0.1:")
    make("a")
    found = run("list", "--match", "b*")
    assert found.err.startswith("None of the 1 entry under the prefix redbeat:")
    assert run("list", "--match", "b*", "--json") == CommandResult("", "", 0)
    assert run("list", "--match", "b*", before=("-q",)) == CommandResult("", "", 0)


def test_a_row_is_one_line_of_a_terminal(redis_url: str, make: Make) -> None:
    """A pipe gets the whole texts, and so does ``--wide``."""
    make("nightly-report-of-sales", task="proj.tasks.reports.generate_sales_report_of_the_year")
    make("b")
    for columns, words in ((80, ()), (200, ()), (80, ("--wide",))):
        environ = {"COLUMNS": str(columns), "TERM": "dumb"}
        text, code = in_terminal(redis_url, "list", "--sort", "name", *words, environ=environ)
        assert code == 0
        title, _, row = text.splitlines()
        assert (max(len(title), len(row)) <= columns) is not bool(words), text
        whole = bool(words) or columns == 200
        assert ("KIND" in title, "nightly-report-of-sales" in row) == (whole, whole)
        assert ("generate_sales_report_of_the_year" in row) is whole
        assert row.startswith("nightly-report-of-s"), "a name is cut last"
        assert title.index("WHEN") - title.index("DUE (UTC)") == len("2026-01-01 12:00:00  ")
        assert row[title.index("WHEN") :].startswith("in ")


def test_a_name_cannot_write_to_the_terminal(run: Run, make: Make) -> None:
    make("evil\x1b]0;owned\x07", task="proj\nfake line")
    ran = run("list")
    assert "\x1b" not in ran.out
    assert "evil\\x1b]0;owned\\x07" in ran.out
    assert len(ran.lines) == 2


def test_characters_that_a_terminal_cannot_write_are_escaped(run: Run, make: Make) -> None:
    make("日本", 60)
    assert "\\u65e5\\u672c" in run("list", charset="ascii").out
    assert "\\u65e5\\u672c" in run("upcoming", charset="ascii").out


def test_colours_are_for_terminals_only(run: Run, make: Make) -> None:
    make("a", crontab())
    assert "\x1b[1m" in run("list", color=True).out
    assert "\x1b" not in run("list", color=True, before=("--no-color",)).out
    assert "\x1b" not in run("list").out


@pytest.fixture
def large_schedule(redis_url: str, redis_client: redis.Redis) -> Iterator[CountingRedis]:
    """Yield a client that counts round trips, on a schedule with `MANY` entries."""
    app = Celery("large_schedule", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url)
    entry = RedBeatSchedulerEntry("0", "proj.note", 3600, app=app).save()
    definition, meta = redis_client.hmget("redbeat:0", "definition", "meta")
    due = entry.score
    for first in range(0, MANY, 10_000):
        pipeline = redis_client.pipeline(transaction=False)
        for number in range(first, first + 10_000):
            text = str(definition).replace('"name": "0"', f'"name": "{number}"')
            pipeline.hset(f"redbeat:{number}", mapping={"definition": text, "meta": str(meta)})
            pipeline.zadd("redbeat::schedule", {f"redbeat:{number}": due + number})
        pipeline.execute()
    app.close()
    client = counting_client(redis_url)
    yield client
    client.close()
    redis_client.flushall()


@pytest.mark.long
def test_the_first_entries_of_a_large_schedule_take_few_round_trips(
    run: Run, app: Celery, large_schedule: CountingRedis
) -> None:
    app.redbeat_redis = large_schedule
    assert run("list", "--limit", "1").code == 0  # the first command also loads the scripts
    before = large_schedule.trips
    ran = run("list", "--limit", "20")
    assert [line.split()[0] for line in ran.lines[1:]] == [str(number) for number in range(20)]
    assert large_schedule.trips - before == 1 + len(["what stops beats", "the server"])
    assert len(Schedule(app)) == MANY


def test_entries_that_are_not_scheduled_come_last(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    for name in ("a", "b", "c"):
        make(name)
    redis_client.zrem("redbeat::schedule", "redbeat:a")
    ran = run("list")
    assert [line.split()[0] for line in ran.lines[1:]] == ["b", "c", "a"]
    assert "  not scheduled  " in ran.lines[-1]
    assert names(run("list", "--json", "--state", "not scheduled")) == ["a"]
    assert names(run("list", "--json", "--state", "scheduled")) == ["b", "c"]
    assert names(run("list", "--json", "--sort", "name")) == ["a", "b", "c"]
    assert names(run("list", "--json", "--sort", "name", "--limit", "1")) == ["a"]
    assert names(run("list", "--json", "--match", "a*")) == ["a"]
    assert names(run("list", "--json", "--limit", "2")) == ["b", "c"]


@pytest.mark.standalone
def test_a_user_who_may_not_scan_sees_what_is_scheduled(
    run: Run, make: Make, app: Celery, redis_client: Any
) -> None:
    make("a")
    redis_client.execute_command("ACL", "SETUSER", "plain", "on", "nopass", "~*", "+@all", "-scan")
    try:
        url = app.conf.redbeat_redis_url.replace("redis://", "redis://plain:x@")
        app.conf.redbeat_redis_url, app.redbeat_conf, app.redbeat_redis = url, None, None
        assert names(run("list", "--json")) == ["a"]
    finally:
        redis_client.execute_command("ACL", "DELUSER", "plain")


@pytest.mark.parametrize("typo", ["max_run", "evry"])
def test_an_entry_that_cannot_be_read_has_one_state_whatever_is_wrong(
    run: Run, make: Make, redis_client: Any, typo: str
) -> None:
    """Also one that could not be sent before; then that is not what is wrong with it."""
    make("a")
    definition = json.loads(redis_client.hget("redbeat:a", "definition"))
    fields = {**definition, "max_run": 3}
    rule = {"__type__": "interval", "evry": 5}
    fields = fields if typo == "max_run" else {**definition, "schedule": rule}
    failing = Failing(1.0, 9, "OperationalError: no", 1.0, 1.0)
    state = State(failing=failing).text()
    redis_client.hset("redbeat:a", mapping={"definition": json.dumps(fields), STATE: state})

    (found,) = run("list", "--json").json

    assert (found["state"], found["failing"]) == ("quarantined", None)
    assert typo in found["problem"]
    assert "to send" not in found["problem"]
    assert run("list", "--state", "failing", "--json").json == []


def test_both_problems_of_an_entry_are_named(run: Run, redis_client: Any) -> None:
    rule = {"__type__": "interval", "evry": 5}
    fields = {"name": "a", "task": "t", "schedule": rule, "max_run": 3}
    redis_client.hset("redbeat:a", "definition", json.dumps(fields))
    redis_client.zadd("redbeat::schedule", {"redbeat:a": 1})

    (found,) = run("list", "--json").json

    assert "unknown key 'evry'" in found["problem"]
    assert found["problem"].endswith("RedBeat does not know the field 'max_run'")


def test_a_paused_entry_is_not_due_whatever_its_score(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    """RedBeat 2 leaves the score of an entry that it disables."""
    make("off", 30, enabled=False)
    redis_client.zadd("redbeat::schedule", {"redbeat:off": 1})
    (found,) = run("list", "--json").json
    assert (found["state"], found["due_at"]) == ("paused", None)
    assert "late" not in run("list").out
    assert "Due " not in run("show", "off").out
