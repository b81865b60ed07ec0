"""JSON to Python: dates, and the parts of tagged dicts, strictly.

Everything here raises :exc:`MalformedError` with the key of what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, TypeGuard

from redbeat.calendar.zones import UTC, zone_named

from .writers import TAG

__all__ = (
    "MalformedError",
    "MissingError",
    "Tagged",
    "check_keys",
    "read_datetime",
    "read_list",
    "read_moment",
    "read_number",
    "read_whole",
    "read_zone",
)

Tagged = Mapping[str, Any]

DATE = ("year", "month", "day")
CLOCK = ("hour", "minute", "second", "microsecond")


class MalformedError(ValueError):
    """A tagged dict is not what its tag says; ``key`` is the part that is wrong, or empty."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key
        self.problem = problem


class MissingError(MalformedError):
    """A tagged dict cannot be read, since a package is not installed."""


def check_keys(tagged: Tagged, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    """Nothing is unknown, and nothing that is required is missing."""
    valid = (*required, *optional)
    for key in tagged:
        if key != TAG and key not in valid:
            raise MalformedError(
                "", f"unknown key {key!r} in {tagged[TAG]}; valid: {', '.join(valid)}"
            )
    for key in required:
        if key not in tagged:
            raise MalformedError("", f"missing key {key!r} in {tagged[TAG]}")


def read_number(tagged: Tagged, key: str) -> float:
    """The number that has this key; JSON's true and false are none."""
    value = tagged.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedError(key, f"{value!r} is not a number")
    return value


def read_whole(key: str, value: object) -> int:
    """``value`` itself, which must be a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedError(key, f"{value!r} is not a whole number")
    return value


def read_zone(key: str, value: object) -> tzinfo:
    """A zone from its name or its seconds ahead of UTC; UTC if there is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _offset_zone(key, value)
    if value is not None and not isinstance(value, str):
        raise MalformedError(key, f"{value!r} is neither the name of a zone nor seconds from UTC")
    try:
        return zone_named("UTC" if value is None else value)
    except ValueError as error:
        raise MalformedError(key, str(error)) from error


def _offset_zone(key: str, seconds: float) -> tzinfo:
    try:
        return timezone(timedelta(seconds=seconds)) if seconds else UTC
    except (ValueError, OverflowError) as error:
        raise MalformedError(
            key, f"{seconds!r} seconds are no offset from UTC: below a day"
        ) from error


def read_datetime(tagged: Tagged) -> datetime:
    """An aware datetime; in UTC if there is no zone."""
    check_keys(tagged, DATE, (*CLOCK, "timezone", "fold"))
    fields = {key: read_whole(key, tagged.get(key, 0)) for key in (*DATE, *CLOCK, "fold")}
    zone = read_zone("timezone", tagged.get("timezone"))
    try:
        return datetime(**fields, tzinfo=zone)
    except (ValueError, OverflowError) as error:
        raise MalformedError("", f"no such date: {error}") from error


def read_moment(key: str, value: object) -> datetime:
    """A datetime that was read already, or ISO 8601; without a zone it is UTC."""
    if isinstance(value, dict):
        try:
            return read_datetime({TAG: "datetime", **value})
        except MalformedError as error:
            raise MalformedError(f"{key}.{error.key}".rstrip("."), error.problem) from error
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00")) if _is_text(value) else value
    except ValueError as error:
        raise MalformedError(key, f"{value!r:.60} is not a time: {error}") from error
    if not isinstance(moment, datetime):
        raise MalformedError(key, f"{value!r:.60} is neither a datetime nor ISO 8601")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def read_list(tagged: Tagged, key: str) -> list[Any]:
    """The list that has this key, empty if there is none."""
    value = tagged.get(key) or []
    if not isinstance(value, list):
        raise MalformedError(key, f"{value!r:.60} is not a list")
    return value
