"""The schedule that the tests of the scheduler look into, here too."""

from __future__ import annotations

from tests.scheduler.conftest import log, world

__all__ = ("log", "world")
