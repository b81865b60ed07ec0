"""A Celery Beat scheduler that keeps periodic tasks in Redis."""

from .clocked import clocked
from .entry import RedBeatSchedulerEntry
from .errors import RedBeatKeyExpiryError
from .ical import from_ical
from .leader import BeatInfo, active_beats, current_leader
from .registry import register_schedule_type
from .rulesets import from_dateutil, rruleset
from .schedulers import RedBeatScheduler
from .schedules import rrule

__all__ = (
    "BeatInfo",
    "RedBeatKeyExpiryError",
    "RedBeatScheduler",
    "RedBeatSchedulerEntry",
    "__version__",
    "active_beats",
    "clocked",
    "current_leader",
    "from_dateutil",
    "from_ical",
    "register_schedule_type",
    "rrule",
    "rruleset",
)

__version__ = "3.0.0.dev0"
