"""A Celery Beat scheduler that keeps periodic tasks in Redis."""

from .entry import RedBeatSchedulerEntry
from .errors import RedBeatKeyExpiryError
from .leader import BeatInfo, active_beats, current_leader
from .schedulers import RedBeatScheduler

__all__ = (
    "BeatInfo",
    "RedBeatKeyExpiryError",
    "RedBeatScheduler",
    "RedBeatSchedulerEntry",
    "__version__",
    "active_beats",
    "current_leader",
)

__version__ = "3.0.0.dev0"
