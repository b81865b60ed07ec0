"""Converts objects such as schedules to tagged dicts (JSON objects with a ``__type__``) and back.

:data:`TYPES` maps each class that can be stored to its :class:`StoredType`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from celery.beat import BeatLazyFunc
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil._common import weekday as base_weekday
from dateutil.rrule import weekday
from dateutil.tz import tzfile

from redbeat import errors
from redbeat.calendar import zones
from redbeat.calendar.sun import make_solar
from redbeat.calendar.zones import time_from
from redbeat.errors import CannotRunHereError, DecodeError, InvalidEntryError, UnknownTypeError
from redbeat.schedules.ical import from_ical
from redbeat.schedules.next_run import MIN_EVERY
from redbeat.schedules.rule import MAX_RULES, RRULE_FIELDS, clocked, rrule, rruleset, zone_extension

TAG: Final = "__type__"
MAX_EVERY: Final = timedelta(days=365_250)  # a thousand years
ZERO: Final = timedelta(0)

#: Characters or items in one field of a schedule. A crontab field that lists all minutes has 169
#: characters; a rule set may have 1000 dates.
LONGEST_PART: Final = 1000

#: Fields without this limit: iCalendar text, and the pairs of a user's dict.
UNLIMITED: Final = frozenset({"ical", "items"})

Tagged = Mapping[str, Any]


def path_text(path: Iterable[str | int]) -> str:
    """Return a path such as ``kwargs.when[0]``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).lstrip(".")


class UnstorableError(TypeError):
    """A value cannot be stored as JSON: ``problem`` says why, and ``path`` leads to the value."""

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = list(path)

    def __str__(self) -> str:
        return f"{self.field()}: {self.problem}" if self.path else self.problem

    def field(self, root: str = "") -> str:
        return path_text((root, *self.path) if root else self.path)


class MissingPackageError(DecodeError, InvalidEntryError, CannotRunHereError):
    """A stored schedule needs a package that is not installed; the message names it."""


class StoredType(NamedTuple):
    """A type that can be stored as a tagged dict.

    Attributes:
        tag: the value of ``__type__``.
        encode: makes the fields, without ``__type__``; raises :exc:`UnstorableError`.
        decode: makes the object; raises :exc:`DecodeError`, whose ``field`` is the invalid key, or
            "" if it's not about a single one. A constructor's ``ValueError``, ``TypeError`` or
            ``OverflowError``, with a text such as ``count: ...``, is converted.
        required: keys that a tagged dict must have.
        optional: other keys that it can have; None turns the checks of keys and lengths off.
    """

    tag: str
    encode: Callable[[Any], Mapping[str, Any]]
    decode: Callable[[Tagged], Any]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] | None = ()

    def write(self, value: Any) -> dict[str, Any]:
        """Raises :exc:`UnstorableError`."""
        written = {TAG: self.tag, **self.encode(value)}
        for key, field in written.items() if self.optional is not None else ():
            problem = _oversized(key, field)
            if problem:
                raise UnstorableError(problem, key)
        return written

    def read(self, tagged: Tagged) -> Any:
        """Raises :exc:`DecodeError`."""
        if self.optional is not None:
            _check_keys(tagged, self.required, self.optional)
        try:
            return self.decode(tagged)
        except DecodeError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            key, _, problem = str(error).partition(": ")
            if key not in (*self.required, *(self.optional or ())):
                key, problem = "", str(error)
            raise DecodeError(key, problem) from error


def _oversized(key: str, value: Any) -> str:
    if not isinstance(value, (str, list)) or len(value) <= LONGEST_PART or key in UNLIMITED:
        return ""
    unit = "characters" if isinstance(value, str) else "items"
    return f"has {len(value)} {unit}; the maximum is {LONGEST_PART}"


def _check_keys(tagged: Tagged, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    valid = (*required, *optional)
    for key, value in tagged.items():
        if key != TAG and key not in valid:
            raise DecodeError(
                "", f"unknown key {key!r:.60} in {tagged[TAG]}; valid: {', '.join(valid)}"
            )
        problem = _oversized(key, value)
        if problem:
            raise DecodeError(key, problem)
    for key in required:
        if key not in tagged:
            raise DecodeError("", f"missing key {key!r} in {tagged[TAG]}")


def _read_number(tagged: Tagged, key: str) -> float:
    value = tagged.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DecodeError(key, f"{value!r} is not a number")
    return value


def _read_whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DecodeError(key, f"{value!r} is not an integer")
    return value


def _read_list(tagged: Tagged, key: str) -> list[Any]:
    value = tagged.get(key) or []
    if not isinstance(value, list):
        raise DecodeError(key, f"{value!r:.60} is not a list")
    return value


# -- datetimes -------------------------------------------------------------------------------------

DATE: Final = ("year", "month", "day")
CLOCK: Final = ("hour", "minute", "second", "microsecond")


def _encode_datetime(moment: datetime) -> dict[str, Any]:
    zone, fold = _written_zone(moment)
    written = {key: getattr(moment, key) for key in (*DATE, *CLOCK)}
    return {**written, "timezone": zone, "fold": 1} if fold else {**written, "timezone": zone}


def _written_zone(moment: datetime) -> tuple[str | float, int]:
    zone = moment.tzinfo
    if zone is None:
        return "UTC", 0
    key = zones.zone_key(zone)
    if key is not None and isinstance(zone, ZoneInfo):
        return key, moment.fold
    offset = moment.utcoffset() or ZERO
    if key is not None and not isinstance(zone, tzfile):
        # A datetime with a pytz zone has no fold: its tzinfo has a fixed UTC offset.
        wall_zone = zones.wall_zone(zone)
        for fold in (0, 1):
            if moment.replace(tzinfo=wall_zone, fold=fold).utcoffset() == offset:
                return key, fold
    return offset.total_seconds(), moment.fold  # like RedBeat 2, also for a tzfile


def _decode_datetime(tagged: Tagged) -> datetime:
    fields = {key: _read_whole(key, tagged.get(key, 0)) for key in (*DATE, *CLOCK, "fold")}
    return datetime(**fields, tzinfo=_read_zone("timezone", tagged.get("timezone")))


def _read_zone(key: str, value: object) -> tzinfo:
    """``value`` is an IANA name or a UTC offset in seconds; None means UTC."""
    try:
        if value is None or isinstance(value, str):
            return zones.zone_named(value or "UTC", stored=True)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return timezone(timedelta(seconds=value)) if value else zones.UTC
    except (ValueError, OverflowError) as error:
        raise DecodeError(key, str(error)) from error
    raise DecodeError(key, f"{value!r} is neither the name of a time zone nor a UTC offset")


def _read_moment(key: str, value: object) -> datetime:
    """``value`` is a datetime or ISO 8601; without a time zone it is UTC."""
    try:
        moment = time_from(value)
    except ValueError as error:
        raise DecodeError(key, str(error)) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=zones.UTC)


DATETIME: Final = StoredType(
    "datetime", _encode_datetime, _decode_datetime, DATE, (*CLOCK, "timezone", "fold")
)


# -- intervals, crontabs, solar events, instants ---------------------------------------------------


def _encode_interval(interval: schedule) -> dict[str, Any]:
    every = interval.run_every
    if not isinstance(every, timedelta) or every > MAX_EVERY:
        raise UnstorableError(f"{every!r} must be a timedelta of at most 1000 years", "every")
    every = max(every, MIN_EVERY)  # RedBeat 2 accepts 0, and even less
    return {"every": every.total_seconds(), "relative": bool(interval.relative)}


def _decode_interval(tagged: Tagged) -> schedule:
    relative = tagged.get("relative")
    if relative not in (None, 0, 1):  # RedBeat 2 accepts null, 0 and 1 as booleans
        raise DecodeError("relative", f"{relative!r} is neither true nor false")
    seconds = _read_number(tagged, "every")
    try:
        every = timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        every = timedelta.max
    if every > MAX_EVERY:
        problem = f"{seconds!r} must be a number of seconds, at most 1000 years"
        raise DecodeError("every", problem)
    return schedule(every, bool(relative))


CRON_FIELDS: Final = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


def _encode_crontab(cron: crontab) -> dict[str, Any]:
    return {name: _encode_cron_field(cron, name) for name in CRON_FIELDS}


def _encode_cron_field(cron: crontab, name: str) -> Any:
    written = getattr(cron, f"_orig_{name}")
    if isinstance(written, (str, list)) or type(written) is int:
        return written
    # JSON cannot store a set or an iterator. A crontab of the parsed values equals the original.
    values = sorted(map(int, getattr(cron, name)))
    if not values:
        raise UnstorableError("is empty, so the crontab would never run", name)
    return values[0] if isinstance(written, int) else values


def _decode_crontab(tagged: Tagged) -> crontab:
    fields = {key: _decode_cron_field(key, tagged[key]) for key in CRON_FIELDS if key in tagged}
    try:
        if list in map(type, fields.values()):
            return crontab(**fields)
        cron = crontab.__new__(crontab)
        cron.__dict__.update(vars(_parsed(*fields.items())))
        return cron
    except Exception as error:
        # Celery's crontab parser raises ParseException and several built-in errors.
        raise DecodeError(_wrong_cron_field(fields), str(error).strip()) from error


@lru_cache(maxsize=1000)
def _parsed(*fields: tuple[str, Any]) -> crontab:
    """Parsing a crontab takes longer than reading an entry."""
    return crontab(**dict(fields))


def _decode_cron_field(key: str, value: Any) -> Any:
    if value is None:
        return "*"
    if isinstance(value, str):
        # A field may be in brackets, as in an example in the manual of RedBeat 2.
        bracketed = value.startswith("[") and value.endswith("]")
        return value[1:-1] if bracketed else value
    if isinstance(value, list):
        return [_read_whole(key, item) for item in value]
    return _read_whole(key, value)


def _wrong_cron_field(fields: dict[str, Any]) -> str:
    for key, value in fields.items():
        try:
            crontab(**{key: value})
        except Exception:
            return key
    return ""


SOLAR_KEYS: Final = ("event", "lat", "lon")


def _encode_solar(event: solar) -> dict[str, Any]:
    return {key: getattr(event, key) for key in SOLAR_KEYS}


def _decode_solar(tagged: Tagged) -> solar:
    lat, lon = (_read_number(tagged, key) for key in ("lat", "lon"))
    try:
        return make_solar(tagged["event"], lat, lon)
    except ImproperlyConfigured as error:
        raise MissingPackageError("", str(error)) from error
    except (ValueError, TypeError) as error:
        wrong = "event" if -180 <= lon <= 180 else "lon"
        raise DecodeError(wrong if -90 <= lat <= 90 else "lat", str(error).strip()) from error


def _decode_clocked(tagged: Tagged) -> clocked:
    return clocked(_read_moment("clocked_time", tagged["clocked_time"]))


# -- rules -----------------------------------------------------------------------------------------

#: Stored between freq and the datetimes, in RedBeat 2's order.
RULE_PARTS: Final = tuple(name for name in RRULE_FIELDS if name not in ("freq", "dtstart", "until"))
RULE_ZONES: Final = ("dtstart_tz", "until_tz", "dtstart_zone", "until_zone")


def _encode_rrule(rule: rrule) -> dict[str, Any]:
    written = {name: getattr(rule, name) for name in ("freq", *RULE_PARTS)}
    written.update(_encode_rule_moment("dtstart", rule.dtstart))
    if rule.until is not None:
        written.update(_encode_rule_moment("until", rule.until))
    return written


def _encode_rule_moment(name: str, moment: datetime) -> dict[str, Any]:
    zone = moment.tzinfo
    if zone is not None and zones.zone_key(zone) is None and zones.fixed_offset(zone) is None:
        raise UnstorableError(
            f"the time zone {zone!r} has no IANA name; use zoneinfo.ZoneInfo", name
        )
    # A rule's smallest unit is a second.
    seconds = zones.to_timestamp(moment.replace(microsecond=0))
    return {name: seconds, f"{name}_tz": zones.get_utcoffset_minutes(moment)}


def _decode_rrule(tagged: Tagged) -> rrule:
    """Without a ``dtstart``, a rule starts in 1970 and cannot have a ``count``."""
    fields = {key: tagged[key] for key in RRULE_FIELDS if key in tagged}
    start, until = (_decode_rule_moment(tagged, key) for key in ("dtstart", "until"))
    if start is None:
        if tagged.get("count") is not None:
            raise DecodeError("dtstart", "is missing; a rule with a count needs a dtstart")
        zone = _read_zone("dtstart_zone", tagged.get("dtstart_zone"))
        start = datetime(1970, 1, 1, tzinfo=zone)
    fields.update(until=until, dtstart=start)
    fields["interval"] = 1 if fields.get("interval") is None else fields["interval"]
    for key in ("wkst", "byweekday"):
        fields[key] = _weekdays(key, fields.get(key))
    return rrule(**fields)


def _decode_rule_moment(tagged: Tagged, key: str) -> datetime | None:
    if tagged.get(key) is None:
        return None
    seconds = _read_number(tagged, key)
    minutes = 0 if tagged.get(f"{key}_tz") is None else _read_number(tagged, f"{key}_tz")
    try:
        moment = zones.from_timestamp(seconds, minutes)
    except (ValueError, OverflowError) as error:
        raise DecodeError(key, f"{seconds!r} is not a UNIX time: {error}") from error
    zone = tagged.get(f"{key}_zone")
    return moment if zone is None else moment.astimezone(_read_zone(f"{key}_zone", zone))


def _weekdays(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_weekdays(key, item) for item in value]
    if isinstance(value, dict):
        if value.get(TAG) != WEEKDAY.tag:
            raise DecodeError(key, f"{value!r} is not a weekday")
        return WEEKDAY.read(value)
    return value


def _encode_weekday(day: Any) -> dict[str, Any]:
    return {"wkday": day.weekday, "n": day.n} if day.n else {"wkday": day.weekday}


def _decode_weekday(tagged: Tagged) -> weekday:
    """With ``n``, it's the ``n``-th such weekday of a month or year."""
    day, nth = _read_whole("wkday", tagged["wkday"]), tagged.get("n")
    if not 0 <= day <= 6:
        raise DecodeError("wkday", f"{day} is not a weekday: use 0 (Monday) to 6 (Sunday)")
    if nth is not None and not _read_whole("n", nth):
        raise DecodeError("n", "0 is not valid; leave n out to run every week")
    return weekday(day, nth)


def _encode_rruleset(rules: rruleset) -> dict[str, Any]:
    written = [_encode_rule_of_set(*item) for item in enumerate(rules.rrules)]
    return {"rrules": written, "rdates": list(rules.rdates), "exdates": list(rules.exdates)}


def _encode_rule_of_set(index: int, rule: rrule) -> dict[str, Any]:
    try:
        # RedBeat 2 cannot read rule sets anyway, so their rules may have keys it doesn't know.
        return {**RRULE.write(rule), **zone_extension(rule)}
    except UnstorableError as error:
        error.path[:0] = ["rrules", index]
        raise


def _decode_rruleset(tagged: Tagged) -> rruleset:
    if "ical" in tagged:
        return _decode_ical(tagged)
    rules = [_rule(*item) for item in enumerate(_read_list(tagged, "rrules")[: MAX_RULES + 1])]
    rdates, exdates = (
        [_read_moment(key, moment) for moment in _read_list(tagged, key)]
        for key in ("rdates", "exdates")
    )
    return rruleset(rules, rdates, exdates)


def _decode_ical(tagged: Tagged) -> rruleset:
    _check_keys(tagged, ("ical",), ())
    if not isinstance(tagged["ical"], str):
        raise DecodeError("ical", f"{tagged['ical']!r:.60} is not a string")
    try:
        parsed = from_ical(tagged["ical"])
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError("ical", str(error)) from error
    return parsed if isinstance(parsed, rruleset) else rruleset([parsed])


def _rule(index: int, value: object) -> Any:
    """In a rule set, a dict needs no tag."""
    if isinstance(value, dict):
        try:
            return RRULE.read({TAG: RRULE.tag, **value})
        except DecodeError as error:
            field = f"rrules[{index}].{error.field}".rstrip(".")
            raise DecodeError(field, error.problem) from error
    if not isinstance(value, rrule):
        raise DecodeError(f"rrules[{index}]", f"{value!r:.60} is not an rrule")
    return value


RRULE: Final = StoredType(
    "rrule", _encode_rrule, _decode_rrule, ("freq",), (*RRULE_FIELDS[1:], *RULE_ZONES)
)
WEEKDAY: Final = StoredType("weekday", _encode_weekday, _decode_weekday, ("wkday",), ("n",))


# -- functions of beat_schedule --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LazyArgument:
    """A lazy argument from Redis, where only the name of its function is stored."""

    function: str


def function_of(lazy: BeatLazyFunc | LazyArgument) -> str:
    if isinstance(lazy, LazyArgument):
        return lazy.function
    function = lazy._func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def _encode_lazy(lazy: BeatLazyFunc | LazyArgument) -> dict[str, Any]:
    return {"function": function_of(lazy)}


def _decode_lazy(tagged: Tagged) -> LazyArgument:
    return LazyArgument(str(tagged["function"]))


LAZY: Final = StoredType("lazy", _encode_lazy, _decode_lazy, ("function",))


# -- dicts that look like tagged dicts -------------------------------------------------------------


def _encode_verbatim(items: dict[str, Any]) -> dict[str, Any]:
    return {"items": [[key, item] for key, item in items.items()]}


def _decode_verbatim(tagged: Tagged) -> dict[str, Any]:
    items = dict(tagged["items"])
    if not all(isinstance(key, str) for key in items):
        raise DecodeError("items", "has a key that is not a string")
    return items


# -- the table -------------------------------------------------------------------------------------

#: Stores a user's dict that looks like a tagged dict, as a list of pairs.
VERBATIM: Final = StoredType("verbatim", _encode_verbatim, _decode_verbatim, ("items",))

TYPES: Final[dict[type, StoredType]] = {
    datetime: DATETIME,
    schedule: StoredType("interval", _encode_interval, _decode_interval, ("every",), ("relative",)),
    crontab: StoredType("crontab", _encode_crontab, _decode_crontab, (), CRON_FIELDS),
    rrule: RRULE,
    rruleset: StoredType(
        "rruleset", _encode_rruleset, _decode_rruleset, (), ("rrules", "rdates", "exdates", "ical")
    ),
    solar: StoredType("solar", _encode_solar, _decode_solar, SOLAR_KEYS),
    clocked: StoredType("clocked", clocked.fields, _decode_clocked, ("clocked_time",)),
    weekday: WEEKDAY,
    base_weekday: WEEKDAY,
    BeatLazyFunc: LAZY,
    LazyArgument: LAZY,
}

BY_TAG: Final = {kind.tag: kind for kind in (*TYPES.values(), VERBATIM)}

SCHEDULES: Final = tuple(kind.tag for cls, kind in TYPES.items() if issubclass(cls, BaseSchedule))

#: Schedule classes that users registered.
CUSTOM: Final[dict[type, StoredType]] = {}


def type_of_class(cls: type) -> StoredType | None:
    """Only for exactly this class, not for a subclass."""
    return CUSTOM.get(cls) or TYPES.get(cls)


def type_of_tag(tag: object) -> StoredType | None:
    if not isinstance(tag, str):
        return None
    registered = (kind for kind in CUSTOM.values() if kind.tag == tag)
    return BY_TAG.get(tag) or next(registered, None)


def tags() -> tuple[str, ...]:
    """All valid values of ``__type__`` for a schedule."""
    return (*SCHEDULES, *(kind.tag for kind in CUSTOM.values()))


# -- schedule classes of users ---------------------------------------------------------------------

S = TypeVar("S", bound=BaseSchedule)


def register_schedule_type(
    tag: str,
    cls: type[S],
    dump: Callable[[S], Mapping[str, Any]],
    load: Callable[[dict[str, Any]], S],
) -> None:
    """Register the schedule class ``cls`` for entries, with ``tag`` as ``__type__`` in Redis.

    ``dump(schedule)`` returns a dict of the fields to store, with values like those of task
    arguments. ``load(fields)`` makes the schedule from the stored fields. Call this in each beat,
    and in each process that saves or loads entries.

    Raises ``TypeError`` if ``cls`` is not a schedule class, or if ``dump`` or ``load`` is not
    callable, and ``ValueError`` if the tag is invalid, or if the tag or the class is already
    registered.
    """
    _check_tag(tag)
    _check_class(cls)
    for name, function in (("dump", dump), ("load", load)):
        if not callable(function):
            raise TypeError(f"{name}: {function!r} is not callable; give a function")
    encode, decode = partial(_dump, tag, dump), partial(_load, tag, cls, load)
    CUSTOM[cls] = StoredType(tag, encode, decode, optional=None)


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str) or not tag:
        raise ValueError(f"tag: {tag!r} is not a string; use a tag such as 'business_days'")
    if type_of_tag(tag) is not None:
        raise ValueError(f"tag: {tag!r} is built in or already registered; use another tag")


def _check_class(cls: object) -> None:
    if not isinstance(cls, type) or not issubclass(cls, BaseSchedule):
        raise TypeError(f"cls: {cls!r} is not a subclass of celery.schedules.BaseSchedule")
    if cls in TYPES:
        raise ValueError(f"cls: {cls!r} is built in; register a subclass of it")
    if cls in CUSTOM:
        raise ValueError(f"cls: {cls!r} is already registered with the tag {CUSTOM[cls].tag!r}")


def _dump(tag: str, dump: Callable[[Any], Mapping[str, Any]], value: Any) -> Mapping[str, Any]:
    written: Any = dump(value)
    if not isinstance(written, Mapping) or TAG in written:
        raise UnstorableError(
            f"dump() of the schedule type {tag!r} returned {written!r:.60}; "
            f"it must return a dict without {TAG!r}"
        )
    return written


def _load(
    tag: str, cls: type[S], load: Callable[[dict[str, Any]], S], tagged: Tagged
) -> BaseSchedule:
    try:
        loaded: Any = load({key: value for key, value in tagged.items() if key != TAG})
    except Exception as error:  # user code may raise any error
        problem = f"load() of {tag!r} failed: {errors.described(error)}"
        raise UnknownTypeError("", problem) from error
    if not isinstance(loaded, cls):
        problem = f"load() of {tag!r} returned {loaded!r:.60}; it must return a {cls.__name__}"
        raise UnknownTypeError("", problem)
    return loaded
