"""Tests that code that uses the public API passes strict type checkers.

``usage.py`` is an example of this code, and ``programs.py`` does what public programs for RedBeat 2
do. The first asserts types, so that the checkers also report a type
that becomes ``Any``. Each checker runs as in a project that has RedBeat installed.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import redbeat
from redbeat.entries.policy import FIELDS, Arguments, Attributes

ROOT = Path(__file__).resolve().parents[2]
USAGE = Path(__file__).with_name("usage.py")
PROGRAMS = Path(__file__).with_name("programs.py")
# Celery has no annotations. Type checkers do not report errors in installed packages.
MYPY_INI = """
[mypy]
strict = true
[mypy-celery.*]
ignore_missing_imports = true
[mypy-redbeat.*]
follow_imports = silent
"""
WRONG = """
from redbeat import *
from redbeat.schedulers import ensure_conf
RedBeatSchedulerEntry.generate_key(None, 5)
register_schedule_type(7, rrule, lambda s: {}, lambda f: None)
current_leader(None).token
clocked("tomorrow")
RedBeatSchedulerEntry("a", "t", 60, overlap="skp")
RedBeatSchedulerEntry("a", "t", 60, bogus=1)
RedBeatSchedulerEntry("a", "t", 60, max_runs="3")
rrule("DAYLY")
RedBeatSchedulerEntry("a", "t", 60).status.state == "sleeping"
RedBeatSchedulerEntry("a", "t", 60).coalesce = "none"
from_dateutil("FREQ=DAILY")
rrule("DAILY", byhour="9")
Calendar("c", rules=[5])
next(Schedule().find(state="paused"))
ensure_conf().adopt("redis://localhost")
register_schedule_type("a", rrule, lambda rule: rule.unknown, rrule)
"""
WRONG_LINES = (4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19)


def program(name: str) -> str:
    """Return the path of a program in the environment of the tests or on the ``PATH``."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    assert found, f"{name} is not installed: pip install -r requirements.dev.txt"
    return found


def run(*command: str | Path, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a checker outside the project, so that it does not read the project's settings."""
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False
    )


def mypy(place: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    (place / "mypy.ini").write_text(MYPY_INI)
    cache = ROOT / ".mypy_cache" / "usage"
    return run(program("mypy"), "--cache-dir", cache, "--no-error-summary", *files, place=place)


def pyright(place: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    settings = {
        "include": [str(file) for file in files],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (place / "pyrightconfig.json").write_text(json.dumps(settings))
    return run(program("pyright"), "--pythonpath", sys.executable, "-p", place, place=place)


CHECKERS = {"mypy": mypy, "pyright": pyright}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_checker_accepts_the_use_of_the_api(checker: str, tmp_path: Path) -> None:
    # To pyright, attributes that a program sets on an app are errors, as Celery declares none.
    files = [USAGE, PROGRAMS] if checker == "mypy" else [USAGE]
    files = [Path(shutil.copy(file, tmp_path)) for file in files]
    done = CHECKERS[checker](tmp_path, *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_checker_refuses_wrong_use(checker: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    done = CHECKERS[checker](tmp_path, wrong)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {line for line in WRONG_LINES if f"wrong.py:{line}:" in done.stdout}
    assert found == {*WRONG_LINES}, done.stdout


def test_everything_that_is_exported_is_used() -> None:
    text = USAGE.read_text()
    assert [name for name in redbeat.__all__ if name not in text] == []


def test_type_checkers_know_every_policy_field() -> None:
    for known in (Arguments, Attributes):
        assert {*FIELDS} == {*known.__annotations__}


def test_help_names_every_policy_field_with_its_default() -> None:
    parameters = inspect.signature(redbeat.RedBeatSchedulerEntry).parameters
    shown = {name: parameters[name].default for name in FIELDS}
    assert shown == {name: field.default for name, field in FIELDS.items()}
    assert {*redbeat.EntryArguments.__annotations__} <= {*parameters}
    for function in (redbeat.Schedule.find, redbeat.Schedule.records, redbeat.Schedule.alist):
        assert {*redbeat.EntryFilters.__annotations__} <= {*inspect.signature(function).parameters}
