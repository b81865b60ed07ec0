"""Leaves out tests that hold how the second edition works, and not what users see.

Each file in ``void/`` has one test a line: the beginning of its id, `` | `` and why it goes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from redbeat.schedulers import RedBeatScheduler

VOID = Path(__file__).parent / "void"


def void_tests() -> tuple[str, ...]:
    """Return the beginnings of the ids of tests that go with the second edition."""
    lines = [line for path in sorted(VOID.glob("*.txt")) for line in path.read_text().splitlines()]
    return tuple(line.partition(" | ")[0].strip() for line in lines if " | " in line)


def pytest_configure() -> None:
    """Refuse to test the second edition, if the third could not be imported."""
    if "make_store" not in vars(RedBeatScheduler):
        raise pytest.UsageError("the third edition is not installed; its error stands above")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that go."""
    void = void_tests()
    gone = [item for item in items if item.nodeid.startswith(void)] if void else []
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=gone)
