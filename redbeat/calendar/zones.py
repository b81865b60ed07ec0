"""Time zones by name, and instants as numbers. Nothing here reads a clock."""

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
# To get from instants to wall times and back by arithmetic, several times faster than replace().
NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - it has no zone


def zone_named(name: str) -> tzinfo:
    """The zone with this IANA name; ``ValueError`` if there is none on this machine.

    ``UTC`` is known even where the machine has no zone data.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        if name == "UTC":
            return UTC
        raise ValueError(
            f"unknown time zone {name!r}; use an IANA name such as 'Europe/Paris', and install "
            "the 'tzdata' package where the system has no zone data"
        ) from error


def zone_key(zone: tzinfo | None) -> str | None:
    """The IANA name of a ``zoneinfo``, ``pytz`` or ``dateutil`` zone, ``None`` for any other."""
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if key is None and isinstance(zone, tzfile):
        return _key_of_file(str(getattr(zone, "_filename", "")))
    return key if isinstance(key, str) else None


@lru_cache(maxsize=256)
def _key_of_file(path: str) -> str | None:
    """The name of the zone in a zone file; ``None`` where the path tells none."""
    name = path.rpartition("zoneinfo/")[2]
    try:
        return ZoneInfo(name).key
    except (KeyError, ValueError, OSError):
        return None


def wall_zone(zone: tzinfo) -> tzinfo:
    """The same zone in a form that may be attached to a wall time.

    A ``pytz`` zone attached to a datetime directly means local mean time, so it is exchanged
    for the ``zoneinfo`` zone of the same name.
    """
    if isinstance(zone, (timezone, ZoneInfo)):
        return zone
    key = zone_key(zone)
    return zone if key is None else zone_named(key)


def fixed_offset(zone: tzinfo) -> timedelta | None:
    """The offset of a zone that has only one, ``None`` for a zone with a history."""
    if isinstance(zone, (timezone, ZoneInfo)):
        return zone.utcoffset(None)
    try:
        return zone.utcoffset(None)
    except Exception:
        # The tzinfo contract allows None as the argument, but not every class knows that.
        return None


def as_utc(moment: datetime) -> datetime:
    """The same instant in UTC; ``ValueError`` for a naive datetime, which is no instant."""
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; give an aware datetime")
    return moment.astimezone(UTC)


def to_timestamp(dt: datetime) -> int | float:
    """UNIX seconds of ``dt``; a naive one is UTC. An ``int`` when there are no microseconds."""
    aware = dt.replace(tzinfo=UTC) if dt.tzinfo is None else dt
    since = aware - EPOCH
    whole = since.days * 86400 + since.seconds
    return whole + since.microseconds / 1e6 if since.microseconds else whole


def from_timestamp(seconds: float, tz_minutes: float = 0) -> datetime:
    """The aware datetime of UNIX ``seconds`` at an offset of ``tz_minutes`` from UTC."""
    moment = EPOCH + timedelta(seconds=seconds)
    return moment.astimezone(timezone(timedelta(minutes=tz_minutes))) if tz_minutes else moment


def get_utcoffset_minutes(dt: datetime) -> int | float:
    """Minutes that ``dt`` is ahead of UTC: 0 for UTC and for naive, else a float."""
    offset = dt.utcoffset()
    return offset.total_seconds() / 60 if offset else 0
