"""The measurements that have a target, by name and in the order of a full run."""

from __future__ import annotations

from collections.abc import Callable

from . import beat_rows, scheduler_rows
from .bench import Bench
from .rows import Finding

__all__ = ("ROWS",)

ROWS: dict[str, Callable[[Bench], Finding]] = {
    "entry": scheduler_rows.due_entry,
    "beat": beat_rows.real_beat,
    "two-beats": beat_rows.two_beats,
    "network": scheduler_rows.far_redis,
    "startup": scheduler_rows.startup,
    "save": scheduler_rows.save,
    "idle": scheduler_rows.idle,
    "lateness": beat_rows.lateness,
    "regular": beat_rows.regular,
    "burst": beat_rows.burst,
    "memory": scheduler_rows.memory,
    "crontab": scheduler_rows.crontab,
    "far-broker": beat_rows.far_broker,
    "import": scheduler_rows.imports,
}
