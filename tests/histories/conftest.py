"""Makes the scheduler tests' fixtures available."""

from __future__ import annotations

from tests.scheduler.conftest import clock, world

__all__ = ("clock", "world")
