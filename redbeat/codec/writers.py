"""Converts Python values to JSON; objects such as datetimes become tagged dicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

from celery import Celery
from celery.schedules import BaseSchedule

from redbeat.printing import get_logger
from redbeat.schedules.next_run import asks_itself, unstored_parts
from redbeat.schedules.registry import of_class
from redbeat.schedules.rule_set import rruleset

from .types import TAG, VERBATIM, StoredType, UnstorableError, type_of_class, type_of_tag

logger = get_logger("celery.beat")

HINTS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bytes, bytearray, memoryview), "decode the bytes to a str, for example as base64"),
    ((set, frozenset), "use a list"),
    (timedelta, "use value.total_seconds()"),
    (Decimal, "use str(value) or a float"),
    (UUID, "use str(value)"),
    ((date, time), "use value.isoformat() or a datetime"),
    (tzinfo, "use the name of the zone"),
    (
        BaseSchedule,
        "use an interval, crontab or rrule, or register the class with register_schedule_type()",
    ),
    (object, "use JSON values, datetimes, schedules or weekdays"),
)


def stored_type_of(cls: type) -> tuple[type, StoredType | None]:
    """Return the first class in the MRO of ``cls`` that can be stored, and its ``StoredType``.

    An object of a subclass is stored like an object of its base class, as in RedBeat 2. Returns
    ``(object, None)`` if no base class can be stored.
    """
    for base in cls.__mro__:
        kind = type_of_class(base)
        if kind is not None:
            return base, kind
    return object, None


#: The warnings that this process has logged: pairs of a schedule class and the lost attributes.
#: RedBeat logs each warning only once.
_warned: set[tuple[type, str]] = set()
#: The attributes of a schedule that set its clock or time zone. If an attribute in ``CLOCK_PARTS``
#: is lost, the warning suggests a time zone for the entry.
CLOCK_PARTS = frozenset(
    {"nowfun", "now", "tz", "app", "maybe_make_aware", "to_local", "utc_enabled"}
)


def warn_of_loss(value: BaseSchedule, written: Any = None) -> None:
    """Log a warning if the JSON of a schedule lacks attributes that influence its runs.

    ``written`` is the output of a custom encoder. A custom encoder may store the attributes that
    RedBeat's encoder omits, so there is no warning if the outputs of the two encoders differ.
    """
    cls = type(value)
    if not asks_itself(value) or of_class(cls) is not None:
        return
    base, kind = stored_type_of(cls)
    parts = unstored_parts(value, base)
    lost = ", ".join(parts)
    if kind is None or not parts or (cls, lost) in _warned:
        return
    if written is not None and written != {TAG: kind.tag, **kind.encode(value)}:
        return
    _warned.add((cls, lost))
    zone = ", or give the entry timezone='Area/City'" if CLOCK_PARTS & {*parts} else ""
    logger.warning(
        "beat: A schedule of class %s.%s is stored as a plain %s, without its %s, and a beat "
        "runs it without these parts. To store all parts, register a class of your own with "
        "redbeat.register_schedule_type()%s",
        *(cls.__module__, cls.__qualname__, base.__name__, lost, zone),
    )


def warn_of_app(value: BaseSchedule, app: Celery) -> None:
    """Log a warning if a crontab was made for another app, with another time zone than ``app``.

    ``app`` is the app of the entry. RedBeat uses the time zone of ``app``, as Celery and RedBeat 2
    do.
    """
    arguments = value.__dict__.get("_orig_kwargs")
    other_app = arguments.get("app") if arguments else None
    if other_app is None or other_app is app:
        return
    zone, other_zone = str(app.timezone), str(other_app.timezone)
    if zone == other_zone or (type(value), other_zone) in _warned:
        return
    _warned.add((type(value), other_zone))
    logger.warning(
        "beat: A crontab made for an app in the time zone %s runs in %s, the time zone of its "
        "entry's app; to use the other time zone, give the entry timezone=%r",
        *(other_zone, zone, other_zone),
    )


def unstorable_reason(value: Any) -> str:
    """Return a message that says why ``value`` cannot be stored, and what to store instead."""
    hint = next(hint for types, hint in HINTS if isinstance(value, types))
    return f"a value of type {type(value).__name__} cannot be stored as JSON; {hint}"


MAX_DEPTH = 200

Default = Callable[[Any], Any]


class RedBeatJSONEncoder(json.JSONEncoder):
    """Encodes datetimes, schedules and weekdays; pass this class as ``cls`` to ``json.dumps()``.

    Raises ``TypeError`` for a value that a decoder could not restore. Subclasses may add types by
    overriding ``default(obj)``, which is called for each object that is not plain JSON. If
    ``default()`` returns a dict, the encoder writes this dict unchanged.
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
        """Convert ``o`` to plain JSON values, and encode the values.

        All encoding functions of :mod:`json` call this method.
        """
        return super().iterencode(storable(o, self.default), _one_shot)


def storable(value: Any, default: Default, depth: int = 0) -> Any:
    """Convert ``value`` to plain JSON values; raise ``UnstorableError`` on failure.

    As in the ``json`` module, objects of subclasses of ``str``, ``int``, ``float``, ``list`` and
    ``dict`` lose their class. For example, an ``Enum`` member that is a ``str`` is read back as
    ``str``.
    """
    walk = WALKERS.get(type(value))
    if walk is None:
        walk = next((walk for base, walk in SUBCLASSABLE if isinstance(value, base)), _object)
    return walk(value, default, depth)


def _as_is(value: Any, _default: Default, _depth: int) -> Any:
    return value


def _float(value: float, _default: Default, _depth: int) -> float:
    if value - value != 0:
        raise UnstorableError(f"{value!r} is not a JSON number; use null or a string")
    return value


def _dict(value: dict[Any, Any], default: Default, depth: int) -> dict[str, Any]:
    if not STRING.issuperset(map(type, value)):
        _check_keys(value)
    items = _items(value, default, depth)
    # A user's dict that looks like a tagged dict must not be decoded as a tagged dict.
    return VERBATIM.write(items) if TAG in value and type_of_tag(value[TAG]) else items


def _items(value: dict[str, Any], default: Default, depth: int) -> dict[str, Any]:
    if PLAIN.issuperset(map(type, value.values())):
        return value
    _check_depth(depth)
    walked = {}
    for key, item in value.items():
        try:
            walked[key] = item if type(item) in PLAIN else storable(item, default, depth + 1)
        except UnstorableError as error:
            error.path.insert(0, key)
            raise
    return walked


def _list(value: Any, default: Default, depth: int) -> Any:
    if PLAIN.issuperset(map(type, value)):
        return value
    _check_depth(depth)
    walked = []
    for index, item in enumerate(value):
        try:
            walked.append(item if type(item) in PLAIN else storable(item, default, depth + 1))
        except UnstorableError as error:
            error.path.insert(0, index)
            raise
    return walked


def _object(value: Any, default: Default, depth: int) -> Any:
    _check_depth(depth)
    try:
        written = default(value)
    except UnstorableError:
        raise
    except TypeError as error:
        # The default() method of a subclass may raise TypeError.
        raise UnstorableError(f"{unstorable_reason(value)} ({error})") from error
    if isinstance(value, BaseSchedule):
        warn_of_loss(value, written)
    for rule in value.rrules if isinstance(value, rruleset) else ():
        warn_of_loss(rule)
    if isinstance(written, dict):
        return _items(written, default, depth + 1)
    return storable(written, default, depth + 1)


PLAIN: frozenset[type] = frozenset({str, int, bool, type(None)})
STRING = frozenset({str})
WALKERS: dict[type, Callable[[Any, Default, int], Any]] = {
    **dict.fromkeys(PLAIN, _as_is),
    float: _float,
    dict: _dict,
    list: _list,
    tuple: _list,
}
SUBCLASSABLE = tuple((base, WALKERS[base]) for base in (str, int, float, dict, list, tuple))


def _check_keys(value: dict[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise UnstorableError(
                f"the key {key!r} is of type {type(key).__name__}; use a string, "
                "the only type of keys in JSON"
            )


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise UnstorableError(f"refers to itself or is nested more than {MAX_DEPTH} levels deep")
