"""The beat: its scheduler has the loop of the third edition."""

from __future__ import annotations

from redbeat.schedulers import RedBeatScheduler
from tests.edition.scheduler import Scheduler

from . import replace


def install() -> None:
    """Let schedulers of the second edition have the beat of the third."""
    own = {name: value for name, value in vars(Scheduler).items() if not name.startswith("__")}
    replace(RedBeatScheduler, own)
