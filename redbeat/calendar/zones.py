"""Look up time zones, and convert between datetimes and UNIX seconds.

No function of this module reads a clock.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from dateutil.tz import tzfile

__all__ = (
    "EPOCH",
    "NAIVE_EPOCH",
    "UTC",
    "as_utc",
    "fixed_offset",
    "from_timestamp",
    "get_utcoffset_minutes",
    "to_timestamp",
    "wall_zone",
    "zone_key",
    "zone_named",
)

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Conversions between instants and wall-clock times use arithmetic, because replace() is slower.
NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - without time zone


def zone_named(name: str) -> tzinfo:
    """Return the time zone with an IANA name; raise ``ValueError`` if the name is unknown.

    The name ``UTC`` also works on systems without time zone data.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, RecursionError) as error:
        if name == "UTC":
            return UTC
        raise ValueError(
            f"unknown time zone {name!r}; use an IANA name such as 'Europe/Paris', and install "
            "the 'tzdata' package if the system has no time zone data"
        ) from error


def zone_key(zone: tzinfo | None) -> str | None:
    """Return the IANA name of a ``zoneinfo``, ``pytz`` or ``dateutil`` time zone, or None."""
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if key is None and isinstance(zone, tzfile):
        return _key_of_file(str(getattr(zone, "_filename", "")))
    return key if isinstance(key, str) else None


@lru_cache(maxsize=256)
def _key_of_file(path: str) -> str | None:
    """Return the IANA name in the path of a time zone file, or None if the path has no name."""
    name = path.rpartition("zoneinfo/")[2]
    try:
        return ZoneInfo(name).key
    except (KeyError, ValueError, OSError):
        return None


def wall_zone(zone: tzinfo) -> tzinfo:
    """Return the time zone as an object that works as the ``tzinfo`` of a datetime.

    A ``pytz`` zone does not work as ``tzinfo``, because the datetime would be in local mean time.
    For a ``pytz`` zone, this function returns the ``zoneinfo`` zone with the same name.
    """
    if isinstance(zone, (timezone, ZoneInfo)):
        return zone
    key = zone_key(zone)
    return zone if key is None else zone_named(key)


def fixed_offset(zone: tzinfo) -> timedelta | None:
    """Return the UTC offset of a time zone if the offset never changes, otherwise None."""
    if isinstance(zone, (timezone, ZoneInfo)):
        return zone.utcoffset(None)
    try:
        return zone.utcoffset(None)
    except Exception:
        # utcoffset() of a tzinfo should accept None, but some classes raise an error.
        return None


def as_utc(moment: datetime) -> datetime:
    """Return ``moment`` in UTC; raise ``ValueError`` for a naive datetime."""
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; give an aware datetime")
    return moment.astimezone(UTC)


def to_timestamp(dt: datetime) -> int | float:
    """Return ``dt`` in UNIX seconds, as an ``int`` if ``dt`` has no microseconds.

    A naive datetime is interpreted as UTC.
    """
    aware = dt.replace(tzinfo=UTC) if dt.tzinfo is None else dt
    since = aware - EPOCH
    whole = since.days * 86400 + since.seconds
    return whole + since.microseconds / 1e6 if since.microseconds else whole


def from_timestamp(seconds: float, tz_minutes: float = 0) -> datetime:
    """Return the datetime for UNIX ``seconds``, with a UTC offset of ``tz_minutes`` minutes."""
    moment = EPOCH + timedelta(seconds=seconds)
    return moment.astimezone(timezone(timedelta(minutes=tz_minutes))) if tz_minutes else moment


def get_utcoffset_minutes(dt: datetime) -> int | float:
    """Return the UTC offset of ``dt`` in minutes, 0 for a naive datetime."""
    offset = dt.utcoffset()
    return offset.total_seconds() / 60 if offset else 0
