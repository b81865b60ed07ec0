"""A beat to look into, as the tests of the scheduler have it."""

from __future__ import annotations

from tests.scheduler.conftest import clock, world

__all__ = ("clock", "world")
