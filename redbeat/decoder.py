"""The JSON codec of entries: a decoded value is equal to the value that was encoded."""

from __future__ import annotations

import calendar
import json
import re
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule
from dateutil.rrule import weekday

from redbeat.printing import get_logger
from redbeat.schedules.next_run import asks_itself, unstored_parts
from redbeat.schedules.rule import rrule, rruleset

from .calendar.steps import bounded
from .calendar.zones import from_timestamp, get_utcoffset_minutes, to_timestamp
from .codec import types
from .codec.stored import MAX_DEPTH, MAX_TEXT, exceeded_limit, json_chunks, json_in, text_of
from .codec.types import TAG, MissingPackageError, UnstorableError
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

# Programs for RedBeat 2 import these names from here.
__all__ += ("calendar", "crontab", "datetime", "json", "rrule", "schedule", "timedelta")
__all__ += ("timezone", "weekday", "zoneinfo")

MAX_SCHEDULES = 100  # for each JSON text, because decoding a schedule can take 3 ms
TOO_MANY = f"the JSON has more than {MAX_SCHEDULES} schedules; use numbers or text instead"

logger = get_logger("celery.beat")

Default = Callable[[Any], Any]


def stored_type_of(cls: type) -> tuple[type, types.StoredType | None]:
    """The first class in the MRO of ``cls`` that can be stored, and its ``StoredType``.

    As in RedBeat 2, an object is stored like one of its base class. Without such a class, this is
    ``(object, None)``.
    """
    for base in cls.__mro__:
        kind = types.type_of_class(base)
        if kind is not None:
            return base, kind
    return object, None


#: Warned of once in this process: pairs of a schedule class and the lost attributes.
_warned: set[tuple[type, str]] = set()


def warn_of_loss(value: BaseSchedule, written: Any = None) -> None:
    """Warn if the JSON of a schedule lacks attributes that influence its runs.

    A custom encoder may store them: if ``written`` differs from what RedBeat's own writes, there is
    no warning.
    """
    cls = type(value)
    if not asks_itself(value) or cls in types.CUSTOM:
        return
    base, kind = stored_type_of(cls)
    parts = unstored_parts(value, base)
    lost = ", ".join(parts)
    if kind is None or not parts or (cls, lost) in _warned:
        return
    if written is not None and written != {TAG: kind.tag, **kind.encode(value)}:
        return
    _warned.add((cls, lost))
    logger.warning(
        "beat: A schedule of class %s.%s is stored as a plain %s, without its %s, and a beat "
        "runs it without these parts. To store all parts, register a class of your own with "
        "redbeat.register_schedule_type(); for a time zone, give the entry timezone='Area/City'",
        *(cls.__module__, cls.__qualname__, base.__name__, lost),
    )


def unstorable_reason(value: Any) -> str:
    hint = (
        "use JSON values (a list for a set, seconds for a timedelta, text for bytes, dates and "
        "decimals), datetimes, schedules or weekdays"
    )
    if isinstance(value, BaseSchedule):
        hint = (
            "use an interval, crontab or rrule, or register the class with register_schedule_type()"
        )
    return f"a value of type {type(value).__name__} cannot be stored as JSON; {hint}"


class RedBeatJSONEncoder(json.JSONEncoder):
    """Encodes datetimes, schedules and weekdays; pass this class as ``cls`` to ``json.dumps()``.

    Raises ``TypeError`` for a value that a decoder could not restore. Subclasses may add types by
    overriding ``default(obj)``, which is called for each object that is not plain JSON. A dict that
    it returns is written unchanged.
    """

    def default(self, obj: Any) -> Any:
        """Return ``obj`` as a tagged dict; raise ``TypeError`` if its type cannot be stored."""
        kind = stored_type_of(type(obj))[1]
        if kind is None:
            raise UnstorableError(unstorable_reason(obj))
        try:
            return kind.write(obj)
        except AttributeError as error:  # a subclass may lack attributes of its base class
            raise UnstorableError(f"{unstorable_reason(obj)} ({error})") from error

    def iterencode(self, o: Any, _one_shot: bool = False) -> Iterator[str]:
        """Encode ``o`` as plain JSON; all encoding functions of :mod:`json` call this method."""
        return super().iterencode(storable(o, self.default), _one_shot)


def storable(value: Any, default: Default, depth: int = 0) -> Any:
    """Convert ``value`` to plain JSON values; raises ``UnstorableError``.

    As in the ``json`` module, objects of subclasses of ``str``, ``int``, ``float``, ``list`` and
    ``dict`` lose their class: an ``Enum`` member that is a ``str`` is read back as ``str``.
    """
    if type(value) in PLAIN or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise UnstorableError(f"{value!r} is not a JSON number; use null or a string")
        return value
    if depth >= MAX_DEPTH:
        raise UnstorableError(f"refers to itself or is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return _dict(value, default, depth)
    if isinstance(value, (list, tuple)):
        return [_part(index, item, default, depth) for index, item in enumerate(value)]
    return _object(value, default, depth)


def _part(step: str | int, value: Any, default: Default, depth: int) -> Any:
    """``step`` becomes part of the error's path."""
    try:
        return value if type(value) in PLAIN else storable(value, default, depth + 1)
    except UnstorableError as error:
        error.path.insert(0, step)
        raise


def _dict(value: dict[Any, Any], default: Default, depth: int) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise UnstorableError(
                f"the key {key!r} is of type {type(key).__name__}; use a string, "
                "the only type of keys in JSON"
            )
    items = {key: _part(key, item, default, depth) for key, item in value.items()}
    # A user's dict that looks like a tagged dict must not be decoded as one.
    return types.VERBATIM.write(items) if TAG in value and types.type_of_tag(value[TAG]) else items


def _object(value: Any, default: Default, depth: int) -> Any:
    try:
        written = default(value)
    except UnstorableError:
        raise
    except TypeError as error:
        # A subclass's default() may raise it.
        raise UnstorableError(f"{unstorable_reason(value)} ({error})") from error
    if isinstance(value, BaseSchedule):
        warn_of_loss(value, written)
    for rule in value.rrules if isinstance(value, rruleset) else ():
        warn_of_loss(rule)
    if isinstance(written, dict):
        return {key: _part(key, item, default, depth + 1) for key, item in written.items()}
    return storable(written, default, depth + 1)


#: Most values are of these types and need no conversion.
PLAIN: frozenset[type] = frozenset({str, int, bool, type(None)})

_chunks = json_chunks(json.JSONEncoder(allow_nan=False))
_ENCODER = RedBeatJSONEncoder()


# -- decoding --------------------------------------------------------------------------------------


class RedBeatJSONDecoder(json.JSONDecoder):
    """A JSON decoder for ``json.loads(text, cls=...)`` that creates objects from tagged dicts.

    A dict with an unknown tag, or with fields that do not fit the tag, is returned unchanged,
    because it may be the user's data. Subclasses may override ``dict_to_object``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("object_hook", self.dict_to_object)
        super().__init__(*args, **kwargs)

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        """Return the object for the tagged dict ``d``, ``d`` itself if none can be created."""
        tag = d.get(TAG)
        kind = None if tag is None else types.type_of_tag(tag)
        if kind is None:
            return d
        try:
            return kind.read(d)
        except Exception:
            # It may be the user's data. If it must be a schedule, decode_schedule() raises.
            return d


_DECODER = RedBeatJSONDecoder()
_OWN_HOOK = RedBeatJSONDecoder.dict_to_object  # a program may put its own there

#: Has the active ``RedBeatJSONEncoder`` and ``RedBeatJSONDecoder``: ``redbeat.schedulers`` once it
#: is imported, because programs replace them there.
names: Any = sys.modules[__name__]


def encode(value: Any, field: str = "") -> str:
    """Return JSON from the active encoder.

    Raises ``InvalidEntryError`` if JSON cannot store a part of ``value`` exactly; it names the path
    of that part, which begins with ``field``.
    """
    try:
        if names.RedBeatJSONEncoder is RedBeatJSONEncoder:
            text = "".join(_chunks(storable(value, _ENCODER.default), False))
        else:
            text = json.dumps(value, cls=names.RedBeatJSONEncoder)
    except UnstorableError as error:
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
    found = re.findall(rf'"{TAG}"\s*:\s*"({"|".join(map(re.escape, types.tags()))})"', text)
    return TOO_MANY if len(found) > MAX_SCHEDULES else ""


@bounded
def decode(text: str | bytes, field: str, raw: str = "") -> Any:
    """Read JSON with the active decoder; raises ``DecodeError`` like :func:`json_in`.

    If only the part ``raw`` of an object is tagged, it may stay a dict, because this is faster.
    """
    text = text_of(text)
    make = names.RedBeatJSONDecoder
    is_own = make is RedBeatJSONDecoder and make.dict_to_object is _OWN_HOOK
    if raw and is_own and text.count(f'"{TAG}"') == 1 and "\\" not in text:
        value = json_in(text, field)
        part = value.get(raw) if isinstance(value, dict) else None
        if isinstance(part, dict) and TAG in part:
            return value
    problem = _too_many_schedules(text)
    if problem:
        raise DecodeError(field, problem)
    return json_in(text, field, (_DECODER if is_own else make()).decode)


def decode_schedule(value: Any, field: str = "definition.schedule") -> BaseSchedule:
    """Return the schedule for ``value`` from a decoded definition; a number means seconds.

    Raises ``DecodeError`` if ``value`` is not a valid schedule, and ``UnknownTypeError`` if its
    type is not registered in this process.
    """
    if isinstance(value, BaseSchedule):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = {TAG: "interval", "every": value}
    tag = value.get(TAG) if isinstance(value, dict) else None
    kind = types.type_of_tag(tag) if tag in types.tags() else None
    if kind is None:
        error_class = UnknownTypeError if tag and isinstance(tag, str) else DecodeError
        raise error_class(field, _not_a_schedule(value, tag))
    try:
        decoded: BaseSchedule = kind.read(value)
        return decoded
    except DecodeError as error:
        raise type(error)(f"{field}.{error.field}".rstrip("."), error.problem) from error


def _not_a_schedule(value: Any, tag: object) -> str:
    valid = f"use an object with {TAG!r} set to one of {', '.join(types.tags())}"
    if tag is not None:
        return f"unknown {TAG!r} {tag!r:.60}; {valid}"
    return f"{value!r:.60} is not a schedule; {valid}, or a number of seconds"
