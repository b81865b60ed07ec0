"""The field ``state``: what beats keep about an entry; and the lines of inbox and results.

The state is one small JSON object of ASCII characters. Lua never parses it: it only looks for a
mark between quotes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha1
from json.encoder import encode_basestring_ascii as quoted
from operator import attrgetter
from typing import Any, Final, NamedTuple, get_args

from redbeat.calendar.zones import from_timestamp
from redbeat.codec import stored
from redbeat.entries.backfill import MAX_SPANS, MIN_RATE, Backfill, Span
from redbeat.entries.decide import Trigger, is_id
from redbeat.entries.history import RunState
from redbeat.storage import words
from redbeat.storage.rows import Row

SCHEDULED, TRIGGERED, BACKFILLED = "scheduled", "triggered", "backfilled"

#: Digits of the digest of a ``meta``. A mark has another length.
DIGITS: Final = 10

#: Characters of a pause's note, and of its operator's name.
LONGEST_NOTE: Final = 2000

#: Characters that are kept of a run's error: a class, and 200 of its message.
LONGEST_ERROR: Final = 300

_is_word = re.compile("[A-Za-z0-9_-]*", re.ASCII).fullmatch


class Marks(NamedTuple):
    """The marks of the last change, of the change that made the hold, and of the last record."""

    last: str = ""
    hold: str = ""
    run: str = ""


NO_MARKS = Marks()


class Hold(NamedTuple):
    """A decided run that a beat is publishing. Its mark is ``marks.hold``.

    Attributes:
        kind: ``scheduled``, ``triggered`` or ``backfilled``.
        at: the nominal time, UNIX seconds.
        id: the task id.
        until: when the next beat sends the run, UNIX seconds.
        trigger: the id of the trigger or backfill, "" for a scheduled run.
        missed: how many earlier occurrences the run replaces.
        anchor: the instant from which the next run is computed, UNIX seconds; None for ``at``.
    """

    kind: str
    at: float
    id: str
    until: float
    trigger: str = ""
    missed: int = 0
    anchor: float | None = None


class Pause(NamedTuple):
    """An operator's pause of an entry: since when (UNIX seconds), why, and by whom."""

    since: float
    note: str = ""
    by: str = ""

    @classmethod
    def of_entry(cls, entry: Any) -> Pause | None:
        return None if entry is None or entry.enabled else entry.saved_state.pause

    @property
    def begin(self) -> str:
        """When the pause began, ISO 8601 in UTC."""
        return from_timestamp(self.since).isoformat(timespec="seconds")


class Running(NamedTuple):
    """The run that may still be going on. Times are in UNIX seconds.

    Attributes:
        id: the task id.
        until: when it counts as ended if no worker reports the end before.
        since: when it was sent, 0 if an earlier build noted it.
        skipped: how many runs were skipped because of it.
    """

    id: str
    until: float
    since: float = 0.0
    skipped: int = 0

    @property
    def task(self) -> str:
        since = from_timestamp(self.since).isoformat(" ", "seconds") if self.since else "earlier"
        return f"task {self.id}, sent {since}"


class Failing(NamedTuple):
    """A run that could not be sent. Times are in UNIX seconds.

    Attributes:
        since: when the first attempt failed.
        reason: why the last attempt failed.
        last: when the last attempt failed.
        first: why the first attempt failed, "" if for the same reason as the last.
    """

    since: float
    attempts: int
    reason: str
    due: float = 0.0
    last: float = 0.0
    first: str = ""


def failed_again(before: Failing | None, now: float, reason: str, due: float) -> Failing:
    if before is None:
        return Failing(now, 1, reason, due, now)
    first = before.first or before.reason
    more = (before.attempts + 1, reason, due, now, "" if first == reason else first)
    return Failing(before.since, *more)


class Quarantine(NamedTuple):
    """Since when (UNIX seconds) the entry is unreadable, and why."""

    since: float
    reason: str


class Ended(NamedTuple):
    """The end of a run as a worker reported it. ``at`` is in UNIX seconds.

    For the other fields, see :class:`redbeat.entries.history.RunResult`. ``state`` "" only says
    that the run ended. The time comes last because Redis adds it.
    """

    id: str
    state: Any
    seconds: float | None = None
    retries: int = 0
    error: str = ""
    at: float = 0.0


class Results(NamedTuple):
    """What became of the runs, in short. The field ``results`` has a line for each run.

    Attributes:
        success: when the last successful run ended, UNIX seconds.
        failures: failed runs since the last success or since the entry was resumed.
        since: since when a success is expected, UNIX seconds.
        failed: the ids of the last ten failed runs since the last success, newest first.
        last: how the run ended whose end was reported last, "" if none was.
    """

    success: float | None = None
    failures: int = 0
    since: float | None = None
    failed: tuple[str, ...] = ()
    last: Any = ""


NO_RESULTS = Results()
Waiting = Trigger | Backfill


#: These values are not stored.
_NONE: Final = (None, (), NO_RESULTS)


@dataclass(slots=True)
class State:
    """What beats keep about an entry.

    Attributes:
        marks: the marks of three changes.
        identity: tells the entry from a deleted one of the same name; "" for static ones.
        meta: the digest of the ``meta`` that the state belongs to, "" without ``meta``.
        at: the nominal time of the last run or skipped run, UNIX seconds.
        due: the nominal time of the first run, if the score was moved; UNIX seconds.
        failing: why the run that is due cannot be sent.
        waiting: triggered runs and backfills, the oldest first.
        ids: the ids of the last ten triggers that left, and of messages with ids that users chose.
        problem: why the stored JSON could not be read, "" if it could; not stored.
    """

    marks: Marks = NO_MARKS
    identity: str = ""
    meta: str = ""
    at: float | None = None
    due: float | None = None
    hold: Hold | None = None
    running: Running | None = None
    failing: Failing | None = None
    waiting: tuple[Waiting, ...] = ()
    ids: tuple[str, ...] = ()
    pause: Pause | None = None
    quarantine: Quarantine | None = None
    results: Results = NO_RESULTS
    problem: str = ""

    @classmethod
    def of(cls, row: Row) -> State:
        """Read an entry's state; without one, the identity is computed from the stored text.

        So the next beat arrives at the same identity if Redis loses its last writes.
        """
        state = cls.read(row.state, row.meta)
        if row.state is None:
            # Not by a function: it is done for each first run.
            data = f"{row.definition}\n{row.meta or ''}".encode("utf-8", "surrogateescape")
            state.identity = sha1(data, usedforsecurity=False).hexdigest()[:8]
        return state

    @classmethod
    def read(cls, text: str | None, meta: str | None) -> State:
        """Read a stored state, without what another ``meta`` makes void.

        JSON that cannot be read gives a fresh state with a ``problem``.
        """
        of = digest_of_meta(meta)
        if not text:
            return cls(meta=of)
        try:
            state = _decoded(text)
        except Exception as error:
            return cls(meta=of, problem=f"cannot be read: {error!r:.200}")
        if state.meta != of:
            state.meta, state.at, state.due, state.hold = of, None, None, None
            state.failing = None
        return state

    def text(self) -> str:
        """The JSON to store, in ASCII characters."""
        last, hold, run = self.marks
        # After most runs, one mark says it all.
        marks = (last,) if (hold, run) == ("", last) else self.marks
        fields: dict[str, Any] = {"m": marks, "of": self.meta}
        if self.identity:
            fields["id"] = self.identity
        for name in _READ:
            part = getattr(self, name)
            if part not in _NONE:
                fields[name] = part
        return "".join(_chunks(fields, False))

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return tuple(one for one in self.waiting if isinstance(one, Trigger))

    @property
    def backfills(self) -> tuple[Backfill, ...]:
        return tuple(one for one in self.waiting if isinstance(one, Backfill))

    def copy(self) -> State:
        return State(*_parts_of(self))  # four times as fast as replace()

    def sign(self, mark: str, *, hold: bool = False, run: bool = False) -> None:
        """Put in the mark of the change that stores this state.

        Set ``hold`` if the change makes the hold, ``run`` if it records a run. Any other change
        keeps the mark of the hold, by which its owner finds it.
        """
        kept = mark if hold else self.marks.hold
        self.marks = Marks(mark, "", mark) if run else Marks(mark, kept, self.marks.run)


_parts_of = attrgetter(*State.__slots__)


class Said(NamedTuple):
    """One line of an inbox: what others tell a beat about an entry.

    Attributes:
        trigger, end: the run that the line requests, or the end of a run that it reports.
        run: the nominal time of the ended run, ISO 8601, as its message had it; "" if it had none,
            and None from a worker of an earlier build.
        error: why the line cannot be read, if it does neither.
    """

    line: str
    trigger: Trigger | None = None
    end: Ended | None = None
    run: str | None = None
    error: str = ""


def read_inbox(text: str | None) -> list[Said]:
    return [_said(line) for line in stored.lines_in(text)]


def _said(line: str) -> Said:
    try:
        kind, *parts = json.loads(line)
        if kind == words.END:
            run = _text(parts.pop(-2)) if len(parts) > len(Ended._fields) else None
            return Said(line, end=_ended(parts), run=run)
        if kind != words.TRIGGER:
            raise ValueError(f"{kind!r:.60} is no kind of line")
        return Said(line, _trigger(parts))
    except Exception as error:
        return Said(line, error=f"{error!r:.200}")


def trigger_line(run_id: str, at: float | None = None) -> str:
    """Without ``at``, the script adds the time."""
    return _compact([words.TRIGGER, run_id] if at is None else [words.TRIGGER, run_id, at])


def end_line(
    task_id: str,
    state: str,
    seconds: float | None = None,
    retries: int = 0,
    error: str = "",
    run: str = "",
) -> str:
    """Report the end of a run; see :class:`Ended` and :class:`Said`.

    ``Store.say`` adds when the run ended, by Redis's clock.
    """
    return _compact([words.END, task_id, state, seconds, retries, error[:LONGEST_ERROR], run])


def result_line(end: Ended) -> str:
    return _compact(end)


def result_start(task_id: str) -> str:
    return f"[{quoted(task_id)},"


def read_results(text: str | None) -> dict[str, Ended]:
    """The ends in a field ``results``, by task id; unreadable ones are skipped."""
    ends = dict[str, Ended]()
    for line in stored.lines_in(text):
        with suppress(ValueError, TypeError, RecursionError):
            end = _ended(json.loads(line))
            ends.setdefault(end.id, end)
    return ends


#: Times become UNIX seconds.
_chunks: Final = stored.json_chunks(
    json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=datetime.timestamp)
)


def _compact(value: Any) -> str:
    return "".join(_chunks(value, False))


def digest_of_meta(meta: str | None) -> str:
    if meta is None:
        return ""
    return sha1(meta.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:DIGITS]


def runtime_of(state: State) -> str:
    """The nominal time of the last run, as files have it; "" without one."""
    return "" if state.at is None else _compact({"scheduled_at": state.at})


def with_runtime(state: State, runtime: str) -> State:
    """Take over what :func:`runtime_of` returned; anything unreadable is left out."""
    at = stored.record_in(runtime).get("scheduled_at")
    return replace(state, at=None if isinstance(at, str) else stored.seconds_in(at))


# -- the parts of a state --------------------------------------------------------------------------


def _decoded(text: str) -> State:
    if len(text) > stored.MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"it is not an object: {text:.60}")
    marks, identity, of = _marks_in(fields), fields.get("id", ""), fields.get("of", "")
    if not _is_word("".join((*marks, of))):
        raise ValueError(f"{(*marks, of)!r:.60} are not marks")
    state = State(marks, identity if _is_word(identity) else _text(identity), of)
    for name, value in fields.items():
        if name in _READ:
            setattr(state, name, _READ[name](value))
    return state


def _marks_in(fields: dict[str, Any]) -> Marks:
    """One mark alone is that of a run that was sent and recorded at once."""
    marks = fields.get("m", ())
    return Marks(marks[0], "", marks[0]) if len(marks) == 1 else Marks(*marks)


def _checked(kind: str, is_valid: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(f"{value!r:.60} is not {kind}")
        return value

    return checked


_id = _checked("an id", lambda value: isinstance(value, str) and is_id(value))
_whole = _checked(
    "a whole number", lambda value: type(value) is int and 0 <= value <= stored.MAX_WHOLE
)
_rate = _checked(
    "a rate", lambda value: type(value) in (int, float) and MIN_RATE <= value < math.inf
)


def _one_of(*known: str) -> Callable[[Any], str]:
    return _checked(f"one of {', '.join(known)}", lambda value: value in known)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is not a text")
    return stored.valid_text(value)


def _error(value: Any) -> str:
    return _text(value)[:LONGEST_ERROR]


def _seconds(value: Any) -> float:
    seconds = None if isinstance(value, str) else stored.seconds_in(value)
    if seconds is None:
        raise ValueError(f"{value!r:.60} is not an instant")
    return seconds


def _instant(value: Any) -> datetime:
    return from_timestamp(_seconds(value))


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _parts(kind: Callable[..., Any], *reads: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a reader of an array whose last elements may be missing."""
    return lambda parts: kind(*[read(part) for read, part in zip(reads, parts, strict=False)])


def _waiting(parts: list[Any]) -> tuple[Waiting, ...]:
    return tuple(_trigger(one) if len(one) == 2 else _backfill(one) for one in parts)


def _backfill(parts: list[Any]) -> Backfill:
    backfill: Backfill = _fields_of_backfill(parts)
    if len(backfill.left) > MAX_SPANS or backfill.finished == bool(backfill.left):
        raise ValueError(f"{parts!r:.60} is not a backfill")
    return backfill


def _spans(parts: list[Any]) -> tuple[Span, ...]:
    return tuple((_instant(since), _instant(until)) for since, until in parts)


def _trigger(parts: list[Any]) -> Trigger:
    run_id, at = parts
    return Trigger(_id(run_id), _instant(at))


def _ids(parts: list[Any]) -> tuple[str, ...]:
    return tuple(map(_text, parts))


_run_state: Final = _one_of("", *get_args(RunState))

_ended: Final = _parts(Ended, *(_text, _run_state, _optional(_seconds), _whole, _error, _seconds))

_fields_of_backfill: Final = _parts(
    Backfill, *(_id, _instant, _instant, _rate, _whole, _whole, _spans, _optional(_seconds))
)

#: Readers of the parts that are stored by name, the usual ones first.
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "at": _seconds,
    "running": _parts(Running, _text, _seconds, _seconds, _whole),
    "results": _parts(
        Results, *(_optional(_seconds), _whole, _optional(_seconds), _ids, _run_state)
    ),
    "due": _seconds,
    "hold": _parts(
        Hold,
        *(_one_of(SCHEDULED, TRIGGERED, BACKFILLED), _seconds, _text, _seconds, _text, _whole),
        _optional(_seconds),
    ),
    "failing": _parts(Failing, _seconds, _whole, _text, _seconds, _seconds, _text),
    "ids": _ids,
    "pause": _parts(Pause, _seconds, _text, _text),
    "quarantine": _parts(Quarantine, _seconds, _text),
    "waiting": _waiting,
}
