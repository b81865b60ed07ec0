"""Python to JSON: the types that can be stored, and how each type becomes a tagged dict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil._common import weekday as base_weekday
from dateutil.rrule import weekday
from dateutil.tz import tzfile

from redbeat.calendar.zones import (
    fixed_offset,
    get_utcoffset_minutes,
    to_timestamp,
    wall_zone,
    zone_key,
)
from redbeat.printing import get_logger
from redbeat.schedules.next_run import MIN_EVERY, asks_itself, unstored_parts
from redbeat.schedules.one_time import clocked
from redbeat.schedules.registry import BUILT_IN, RegisteredType, named, of_class
from redbeat.schedules.rule import RRULE_FIELDS, rrule, zone_extension
from redbeat.schedules.rule_set import rruleset

__all__ = (
    "CRON_FIELDS",
    "ENCODERS",
    "LONGEST_PART",
    "MAX_DEPTH",
    "MAX_EVERY",
    "TAG",
    "TAGS",
    "RedBeatJSONEncoder",
    "UnstorableError",
    "oversized",
    "storable",
    "unstorable_reason",
    "warn_of_app",
    "warn_of_loss",
    "writer_of",
)

logger = get_logger("celery.beat")


TAG = "__type__"
TAGS = BUILT_IN
MAX_EVERY = timedelta(days=365_250)  # a thousand years
ZERO = timedelta(0)

Path = list["str | int"]
Writer = Callable[[Any], dict[str, Any]]


class UnstorableError(TypeError):
    """A value cannot be stored.

    ``path`` has the keys and indexes that lead to this value inside the encoded value. ``problem``
    describes why it cannot be stored.
    """

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: Path = list(path)

    def __str__(self) -> str:
        return f"{self.field()}: {self.problem}" if self.path else self.problem

    def field(self, root: str = "") -> str:
        """Return the path as a string such as ``kwargs.when``, which begins with ``root``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return (root + "".join(steps)).lstrip(".")


def _encode_datetime(moment: datetime) -> dict[str, Any]:
    zone, fold = _written_zone(moment)
    written = {
        TAG: "datetime",
        "year": moment.year,
        "month": moment.month,
        "day": moment.day,
        "hour": moment.hour,
        "minute": moment.minute,
        "second": moment.second,
        "microsecond": moment.microsecond,
        "timezone": zone,
    }
    return {**written, "fold": 1} if fold else written


def _written_zone(moment: datetime) -> tuple[str | float, int]:
    zone = moment.tzinfo
    if zone is None:
        return "UTC", 0
    key = zone_key(zone)
    if key is None or isinstance(zone, tzfile):  # RedBeat 2 also writes the offset of a tzfile
        return _offset_seconds(moment), moment.fold
    if isinstance(zone, ZoneInfo):
        return key, moment.fold
    return _legacy_zone(moment, key, wall_zone(zone))


def _legacy_zone(moment: datetime, key: str, zone: tzinfo) -> tuple[str | float, int]:
    """Return the name and the ``fold`` of a datetime with a ``pytz`` zone.

    A ``pytz`` zone has a fixed UTC offset instead of a ``fold``.
    """
    for fold in (0, 1):
        if moment.replace(tzinfo=zone, fold=fold).utcoffset() == moment.utcoffset():
            return key, fold if _repeated(moment, zone) else 0
    return _offset_seconds(moment), 0


def _repeated(moment: datetime, zone: tzinfo) -> bool:
    first, second = (moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return first != second


def _offset_seconds(moment: datetime) -> float:
    return (moment.utcoffset() or ZERO).total_seconds()


def _encode_interval(interval: schedule) -> dict[str, Any]:
    every = interval.run_every
    if not isinstance(every, timedelta) or not ZERO < every <= MAX_EVERY:
        raise UnstorableError(f"{every!r} is not above 0 and up to 1000 years", "every")
    if every < MIN_EVERY:
        seconds, shortest = every.total_seconds(), MIN_EVERY.total_seconds()
        raise UnstorableError(f"{seconds:g} s is too short; the shortest is {shortest} s", "every")
    return {TAG: "interval", "every": every.total_seconds(), "relative": bool(interval.relative)}


#: The fields of a stored crontab.
CRON_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


def _encode_crontab(cron: crontab) -> dict[str, Any]:
    return {TAG: "crontab", **{name: _cron_field(cron, name) for name in CRON_FIELDS}}


def _cron_field(cron: crontab, name: str) -> Any:
    written = getattr(cron, f"_orig_{name}")
    if isinstance(written, (str, list)) or type(written) is int:
        return written
    # A set or an iterator cannot be stored. The parsed values give an equal crontab.
    values = sorted(map(int, getattr(cron, name)))
    if not values:
        raise UnstorableError("is empty, so the crontab would never run", name)
    return values[0] if isinstance(written, int) else values


# The fields between freq and the datetimes. RedBeat 2 writes the datetimes last.
RULE_PARTS = tuple(name for name in RRULE_FIELDS if name not in ("freq", "dtstart", "until"))


def _encode_rrule(rule: rrule) -> dict[str, Any]:
    written: dict[str, Any] = {TAG: "rrule", "freq": rule.freq}
    for name in RULE_PARTS:
        written[name] = getattr(rule, name)
    written.update(_rule_moment("dtstart", rule.dtstart))
    if rule.until is not None:
        written.update(_rule_moment("until", rule.until))
    return written


def _rule_moment(name: str, moment: datetime) -> dict[str, Any]:
    zone = moment.tzinfo
    if zone is not None and zone_key(zone) is None and fixed_offset(zone) is None:
        raise UnstorableError(
            f"the time zone {zone!r} has no IANA name; use zoneinfo.ZoneInfo", name
        )
    # The smallest unit of a rule is a second, so microseconds have no effect.
    seconds = to_timestamp(moment.replace(microsecond=0))
    return {name: seconds, f"{name}_tz": get_utcoffset_minutes(moment)}


def _encode_rruleset(rules: rruleset) -> dict[str, Any]:
    for rule in rules.rrules:
        warn_of_loss(rule)
    # RedBeat 2 cannot read rule sets, so rules in a set may contain keys that it does not know.
    written = [_encode_rule_of_set(*item) for item in enumerate(rules.rrules)]
    return {
        TAG: "rruleset",
        "rrules": written,
        "rdates": list(rules.rdates),
        "exdates": list(rules.exdates),
    }


def _encode_rule_of_set(index: int, rule: rrule) -> dict[str, Any]:
    try:
        return {**_of_limited_size(_encode_rrule(rule)), **zone_extension(rule)}
    except UnstorableError as error:
        error.path[:0] = ["rrules", index]
        raise


def _encode_solar(event: solar) -> dict[str, Any]:
    return {TAG: "solar", "event": event.event, "lat": event.lat, "lon": event.lon}


def _encode_clocked(once: clocked) -> dict[str, Any]:
    return {TAG: "clocked", "clocked_time": once.clocked_time}


def _encode_registered(registered: RegisteredType, value: Any) -> dict[str, Any]:
    written: Any = registered.dump(value)
    if not isinstance(written, Mapping) or TAG in written:
        raise UnstorableError(
            f"dump() of the schedule type {registered.tag!r} returned {written!r:.60}; "
            f"it must return a dict without {TAG!r}"
        )
    return {TAG: registered.tag, **written}


def _encode_weekday(day: Any) -> dict[str, Any]:
    written = {TAG: "weekday", "wkday": day.weekday}
    return {**written, "n": day.n} if day.n else written


ENCODERS: dict[type, Writer] = {
    datetime: _encode_datetime,
    schedule: _encode_interval,
    crontab: _encode_crontab,
    rrule: _encode_rrule,
    rruleset: _encode_rruleset,
    solar: _encode_solar,
    clocked: _encode_clocked,
    weekday: _encode_weekday,
    base_weekday: _encode_weekday,
}

HINTS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bytes, bytearray, memoryview), "decode them to a str, for example as base64"),
    ((set, frozenset), "use a list"),
    (timedelta, "use its seconds: value.total_seconds()"),
    (Decimal, "use str(value) or a float"),
    (UUID, "use str(value)"),
    ((date, time), "use value.isoformat() or a datetime"),
    (tzinfo, "use the name of the zone"),
    (
        BaseSchedule,
        "use an interval, crontab or rrule, or register the class with register_schedule_type()",
    ),
)
ANY_HINT = "use JSON values, datetimes, schedules or weekdays"


def writer_of(value: Any) -> Writer | None:
    """Return the function that writes ``value``, None if there is none.

    A subclass instance is written like its base class, as in RedBeat 2.
    """
    writer = ENCODERS.get(type(value))
    return writer if writer is not None else _inherited(type(value))[1]


def _inherited(cls: type) -> tuple[type, Writer | None]:
    """Return the nearest base class that can be stored, and its writer function."""
    for base in cls.__mro__:
        registered = of_class(base)
        if registered is not None:
            return base, partial(_encode_registered, registered)
        if base in ENCODERS:
            return base, ENCODERS[base]
    return object, None


#: The warnings that this process has logged, as (class, lost attributes). Each is logged only once.
_warned: set[tuple[type, str]] = set()
#: The attributes that set a clock or a time zone. If one of them is lost, the warning suggests to
#: set the time zone of the entry.
CLOCK_PARTS = frozenset(
    {"nowfun", "now", "tz", "app", "maybe_make_aware", "to_local", "utc_enabled"}
)


def warn_of_loss(value: BaseSchedule, written: Any = None) -> None:
    """Log a warning if the JSON of a schedule lacks attributes that influence its runs.

    ``written`` is the output of a custom encoder. There is no warning if this output differs from
    RedBeat's own, because it may contain the attributes that RedBeat does not store.
    """
    cls = type(value)
    if not asks_itself(value) or of_class(cls) is not None:
        return
    base, write = _inherited(cls)
    parts = unstored_parts(value, base)
    lost = ", ".join(parts)
    if not (write and parts) or (cls, lost) in _warned:
        return
    if written is not None and written != write(value):
        return
    _warned.add((cls, lost))
    zone = ", or give the entry timezone='Area/City'" if CLOCK_PARTS & {*parts} else ""
    logger.warning(
        "beat: A schedule of class %s.%s is stored as a plain %s, without its %s. A beat that "
        "loads the schedule runs it without these parts; to keep them, register a class of your "
        "own with redbeat.register_schedule_type()%s",
        *(cls.__module__, cls.__qualname__, base.__name__, lost, zone),
    )


def warn_of_app(value: BaseSchedule, app: Celery) -> None:
    """Log a warning if a crontab belongs to an app whose time zone differs from that of ``app``.

    ``app`` is the app of the entry. Like Celery and RedBeat 2, RedBeat uses its time zone.
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


#: Maximum number of characters or items in one field of a schedule. A minute field that lists all
#: minutes has 169 characters, and a rule set may have 1000 dates.
LONGEST_PART = 1000

#: Fields with limits of their own: iCalendar text, and the pairs of a user's dict.
UNLIMITED = frozenset({"ical", "items"})


def oversized(key: str, value: Any) -> str:
    """Return why a field of a tagged dict is too long, "" if it is not."""
    if not isinstance(value, (str, list)) or len(value) <= LONGEST_PART or key in UNLIMITED:
        return ""
    unit = "characters" if isinstance(value, str) else "items"
    return f"has {len(value)} {unit}; the maximum is {LONGEST_PART}"


def _of_limited_size(written: dict[str, Any]) -> dict[str, Any]:
    """Return a tagged dict; raise ``UnstorableError`` if it is built in and a field is too long."""
    for key, value in written.items() if written.get(TAG) in TAGS else ():
        problem = oversized(key, value)
        if problem:
            raise UnstorableError(problem, key)
    return written


def unstorable_reason(value: Any) -> str:
    """Return why ``value`` cannot be stored, and what to store instead."""
    hint = next((hint for types, hint in HINTS if isinstance(value, types)), ANY_HINT)
    return f"a value of type {type(value).__name__} cannot be stored as JSON; {hint}"


VERBATIM = "verbatim"
MAX_DEPTH = 200

Default = Callable[[Any], Any]


class RedBeatJSONEncoder(json.JSONEncoder):
    """The JSON encoder for datetimes, schedules and weekdays: ``json.dumps(value, cls=...)``.

    Raises ``TypeError`` for a value that could not be read back unchanged. Subclasses may add types
    by overriding ``default(obj)``, which is called for each object that is not plain JSON. If
    ``default()`` returns a dict, that dict is written unchanged.
    """

    def default(self, obj: Any) -> Any:
        """Return ``obj`` as a tagged dict; raise ``TypeError`` if its type cannot be stored."""
        write = writer_of(obj)
        if write is None:
            raise UnstorableError(unstorable_reason(obj))
        try:
            return _of_limited_size(write(obj))
        except AttributeError as error:  # a subclass may lack attributes of its base class
            raise UnstorableError(f"{unstorable_reason(obj)} ({error})") from error

    def iterencode(self, o: Any, _one_shot: bool = False) -> Iterator[str]:
        """Convert ``o`` to plain JSON values and encode them. All ``json`` functions call this."""
        return super().iterencode(storable(o, self.default), _one_shot)


def storable(value: Any, default: Default, depth: int = 0) -> Any:
    """Return ``value`` as plain JSON values; raise ``UnstorableError`` if this is impossible.

    As in ``json``, instances of subclasses of ``str``, ``int``, ``float``, ``list`` and ``dict``
    lose their class. For example, an ``Enum`` member that is a ``str`` is read back as ``str``.
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
    if TAG in value and _is_known_tag(value[TAG]):
        # The user's dict looks like a tagged dict, so it is stored as a list of pairs.
        items = _items(value, default, depth)
        return {TAG: VERBATIM, "items": [[key, item] for key, item in items.items()]}
    return _items(value, default, depth)


def _is_known_tag(tag: Any) -> bool:
    return isinstance(tag, str) and (tag in TAGS or named(tag) is not None)


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
        # In a subclass, default() called json's default(), or raised TypeError itself.
        raise UnstorableError(f"{unstorable_reason(value)} ({error})") from error
    if isinstance(value, BaseSchedule):
        warn_of_loss(value, written)
    if isinstance(written, dict):
        return _items(written, default, depth + 1)
    return storable(written, default, depth + 1)


WALKERS: dict[type, Callable[[Any, Default, int], Any]] = {
    str: _as_is,
    int: _as_is,
    bool: _as_is,
    type(None): _as_is,
    float: _float,
    dict: _dict,
    list: _list,
    tuple: _list,
}
SUBCLASSABLE = tuple((base, WALKERS[base]) for base in (str, int, float, dict, list, tuple))
PLAIN = frozenset({str, int, bool, type(None)})
STRING = frozenset({str})


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
