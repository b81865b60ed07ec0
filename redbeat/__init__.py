"""A Celery Beat scheduler that keeps periodic tasks in Redis."""

from .entry import RedBeatSchedulerEntry
from .errors import RedBeatKeyExpiryError
from .schedulers import RedBeatScheduler

__all__ = ("RedBeatKeyExpiryError", "RedBeatScheduler", "RedBeatSchedulerEntry", "__version__")

__version__ = "3.0.0.dev0"
