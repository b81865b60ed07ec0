"""The history of an entry: last run, run count and nominal instant; and how edits change it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final, NamedTuple
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
from redbeat.schedules.rule import RuleSchedule, zone_extension

from .decide import aware, counts_from, same_instant
from .definition import decode_definition, decode_policy
from .policy import Policy
from .runs import Nominal

__all__ = (
    "History",
    "after_saved_anew",
    "decode_meta",
    "encode_meta",
    "encode_runtime",
    "merged_history",
    "timing_changed",
)

#: RedBeat 2 writes the zone of a run by name, which ``datetime.timezone.utc`` does not have.
NAMED_UTC = zone_named("UTC")


class History(NamedTuple):
    """Last run, run count, and nominal instant of the last run.

    ``scheduled_at`` is None if the entry never ran, if RedBeat 2 ran the entry, or if an
    application wrote ``last_run_at``.
    """

    last_run_at: datetime | None = None
    total_run_count: int = 0
    scheduled_at: datetime | None = None

    @classmethod
    def read(cls, meta: str, runtime: str = "") -> History:
        """Return the history in the texts of an entry; raises :exc:`DecodeError`."""
        last_run_at, count = _read_usual(meta) or _read_decoded(decode_meta(meta))
        return cls(last_run_at, count, _scheduled_at(runtime, last_run_at))

    @classmethod
    def of_meta(cls, meta: dict[str, Any], runtime: str) -> History:
        """Return the history in a decoded meta; raises :exc:`DecodeError`."""
        last_run_at, count = _read_decoded(_checked(meta))
        return cls(last_run_at, count, _scheduled_at(runtime, last_run_at))


#: The usual text of a meta. It is formatted and matched without JSON, which is faster for each run.
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


#: Parts of the JSON of a runtime: before its nominal instant, and before its actual one.
RUNTIME, RUNTIME_THEN = '{"scheduled_at":', ',"last_run_at":'


def decode_meta(text: str | bytes | None) -> dict[str, Any]:
    """Return the decoded meta of an entry, ``{"last_run_at": None}`` without one.

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
    """Return the stored form of a meta; without a count, as RedBeat 2 writes it in ``save()``."""
    at = last_run_at
    if at is not None:
        name = _quoted_zone(at)
        if name and active_encoder() is RedBeatJSONEncoder:
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
    """Return the quoted name of the zone of ``moment``, "" if only the encoder can write it."""
    zone = moment.tzinfo
    if zone is UTC:
        return '"UTC"'
    return quoted(zone.key) if type(zone) is ZoneInfo and zone.key and not moment.fold else ""


def encode_runtime(scheduled: Nominal, last_run_at: datetime) -> str:
    """Return the stored form of the nominal and the actual instant of a run, in UNIX seconds."""
    ran = aware(last_run_at).timestamp()
    return f"{RUNTIME}{scheduled.text}{RUNTIME_THEN}{ran:.6f}}}"


def _read_usual(meta: str) -> tuple[datetime, int] | None:
    """Return last run and run count of a meta with the usual text, None for any other text.

    About ten times faster than decoding the JSON.
    """
    match = _meta_pattern.fullmatch(meta)
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
    """Return the nominal and the actual instant in a runtime, in UNIX seconds."""
    scheduled, comma, ran = runtime[len(RUNTIME) : -1].partition(RUNTIME_THEN)
    if comma and runtime.startswith(RUNTIME):  # as encode_runtime writes it
        return float(scheduled), float(ran)
    fields = json.loads(runtime)
    return float(fields["scheduled_at"]), float(fields["last_run_at"])


def _scheduled_at(runtime: str, last_run_at: datetime | None) -> datetime | None:
    """Return the nominal instant of the last run, None if the runtime is of an earlier run."""
    if not runtime or last_run_at is None:
        return None
    try:
        scheduled, ran = _instants(runtime)
        same = abs(aware(last_run_at).timestamp() - ran) < 0.000_002
        return from_timestamp(scheduled) if same else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


#: Definition and policy, as stored.
Texts = tuple[str, str]

#: The fields of a policy that decide when, and how often, an entry runs.
FIELDS: Final = ("timezone", "start_time", "end_time", "max_runs")

#: A comparable form of schedule and window; the schedule, None if unreadable; and ``max_runs``.
Timing = tuple[Any, Any, "int | None"]


def merged_history(claimed_meta: str, stored_meta: str, recorded: History) -> History:
    """Return the history to write after a run during which an application wrote the meta.

    ``recorded`` is the history after the run. ``claimed_meta`` was stored when the run began,
    ``stored_meta`` is stored now. What the application changed counts as written after the run and
    stays. A stored meta that cannot be read is replaced.
    """
    if stored_meta == claimed_meta:
        return recorded
    try:
        stored = History.read(stored_meta)
    except DecodeError:
        return recorded
    try:
        claimed = History.read(claimed_meta)
    except DecodeError:
        return stored
    last_run_at, count, scheduled_at = recorded
    if not same_instant(stored.last_run_at, claimed.last_run_at):
        last_run_at, scheduled_at = stored.last_run_at, None
    if stored.total_run_count != claimed.total_run_count:
        count = stored.total_run_count
    return History(last_run_at, count, scheduled_at)


def timing_changed(
    old_definition: str,
    old_policy: str,
    new_definition: str,
    new_policy: str,
    foreign: Collection[str] = (),
) -> bool:
    """Return whether schedule, zone, window or limit differ between the old and the new texts.

    Other texts with the same values do not count. ``foreign`` are policy fields that the class of
    the entry uses for something else.
    """
    old, new = (old_definition, old_policy), (new_definition, new_policy)
    if old == new:
        return False
    old_timing, _, old_limit = _timing_of(*old, foreign)
    new_timing, _, new_limit = _timing_of(*new, foreign)
    return bool(old_timing != new_timing) or old_limit != new_limit


def after_saved_anew(
    history: History,
    old: Texts,
    new: Texts,
    now: datetime,
    rewritten: bool = False,
    foreign: Collection[str] = (),
) -> History:
    """Return the history of an entry after a save replaced the ``old`` texts by ``new`` ones.

    The history restarts if ``max_runs`` was used up and schedule, zone or window changed: the run
    count is 0, and the next run counts from ``now`` (UTC), or of a rule from its last run if that
    is later. With ``rewritten`` an application changed ``last_run_at``: the run count restarts at
    0, and the last run stays. In all other cases the same ``history`` object comes back, also for a
    higher limit, which leaves the additional runs. ``foreign`` is as in :func:`timing_changed`.
    """
    if (old == new and not rewritten) or '"max_runs"' not in "".join(new):
        return history
    new_timing, schedule, limit = _timing_of(*new, foreign)
    if limit is None:
        return history
    old_timing, _, old_limit = (
        (new_timing, None, limit) if old == new else _timing_of(*old, foreign)
    )
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


def _timing_of(definition: str, policy: str, foreign: Collection[str]) -> Timing:
    try:
        fields = decode_policy(policy, decode_definition(definition), foreign)
        names = [name for name in FIELDS if name not in foreign or f'"{name}"' in policy]
        rules = Policy.of({name: fields.get(name) for name in names})
        schedule = fields["schedule"]
        window = (rules.timezone, rules.start_time, rules.end_time)
        return (encode(schedule), zone_extension(schedule), window), schedule, rules.max_runs
    except Exception:  # a user's schedule type may raise anything
        return (_raw_timing(definition), _raw_timing(policy)), None, None


def _raw_timing(text: str) -> Any:
    """Return the undecoded fields about times in a text, or the text if it is not JSON."""
    try:
        fields = json.loads(text)
        return [fields.get(name) for name in ("schedule", *FIELDS)]
    except (ValueError, AttributeError, RecursionError):
        return text
