"""A project with real processes, for every test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.processes import Project


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[Project]:
    """The project on an empty Redis; its processes end with the test."""
    project = Project(tmp_path, redis_url)
    yield project
    project.end()
