"""The JSON codec of entries: a decoded value is equal to the value that was encoded."""

from __future__ import annotations

import calendar
import json
import re
import sys
import zoneinfo
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule
from dateutil.rrule import weekday

from redbeat.codec.writers import MAX_DEPTH, RedBeatJSONEncoder, storable
from redbeat.schedules.registry import tags
from redbeat.schedules.rule import rrule

from .calendar.zones import from_timestamp, get_utcoffset_minutes, to_timestamp
from .codec import types
from .codec.stored import MAX_TEXT, exceeded_limit, json_in
from .codec.types import TAG, MissingPackageError
from .errors import DecodeError, InvalidEntryError, UnknownTypeError

__all__: tuple[str, ...] = (
    "MAX_DEPTH",
    "MAX_TEXT",
    "MissingPackageError",
    "RedBeatJSONDecoder",
    "RedBeatJSONEncoder",
    "decode",
    "decode_schedule",
    "encode",
    "from_timestamp",
    "get_utcoffset_minutes",
    "to_timestamp",
)

# Programs that were written for RedBeat 2 import the following names from this module.
__all__ += ("calendar", "crontab", "datetime", "json", "rrule", "schedule", "timedelta")
__all__ += ("timezone", "weekday", "zoneinfo")

MAX_SCHEDULES = 100  # the limit per JSON text, because decoding a schedule can take 3 ms
TOO_MANY = f"the JSON has more than {MAX_SCHEDULES} schedules; use numbers or text instead"
MAX_QUOTED = 60  # the maximum number of characters of a value in an error message

_PLAIN = json.JSONEncoder(allow_nan=False)
_DEFAULT = RedBeatJSONEncoder().default


class RedBeatJSONDecoder(json.JSONDecoder):
    """A JSON decoder for ``json.loads(text, cls=...)`` that creates objects from tagged dicts.

    A dict with an unknown tag, or with fields that do not fit the tag, is returned unchanged,
    because the dict may be the user's data. Subclasses may override ``dict_to_object``.
    """

    #: The number of schedules that this decoder has created.
    _schedules = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("object_hook", self.dict_to_object)
        super().__init__(*args, **kwargs)

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        """Return the object for the tagged dict ``d``, or ``d`` itself if no object can be created.

        Raises ``ValueError`` only if the JSON contains more than ``MAX_SCHEDULES`` schedules.
        """
        tag = d.get(TAG)
        kind = None if tag is None else types.type_of_tag(tag)
        if kind is None:
            return d
        if tag in tags():
            self._schedules += 1
            if self._schedules > MAX_SCHEDULES:
                raise ValueError(TOO_MANY)
        try:
            return kind.read(d)
        except Exception:
            # An invalid tagged dict may be the user's data, so this method raises no error. If the
            # dict must be a schedule, decode_schedule() raises an error.
            return d


#: The module whose ``RedBeatJSONEncoder`` and ``RedBeatJSONDecoder`` are active:
#: ``redbeat.schedulers`` once it is imported, because programs replace them there.
names: Any = sys.modules[__name__]


def encode(value: Any, field: str = "") -> str:
    """Return ``value`` as JSON, written by the active encoder.

    Raises ``InvalidEntryError`` if JSON cannot store a part of ``value`` exactly. The error
    contains the path of the part that cannot be stored; the path begins with ``field``.
    """
    try:
        if names.RedBeatJSONEncoder is RedBeatJSONEncoder:
            text = _PLAIN.encode(storable(value, _DEFAULT))
        else:
            text = json.dumps(value, cls=names.RedBeatJSONEncoder)
    except types.UnstorableError as error:
        raise InvalidEntryError(error.field(field) or "value", error.problem) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEntryError(field or "value", f"cannot be stored as JSON: {error}") from error
    problem = exceeded_limit(text) or _too_many_schedules(text)
    if problem:
        raise InvalidEntryError(field or "value", problem)
    return text


def _too_many_schedules(text: str) -> str:
    if text.count(f'"{TAG}"') <= MAX_SCHEDULES:
        return ""
    found = re.findall(f'"{TAG}": "({"|".join(map(re.escape, tags()))})"', text)
    return TOO_MANY if len(found) > MAX_SCHEDULES else ""


def decode(text: str | bytes, field: str) -> Any:
    """Return the value in the JSON ``text``, read by the active decoder.

    Raises ``DecodeError`` if ``text`` is not JSON, is not UTF-8, has more than ``MAX_TEXT``
    characters, or is nested more than ``MAX_DEPTH`` levels deep. The message names ``field``.
    """
    return json_in(text, field, names.RedBeatJSONDecoder)


def decode_schedule(value: Any, field: str = "definition.schedule") -> BaseSchedule:
    """Return the schedule for ``value``, which comes from a decoded definition.

    If ``value`` is a number, the schedule is an interval of ``value`` seconds. Raises
    ``DecodeError`` if ``value`` is not a valid schedule, and ``UnknownTypeError`` if the type of
    schedule is not registered in this process.
    """
    if isinstance(value, BaseSchedule):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = {TAG: "interval", "every": value}
    tag = value.get(TAG) if isinstance(value, dict) else None
    kind = types.type_of_tag(tag) if tag in tags() else None
    if kind is None:
        error_class = UnknownTypeError if tag and isinstance(tag, str) else DecodeError
        raise error_class(field, _not_a_schedule(value, tag))
    try:
        decoded: BaseSchedule = kind.read(value)
        return decoded
    except DecodeError as error:
        raise type(error)(f"{field}.{error.field}".rstrip("."), error.problem) from error


def _not_a_schedule(value: Any, tag: object) -> str:
    valid = f"use an object with {TAG!r} set to one of {', '.join(tags())}"
    if tag is not None:
        return f"unknown {TAG!r} {_quoted(tag)}; {valid}"
    return f"{_quoted(value)} is not a schedule; {valid}, or a number of seconds"


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."
