"""Imports fixtures from the scheduler's tests."""

from __future__ import annotations

from tests.scheduler.conftest import clock, log, world

__all__ = ("clock", "log", "world")
