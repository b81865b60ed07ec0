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
    from .errors import ConflictError, RedBeatKeyExpiryError
    from .schedule import Schedule
    from .schedulers import RedBeatScheduler
    from .schedules.ical import from_ical
    from .schedules.one_time import clocked
    from .schedules.registry import register_schedule_type
    from .schedules.rule import rrule
    from .schedules.rule_set import from_dateutil, rruleset

__all__ = (
    "BeatInfo",
    "ConflictError",
    "RedBeatKeyExpiryError",
    "RedBeatScheduler",
    "RedBeatSchedulerEntry",
    "Schedule",
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

#: The module of each public name.
_MODULES: Final = {
    "clocked": "schedules.one_time",
    "RedBeatSchedulerEntry": "entry",
    "ConflictError": "errors",
    "RedBeatKeyExpiryError": "errors",
    "from_ical": "schedules.ical",
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
