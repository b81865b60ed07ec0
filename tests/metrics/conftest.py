"""Fixtures: beats and exporters as processes, and a schedule to inspect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.processes import Process, Project
from tests.metrics.scrapes import Target
from tests.scheduler.conftest import clock, wire, world
from tests.servers import RedisServer, free_port

__all__ = ("clock", "wire", "world")

Begin = Callable[..., tuple[Process, Target]]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Yield a separate server that the test may stop."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def frail(tmp_path: Path, server: RedisServer) -> Iterator[Project]:
    """Yield a project on the server that the test may stop."""
    project = Project(tmp_path, server.url)
    yield project
    project.end()


def begin_beat(project: Project, **options: Any) -> tuple[Process, Target]:
    """Start a beat with its own metrics port; return the process and its target."""
    target = Target(free_port())
    settings = {"redbeat_metrics_port": target.port, **options.pop("settings", {})}
    return project.beat(settings=settings, **options), target


def begin_exporter(project: Project, **settings: Any) -> tuple[Process, Target]:
    """Start an exporter; return the process and its target."""
    target = Target(free_port())
    port = ("--port", str(target.port))
    return project.start("redbeat", "exporter", *port, settings=settings), target
