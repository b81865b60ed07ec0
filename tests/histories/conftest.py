"""The fixtures of the scheduler's tests."""

from __future__ import annotations

from tests.scheduler.conftest import clock, world

__all__ = ("clock", "world")
