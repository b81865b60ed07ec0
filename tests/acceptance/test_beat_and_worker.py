"""Tests with a real `celery beat`, a real worker and a real Redis, as a user runs them."""

from __future__ import annotations

import os
import signal
import socket
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from redbeat.errors import EX_CONFIG
from tests.acceptance.processes import ROOT, Project
from tests.servers import RedisServer

TASK = "tests.acceptance.project.note"
EVERY_SECOND = {"tick": {"task": TASK, "schedule": 1.0, "args": ["a", 2]}}


@pytest.mark.parametrize(
    "scheduler",
    [
        "redbeat",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("redbeat.RedBeatScheduler", "redbeat.schedulers:RedBeatScheduler")
        ),
    ],
)
def test_static_entries_run_on_schedule(project: Project, scheduler: str) -> None:
    project.worker()
    beat = project.beat(schedule=EVERY_SECOND, scheduler=scheduler)
    runs = project.wait_for_runs("tick", 3)
    assert [run["args"] for run in runs[:3]] == [["a", 2]] * 3
    instants = [datetime.fromisoformat(run["scheduled_at"]) for run in runs]
    assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(seconds=1)}
    assert {instant.utcoffset() for instant in instants} == {timedelta(0)}
    assert len({run["task_id"] for run in runs}) == len(runs)
    output = beat.output()
    for line in (
        "beat: Acquiring lock...",
        "beat: Acquired lock",
        "Scheduler: Sending due task tick (tests.acceptance.project.note)",
        f"       . redis -> {project.url}",
        "       . lock -> `redbeat::lock` 25.00 minutes (1500s)",
    ):
        assert line in output


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_stops_beat_and_releases_the_lock(
    project: Project, number: signal.Signals
) -> None:
    beat = project.beat(schedule=EVERY_SECOND)
    beat.wait_for("Sending due task tick")
    assert beat.stop(number, deadline=5.0) == 0
    assert project.client.exists("redbeat::lock") == 0
    assert "beat: Releasing lock" in beat.output()
    assert "Traceback" not in beat.output()


@pytest.mark.long
def test_a_standby_replies_to_remote_control_and_stops_at_once(project: Project) -> None:
    project.beat().wait_for("Acquired lock")
    standby = project.beat("--enable-remote-control", "-n", "standby")
    standby.wait_for("standing by")
    standby.wait_for("beat pidbox: Connected")
    answers = project.start("inspect", "ping", "-d", "celerybeat@standby")
    assert answers.popen.wait(30) == 0
    assert "pong" in answers.output()
    assert standby.stop(deadline=5.0) == 0


@pytest.mark.long
def test_the_example_configuration_of_the_manual_works(project: Project) -> None:
    env = {"REDIS_URL": project.url}
    worker = project.start("worker", "--pool", "solo", config="exampleconf", env=env)
    beat = project.start("beat", "-l", "info", config="exampleconf", env=env)
    beat.wait_for("Sending due task every-second (exampleconf.show)")
    worker.wait_for("every-second")
    assert beat.stop() == 0


def without_prometheus(directory: Path) -> dict[str, str]:
    """Return the environment of a process that cannot import ``prometheus_client``."""
    hook = "import sys\nsys.modules['prometheus_client'] = None\n"
    (directory / "sitecustomize.py").write_text(hook)
    return {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        pytest.param(
            {"redbeat_lock_timeout": "long"},
            "it must be a number of seconds above 0",
            id="a bad value",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"timezone": "Mars/Olympus"},
            "not the name of a time zone",
            id="an unknown time zone",
        ),
        pytest.param(
            {"redbeat_metrics_port": 9540},
            "pip install 'celery-redbeat[metrics]'",
            id="a missing package",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"redbeat_metrics_port": "taken"},
            "Set redbeat_metrics_port to a free port",
            id="a port in use",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_error_at_start_is_one_line_with_the_fix(
    project: Project, tmp_path: Path, settings: dict[str, Any], fix: str
) -> None:
    (name,) = settings
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        if settings[name] == "taken":
            settings = {name: taken.getsockname()[1]}
        env = without_prometheus(tmp_path) if "pip" in fix else {}
        beat = project.beat(settings=settings, env=env)
        assert beat.popen.wait(30) == EX_CONFIG
    (line,) = [line for line in beat.output().splitlines() if name in line]
    assert fix in line
    assert "Traceback" not in beat.output()


def test_a_setting_that_only_the_servers_can_disprove_ends_beat_with_one_line(
    project: Project,
) -> None:
    """Setup: exactly-once delivery is set, and the schedule is not on the broker's server."""
    with RedisServer() as server:
        settings = {"redbeat_delivery": "exactly_once", "redbeat_redis_url": server.url}
        schedule = {"now": {"task": "t", "schedule": 1}}
        beat = project.beat(settings={**settings, "beat_schedule": schedule})
        assert beat.popen.wait(30) == EX_CONFIG
    (line,) = [line for line in beat.output().splitlines() if "redbeat_delivery" in line]
    assert "CRITICAL" in line
    assert "two Redis servers" in line
    assert "Traceback" not in beat.output()


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("-q", "beat", "--scheduler", "redbeat"), id="quiet"),
        pytest.param(
            ("worker", "-B", "--scheduler", "redbeat", "-c", "1", "-l", "info"),
            id="in a worker",
        ),
    ],
)
def test_an_error_at_start_without_a_banner_is_one_line_too(
    project: Project, command: tuple[str, ...]
) -> None:
    process = project.start(*command, settings={"redbeat_lock_timeout": "long"})
    process.wait_for("it must be a number of seconds above 0")
    if command[0] == "worker":
        process.wait_for("ready.")
        assert process.stop() == 0
    else:
        assert process.popen.wait(30) == EX_CONFIG
    (line,) = [line for line in process.output().splitlines() if "redbeat_lock_timeout" in line]
    assert "CRITICAL" in line
    assert "Traceback" not in process.output()
