"""The history of an entry: last run, count and nominal instant, and what an edit makes of them."""

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
    "armed_again",
    "decode_meta",
    "encode_meta",
    "encode_runtime",
    "merged_history",
)

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


#: Definition and policy, as stored.
Texts = tuple[str, str]

#: The fields of a policy that say when, and how often, an entry runs.
FIELDS: Final = ("timezone", "start_time", "end_time", "max_runs")

#: What decides when an entry runs, in a form that can be compared; its schedule, None where the
#: texts cannot be read; its ``max_runs``.
Terms = tuple[Any, Any, "int | None"]


def merged_history(claimed_meta: str, stored_meta: str, recorded: History) -> History:
    """Return the history to write after a run during which an application wrote another one.

    ``recorded`` is the history after the run, as it is without the application. ``claimed_meta`` is
    what was stored when the run began and ``stored_meta`` what is stored now, which counts as
    written after the run: what it changed stands. A stored text that cannot be read is replaced.
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


def armed_again(
    old_definition: str,
    old_policy: str,
    new_definition: str,
    new_policy: str,
    foreign: Collection[str] = (),
) -> bool:
    """Return whether an entry with the new texts has another schedule, zone, window or limit.

    How the same value is written does not matter. ``foreign`` are fields of a policy that the class
    of the entry uses for something else.
    """
    old, new = (old_definition, old_policy), (new_definition, new_policy)
    if old == new:
        return False
    old_timing, _, old_limit = _terms(*old, foreign)
    new_timing, _, new_limit = _terms(*new, foreign)
    return bool(old_timing != new_timing) or old_limit != new_limit


def after_saved_anew(
    history: History,
    old: Texts,
    new: Texts,
    now: datetime,
    rewritten: bool = False,
    foreign: Collection[str] = (),
) -> History:
    """Return the history with which an entry of the ``old`` texts goes on that is saved as ``new``.

    Where its ``max_runs`` are used up and its schedule, zone or window is another one, it counts
    its runs from 0 and, like an entry made ``now``, UTC, from the present; a rule from its last run
    on if that is later. With ``rewritten`` an application wrote ``last_run_at``: it counts its runs
    from 0 too, and goes on from there. Otherwise ``history`` is returned as it is, also for a
    changed limit: what that leaves is run.
    """
    if (old == new and not rewritten) or '"max_runs"' not in "".join(new):
        return history
    new_timing, schedule, limit = _terms(*new, foreign)
    if limit is None:
        return history
    old_timing, _, old_limit = (new_timing, None, limit) if old == new else _terms(*old, foreign)
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


def _terms(definition: str, policy: str, foreign: Collection[str]) -> Terms:
    try:
        fields = decode_policy(policy, decode_definition(definition), foreign)
        ours = [name for name in FIELDS if name not in foreign or f'"{name}"' in policy]
        given = Policy.of({name: fields.get(name) for name in ours})
        schedule = fields["schedule"]
        window = (given.timezone, given.start_time, given.end_time)
        return (encode(schedule), zone_extension(schedule), window), schedule, given.max_runs
    except Exception:  # also what a schedule type of the user's own raises
        return (_plain(definition), _plain(policy)), None, None


def _plain(text: str) -> Any:
    """Return what of a text that cannot be read decides about times, the text if it is no JSON."""
    try:
        found = json.loads(text)
        return [found.get(name) for name in ("schedule", *FIELDS)]
    except (ValueError, AttributeError, RecursionError):
        return text
