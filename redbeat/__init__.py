"""A Celery Beat scheduler that stores periodic tasks in Redis.

Each public name is imported only when a program first uses the name. The package must be fast to
import, because every Celery command imports :mod:`redbeat.cli` and therefore the package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .beat.lock import BeatInfo, active_beats, current_leader
    from .entries.backfill import Backfill, Planned
    from .entries.decide import Expected
    from .entries.overdue import Overdue
    from .entries.policy import Policy
    from .entries.runs import Occurrence, RunResult
    from .entries.status import EntryStatus, Failing, Record
    from .entry import EntryArguments, RedBeatSchedulerEntry
    from .errors import (
        CannotRunHereError,
        ConfigurationError,
        ConflictError,
        DecodeError,
        InvalidEntryError,
        NotAllowedError,
        RedBeatError,
        RedBeatKeyExpiryError,
        TooManyStepsError,
        UnknownTypeError,
    )
    from .management.apply import Applied
    from .management.forecast import ClockChange, EntrySimulation, Forecast, Simulation
    from .management.prefixes import Copied, PrefixCopy, copy_prefix, copy_untagged
    from .management.status import Shard, Status
    from .schedule import EntryFilters, Schedule
    from .schedulers import RedBeatScheduler
    from .schedules.calendars import Calendar
    from .schedules.hashed import hashed_crontab
    from .schedules.ical import from_ical
    from .schedules.one_time import clocked
    from .schedules.registry import register_schedule_type
    from .schedules.rule import rrule
    from .schedules.rule_set import from_dateutil, rruleset

__all__ = (
    "Applied",
    "Backfill",
    "BeatInfo",
    "Calendar",
    "CannotRunHereError",
    "ClockChange",
    "ConfigurationError",
    "ConflictError",
    "Copied",
    "DecodeError",
    "EntryArguments",
    "EntryFilters",
    "EntrySimulation",
    "EntryStatus",
    "Expected",
    "Failing",
    "Forecast",
    "InvalidEntryError",
    "NotAllowedError",
    "Occurrence",
    "Overdue",
    "Planned",
    "Policy",
    "PrefixCopy",
    "Record",
    "RedBeatError",
    "RedBeatKeyExpiryError",
    "RedBeatScheduler",
    "RedBeatSchedulerEntry",
    "RunResult",
    "Schedule",
    "Shard",
    "Simulation",
    "Status",
    "TooManyStepsError",
    "UnknownTypeError",
    "__version__",
    "active_beats",
    "clocked",
    "copy_prefix",
    "copy_untagged",
    "current_leader",
    "from_dateutil",
    "from_ical",
    "hashed_crontab",
    "register_schedule_type",
    "rrule",
    "rruleset",
)

__version__ = "3.0.0.dev0"

#: Maps each public name to the module that contains the name.
_MODULES: Final = {
    "BeatInfo": "beat.lock",
    "active_beats": "beat.lock",
    "current_leader": "beat.lock",
    "Backfill": "entries.backfill",
    "Planned": "entries.backfill",
    "Expected": "entries.decide",
    "Overdue": "entries.overdue",
    "Policy": "entries.policy",
    "Occurrence": "entries.runs",
    "RunResult": "entries.runs",
    "EntryStatus": "entries.status",
    "Failing": "entries.status",
    "Record": "entries.status",
    "EntryArguments": "entry",
    "RedBeatSchedulerEntry": "entry",
    "CannotRunHereError": "errors",
    "ConfigurationError": "errors",
    "ConflictError": "errors",
    "DecodeError": "errors",
    "InvalidEntryError": "errors",
    "NotAllowedError": "errors",
    "RedBeatError": "errors",
    "RedBeatKeyExpiryError": "errors",
    "TooManyStepsError": "errors",
    "UnknownTypeError": "errors",
    "Applied": "management.apply",
    "ClockChange": "management.forecast",
    "EntrySimulation": "management.forecast",
    "Forecast": "management.forecast",
    "Simulation": "management.forecast",
    "Copied": "management.prefixes",
    "PrefixCopy": "management.prefixes",
    "copy_prefix": "management.prefixes",
    "copy_untagged": "management.prefixes",
    "Shard": "management.status",
    "Status": "management.status",
    "EntryFilters": "schedule",
    "Schedule": "schedule",
    "RedBeatScheduler": "schedulers",
    "rrule": "schedules",
    "Calendar": "schedules.calendars",
    "hashed_crontab": "schedules.hashed",
    "from_ical": "schedules.ical",
    "clocked": "schedules.one_time",
    "register_schedule_type": "schedules.registry",
    "from_dateutil": "schedules.rule_set",
    "rruleset": "schedules.rule_set",
}


def __getattr__(name: str) -> Any:
    """Import and return a public name or a submodule of the package."""
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
