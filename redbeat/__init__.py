"""A Celery Beat scheduler that keeps periodic tasks in Redis.

Each name is imported at its first use. Celery imports :mod:`redbeat.cli`, and therefore this
module, for every command, also in projects without a schedule.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .beat.lock import BeatInfo, active_beats, current_leader
    from .entry import RedBeatSchedulerEntry
    from .errors import (
        CannotRunHereError,
        ConfigurationError,
        ConflictError,
        DecodeError,
        InvalidEntryError,
        NotAllowedError,
        RedBeatError,
        RedBeatKeyExpiryError,
        UnknownTypeError,
    )
    from .schedule import Schedule
    from .schedulers import RedBeatScheduler
    from .schedules.calendars import Calendar
    from .schedules.hashed import hashed_crontab
    from .schedules.ical import from_ical
    from .schedules.one_time import clocked
    from .schedules.registry import register_schedule_type
    from .schedules.rule import rrule
    from .schedules.rule_set import from_dateutil, rruleset

__all__ = (
    "BeatInfo",
    "Calendar",
    "CannotRunHereError",
    "ConfigurationError",
    "ConflictError",
    "DecodeError",
    "InvalidEntryError",
    "NotAllowedError",
    "RedBeatError",
    "RedBeatKeyExpiryError",
    "RedBeatScheduler",
    "RedBeatSchedulerEntry",
    "Schedule",
    "UnknownTypeError",
    "__version__",
    "active_beats",
    "clocked",
    "current_leader",
    "from_dateutil",
    "from_ical",
    "hashed_crontab",
    "register_schedule_type",
    "rrule",
    "rruleset",
)

__version__ = "3.0.0.dev0"

#: The module of each public name.
_MODULES: Final = {
    "clocked": "schedules.one_time",
    "RedBeatSchedulerEntry": "entry",
    "CannotRunHereError": "errors",
    "ConfigurationError": "errors",
    "ConflictError": "errors",
    "DecodeError": "errors",
    "InvalidEntryError": "errors",
    "NotAllowedError": "errors",
    "RedBeatError": "errors",
    "RedBeatKeyExpiryError": "errors",
    "UnknownTypeError": "errors",
    "Calendar": "schedules.calendars",
    "from_ical": "schedules.ical",
    "hashed_crontab": "schedules.hashed",
    "BeatInfo": "beat.lock",
    "active_beats": "beat.lock",
    "current_leader": "beat.lock",
    "register_schedule_type": "schedules.registry",
    "from_dateutil": "schedules.rule_set",
    "rruleset": "schedules.rule_set",
    "Schedule": "schedule",
    "RedBeatScheduler": "schedulers",
    "rrule": "schedules",
}


def __getattr__(name: str) -> Any:
    """Import and return a public name of the package, or one of its modules."""
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return value
    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
