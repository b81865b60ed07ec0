"""The run history of an entry as it is stored: ``meta``, shared with RedBeat 2, and ``runtime``."""

from __future__ import annotations

import json
import re
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from redbeat.calendar.zones import UTC, from_timestamp, zone_named
from redbeat.decoder import (
    RedBeatJSONDecoder,
    RedBeatJSONEncoder,
    active_decoder,
    active_encoder,
    decode,
    encode,
)
from redbeat.errors import DecodeError

from .nominal import Nominal
from .occurrences import aware

__all__ = ("History", "decode_meta", "encode_meta", "encode_runtime")

#: RedBeat 2 writes the zone of a run by its name, so not ``datetime.timezone.utc``.
NAMED_UTC = zone_named("UTC")


class History(NamedTuple):
    """When an entry ran last, how often it ran, and the nominal instant of that last run.

    ``scheduled_at`` is None when it is not known: never run, run by RedBeat 2, or an application
    wrote ``last_run_at`` itself.
    """

    last_run_at: datetime | None = None
    total_run_count: int = 0
    scheduled_at: datetime | None = None

    @classmethod
    def read(cls, meta: str, runtime: str = "") -> History:
        """Return the history in the texts of an entry; raises :exc:`DecodeError`."""
        last_run_at, count = _read_written(meta) or _read_decoded(decode_meta(meta))
        return cls(last_run_at, count, _scheduled_at(runtime, last_run_at))

    @classmethod
    def of_meta(cls, meta: dict[str, Any], runtime: str) -> History:
        """Return the history in a decoded meta; raises :exc:`DecodeError`."""
        last_run_at, count = _read_decoded(_checked(meta))
        return cls(last_run_at, count, _scheduled_at(runtime, last_run_at))


#: Meta as this package writes it: read and written for every run, so without JSON.
WRITTEN = (
    '{"last_run_at": {"__type__": "datetime", "year": %d, "month": %d, "day": %d, "hour": %d, '
    '"minute": %d, "second": %d, "microsecond": %d, "timezone": %s}'
)
COUNTED = ', "total_run_count": %d'
UNCOUNTED_META, COUNTED_META = f"{WRITTEN}}}", f"{WRITTEN}{COUNTED}}}"
_read_moment, _read_count = (
    re.escape(text).replace("%d", r"(\d{1,18})").replace("%s", '"UTC"')
    for text in (WRITTEN, COUNTED)
)
_written = re.compile(f"{_read_moment}(?:{_read_count})?}}", re.ASCII)


#: The JSON of a runtime: before its nominal instant, and before its actual one.
RUNTIME, RUNTIME_THEN = '{"scheduled_at":', ',"last_run_at":'


def decode_meta(text: str | bytes | None) -> dict[str, Any]:
    """Return the meta of an entry; ``{"last_run_at": None}`` when there is none.

    Raises :exc:`DecodeError` that names the field.
    """
    if not text:
        return {"last_run_at": None}
    return _checked(decode(text, "meta"))


def _checked(meta: Any) -> dict[str, Any]:
    if not isinstance(meta, dict):
        raise DecodeError("meta", f"must be an object, not {meta!r:.60}")
    meta.setdefault("last_run_at", None)
    last_run_at, count = meta["last_run_at"], meta.get("total_run_count", 0)
    if last_run_at is not None and not isinstance(last_run_at, datetime):
        raise DecodeError(
            "meta.last_run_at", f"must be a datetime or null, not {last_run_at!r:.120}"
        )
    if isinstance(count, bool) or not isinstance(count, int):
        raise DecodeError("meta.total_run_count", f"must be an integer, not {count!r:.60}")
    return meta


def encode_meta(last_run_at: datetime | None, total_run_count: int | None = None) -> str:
    """Return meta as it is stored; without a count as RedBeat 2 writes it on ``save()``."""
    at = last_run_at
    if at is not None:
        name = _quoted_zone(at)
        if name and active_encoder() is RedBeatJSONEncoder:
            when = at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond
            if total_run_count is None:
                return UNCOUNTED_META % (*when, name)
            return COUNTED_META % (*when, name, total_run_count)
        if at.tzinfo is UTC:
            last_run_at = at.replace(tzinfo=NAMED_UTC)
    meta: dict[str, Any] = {"last_run_at": last_run_at}
    if total_run_count is not None:
        meta["total_run_count"] = total_run_count
    return encode(meta, "meta")


def _quoted_zone(moment: datetime) -> str:
    """Return the name of a zone as stored, in quotes, where that is all there is to say."""
    zone = moment.tzinfo
    if zone is UTC:
        return '"UTC"'
    return quoted(zone.key) if type(zone) is ZoneInfo and zone.key and not moment.fold else ""


def encode_runtime(scheduled: Nominal, last_run_at: datetime) -> str:
    """Return the nominal and the actual instant of a run, UNIX seconds, as stored."""
    ran = aware(last_run_at).timestamp()
    return f"{RUNTIME}{scheduled.text}{RUNTIME_THEN}{ran:.6f}}}"


def _read_written(meta: str) -> tuple[datetime, int] | None:
    """Return last run and run count in a meta of the usual shape, None for any other.

    About ten times faster than JSON.
    """
    match = _written.fullmatch(meta)
    if match is None or active_decoder() is not RedBeatJSONDecoder:
        return None
    year, month, day, hour, minute, second, micro, count = map(int, match.groups("0"))
    try:
        return datetime(year, month, day, hour, minute, second, micro, UTC), count
    except ValueError:
        return None


def _read_decoded(meta: dict[str, Any]) -> tuple[datetime | None, int]:
    return meta["last_run_at"], meta.get("total_run_count", 0)


def _instants(runtime: str) -> tuple[float, float]:
    """Return the nominal and the actual instant in a runtime, UNIX seconds."""
    scheduled, comma, ran = runtime[len(RUNTIME) : -1].partition(RUNTIME_THEN)
    if comma and runtime.startswith(RUNTIME):  # as encode_runtime writes it
        return float(scheduled), float(ran)
    found = json.loads(runtime)
    return float(found["scheduled_at"]), float(found["last_run_at"])


def _scheduled_at(runtime: str, last_run_at: datetime | None) -> datetime | None:
    """Return the nominal instant of the last run, unless meta tells of another run since."""
    if not runtime or last_run_at is None:
        return None
    try:
        scheduled, ran = _instants(runtime)
        same = abs(aware(last_run_at).timestamp() - ran) < 0.000_002
        return from_timestamp(scheduled) if same else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
