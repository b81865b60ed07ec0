"""Fixtures for the programs: a real Redis, and two ways to run a program.

They replace the fixtures of other tests, which need names that ``celery-redbeat`` 2.4.2 lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from examples.embedded import EmbeddedRedis
from tests.wild.programs import Run, Wild, restored, run_beat, run_object

#: In these files, the first test under a real beat is also part of the short run.
SHORT = {f"test_{name}.py" for name in ("entry_subclasses", "own_ticks")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests under a real beat as long, except the first one of each file in `SHORT`."""
    files: set[Path] = set()
    for item in items:
        if isinstance(item, pytest.Function) and run_beat in _parameters(item):
            if item.path in files or item.path.name not in SHORT:
                item.add_marker(pytest.mark.long)
            files.add(item.path)


def _parameters(item: pytest.Function) -> Iterable[object]:
    return item.callspec.params.values() if hasattr(item, "callspec") else ()


@pytest.fixture(scope="session")
def wild_server() -> Iterator[EmbeddedRedis]:
    """Yield one Redis server for all tests of the session."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def wild(wild_server: EmbeddedRedis, tmp_path: Path) -> Iterator[Wild]:
    """Yield an empty Redis and a directory for programs."""
    wild = Wild(tmp_path, wild_server.url)
    wild.client.flushall()
    with restored():
        yield wild
        wild.close()


@pytest.fixture(params=[run_object, run_beat], ids=["object", "beat"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return one of two ways to run a program: as a scheduler object, or under `celery beat`."""
    way: Run = request.param
    return way
