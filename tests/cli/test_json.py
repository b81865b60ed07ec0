"""Tests that the commands write the JSON that `docs/json.rst` describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat.cli.command import Exit
from redbeat.entries.history import run_line
from redbeat.entries.status import STATES
from tests.acceptance.processes import ROOT
from tests.cli.conftest import Run
from tests.cli.test_exit_codes import WORDS
from tests.conftest import Make
from tests.stored import put_history

PAGE = (ROOT / "docs" / "json.rst").read_text(encoding="utf-8")
FIELD = re.compile(r"   \* - ``(\w+)``\n     - ([\w ]+)\n")

Fields = dict[str, str]


def is_time(value: Any) -> bool:
    """Return whether a value is an ISO 8601 time in UTC."""
    return isinstance(value, str) and datetime.fromisoformat(value).utcoffset() == timedelta(0)


TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "true or false": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "time": is_time,
    "null": lambda value: value is None,
}


def documented() -> list[Fields]:
    """Return the fields and types of each table on the page, in order."""
    tables = PAGE.split("   * - Field\n     - Type\n     - Meaning\n")[1:]
    return [dict(FIELD.findall(table.split(".. list-table::")[0])) for table in tables]


ENTRY, LISTED, SHOWN, PAST, COMING, DONE, FINDING, STATUS = documented()


def check(value: dict[str, Any], fields: Fields) -> None:
    """Assert that an object has exactly these fields, with these types."""
    assert [*value] == [*fields], "docs/json.rst must list the fields, in this order"
    for name, kind in fields.items():
        kinds = [kind] if kind in TYPES else kind.split(" or ")
        assert any(TYPES[kind](value[name]) for kind in kinds), (name, value[name], kind)


@pytest.fixture
def entry(make: Make, redis_client: redis.Redis) -> None:
    """Store an entry with values in all fields."""
    ran = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=timezone.utc)
    make(
        "a\x1b日",
        1800,
        args=[1, ran],
        kwargs={"x": None},
        options={"queue": "q"},
        end_time=datetime(2030, 1, 1, tzinfo=timezone.utc),
        last_run_at=ran,
        total_run_count=3,
    )
    second = ran.timestamp()
    lines = [f"{second:.6f} +0 {run}" for run in ("skipped", "sent id")]
    put_history(redis_client, "redbeat:a\x1b日", lines)


@pytest.mark.usefixtures("entry")
def test_entries_have_the_documented_fields(run: Run, redis_client: redis.Redis) -> None:
    ran = run("list", "--json")
    assert ran.out.isascii()
    check(ran.json[0], ENTRY | LISTED)
    assert ran.json[0]["name"] == "a\x1b日"
    assert ran.json[0]["policy"] == {"end_time": "2030-01-01T00:00:00+00:00"}
    check(run("show", "a\x1b日", "--json").json[0], ENTRY | LISTED | SHOWN)
    check(run("add", "b", "proj.t", "--every", "1", "--json").json[0], ENTRY)
    check(run("edit", "b", "--every", "2", "--json").json[0], ENTRY)
    run("pause", "b", "--note", "why")
    paused = run("show", "b", "--json").json[0]
    check(paused, ENTRY | LISTED | SHOWN)
    assert (paused["note"], paused["state"], paused["enabled"]) == ("why", "paused", False)
    redis_client.hset("redbeat:b", "definition", "{")
    (unreadable,) = run("list", "--state", "quarantined", "--json").json
    check(unreadable, {"name": "string", **LISTED})
    assert unreadable["problem"].startswith("definition")


@pytest.mark.usefixtures("entry")
def test_runs_have_the_documented_fields(run: Run) -> None:
    lines = run("history", "a\x1b日", "--json").json
    assert [line["task_id"] for line in lines] == [None, "id"]
    for line in lines:
        check(line, PAST)
    (shown,) = run("show", "a\x1b日", "--json").json
    for line in shown["history"]:
        check(line, {name: kind for name, kind in PAST.items() if name != "name"})
    assert all(map(is_time, shown["upcoming"]))
    for line in run("upcoming", "-n", "3", "--json").json:
        check(line, COMING)


@pytest.mark.usefixtures("entry")
def test_results_have_the_documented_fields(run: Run) -> None:
    (triggered,) = run("trigger", "a\x1b日", "--json").json
    check(triggered, DONE)
    without_id = {name: kind for name, kind in DONE.items() if name != "task_id"}
    for verb in ("pause", "resume", "delete"):
        (done,) = run(verb, "a\x1b日", "--yes", "--json").json
        check(done, without_id)


@pytest.mark.usefixtures("entry")
def test_findings_have_the_documented_fields(run: Run, redis_client: redis.Redis) -> None:
    redis_client.set("redbeat::lock", "redbeat3:web-1:4711:1700000000:" + "0" * 32)
    redis_client.zadd("redbeat::schedule", {"redbeat:gone": 9e9})
    (found,) = run("doctor", "--json").json
    check(found, FINDING)
    assert (found["kind"], found["key"], found["fixable"]) == ("missing", "redbeat:gone", True)
    (repaired,) = run("doctor", "--fix", "--json").json
    assert repaired == {**found, "fixed": True}


def test_the_status_has_the_documented_fields(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    (found,) = run("status", "--json").json
    check(found, STATUS)
    uncounted = {"running", "not scheduled"}
    assert (*found["entries"],) == tuple(state for state in STATES if state not in uncounted)
    redis_client.set("redbeat::lock", "redbeat3:web-1:4711:1700000000:" + "0" * 32)
    make("late")
    redis_client.zadd("redbeat::schedule", {"redbeat:late": 1})
    (found,) = run("status", "--json").json
    check(found, STATUS)
    assert found["most_late"] > 0
    seen = {"last_seen": "time or null", "leads_since": "time or null"}
    for beat in (found["leader"], *found["beats"], *found["standbys"]):
        check(beat, {"token": "string", "host": "string", "pid": "number", "since": "time", **seen})


def test_the_page_lists_all_exit_codes(run: Run) -> None:
    table = PAGE.split(".. list-table:: Exit codes")[1].split("JSON lines")[0]
    assert {int(code) for code in re.findall(r"\* - (\d+)\n", table)} == {*Exit}
    assert run("list", "--json").code == 0


@pytest.mark.parametrize("name", sorted(WORDS))
def test_json_is_offered_where_it_is_printed(
    run: Run, make: Make, redis_client: redis.Redis, tmp_path: Path, name: str
) -> None:
    """The servers print their URL, see their tests."""
    make("one", 3600)
    put_history(redis_client, "redbeat:one", [run_line(9000, 9001)])
    assert run("calendar", "days", "--day", "2026-12-25").code == 0
    file = tmp_path / "entries.json"
    file.write_text('{"managed_by": "x", "entries": {}}', encoding="ascii")
    words = [str(file) if word == "FILE" else word for word in WORDS[name]]
    assert run(name, *words, "--json").json
