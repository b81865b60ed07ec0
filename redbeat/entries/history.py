"""The history of an entry: its last run and run count in ``meta``, and the lines of its runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timedelta
from json.encoder import encode_basestring_ascii as quoted
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from redbeat import decoder
from redbeat.calendar.zones import UTC, zone_key, zone_named
from redbeat.codec.stored import MAX_WHOLE, instant_in, number_in, seconds_in, whole_in
from redbeat.decoder import decode, encode
from redbeat.errors import DecodeError
from redbeat.schedules.rule import RuleSchedule, zone_extension
from redbeat.storage.rows import Row

from .decide import aware, counts_from
from .definition import decode_definition, decode_policy
from .policy import Policy

if TYPE_CHECKING:
    from .state import Pause

#: UTC as a zone with an IANA name, as RedBeat 2 stores it; ``datetime.timezone.utc`` has none.
NAMED_UTC = zone_named("UTC")


def new_identity() -> str:
    return token_urlsafe(6)


class History(NamedTuple):
    """The last run and the run count; ``scheduled_at`` is the nominal instant of the last run.

    It is None if the entry never ran, if RedBeat 2 ran it, or if an application wrote
    ``last_run_at``.
    """

    last_run_at: datetime | None = None
    total_run_count: int = 0
    scheduled_at: datetime | None = None

    @classmethod
    def read(cls, meta: str) -> History:
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
        checked = _checked(meta)
        return cls(checked["last_run_at"], checked.get("total_run_count", 0))


#: A definition and a policy, as JSON.
Texts = tuple[str, str]


class SavedState(NamedTuple):
    """The stored fields of an entry at its last load or save.

    Attributes:
        texts: the stored definition and policy, empty if the entry was not loaded.
        last_run_at, total_run_count: the history at the last load or save; a save writes the
            entry's history only if it differs.
        identity: a random id that tells the stored entry from deleted ones with the same name, ""
            if there is none.
        new_identity: the identity to store if the entry is new, the same in all attempts of a save.
        row: what the next save expects to be stored; absent if the entry was not loaded.
    """

    texts: Texts = ("", "")
    last_run_at: Any = None
    total_run_count: int = 0
    identity: str = ""
    pause: Pause | None = None
    new_identity: str = ""
    row: Row = Row("")


#: The JSON that RedBeat writes in ``meta``. Templates are faster than the JSON encoder and decoder.
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
    """Return a decoded ``meta`` field; ``last_run_at`` is None if the field is empty.

    Raises :exc:`DecodeError` that names an invalid field.
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
    """Without a run count, the JSON is what ``save()`` of RedBeat 2 writes."""
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
    """Return "" if the JSON encoder must write ``moment``."""
    zone = moment.tzinfo
    key = zone_key(zone) if type(zone) is ZoneInfo and not moment.fold else None
    return quoted(key) if key else ""


FIELDS: Final = ("timezone", "start_time", "end_time", "max_runs")

#: Schedule, time zone, start and end time as comparable data; the schedule object; ``max_runs``.
#: All are None if the stored entry is unreadable.
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

    ``old`` and ``new`` are the stored definition and policy before and after. The history restarts
    if the entry had reached ``max_runs`` and the save changed its schedule, time zone, start time
    or end time: the run count is 0, and the next run is computed from ``now`` (UTC), or for a rule
    from its last run if that is later.

    ``rewritten`` means that an application changed ``last_run_at``. If the entry had reached
    ``max_runs``, then only the run count restarts, and the last run stays.

    Otherwise the result is ``history`` itself. A higher ``max_runs`` alone does not restart the
    history, so only the additional runs take place. The entry class uses the policy field names in
    ``foreign`` for something else.
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

    Also None if the save changes the schedule. See :func:`history_after_save` for the arguments.
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


# -- the lines of runs -----------------------------------------------------------------------------

SENT, SKIPPED, TRIGGERED, PERHAPS_SENT = "sent", "skipped", "triggered", "perhaps_sent"

SENT_OUTCOMES: Final = (SENT, PERHAPS_SENT)

RunState = Literal["succeeded", "failed", "retried", "revoked", "ignored", "lost"]


class RunResult(NamedTuple):
    """The result of a run that was sent, as a worker reported it.

    Attributes:
        state: how the run ended.

            - ``succeeded``: the task returned.
            - ``failed``: the task raised an error, exceeded its time limit, lost its process, was
              rejected, or is unknown to the worker.
            - ``retried``: the task failed and will run again.
            - ``revoked``: the task was revoked, terminated, or expired before it started.
            - ``ignored``: the task raised Celery's ``Ignore``, or was replaced by another task.
            - ``lost``: no worker reported the end of the run within ``overlap_timeout``.

        ended_at: when the run ended (UTC), None for a lost run.
        seconds: how long the last attempt took, None if unknown.
        retries: how many times the task was retried.
        error: the class and message of the exception, None without one.
    """

    state: RunState
    ended_at: datetime | None = None
    seconds: float | None = None
    retries: int = 0
    error: str | None = None

    @property
    def started_at(self) -> datetime | None:
        """When the last attempt started (UTC), None if unknown."""
        if self.ended_at is None or self.seconds is None:
            return None
        return self.ended_at - timedelta(seconds=self.seconds)


LOST: Final = RunResult("lost")


OwnId = Callable[[datetime], str | None]


def no_id(_scheduled_at: datetime) -> None:
    """For callers that don't need the task ids that RedBeat computes."""


class Occurrence(NamedTuple):
    """One run of an entry, with its outcome.

    Attributes:
        scheduled_at: the nominal instant of the run (UTC); for a triggered run, the time of the
            request.
        dispatched_at: when a beat sent the run or gave it up (UTC).
        task_id: the task id of the message, None if none was sent.
        outcome: whether the run was sent, or why not.

            - ``sent``: the run was sent.
            - ``triggered``: a triggered run was sent, in addition to the schedule.
            - ``skipped``: the run was skipped because an earlier run was still running.
            - ``missed:<n>``: this run and the n - 1 runs before it were too late to catch up.
            - ``perhaps_sent``: the beat died or stalled during the publish, and the run became too
              late to send again.
            - ``failed:<error class>``: the first attempt failed. With ``at_most_once`` the run is
              lost.
            - ``failed:<error class>:<n>``: the last of ``n`` failed attempts.

        result: the result of the run, None if no worker has reported it.
        missed: how many earlier, missed runs this one replaces.
    """

    scheduled_at: datetime
    dispatched_at: datetime
    task_id: str | None
    outcome: str
    result: RunResult | None = None
    missed: int = 0

    @property
    def was_sent(self) -> bool:
        """Whether a worker should report the result of this run."""
        return self.outcome in (SENT, TRIGGERED)


def run_line(at: float, now: float, outcome: str = "", task_id: str = "", missed: int = 0) -> str:
    """Return the history line of a run; ``at`` and ``now`` are in UNIX seconds.

    The line is ``<at> <signed lateness in seconds> <outcome> <task id>``, with ``<outcome>:<n>`` if
    n earlier runs were missed. With outcome "", the run was sent and readers can compute its task
    id: the line has no id, and without missed runs no outcome either. Most lines have at most 30
    bytes.
    """
    scheduled = f"{at:.6f}".rstrip("0").rstrip(".")
    line = f"{scheduled} {now - at:+.6f}".rstrip("0").rstrip(".")
    if not (outcome or missed):
        return line
    text = f"{outcome or SENT}:{missed}" if missed else outcome
    return f"{line} {text} {''.join(task_id.splitlines()) if outcome else ''}".rstrip(" ")


def read_history(lines: Iterable[str], own_id: OwnId = no_id) -> list[Occurrence]:
    """Invalid lines are skipped. ``own_id`` computes a run's task id from its nominal instant."""
    return [run for line in lines for run in _read(line, own_id)]


def is_line(line: str) -> bool:
    """Whether a string is exactly one valid history line."""
    return len(line.splitlines()) == 1 and any(_read(line, no_id))


def with_ids(lines: Iterable[str], own_id: OwnId) -> list[str]:
    """Write out all task ids, so that readers don't need to compute them."""
    return [_with_id(line, own_id) for line in lines]


def _with_id(line: str, own_id: OwnId) -> str:
    for run in _read(line, own_id) if is_line(line) else ():
        if run.task_id and not line.endswith(run.task_id):
            return f"{line}{'' if run.missed else f' {SENT}'} {run.task_id}"
    return line


def _read(line: str, own_id: OwnId) -> Iterator[Occurrence]:
    scheduled, _, rest = line.partition(" ")
    late, _, tail = rest.partition(" ")
    start, seconds = seconds_in(scheduled), number_in(late)
    if start is None or seconds is None or late[0] not in "+-":
        return
    begun, ended = instant_in(start), instant_in(start + seconds)
    if begun is None or ended is None:
        return
    outcome, _, task_id = tail.partition(" ")
    kind, _, count = outcome.partition(":")
    missed = whole_in(count) if kind in (SENT, SKIPPED, PERHAPS_SENT) else None
    is_own = not tail or (kind == SENT and missed is not None and not task_id)
    found = own_id(begun) if is_own else task_id or None
    told = kind if missed is not None else outcome or SENT
    yield Occurrence(begun, ended, found, told, missed=missed or 0)
