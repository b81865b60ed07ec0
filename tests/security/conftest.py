"""The fixtures of the scheduler's tests."""

from __future__ import annotations

from tests.scheduler.conftest import log, world

__all__ = ("log", "world")
