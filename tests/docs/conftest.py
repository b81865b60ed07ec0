"""Fixture: a simulated reader of the manual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.reader import Reader
from tests.scheduler.conftest import clock, log, world

__all__ = ("clock", "log", "reader", "world")


@pytest.fixture
def reader(tmp_path: Path, redis_url: str) -> Iterator[Reader]:
    """Yield a reader with an empty Redis; end the reader's processes after the test."""
    reader = Reader(tmp_path, redis_url)
    yield reader
    reader.end()
