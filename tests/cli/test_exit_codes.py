"""Tests that every command exits with the same codes for the same reasons."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from celery import Celery
from celery.platforms import EX_OK, EX_UNAVAILABLE

from redbeat.cli import COMMANDS
from redbeat.cli.command import Exit
from redbeat.errors import EX_CONFIG
from tests.acceptance.processes import ROOT
from tests.cli.conftest import Run
from tests.conftest import Make

#: The definition of another entry, which no beat runs as ``one``.
OTHERS_NAME = json.dumps(
    {"name": "two", "task": "t", "schedule": {"__type__": "interval", "every": 60.0}}
)

PERIOD = ("--from", "2026-01-01", "--to", "2026-01-02")

#: Valid arguments of each command, for the entry ``one``.
WORDS = {
    "add": ["two", "proj.t", "--every", "30"],
    "apply": ["FILE", "--yes"],
    "backfill": ["one", *PERIOD, "--dry-run"],
    "calendar": ["de", "--day", "2026-12-25"],
    "calendars": [],
    "delete": ["one", "--yes"],
    "doctor": [],
    "edit": ["one", "--every", "30"],
    "export": [],
    "history": ["one"],
    "import": ["/dev/null", "--prune"],
    "list": [],
    "migrate-prefix": ["redbeat:", "new:"],
    "pause": ["one"],
    "plan": ["FILE"],
    "resume": ["one"],
    "shard": ["4"],
    "show": ["one"],
    "simulate": ["one", *PERIOD],
    "status": ["--max-late", "1d"],
    "trigger": ["one"],
    "upcoming": [],
}

#: Commands that run until they are stopped, also while Redis is away.
SERVERS = {"exporter", "web"}

#: Commands that report a problem with their own means: Redis or the settings are what they check.
NAMED = ("backfill", "delete", "edit", "history", "pause", "resume", "show", "simulate", "trigger")


def test_each_command_is_tested_here() -> None:
    assert {*WORDS} | SERVERS == {*COMMANDS}, "add the command to WORDS"


@pytest.fixture
def words(tmp_path: Path, name: str) -> list[str]:
    """Return the command with its arguments."""
    file = tmp_path / "entries.json"
    file.write_text('{"managed_by": "x", "entries": {}}', encoding="ascii")
    return [name, *(str(file) if word == "FILE" else word for word in WORDS[name])]


@pytest.mark.parametrize("name", WORDS)
def test_success(run: Run, make: Make, words: list[str], name: str) -> None:
    make("one", 3600)
    expected = Exit.FAILED if name in ("status", "doctor") else EX_OK  # no beat is active
    ran = run(*words)
    assert ran.code == expected, ran.err


@pytest.mark.parametrize("name", COMMANDS)
def test_an_invalid_command_line(run: Run, name: str) -> None:
    assert run(name, "--no-such-option").code == Exit.USAGE


@pytest.mark.parametrize("name", WORDS)
def test_redis_is_away(run: Run, app: Celery, closed_port: int, words: list[str]) -> None:
    app.conf.redbeat_redis_url = f"redis://:secret@127.0.0.1:{closed_port}"
    ran = run(*words)
    assert ran.code == EX_UNAVAILABLE, ran.err
    assert ran.err.startswith("Error: Redis cannot be used: ConnectionError")
    assert "secret" not in ran.err


@pytest.mark.parametrize("name", sorted({*WORDS} - {"doctor"}))
def test_an_invalid_setting(run: Run, app: Celery, words: list[str]) -> None:
    app.conf.redbeat_lock_timeout = "long"
    ran = run(*words)
    assert ran.code == EX_CONFIG, ran.err
    assert "redbeat_lock_timeout is 'long'" in ran.err


@pytest.mark.parametrize("name", [*NAMED, "upcoming"])
def test_an_unknown_entry(run: Run, name: str) -> None:
    words = [name, *WORDS[name]] if name != "upcoming" else [name, "one"]
    assert run(*words).code == Exit.NOT_FOUND


@pytest.mark.parametrize("name", ["backfill", "edit", "show", "history", "simulate", "upcoming"])
@pytest.mark.parametrize("definition", ["{", OTHERS_NAME], ids=["no JSON", "another name"])
def test_an_unreadable_entry(
    run: Run, make: Make, redis_client: object, name: str, definition: str
) -> None:
    make("one", 3600)
    redis_client.hset("redbeat:one", "definition", definition)  # type: ignore[attr-defined]
    words = [name, *WORDS[name]] if name != "upcoming" else [name, "one"]
    assert run(*words).code == Exit.UNREADABLE


@pytest.mark.parametrize(
    "words", [["import"], ["plan"], ["apply"], ["simulate", *PERIOD, "--file"]]
)
def test_an_unreadable_file(run: Run, words: list[str]) -> None:
    ran = run(*words, "/nonexistent/file.json")
    assert (ran.code, "cannot be read: No such file" in ran.err) == (Exit.UNREADABLE, True)


def test_a_conflict(run: Run, make: Make) -> None:
    make("two", 3600)
    assert run("add", *WORDS["add"]).code == Exit.CONFLICT


def test_the_table_names_the_code_of_a_plan_with_changes(run: Run) -> None:
    table = " ".join(run("--help").out.partition("Exit codes")[2].split())
    assert f"{Exit.DIFFERENT} the command line is invalid, or plan --detailed-exitcode" in table


def test_a_question_without_an_answer(run: Run, make: Make) -> None:
    make("one", 3600)
    assert run("delete", "one").code == Exit.FAILED


def test_commands_use_no_other_codes() -> None:
    """Each call that ends a command names one of the codes; this reads the source code."""
    found = 0
    for file in (ROOT / "redbeat" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("failure", "exit") and node.args:
                code = ast.unparse(node.args[-1])
                assert code == "exit_code" or "Exit." in code, (file.name, node.lineno)
                found += 1
    assert found > 10
