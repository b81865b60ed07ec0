"""The times among the options of a task: ``expires``, ``eta`` and ``countdown``.

``countdown`` is seconds after the dispatch. ``eta`` and ``expires`` are an instant, which is the
same one for every run, or seconds after the dispatch. Seconds are a number or a timedelta; they are
stored as a number. An instant is a datetime, or ISO 8601; without a zone it is UTC, as for Celery.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from dateutil.parser import isoparse

from redbeat.connection.options import is_number
from redbeat.errors import InvalidEntryError

__all__ = ("sendable_options", "stored_options")

#: The options that are times, with whether each may be an instant.
TIMES: Final = {"countdown": False, "eta": True, "expires": True}

#: Seconds that are rather meant as a UNIX time.
TOO_MANY_SECONDS: Final = 1e9


def stored_options(options: Any) -> Any:
    """Return options as they are stored; raises :exc:`InvalidEntryError` that names the option."""
    if not isinstance(options, Mapping) or TIMES.keys().isdisjoint(options):
        return options
    return {name: _stored(name, value) for name, value in options.items()}


def sendable_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options as ``apply_async`` takes them; what it cannot take is left to its own words.

    An ``eta`` in seconds is sent as a ``countdown``, unless there is one, which wins in Celery too.
    """
    if TIMES.keys().isdisjoint(options):
        return options
    sendable = dict(options)
    for name in TIMES.keys() & sendable.keys():
        sendable[name] = _seconds_of(sendable[name])
    if is_number(sendable.get("eta")):
        seconds = sendable.pop("eta")
        sendable["countdown"] = sendable.get("countdown") or seconds
    return sendable


def _seconds_of(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _stored(name: Any, value: Any) -> Any:
    if name not in TIMES or value is None:
        return value
    if TIMES[name] and _is_instant(name, value):
        return value
    seconds = _seconds_of(value)
    if not is_number(seconds):
        also = ", a timedelta, a datetime or ISO 8601" if TIMES[name] else " or a timedelta"
        raise _refusal(name, f"must be a number of seconds{also}, not {value!r:.60}")
    if not 0 <= seconds < TOO_MANY_SECONDS:
        also = "; an instant is a datetime" if TIMES[name] else ""
        raise _refusal(name, f"must be 0 seconds at least and below 1e9, not {value!r:.60}{also}")
    return seconds


def _is_instant(name: str, value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, datetime)
    try:
        isoparse(value)
    except ValueError as error:
        raise _refusal(name, f"{value!r:.60} is not ISO 8601") from error
    return True


def _refusal(name: str, problem: str) -> InvalidEntryError:
    return InvalidEntryError(f"options.{name}", problem)
