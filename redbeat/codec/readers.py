"""JSON to Python: a reader function for each tag. The tag is the value of ``__type__``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any, TypeGuard

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil.rrule import weekday

from redbeat.calendar.rules import frequency
from redbeat.calendar.zones import UTC, from_timestamp, zone_named
from redbeat.schedules.ical import from_ical
from redbeat.schedules.one_time import clocked
from redbeat.schedules.registry import RegisteredType, named
from redbeat.schedules.rule import RRULE_FIELDS, rrule
from redbeat.schedules.rule_set import MAX_RULES, rruleset

from .writers import CRON_FIELDS, MAX_EVERY, TAG, oversized

__all__ = (
    "DECODERS",
    "LoadError",
    "MalformedError",
    "MissingError",
    "Tagged",
    "check_keys",
    "read_datetime",
    "read_list",
    "read_moment",
    "read_number",
    "read_rrule",
    "read_rruleset",
    "read_weekday",
    "read_whole",
    "read_zone",
    "reader_of",
)

Tagged = Mapping[str, Any]

DATE = ("year", "month", "day")
CLOCK = ("hour", "minute", "second", "microsecond")


class MalformedError(ValueError):
    """A tagged dict does not fit its tag. ``key`` is the invalid key, "" if no single key is."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key
        self.problem = problem


class MissingError(MalformedError):
    """A tagged dict needs a package that is not installed."""


def check_keys(tagged: Tagged, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    """Raise ``MalformedError`` if a key is unknown or missing, or if a value is too long."""
    valid = (*required, *optional)
    for key, value in tagged.items():
        if key != TAG and key not in valid:
            raise MalformedError(
                "", f"unknown key {key!r:.60} in {tagged[TAG]}; valid: {', '.join(valid)}"
            )
        problem = oversized(key, value)
        if problem:
            raise MalformedError(key, problem)
    for key in required:
        if key not in tagged:
            raise MalformedError("", f"missing key {key!r} in {tagged[TAG]}")


def read_number(tagged: Tagged, key: str) -> float:
    """Return the number at ``key``; booleans are not accepted."""
    value = tagged.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedError(key, f"{value!r} is not a number")
    return value


def read_whole(key: str, value: object) -> int:
    """Return ``value``; raise ``MalformedError`` if it is not an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedError(key, f"{value!r} is not an integer")
    return value


def read_zone(key: str, value: object) -> tzinfo:
    """Return the time zone for an IANA name or for a UTC offset in seconds; UTC for None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _offset_zone(key, value)
    if value is not None and not isinstance(value, str):
        raise MalformedError(
            key, f"{value!r} is neither the name of a time zone nor a UTC offset in seconds"
        )
    try:
        return zone_named("UTC" if value is None else value)
    except ValueError as error:
        raise MalformedError(key, str(error)) from error


def _offset_zone(key: str, seconds: float) -> tzinfo:
    try:
        return timezone(timedelta(seconds=seconds)) if seconds else UTC
    except (ValueError, OverflowError) as error:
        raise MalformedError(
            key, f"{seconds!r} is not a UTC offset: it must be less than a day, in seconds"
        ) from error


def read_datetime(tagged: Tagged) -> datetime:
    """Return an aware datetime, in UTC if the dict has no time zone."""
    check_keys(tagged, DATE, (*CLOCK, "timezone", "fold"))
    fields = {key: read_whole(key, tagged.get(key, 0)) for key in (*DATE, *CLOCK, "fold")}
    zone = read_zone("timezone", tagged.get("timezone"))
    try:
        return datetime(**fields, tzinfo=zone)
    except (ValueError, OverflowError) as error:
        raise MalformedError("", f"is not a valid date: {error}") from error


def read_moment(key: str, value: object) -> datetime:
    """Return ``value`` as an aware datetime.

    ``value`` is a datetime, a tagged dict or an ISO 8601 string. Without a time zone, it is
    interpreted as UTC.
    """
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
    """Return the list at ``key``, an empty list if the key is missing."""
    value = tagged.get(key) or []
    if not isinstance(value, list):
        raise MalformedError(key, f"{value!r:.60} is not a list")
    return value


RULE_KEYS = ("dtstart_tz", "until_tz", "dtstart_zone", "until_zone")


def read_rrule(tagged: Tagged) -> rrule:
    """Return the rule. A rule without ``dtstart`` starts in 1970 and must not have a ``count``."""
    check_keys(tagged, ("freq",), (*RRULE_FIELDS[1:], *RULE_KEYS))
    fields = {key: tagged[key] for key in RRULE_FIELDS if key in tagged}
    fields.update(until=_rule_moment(tagged, "until"), dtstart=_rule_start(tagged))
    fields["interval"] = 1 if fields.get("interval") is None else fields["interval"]
    for key in ("wkst", "byweekday"):
        fields[key] = _weekdays(key, fields.get(key))
    try:
        return rrule(**{**fields, "freq": frequency(fields["freq"])})
    except (ValueError, TypeError, OverflowError) as error:
        raise _malformed(error, RRULE_FIELDS) from error


def _malformed(error: Exception, keys: tuple[str, ...]) -> MalformedError:
    """Convert an error that a constructor raised into a ``MalformedError``.

    If the message starts with one of ``keys`` and a colon, the error names that key as invalid.
    """
    key, _, problem = str(error).partition(": ")
    return MalformedError(key, problem) if key in keys else MalformedError("", str(error))


def _rule_start(tagged: Tagged) -> datetime:
    """Return ``dtstart``, by default in 1970, because "now" would change with each call."""
    start = _rule_moment(tagged, "dtstart")
    if start is not None:
        return start
    if tagged.get("count") is not None:
        raise MalformedError("dtstart", "is missing; a rule with a count needs a start")
    return datetime(1970, 1, 1, tzinfo=read_zone("dtstart_zone", tagged.get("dtstart_zone")))


def _rule_moment(tagged: Tagged, key: str) -> datetime | None:
    if tagged.get(key) is None:
        return None
    seconds = read_number(tagged, key)
    minutes = 0 if tagged.get(f"{key}_tz") is None else read_number(tagged, f"{key}_tz")
    try:
        moment = from_timestamp(seconds, minutes)
    except (ValueError, OverflowError) as error:
        raise MalformedError(key, f"{seconds!r} is not a UNIX time: {error}") from error
    zone = tagged.get(f"{key}_zone")
    return moment if zone is None else moment.astimezone(read_zone(f"{key}_zone", zone))


def _weekdays(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_weekdays(key, item) for item in value]
    if isinstance(value, dict):
        if value.get(TAG) != "weekday":
            raise MalformedError(key, f"{value!r} is not a weekday")
        return read_weekday(value)
    return value


def read_weekday(tagged: Tagged) -> weekday:
    """Return a weekday; with ``n``, it means the ``n``-th such weekday of a month or year."""
    check_keys(tagged, ("wkday",), ("n",))
    day, nth = read_whole("wkday", tagged["wkday"]), tagged.get("n")
    if not 0 <= day <= 6:
        raise MalformedError("wkday", f"{day} is not a weekday: use 0 (Monday) to 6")
    if nth is None:
        return weekday(day)
    if not read_whole("n", nth):
        raise MalformedError("n", "0 is not valid; leave n out for every week")
    return weekday(day, nth)


SET_KEYS = ("rrules", "rdates", "exdates")


def read_rruleset(tagged: Tagged) -> rruleset:
    """Return a set of rules and dates, either from lists or from RFC 5545 text in ``ical``."""
    check_keys(tagged, (), (*SET_KEYS, "ical"))
    try:
        if "ical" in tagged:
            return _read_ical(tagged)
        rules = [_rule(*item) for item in enumerate(read_list(tagged, "rrules")[: MAX_RULES + 1])]
        dates = {
            key: [read_moment(key, moment) for moment in read_list(tagged, key)]
            for key in SET_KEYS[1:]
        }
        return rruleset(rules, **dates)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, MalformedError):
            raise
        raise _malformed(error, SET_KEYS) from error


def _read_ical(tagged: Tagged) -> rruleset:
    check_keys(tagged, ("ical",), ())
    if not isinstance(tagged["ical"], str):
        raise MalformedError("ical", f"{tagged['ical']!r:.60} is not a string")
    try:
        parsed = from_ical(tagged["ical"])
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedError("ical", str(error)) from error
    return parsed if isinstance(parsed, rruleset) else rruleset([parsed])


def _rule(index: int, value: object) -> rrule:
    if isinstance(value, dict):
        try:
            return read_rrule({TAG: "rrule", **value})
        except MalformedError as error:
            path = f"rrules[{index}].{error.key}".rstrip(".")
            raise MalformedError(path, error.problem) from error
    if not isinstance(value, rrule):
        raise MalformedError(f"rrules[{index}]", f"{value!r:.60} is not an rrule")
    return value


class LoadError(MalformedError):
    """The ``load()`` function that is registered for a tag failed in this process."""


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


def _read_crontab(tagged: Tagged) -> crontab:
    check_keys(tagged, (), CRON_FIELDS)
    fields = {key: _cron_field(key, tagged[key]) for key in CRON_FIELDS if key in tagged}
    try:
        return crontab(**fields)
    except Exception as error:
        # Celery's parser raises ParseException and several built-in errors.
        raise MalformedError(_wrong_cron_field(fields), str(error).strip()) from error


def _cron_field(key: str, value: Any) -> Any:
    if value is None:
        return "*"
    if isinstance(value, str):
        # The documentation of RedBeat 2 has an example of a range in brackets.
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
    except (ImportError, ImproperlyConfigured) as error:  # ImportError before Celery 5.7
        raise MissingError(
            "", "needs the package 'ephem'; install it with: pip install 'celery-redbeat[solar]'"
        ) from error
    except (ValueError, TypeError) as error:
        raise MalformedError(_wrong_solar_part(tagged), str(error).strip()) from error


def _wrong_solar_part(tagged: Tagged) -> str:
    if not -90 <= tagged["lat"] <= 90:
        return "lat"
    return "event" if -180 <= tagged["lon"] <= 180 else "lon"


def _read_registered(registered: RegisteredType, tagged: Tagged) -> BaseSchedule:
    fields = {key: value for key, value in tagged.items() if key != TAG}
    try:
        loaded = registered.load(fields)
    except Exception as error:
        # The user wrote load(), so it may raise any error.
        raise LoadError("", f"load() of {registered.tag!r} failed: {error!r}") from error
    if not isinstance(loaded, registered.cls):
        raise LoadError(
            "",
            f"load() of {registered.tag!r} returned {loaded!r:.60}; it must return a "
            f"{registered.cls.__name__}",
        )
    return loaded


def reader_of(tag: object) -> Callable[[Tagged], Any] | None:
    """Return the function that reads a dict with ``tag``, None if the tag is unknown."""
    registered = named(tag)
    if registered is not None:
        return partial(_read_registered, registered)
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
