"""JSON to Python: schedules by their tags, and the table of all that can be read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, schedule, solar

from redbeat.instant import clocked
from redbeat.registry import RegisteredType, named

from .rule_readers import read_rrule, read_rruleset, read_weekday
from .value_readers import (
    MalformedError,
    MissingError,
    Tagged,
    check_keys,
    read_datetime,
    read_moment,
    read_number,
    read_whole,
)
from .writers import MAX_EVERY, TAG

__all__ = ("DECODERS", "LoadError", "MalformedError", "MissingError", "reader_of")


class LoadError(MalformedError):
    """The function that a user registered for a tag failed in this process."""


def _read_interval(tagged: Tagged) -> schedule:
    check_keys(tagged, ("every",), ("relative",))
    relative = tagged.get("relative", False)
    if not isinstance(relative, bool):
        raise MalformedError("relative", f"{relative!r} is neither true nor false")
    return schedule(_every(read_number(tagged, "every")), relative)


def _every(seconds: float) -> timedelta:
    try:
        every = timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        every = timedelta(0)
    if not timedelta(0) < every <= MAX_EVERY:
        raise MalformedError("every", f"{seconds!r} is not above 0 and up to 1000 years of seconds")
    return every


CRON_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


def _read_crontab(tagged: Tagged) -> crontab:
    check_keys(tagged, (), CRON_FIELDS)
    fields = {key: _cron_field(key, tagged[key]) for key in CRON_FIELDS if key in tagged}
    try:
        return crontab(**fields)
    except Exception as error:
        # Celery's parser raises a class of its own beside several builtin ones.
        raise MalformedError(_wrong_cron_field(fields), str(error).strip()) from error


def _cron_field(key: str, value: Any) -> Any:
    if value is None:
        return "*"
    if isinstance(value, str):
        # The manual of RedBeat 2 shows a range in brackets.
        bracketed = value.startswith("[") and value.endswith("]")
        return value[1:-1] if bracketed else value
    if isinstance(value, list):
        return [read_whole(key, item) for item in value]
    return read_whole(key, value)


def _wrong_cron_field(fields: dict[str, Any]) -> str:
    for key, value in fields.items():
        try:
            crontab(**{key: value})
        except Exception:
            return key
    return ""


def _read_clocked(tagged: Tagged) -> clocked:
    check_keys(tagged, ("clocked_time",), ())
    moment = read_moment("clocked_time", tagged["clocked_time"])
    try:
        return clocked(moment)
    except (ValueError, OverflowError) as error:
        raise MalformedError("clocked_time", str(error).partition(": ")[2] or str(error)) from error


def _read_solar(tagged: Tagged) -> solar:
    check_keys(tagged, ("event", "lat", "lon"), ())
    for key in ("lat", "lon"):
        read_number(tagged, key)
    try:
        return solar(tagged["event"], tagged["lat"], tagged["lon"])
    except (ImportError, ImproperlyConfigured) as error:  # the first one before Celery 5.7
        raise MissingError(
            "", "needs the package 'ephem'; install it with: pip install 'celery-redbeat[solar]'"
        ) from error
    except (ValueError, TypeError) as error:
        raise MalformedError(_wrong_solar_part(tagged), str(error).strip()) from error


def _wrong_solar_part(tagged: Tagged) -> str:
    if not -90 <= tagged["lat"] <= 90:
        return "lat"
    return "event" if -180 <= tagged["lon"] <= 180 else "lon"


def _read_registered(known: RegisteredType, tagged: Tagged) -> BaseSchedule:
    fields = {key: value for key, value in tagged.items() if key != TAG}
    try:
        found = known.load(fields)
    except Exception as error:
        # It is the user's function, which may fail in any way.
        raise LoadError("", f"load() of {known.tag!r} failed: {error!r}") from error
    if not isinstance(found, known.cls):
        raise LoadError("", f"load() of {known.tag!r} returned {found!r:.60}")
    return found


def reader_of(tag: object) -> Callable[[Tagged], Any] | None:
    """The function that reads a dict with this tag, built in or registered."""
    known = named(tag)
    if known is not None:
        return partial(_read_registered, known)
    return DECODERS.get(tag) if isinstance(tag, str) else None


def _read_verbatim(tagged: Tagged) -> dict[str, Any]:
    check_keys(tagged, ("items",), ())
    try:
        items = dict(tagged["items"])
    except (ValueError, TypeError) as error:
        raise MalformedError("items", "is not a list of pairs") from error
    if not all(isinstance(key, str) for key in items):
        raise MalformedError("items", "has a key that is not a string")
    return items


DECODERS: dict[str, Callable[[Tagged], Any]] = {
    "datetime": read_datetime,
    "interval": _read_interval,
    "crontab": _read_crontab,
    "rrule": read_rrule,
    "rruleset": read_rruleset,
    "solar": _read_solar,
    "clocked": _read_clocked,
    "weekday": read_weekday,
    "verbatim": _read_verbatim,
}
