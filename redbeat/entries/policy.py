"""The policy of an entry: start and end time, limits, misfires, jitter and overlap."""

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

#: Maximum value of ``catch_up_limit``.
MAX_CATCH_UP: Final = 1000


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that decide which occurrences of an entry run, and when the entry is finished.

    Attributes:
        timezone: the name of the time zone of a crontab; None for the app's time zone.
        start_time: the entry is not due before this instant.
        end_time: the entry is not due after this instant.
        max_runs: the maximum number of runs, after which the entry is finished; None for no limit.
        on_finish: whether to ``keep``, ``disable`` or ``delete`` the entry when it is finished.
        misfire_grace_time: seconds after which an occurrence is too late to run.
        coalesce: which of several missed occurrences run: ``latest``, ``earliest`` or ``all``.
        catch_up_limit: with ``coalesce="all"``, the maximum number of missed occurrences to run;
            earlier occurrences are given up.
        jitter: the maximum random delay of a run, in seconds. An occurrence always has the same
            delay.
        overlap: what happens to an occurrence that is due while an earlier run is still running:
            ``allow`` runs it, ``skip`` skips it, ``buffer_one`` runs the latest such occurrence
            after the earlier run has ended.
        overlap_timeout: seconds after which a run counts as ended if no worker has reported its
            end.
        delivery: ``at_least_once`` or ``at_most_once``; None for the app's setting.
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
    def of(cls, values: Mapping[str, Any]) -> Policy:
        """Return the policy with these field values; a value of None means the default.

        Raises :exc:`InvalidEntryError` with the name of an invalid field.
        """
        checked = {
            name: CHECKS[name](name, value) for name, value in values.items() if value is not None
        }
        policy = cls(**checked) if checked else DEFAULT
        policy._check_together()
        return policy

    def _check_together(self) -> None:
        if self.start_time and self.end_time and self.end_time < self.start_time:
            raise InvalidEntryError("end_time", f"{self.end_time} is before start_time")
        if self.coalesce == "all" and self.catch_up_limit is None:
            problem = "is missing; coalesce='all' needs a bound, such as 100"
            raise InvalidEntryError("catch_up_limit", problem)
        if self.coalesce != "all" and self.catch_up_limit is not None:
            raise InvalidEntryError("catch_up_limit", "is only valid with coalesce='all'")

    def given(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, in the order of the class."""
        pairs = ((name, getattr(self, name)) for name in FIELDS)
        return {name: value for name, value in pairs if value != getattr(DEFAULT, name)}

    @property
    def zone(self) -> tzinfo | None:
        """The time zone called :attr:`timezone`, None if the name is None."""
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
    if isinstance(value, str):  # other programs write ISO 8601
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
        raise InvalidEntryError(name, f"must be at most {MAX_CATCH_UP}, not {value!r:.60}")
    return int(value)


def _seconds(name: str, value: Any) -> float:
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not 0 <= value < 1e9:
        raise InvalidEntryError(name, f"must be seconds, 0 at least, not {value!r:.60}")
    return float(value)


def _positive_seconds(name: str, value: Any) -> float:
    if not _seconds(name, value):
        raise InvalidEntryError(name, "must be above 0 seconds")
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
    "overlap_timeout": _positive_seconds,
    "delivery": _choice(*DELIVERIES),
}

#: The names of all policy fields; an entry has an argument and an attribute for each.
FIELDS: Final = tuple(field.name for field in fields(Policy))

#: The policy of an entry that sets no policy field.
DEFAULT: Final = Policy()
