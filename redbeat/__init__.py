"""A Celery Beat scheduler that keeps periodic tasks in Redis."""

from .entry import RedBeatSchedulerEntry
from .errors import RedBeatKeyExpiryError
from .leader import Leader, current_leader
from .schedulers import RedBeatScheduler

__all__ = (
    "Leader",
    "RedBeatKeyExpiryError",
    "RedBeatScheduler",
    "RedBeatSchedulerEntry",
    "__version__",
    "current_leader",
)

__version__ = "3.0.0.dev0"
