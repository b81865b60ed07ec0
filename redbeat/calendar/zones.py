"""Looks up time zones, reads times, and converts between datetimes and UNIX seconds.

Times come as texts and as objects of other libraries. A text means the same on all versions of
Python: ``datetime.fromisoformat()`` accepts fewer texts on Python 3.10 than on 3.11, and
``strptime()`` reads ``T0915`` as 09:01:05. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from dateutil.parser import isoparse
from dateutil.tz import tzfile

from redbeat.printing import get_logger
from redbeat.settings import HOST_ZONE, OF_HOST

logger = get_logger("celery.beat")

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Instants and wall-clock times are converted by arithmetic, because replace() is slower.
NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - without time zone

#: An ISO 8601 date and, after ``T`` or a space, a time with or without a UTC offset. Week dates,
#: and dates without a day, are too easily a mistake.
ISO_TIME: Final = re.compile(
    r"\d{4}(-?)\d\d\1\d\d"
    r"(?:[T ]\d\d(?:(:?)\d\d(?:\2\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII | re.IGNORECASE,
)


def zone_named(name: str, stored: bool = False) -> tzinfo:
    """Return the time zone with an IANA name; raise ``ValueError`` if there's none.

    ``UTC`` works even without time zone data. A name that means another zone on another host is
    refused, but if RedBeat 2 may have ``stored`` it, only a warning is logged.
    """
    if HOST_ZONE.fullmatch(name) and not (stored and _warned(name)):
        raise ValueError(f"{name!r} {OF_HOST}")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, RecursionError) as error:
        if name == "UTC":
            return UTC
        raise ValueError(
            f"unknown time zone {name!r}; use an IANA name such as 'Europe/Paris', and install "
            "the 'tzdata' package if the system has no time zone data"
        ) from error


@lru_cache(maxsize=256)
def _warned(name: str) -> bool:
    logger.warning("A stored time is in the time zone %r, which %s", name, OF_HOST)
    return True


def zone_key(zone: tzinfo | None) -> str | None:
    """Return the IANA name of a ``zoneinfo``, ``pytz`` or ``dateutil`` time zone, or None.

    A name that means another zone on another host, such as ``localtime``, counts as none.
    """
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if key is None and isinstance(zone, tzfile):
        key = _key_of_file(str(getattr(zone, "_filename", "")))
    return key if isinstance(key, str) and not HOST_ZONE.fullmatch(key) else None


@lru_cache(maxsize=256)
def _key_of_file(path: str) -> str | None:
    name = path.rpartition("zoneinfo/")[2]
    try:
        return ZoneInfo(name).key
    except (KeyError, ValueError, OSError):
        return None


def wall_zone(zone: tzinfo) -> tzinfo:
    """Return a zone that works as the ``tzinfo`` of a datetime.

    A ``pytz`` zone doesn't: the datetime would be in local mean time. It's replaced by the
    ``zoneinfo`` zone of the same name.
    """
    if isinstance(zone, (timezone, ZoneInfo)):
        return zone
    key = zone_key(zone)
    return zone if key is None else zone_named(key)


def fixed_offset(zone: tzinfo) -> timedelta | None:
    """Return the UTC offset of a time zone if it never changes on any host, else None."""
    if isinstance(zone, ZoneInfo) and zone_key(zone) is None:
        return None
    try:
        return zone.utcoffset(None)
    except Exception:
        # The utcoffset() of a tzinfo should accept None, but that of some classes raises.
        return None


def as_utc(moment: datetime) -> datetime:
    """Return ``moment`` in UTC as a plain datetime; raise ``ValueError`` if it's naive."""
    if type(moment) is not datetime:
        moment = plain_datetime(moment)
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; give an aware datetime")
    return moment.astimezone(UTC)


def to_timestamp(dt: datetime) -> int | float:
    """Return UNIX seconds, as an ``int`` if ``dt`` has no microseconds.

    A naive ``dt`` is in UTC.
    """
    aware = plain_datetime(dt if dt.tzinfo else dt.replace(tzinfo=UTC))
    since = aware - EPOCH
    whole = since.days * 86400 + since.seconds
    return whole + since.microseconds / 1e6 if since.microseconds else whole


def from_timestamp(seconds: float, tz_minutes: float = 0) -> datetime:
    moment = EPOCH + timedelta(seconds=seconds)
    return moment.astimezone(timezone(timedelta(minutes=tz_minutes))) if tz_minutes else moment


def get_utcoffset_minutes(dt: datetime) -> int | float:
    offset = dt.utcoffset()
    return offset.total_seconds() / 60 if offset else 0


def time_from(value: object) -> datetime:
    """Return a time as a plain datetime, which is naive if the time has no UTC offset.

    ``value`` is ISO 8601 text, a datetime, or a date, which means its midnight. Raises
    ``ValueError`` for anything else.
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
    """Return a ``datetime`` of a subclass as a plain one of the same time.

    Subclasses such as those of pendulum and pandas change arithmetic: pendulum can't compare a time
    without a time zone with a plain one. Raises ``ValueError`` for what isn't a time, such as the
    ``NaT`` of pandas.
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
