"""Reads the times that people and programs write, as texts and as objects of other libraries.

Each text has one meaning, on all versions of Python: ``datetime.fromisoformat()`` accepts other
texts on Python 3.10 than on 3.11, and ``strptime()`` reads ``T0915`` as 09:01:05.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timezone
from typing import Final
from zoneinfo import ZoneInfo

from dateutil.parser import isoparse

#: Matches a calendar date of ISO 8601 and, after ``T`` or a space, a time with or without a UTC
#: offset. Week dates and dates without a day are too easily a mistake.
ISO_TIME: Final = re.compile(
    r"\d{4}(-?)\d\d\1\d\d"
    r"(?:[T ]\d\d(?:(:?)\d\d(?:\2\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII | re.IGNORECASE,
)


def time_from(value: object) -> datetime:
    """Return a time as a plain datetime, which is naive if the time has no UTC offset.

    The time is a text in ISO 8601, a datetime, or a date, which means its midnight. Raises
    ``ValueError`` for other values.
    """
    if isinstance(value, datetime):
        return plain_datetime(value)
    text = value.isoformat() if isinstance(value, date) else value
    example = "such as 2026-12-31T09:00"
    if not isinstance(text, str) or not ISO_TIME.fullmatch(text):
        raise ValueError(f"{value!r:.60} is not a time in ISO 8601, {example}")
    try:
        moment = isoparse(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r:.60} is not a time, {example}: {error}") from error
    offset = moment.utcoffset()
    return moment if offset is None else moment.replace(tzinfo=timezone(offset))


def plain_datetime(moment: datetime) -> datetime:
    """Return an object of a subclass of ``datetime`` as a plain datetime of the same time.

    Subclasses such as those of pendulum and pandas change arithmetic: pendulum cannot compare a
    time without time zone with a plain one. Raises ``ValueError`` for an object that is no time,
    such as the ``NaT`` of pandas.
    """
    if type(moment) is datetime:
        return moment
    zone = moment.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:
        zone = ZoneInfo(zone.key)
    day = moment.year, moment.month, moment.day
    clock = moment.hour, moment.minute, moment.second, moment.microsecond
    try:
        return datetime(*day, *clock, tzinfo=zone, fold=moment.fold)
    except TypeError as error:
        raise ValueError(f"{moment!r} is not a time") from error
