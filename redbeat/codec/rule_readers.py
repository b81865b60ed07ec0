"""JSON to Python: rules, sets of rules, and the weekdays in them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dateutil.rrule import weekday

from redbeat.calendar.rules import frequency
from redbeat.calendar.zones import from_timestamp
from redbeat.ical import from_ical
from redbeat.rulesets import rruleset
from redbeat.schedules import RRULE_FIELDS, rrule

from .value_readers import (
    MalformedError,
    Tagged,
    check_keys,
    read_list,
    read_moment,
    read_number,
    read_whole,
    read_zone,
)
from .writers import TAG

__all__ = ("read_rrule", "read_rruleset", "read_weekday")

RULE_KEYS = ("dtstart_tz", "until_tz", "dtstart_zone", "until_zone")


def read_rrule(tagged: Tagged) -> rrule:
    """A rule; without ``dtstart`` and ``count`` it starts in 1970."""
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
    """What is wrong, of an error whose text begins with one of the keys or is about all of it."""
    key, _, problem = str(error).partition(": ")
    return MalformedError(key, problem) if key in keys else MalformedError("", str(error))


def _rule_start(tagged: Tagged) -> datetime:
    """``dtstart``, or a fixed one: a start of "now" would be another rule at every reading."""
    start = _rule_moment(tagged, "dtstart")
    if start is not None:
        return start
    if tagged.get("count") is not None:
        raise MalformedError("dtstart", "is missing; a rule with a count has to start somewhere")
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
    """A weekday: each one, or the ``n``-th of a month or year."""
    check_keys(tagged, ("wkday",), ("n",))
    day, nth = read_whole("wkday", tagged["wkday"]), tagged.get("n")
    if not 0 <= day <= 6:
        raise MalformedError("wkday", f"{day} is not a weekday: 0 (Monday) to 6")
    if nth is None:
        return weekday(day)
    if not read_whole("n", nth):
        raise MalformedError("n", "0 is no place in a month; leave it out for every week")
    return weekday(day, nth)


SET_KEYS = ("rrules", "rdates", "exdates")


def read_rruleset(tagged: Tagged) -> rruleset:
    """A set of rules and dates, from its parts or from the text of a calendar."""
    check_keys(tagged, (), (*SET_KEYS, "ical"))
    try:
        if "ical" in tagged:
            return _read_ical(tagged)
        rules = [_rule(index, rule) for index, rule in enumerate(read_list(tagged, "rrules"))]
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
        raise MalformedError("ical", f"{tagged['ical']!r:.60} is not a text")
    try:
        found = from_ical(tagged["ical"])
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedError("ical", str(error)) from error
    return found if isinstance(found, rruleset) else rruleset([found])


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
