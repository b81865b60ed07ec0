"""A Celery Beat scheduler that stores periodic tasks in Redis.

A public name is imported at its first use. Importing the package must be fast, because every Celery
command imports :mod:`redbeat.cli`, and so the package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .codec.types import register_schedule_type
    from .entries.backfill import Backfill, Planned
    from .entries.decide import Expected
    from .entries.history import Occurrence, RunResult
    from .entries.policy import Policy
    from .entries.status import EntryStatus, Failing, Overdue, Record
    from .entry import EntryArguments, RedBeatSchedulerEntry
    from .errors import (
        CannotRunHereError,
        ConfigurationError,
        ConflictError,
        DecodeError,
        InvalidEntryError,
        NoQueueError,
        NotAllowedError,
        RedBeatError,
        RedBeatKeyExpiryError,
        TooManyStepsError,
        UnknownTypeError,
    )
    from .management.apply import Applied
    from .management.forecast import ClockChange, EntrySimulation, Forecast, Simulation
    from .management.prefixes import Copied, PrefixCopy, copy_prefix, copy_untagged
    from .management.schedule import EntryFilters, Schedule
    from .management.status import Shard, Status
    from .metrics.beats import BeatInfo, active_beats, current_leader
    from .metrics.problems import Finding
    from .presentation.cron_text import hashed_crontab
    from .schedulers import RedBeatScheduler
    from .schedules.calendars import Calendar
    from .schedules.ical import from_ical
    from .schedules.rule import clocked, from_dateutil, rrule, rruleset

__all__: list[str] = ["Applied", "Backfill", "BeatInfo", "Calendar", "ClockChange", "Copied"]
__all__ += ["EntryArguments", "EntryFilters", "EntrySimulation", "EntryStatus", "Expected"]
__all__ += ["Failing", "Finding", "Forecast", "Occurrence", "Overdue", "Planned", "Policy"]
__all__ += ["PrefixCopy", "Record", "RedBeatScheduler", "RedBeatSchedulerEntry", "RunResult"]
__all__ += ["Schedule", "Shard", "Simulation", "Status"]
__all__ += ["CannotRunHereError", "ConfigurationError", "ConflictError", "DecodeError"]
__all__ += ["InvalidEntryError", "NoQueueError", "NotAllowedError", "RedBeatError"]
__all__ += ["RedBeatKeyExpiryError", "TooManyStepsError", "UnknownTypeError"]
__all__ += ["__version__", "active_beats", "clocked", "copy_prefix", "copy_untagged"]
__all__ += ["current_leader", "from_dateutil", "from_ical", "hashed_crontab"]
__all__ += ["register_schedule_type", "rrule", "rruleset"]

__version__ = "3.0.0.dev0"

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "codec.types": ("register_schedule_type",),
    "entries.backfill": ("Backfill", "Planned"),
    "entries.decide": ("Expected",),
    "entries.status": ("Overdue", "EntryStatus", "Failing", "Record"),
    "entries.policy": ("Policy",),
    "entries.history": ("Occurrence", "RunResult"),
    "entry": ("EntryArguments", "RedBeatSchedulerEntry"),
    "errors": (
        *("CannotRunHereError", "ConfigurationError", "ConflictError", "DecodeError"),
        *("InvalidEntryError", "NoQueueError", "NotAllowedError", "RedBeatError"),
        *("RedBeatKeyExpiryError", "TooManyStepsError", "UnknownTypeError"),
    ),
    "management.apply": ("Applied",),
    "management.forecast": ("ClockChange", "EntrySimulation", "Forecast", "Simulation"),
    "management.prefixes": ("Copied", "PrefixCopy", "copy_prefix", "copy_untagged"),
    "management.status": ("Shard", "Status"),
    "metrics.problems": ("Finding",),
    "management.schedule": ("EntryFilters", "Schedule"),
    "schedulers": ("RedBeatScheduler",),
    "schedules": ("rrule",),
    "schedules.calendars": ("Calendar",),
    "presentation.cron_text": ("hashed_crontab",),
    "schedules.ical": ("from_ical",),
    "schedules.rule": ("clocked", "from_dateutil", "rruleset"),
    "metrics.beats": ("BeatInfo", "active_beats", "current_leader"),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
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
