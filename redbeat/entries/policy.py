"""What an entry says about its runs beyond its schedule: window, limits, misfires, jitter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Any, Final

from redbeat.calendar.zones import UTC, as_utc, zone_key, zone_named
from redbeat.errors import InvalidEntryError
from redbeat.settings import DELIVERIES

__all__ = ("COALESCE", "DEFAULT", "FIELDS", "MAX_CATCH_UP", "ON_FINISH", "OVERLAP", "Policy")

ON_FINISH: Final = ("keep", "disable", "delete")
OVERLAP: Final = ("allow", "skip", "buffer_one")
COALESCE: Final = ("latest", "earliest", "all")

#: Missed occurrences that may be made up for one by one, at most.
MAX_CATCH_UP: Final = 1000


@dataclass(frozen=True, slots=True)
class Policy:
    """How the occurrences of an entry are chosen and what becomes of it.

    Attributes:
        timezone: name of the zone in which a crontab is read; None for the app's.
        start_time: nothing is due before this instant.
        end_time: nothing is due after this instant.
        max_runs: the entry has finished after so many runs.
        on_finish: ``keep``, ``disable`` or ``delete`` an entry that has finished.
        misfire_grace_time: seconds after which an occurrence is too old to be run.
        coalesce: of several missed occurrences run the ``latest``, the ``earliest`` or ``all``.
        catch_up_limit: with ``all``, how many of them at most; the latest ones.
        jitter: seconds by which a run is put off at most, by chance, but always the same.
        overlap: while a run is still going on, ``allow`` the next one, ``skip`` it, or
            ``buffer_one``: have the latest wait for its end.
        overlap_timeout: seconds after which a run counts as ended whatever became of it.
        delivery: ``at_least_once`` or ``at_most_once``; None for what the app is set to.
    """

    timezone: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    max_runs: int | None = None
    on_finish: str = "keep"
    misfire_grace_time: float | None = None
    coalesce: str = "latest"
    catch_up_limit: int | None = None
    jitter: float = 0.0
    overlap: str = "allow"
    overlap_timeout: float = 3600.0
    delivery: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Policy:
        """Return the policy of these fields; None stands for the default.

        Raises :exc:`InvalidEntryError` that names the field.
        """
        checked = {
            name: CHECKS[name](name, value) for name, value in given.items() if value is not None
        }
        policy = cls(**checked) if checked else DEFAULT
        policy._check_together()
        return policy

    def _check_together(self) -> None:
        if self.start_time and self.end_time and self.end_time < self.start_time:
            raise InvalidEntryError("end_time", f"{self.end_time} is before start_time")
        if self.coalesce == "all" and self.catch_up_limit is None:
            problem = "is missing; 'all' needs a bound, such as 100"
            raise InvalidEntryError("catch_up_limit", problem)
        if self.coalesce != "all" and self.catch_up_limit is not None:
            raise InvalidEntryError("catch_up_limit", "is only for coalesce='all'")

    def given(self) -> dict[str, Any]:
        """Return the fields that differ from the default, in order."""
        pairs = ((name, getattr(self, name)) for name in FIELDS)
        return {name: value for name, value in pairs if value != getattr(DEFAULT, name)}

    @property
    def zone(self) -> tzinfo | None:
        """The zone called :attr:`timezone`."""
        return None if self.timezone is None else _zone(self.timezone)


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    return zone_named(name)


def _timezone(name: str, value: Any) -> str:
    key = value if isinstance(value, str) else zone_key(value)
    if value is UTC:
        key = "UTC"
    if not key:
        raise InvalidEntryError(name, f"{value!r:.60} is not the name of a zone; use an IANA name")
    try:
        _zone(key)
    except ValueError as error:
        raise InvalidEntryError(name, str(error)) from error
    return key


def _instant(name: str, value: Any) -> datetime:
    if isinstance(value, str):  # as other programs write it
        with suppress(ValueError):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if not isinstance(value, datetime):
        raise InvalidEntryError(name, f"must be a datetime or ISO 8601, not {value!r:.60}")
    return as_utc(value if value.tzinfo else value.replace(tzinfo=UTC))


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidEntryError(name, f"must be a whole number above 0, not {value!r:.60}")
    return int(value)


def _bounded_count(name: str, value: Any) -> int:
    if _count(name, value) > MAX_CATCH_UP:
        raise InvalidEntryError(name, f"must be {MAX_CATCH_UP} at most, not {value!r:.60}")
    return int(value)


def _seconds(name: str, value: Any) -> float:
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not 0 <= value < 1e9:
        raise InvalidEntryError(name, f"must be seconds, 0 at least, not {value!r:.60}")
    return float(value)


def _some_seconds(name: str, value: Any) -> float:
    if not _seconds(name, value):
        raise InvalidEntryError(name, "must be above 0")
    return float(value)


def _choice(*choices: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in choices:
            problem = f"must be one of {', '.join(choices)}, not {value!r:.60}"
            raise InvalidEntryError(name, problem)
        return str(value)

    return check


CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "timezone": _timezone,
    "start_time": _instant,
    "end_time": _instant,
    "max_runs": _count,
    "on_finish": _choice(*ON_FINISH),
    "misfire_grace_time": _seconds,
    "coalesce": _choice(*COALESCE),
    "catch_up_limit": _bounded_count,
    "jitter": _seconds,
    "overlap": _choice(*OVERLAP),
    "overlap_timeout": _some_seconds,
    "delivery": _choice(*DELIVERIES),
}

#: The names of all fields, which are also arguments and attributes of an entry.
FIELDS: Final = tuple(field.name for field in fields(Policy))

#: The policy of an entry that says nothing.
DEFAULT: Final = Policy()
