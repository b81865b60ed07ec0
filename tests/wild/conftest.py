"""Fixtures for the programs: a real Redis, and both ways to run a program.

They replace those of the other tests, which need names that ``celery-redbeat`` 2.4.2 lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from examples.embedded import EmbeddedRedis
from tests.wild.programs import Run, Wild, restored, run_beat, run_object

#: The files of which the short run has a test under a real beat, the first one.
SHORT = {
    f"test_{name}.py"
    for name in ("entry_subclasses", "own_clients", "own_locks", "own_ticks", "static_entries")
}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of tests that 2.4.2 cannot run."""
    config.addinivalue_line("markers", "ours: behaviour that 2.4.2 lacks; not run with 2.4.2")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests under a real beat as long, except the first test of some files."""
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
    """One Redis for the whole run."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def wild(wild_server: EmbeddedRedis, tmp_path: Path) -> Iterator[Wild]:
    """An empty Redis and a directory for programs."""
    wild = Wild(tmp_path, wild_server.url)
    wild.client.flushall()
    with restored():
        yield wild
        wild.close()


@pytest.fixture(params=[run_object, run_beat], ids=["object", "beat"])
def run(request: pytest.FixtureRequest) -> Run:
    """Both ways to run a program: as a scheduler object, and under a real `celery beat`."""
    way: Run = request.param
    return way
