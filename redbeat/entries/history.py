"""Reads, writes and changes the run history of an entry, and keeps the saved state of an entry."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted
from secrets import token_urlsafe
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from redbeat import decoder
from redbeat.calendar.zones import UTC, zone_key, zone_named
from redbeat.codec.stored import MAX_WHOLE
from redbeat.decoder import decode, encode
from redbeat.errors import DecodeError
from redbeat.schedules.rule import RuleSchedule, zone_extension
from redbeat.storage.rows import Row

from .decide import aware, counts_from
from .definition import decode_definition, decode_policy
from .policy import Policy
from .state import Pause

#: UTC as a zone with an IANA name, which ``datetime.timezone.utc`` does not have.
#: RedBeat 2 stores a time zone as its IANA name.
NAMED_UTC = zone_named("UTC")


def new_identity() -> str:
    """Return a random identity for a new entry."""
    return token_urlsafe(6)


class History(NamedTuple):
    """The last run and the run count; ``scheduled_at`` is the nominal instant of the last run.

    ``scheduled_at`` is None if the entry never ran, if RedBeat 2 ran the entry, or if an
    application wrote ``last_run_at``.
    """

    last_run_at: datetime | None = None
    total_run_count: int = 0
    scheduled_at: datetime | None = None

    @classmethod
    def read(cls, meta: str) -> History:
        """Return the history in a field ``meta``; raises :exc:`DecodeError`."""
        usual = _meta_pattern.fullmatch(meta)  # ten times faster than the JSON decoder
        if usual is None or decoder.names.RedBeatJSONDecoder is not decoder.RedBeatJSONDecoder:
            return cls.of_meta(decode_meta(meta))
        year, month, day, hour, minute, second, micro, count = map(int, usual.groups("0"))
        try:
            return cls(datetime(year, month, day, hour, minute, second, micro, UTC), count)
        except (ValueError, OverflowError):
            return cls.of_meta(decode_meta(meta))

    @classmethod
    def of_meta(cls, meta: dict[str, Any]) -> History:
        """Return the history in a decoded ``meta`` field; raises :exc:`DecodeError`."""
        checked = _checked(meta)
        return cls(checked["last_run_at"], checked.get("total_run_count", 0))


#: The stored definition and the stored policy of an entry.
Texts = tuple[str, str]


class SavedState(NamedTuple):
    """The stored fields of an entry at its last load or save.

    Each load or save of the entry replaces its ``SavedState``.

    Attributes:
        texts: the stored definition and policy, two empty strings if the entry was not loaded.
        last_run_at, total_run_count: the history at the last load or save; a save writes the
            history of the entry only if the history has changed.
        identity: a random id that distinguishes the stored entry from deleted entries with the same
            name; "" if the entry has no identity.
        pause: the operator's pause of the entry, None if no operator paused the entry.
        new_identity: the identity to store if the entry is new, in all attempts of one save.
        row: what the next save expects to be stored; absent if the entry was not loaded.
    """

    texts: Texts = ("", "")
    last_run_at: Any = None
    total_run_count: int = 0
    identity: str = ""
    pause: Pause | None = None
    new_identity: str = ""
    row: Row = Row("")


#: Templates of the JSON that RedBeat writes in ``meta``.
#: The templates are faster than the JSON encoder and decoder.
LAST_RUN_TEXT = (
    '{"last_run_at": {"__type__": "datetime", "year": %d, "month": %d, "day": %d, "hour": %d, '
    '"minute": %d, "second": %d, "microsecond": %d, "timezone": %s}'
)
COUNT_TEXT = ', "total_run_count": %d'
UNCOUNTED_META, COUNTED_META = f"{LAST_RUN_TEXT}}}", f"{LAST_RUN_TEXT}{COUNT_TEXT}}}"
_read_moment, _read_count = (
    re.escape(text).replace("%d", r"(\d{1,18})").replace("%s", '"UTC"')
    for text in (LAST_RUN_TEXT, COUNT_TEXT)
)
_meta_pattern = re.compile(f"{_read_moment}(?:{_read_count})?}}", re.ASCII)


def decode_meta(text: str | bytes | None) -> dict[str, Any]:
    """Return a decoded ``meta`` field, with None as ``last_run_at`` if the field is empty.

    Raises :exc:`DecodeError` with the name of an invalid field.
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
    if count is None or (isinstance(count, float) and count.is_integer()):
        count = meta["total_run_count"] = math.trunc(count or 0)  # like RedBeat 2
    if isinstance(count, bool) or not isinstance(count, int):
        raise DecodeError("meta.total_run_count", f"must be an integer, not {count!r:.60}")
    if abs(count) > MAX_WHOLE:
        raise DecodeError("meta.total_run_count", f"must be at most {MAX_WHOLE}")
    return meta


def encode_meta(last_run_at: datetime | None, total_run_count: int | None = None) -> str:
    """Return a ``meta`` field as JSON.

    If ``total_run_count`` is None, the JSON contains no count, like the JSON that ``save()`` of
    RedBeat 2 writes.
    """
    at = last_run_at
    if at is not None:
        name = '"UTC"' if at.tzinfo is UTC else _quoted_zone(at)
        if name and decoder.names.RedBeatJSONEncoder is decoder.RedBeatJSONEncoder:
            parts = at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond
            if total_run_count is None:
                return UNCOUNTED_META % (*parts, name)
            return COUNTED_META % (*parts, name, total_run_count)
        if at.tzinfo is UTC:
            last_run_at = at.replace(tzinfo=NAMED_UTC)
    meta: dict[str, Any] = {"last_run_at": last_run_at}
    if total_run_count is not None:
        meta["total_run_count"] = total_run_count
    return encode(meta, "meta")


def _quoted_zone(moment: datetime) -> str:
    """Return the quoted time zone of ``moment``, "" if the JSON encoder must write ``moment``."""
    zone = moment.tzinfo
    key = zone_key(zone) if type(zone) is ZoneInfo and not moment.fold else None
    return quoted(key) if key else ""


#: The policy fields that decide when and how often an entry runs.
FIELDS: Final = ("timezone", "start_time", "end_time", "max_runs")

#: A tuple of three values: the schedule, time zone, start time and end time as comparable data;
#: the schedule object; and ``max_runs``.
#: All values in a ``Timing`` are None if the stored entry is unreadable.
Timing = tuple[Any, Any, "int | None"]


def history_after_save(
    history: History,
    old: Texts,
    new: Texts,
    now: datetime,
    rewritten: bool = False,
    foreign: Collection[str] = (),
) -> History:
    """Return the run history of an entry after a save, which may restart a finished entry.

    ``old`` and ``new`` are the stored definition and policy before and after the save. The history
    restarts if the entry had reached ``max_runs`` and the save changed its schedule, time zone,
    start time or end time. After a restart the run count is 0, and the next run is computed from
    ``now`` (UTC). For a rule whose last run is later than ``now``, the next run is computed from
    the last run.

    ``rewritten`` is true if an application changed ``last_run_at``. If ``rewritten`` is true and
    the entry had reached ``max_runs``, only the run count restarts at 0, and the last run does not
    change.

    If the history does not restart, the function returns ``history`` itself. A higher ``max_runs``
    alone does not restart the history, so only the additional runs take place. ``foreign`` are
    names of policy fields that the entry class uses for other purposes.
    """
    if (old == new and not rewritten) or '"max_runs"' not in "".join(new):
        return history
    new_timing, schedule, limit = _timing_of(*new, foreign)
    if limit is None:
        return history
    old_timing, _, old_limit = _timing_of(*old, foreign)
    count = history.total_run_count
    if count < limit and (old_limit is None or count < old_limit):
        return history
    if rewritten:
        return history._replace(total_run_count=0)
    if old_timing == new_timing:
        return history
    begins, last = counts_from(schedule, now), history.scheduled_at or history.last_run_at
    if last is not None and isinstance(schedule, RuleSchedule):
        begins = max(begins, aware(last))
    return History(begins, 0)


def times_before(old: Texts, new: Texts, foreign: Collection[str]) -> tuple[Any, ...] | None:
    """Return ``timezone`` and ``start_time`` before a save that changes them, else None.

    The arguments are those of :func:`history_after_save`. If the save also changes the schedule,
    the result is None.
    """
    texts = "".join((*old, *new))
    unchanged = old == new or not (old[0] and new[0])
    if unchanged or not ('"timezone"' in texts or '"start_time"' in texts):
        return None
    (was, *_), (is_now, *_) = _timing_of(*old, foreign), _timing_of(*new, foreign)
    if was is None or is_now is None or was[:2] != is_now[:2] or was[2][:2] == is_now[2][:2]:
        return None
    times: tuple[Any, ...] = was[2][:2]
    return times


def _timing_of(definition: str, policy: str, foreign: Collection[str]) -> Timing:
    try:
        fields = decode_policy(policy, decode_definition(definition), foreign)
        names = [name for name in FIELDS if name not in foreign or f'"{name}"' in policy]
        rules = Policy.of({name: fields.get(name) for name in names})
        schedule = fields["schedule"]
        window = (rules.timezone, rules.start_time, rules.end_time)
        return (encode(schedule), zone_extension(schedule), window), schedule, rules.max_runs
    except Exception:  # a user's schedule type may raise any error
        return None, None, None
