"""The commands, run in this process or in one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.acceptance.processes import Project
from tests.cli.commands import Ran, run_command

Run = Callable[..., Ran]
Make = Callable[..., RedBeatSchedulerEntry]


@pytest.fixture
def run(app: Celery) -> Run:
    """Run `celery redbeat ...` in this process, on the empty schedule of `app`."""

    def run(*args: str, **options: Any) -> Ran:
        return run_command(app, *args, **options)

    return run


@pytest.fixture
def tokyo(app: Celery) -> None:
    """Have the app live in Tokyo; for tests that ask for it before an entry."""
    app.conf.timezone = "Asia/Tokyo"


@pytest.fixture
def make(app: Celery) -> Make:
    """Save an entry that is due in an hour, unless other things are said of it."""

    def make(name: str, schedule: Any = 3600, **more: Any) -> RedBeatSchedulerEntry:
        task = more.pop("task", "proj.note")
        return RedBeatSchedulerEntry(name, task, schedule, app=app, **more).save()

    return make


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[Project]:
    """A project with real processes on an empty Redis; they end with the test."""
    project = Project(tmp_path, redis_url)
    yield project
    project.end()
