"""Tests of every command in its own process, on the schedule of a real beat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.management.schedule import Schedule
from tests.acceptance.processes import ROOT, Project
from tests.waiting import wait_until

pytestmark = pytest.mark.long

TASK = "tests.acceptance.project.note"


class Shell:
    """A shell in the directory of a project."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def __call__(self, *words: str, code: int = 0, answer: str = "") -> str:
        """Run `celery -A proj redbeat <words>`; return its standard output."""
        ran = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tests.acceptance.project", "redbeat", *words],
            cwd=self._project.directory,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PROJECT_REDIS_URL": self._project.url,
                "COLUMNS": "100",
            },
            input=answer,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == code, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stdout

    def json(self, *words: str) -> list[dict[str, Any]]:
        """Run a command with `--json`; return its JSON objects."""
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def shell(project: Project) -> Shell:
    """Return a shell that runs the commands in the project."""
    return Shell(project)


def make_older(app: Celery, name: str, days: int) -> None:
    """Set an entry's last run to ``days`` days ago."""
    entry = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)
    entry.last_run_at = datetime.now(timezone.utc) - timedelta(days=days)
    entry.save()


def test_beat_runs_what_add_adds(project: Project, shell: Shell, app: Celery) -> None:
    soon = datetime.now(timezone.utc) + timedelta(seconds=15)
    kinds = {
        "every": ["--every", "1"],
        "cron": ["--cron", "* * * * *"],
        "rule": ["--rrule", "RRULE:FREQ=SECONDLY"],
        "once": ["--at", soon.isoformat(timespec="seconds")],
        "solar": ["--solar", "solar_noon,52.52,13.41"],
    }
    for name, words in kinds.items():
        shell("add", name, TASK, *words, "--args", f'["{name}"]', "--kwargs", '{"n": 1}')
    # The test cannot wait for a minute or a day, so these two entries get an earlier last run.
    make_older(app, "cron", 1)
    make_older(app, "solar", 3)
    project.worker()
    project.beat()
    for name in kinds:
        run = project.wait_for_runs(name, 1, deadline=60)[0]
        assert (run["args"], run["kwargs"]) == ([name], {"n": 1})
    (once,) = project.ran("once")
    assert once["scheduled_at"] == soon.replace(microsecond=0).isoformat()


def test_an_operator_uses_every_command(project: Project, shell: Shell, app: Celery) -> None:
    schedule = Schedule(app)
    assert "no beat leads" in shell("status", code=1)
    project.worker()
    expiring = {"result_expires": 86400}
    project.beat(schedule={"code": {"task": TASK, "schedule": 3600}}, settings=expiring)
    statics = ["celery.backend_cleanup", "code"]  # Celery itself adds the first entry
    wait_until(lambda: sorted(schedule) == statics, 60, "the static entries")
    (status,) = shell.json("status")
    assert (status["healthy"], status["statics"]) == (True, 2)

    (added,) = shell.json("add", "hourly", TASK, "--every", "1h", "--queue", "celery")
    assert added["options"] == {"queue": "celery"}
    listed = shell.json("list", "--sort", "name")
    assert [line["name"] for line in listed] == [*statics, "hourly"]
    assert "every 1 h" in shell("list", "--limit", "20")
    assert len(shell("upcoming", "-n", "4").splitlines()) == 5

    (triggered,) = shell.json("trigger", "hourly")
    (run,) = project.wait_for_runs("hourly", 1)
    assert run["task_id"] == triggered["task_id"]
    wait_until(lambda: list(schedule["hourly"].history), 10, "the history")
    (line,) = shell.json("history", "hourly")
    assert (line["task_id"], line["outcome"]) == (run["task_id"], "triggered")

    shell("edit", "hourly", "--every", "1")
    project.wait_for_runs("hourly", 3)
    shell("pause", "hourly", "code", "--note", "too much")
    (shown,) = shell.json("show", "hourly")
    assert (shown["state"], shown["note"]) == ("paused", "too much")
    assert "too much" in shell("show", "code")
    count = len(project.ran("hourly"))
    shell("resume", "--match", "hour*", "--yes")
    project.wait_for_runs("hourly", count + 1)
    shell("delete", "hourly", answer="y\n")
    assert "hourly" not in schedule
    shell("show", "hourly", code=3)
    shell("add", "wrong", TASK, "--cron", "* *", code=2)
    assert sorted(schedule) == statics
