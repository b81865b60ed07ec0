"""The field ``state`` of an entry: what beats keep about it; and the lines of inbox and history.

The state is one small JSON object of ASCII characters. Lua never understands it: it only looks for
a mark between quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha1
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final, NamedTuple, get_args

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import MAX_TEXT, MAX_WHOLE, is_valid_text, seconds_in
from redbeat.entries.backfill import Backfill
from redbeat.entries.decide import LONGEST_ID, Trigger
from redbeat.entries.history import Change
from redbeat.entries.runs import RunState, nominal, run_line

SCHEDULED, TRIGGERED, BACKFILLED = "scheduled", "triggered", "backfilled"

#: The kinds of lines in an inbox, which inbox.lua knows. ``BAD`` is a line that cannot be read.
TRIGGER, BACKFILL, END, BAD = "trigger", "backfill", "end", "bad"

#: The digits of the digest of a ``meta``. A mark has another length.
DIGITS: Final = 10

#: The most characters of the error of a run that are kept: a class, and 200 of its message.
LONGEST_ERROR: Final = 300

#: The form of most states: marks, digest of ``meta``, identity, nominal time of the last run, the
#: run that is going on, and when the last success was.
_WORD = r'"([A-Za-z0-9_-]*)"'
_is_word = re.compile("[A-Za-z0-9_-]*", re.ASCII).fullmatch
_usual = re.compile(
    rf'\{{"m":\[{_WORD},{_WORD},{_WORD}\],"of":{_WORD}(?:,"id":{_WORD})?'
    r'(?:,"at":(\d{1,11}\.\d{1,6}))?'
    r'(?:,"running":\["([!#-\[\]-~]*)",(\d{1,11}\.\d{1,6})\])?'
    r'(?:,"results":\{"success":(\d{1,11}\.\d{1,6}),"since":(\d{1,11}\.\d{1,6})\})?\}',
    re.ASCII,
).fullmatch


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
        anchor: the instant from which the next run is computed, None for ``at``; UNIX seconds.
    """

    kind: str
    at: float
    id: str
    until: float
    trigger: str = ""
    missed: int = 0
    anchor: float | None = None


class Running(NamedTuple):
    """The run that may still be going on, and when it counts as ended (UNIX seconds)."""

    id: str
    until: float


class Failing(NamedTuple):
    """A run that could not be sent. Times are in UNIX seconds.

    Attributes:
        since: when the first attempt failed.
        attempts: how many attempts failed.
        reason: why the last attempt failed.
        due: when the run was due.
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
    """Return what to keep about a run after one more failed attempt to send it."""
    if before is None:
        return Failing(now, 1, reason, due, now)
    first = before.first or before.reason
    more = (before.attempts + 1, reason, due, now, "" if first == reason else first)
    return Failing(before.since, *more)


class Pause(NamedTuple):
    """An operator's pause of an entry: since when (UNIX seconds), why, and by whom."""

    since: float
    note: str = ""
    by: str = ""


class Quarantine(NamedTuple):
    """Since when (UNIX seconds) nobody can read the entry, and why."""

    since: float
    reason: str


class Ended(NamedTuple):
    """The end of a run as a worker reported it. ``at`` is in UNIX seconds.

    For the others, see :class:`redbeat.entries.runs.RunResult`; with ``state`` "" it is only known
    that the run ended.
    """

    id: str
    state: str
    at: float
    seconds: float | None = None
    retries: int = 0
    error: str = ""


class Results(NamedTuple):
    """What became of the runs, in short. Each run has a line in the field ``results``.

    Attributes:
        success: when the last successful run ended, UNIX seconds.
        failures: failed runs since the last success or since the entry was resumed.
        since: since when a success is expected, UNIX seconds.
        failed: the ids of the last ten failed runs since the last success, newest first.
    """

    success: float | None = None
    failures: int = 0
    since: float | None = None
    failed: tuple[str, ...] = ()


NO_RESULTS = Results()
Waiting = Trigger | Backfill

#: The parts that most states never have, without the results.
_NO_PARTS: Final = (None, None, None, (), (), None, None, None)


@dataclass(slots=True)
class State:
    """What beats keep about an entry.

    Attributes:
        marks: the marks of three changes.
        identity: distinguishes the entry from a deleted one of the same name; "" for static ones.
        meta: the digest of the ``meta`` that the state belongs to, "" without ``meta``.
        at: the nominal time of the last run or of the last run that was skipped, UNIX seconds.
        due: the nominal time of the first run, if the score was moved; UNIX seconds.
        hold: the run that a beat is publishing.
        running: the run that may still be going on.
        failing: why the run that is due cannot be sent.
        waiting: triggered runs and backfills, the oldest first.
        ids: the ids of the last ten triggers and backfills that were taken in.
        change: an earlier time zone or start time, by which runs may be owed.
        pause: the operator's pause.
        quarantine: why nobody can read the entry.
        results: what became of the runs.
        problem: why the stored text could not be read, "" if it could; not stored.
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
    change: Change | None = None
    pause: Pause | None = None
    quarantine: Quarantine | None = None
    results: Results = NO_RESULTS
    problem: str = ""

    @classmethod
    def read(cls, text: str | None, meta: str | None) -> State:
        """Return the state in a stored text, without what is void under another ``meta``.

        A text that cannot be read gives a fresh state with a ``problem``.
        """
        of = digest_of_meta(meta)
        if not text:
            return cls(meta=of)
        match = _usual(text)
        if match is not None:
            last, hold, run, stored, identity, at, task_id, until, success, since = match.groups()
            return cls(
                Marks(last, hold, run),
                identity or "",
                of,
                float(at) if at and stored == of else None,
                running=Running(task_id, float(until)) if until else None,
                results=Results(float(success), 0, float(since)) if success else NO_RESULTS,
            )
        try:
            state = _decoded(_record_in(text))
        except Exception as error:
            return cls(meta=of, problem=f"cannot be read: {error!r:.200}")
        if state.meta != of:
            state.meta, state.at, state.due, state.hold = of, None, None, None
            state.failing, state.change = None, None
        return state

    def text(self) -> str:
        """Return the text to store: a small JSON object of ASCII characters, without nulls."""
        last, hold, run = self.marks
        text = f'{{"m":["{last}","{hold}","{run}"],"of":"{self.meta}"'
        if self.identity:
            text += f',"id":{quoted(self.identity)}'
        if self.at is not None:
            text += f',"at":{self.at!r}'
        if self.running is not None:
            text += f',"running":[{quoted(self.running.id)},{self.running.until!r}]'
        parts = (self.due, self.hold, self.failing, self.waiting, self.ids)
        if (*parts, self.change, self.pause, self.quarantine) == _NO_PARTS:
            success, failures, since, failed = self.results
            if self.results == NO_RESULTS:
                return text + "}"
            if success is not None and since is not None and not (failures or failed):
                return f'{text},"results":{{"success":{success!r},"since":{since!r}}}}}'
        rare = {
            name: write(value)
            for name, write in _WRITERS.items()
            if (value := getattr(self, name)) not in (None, (), NO_RESULTS)
        }
        return f"{text},{_compact(rare)[1:]}"

    def copy(self) -> State:
        """Return a copy, which may be changed."""
        return State(
            self.marks,
            self.identity,
            self.meta,
            self.at,
            self.due,
            self.hold,
            self.running,
            self.failing,
            self.waiting,
            self.ids,
            self.change,
            self.pause,
            self.quarantine,
            self.results,
        )

    def sign(self, mark: str, *, hold: bool = False, run: bool = False) -> None:
        """Put in the mark of the change that stores this state, in place.

        Set ``hold`` if the change makes the hold, ``run`` if it records a run. A change that leaves
        no hold and records no run keeps the mark of the hold, by which its owner finds it.
        """
        marks = self.marks
        if run:
            self.marks = Marks(mark, "", mark)
        else:
            self.marks = Marks(mark, mark if hold else marks.hold, marks.run)


class Said(NamedTuple):
    """One line of an inbox: what others say to a beat about an entry.

    Attributes:
        kind: ``trigger``, ``backfill``, ``end`` or ``bad``.
        id: the id of the trigger or backfill, or the task id of the run that ended.
        at: when the run was requested or ended; UNIX seconds.
        state, seconds, retries, error: the end; see :class:`redbeat.entries.runs.RunResult`.
        backfill: the requested backfill.
        line: the line as it stands in the inbox.
    """

    kind: str
    id: str = ""
    at: float = 0.0
    state: str = ""
    seconds: float | None = None
    retries: int = 0
    error: str = ""
    backfill: Backfill | None = None
    line: str = ""


def read_inbox(text: str | None) -> list[Said]:
    """Return the lines of an inbox; a line that cannot be read has the kind ``bad``."""
    return [_said(line) for line in _lines(text)]


def _lines(text: str | None) -> list[str]:
    """Return the elements of a JSON array with one element a line, each as JSON."""
    if text is None or not text.startswith("[") or not text.endswith("]") or text == "[]":
        return []
    return text[1:-1].split(",\n")


def _said(line: str) -> Said:
    try:
        kind, *words = json.loads(line)
        return _READERS[kind](*words)._replace(line=line)
    except Exception as error:
        return Said(BAD, error=f"{error!r:.200}", line=line)


def _trigger(run_id: Any, at: Any) -> Said:
    return Said(TRIGGER, _id(run_id), _seconds(at))


def _backfill(token: Any, again: Any = 0) -> Said:
    backfill = Backfill.read(token)
    return Said(
        BACKFILL, backfill.id, backfill.ready_at or 0.0, retries=int(again), backfill=backfill
    )


def _end(*words: Any) -> Said:
    end = _ended(*words)
    return Said(END, end.id, end.at, end.state, end.seconds, end.retries, end.error)


_READERS: Final[dict[str, Callable[..., Said]]] = {
    TRIGGER: _trigger,
    BACKFILL: _backfill,
    END: _end,
}


def trigger_line(run_id: str, at: float | None = None) -> str:
    """Return the inbox line that requests one run; without ``at``, the script adds the time."""
    return _line(TRIGGER, run_id) if at is None else _line(TRIGGER, run_id, at)


def backfill_line(backfill: Backfill, again: bool = False) -> str:
    """Return the inbox line that requests a backfill; ``again`` drops the finished backfills."""
    return _line(BACKFILL, backfill.token, *([1] if again else []))


def end_line(
    task_id: str, state: str, seconds: float | None = None, retries: int = 0, error: str = ""
) -> str:
    """Return the inbox line that reports the end of a run; see :class:`Ended`.

    ``Store.say`` adds when the run ended, by the time of Redis.
    """
    return _line(END, *_end_words(Ended(task_id, state, 0.0, seconds, retries, error))[:-1])


def result_line(end: Ended) -> str:
    """Return the line in the field ``results`` with the end of a run."""
    return _compact(_end_words(end))


def result_start(task_id: str) -> str:
    """Return how the line of a run in the field ``results`` begins."""
    return f"[{quoted(task_id)},"


def read_results(text: str | None) -> dict[str, Ended]:
    """Return the ends in a stored field ``results`` by task id; skips what cannot be read."""
    ends = dict[str, Ended]()
    for line in _lines(text):
        with suppress(ValueError, TypeError, RecursionError):
            end = _ended(*json.loads(line))
            ends.setdefault(end.id, end)
    return ends


def _line(*words: Any) -> str:
    return _compact(words)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def digest_of_meta(meta: str | None) -> str:
    """Return the digest by which a state names its ``meta``, "" without ``meta``."""
    if meta is None:
        return ""
    return sha1(meta.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:DIGITS]


def history_line(at: float, now: float, outcome: str, task_id: str = "") -> str:
    """Return the history line of a run; see :func:`redbeat.entries.runs.run_line`.

    ``at`` and ``now`` are in UNIX seconds; ``outcome`` is "" for a run that was sent with its own
    task id.
    """
    return quoted(run_line(nominal(from_timestamp(at)), now, outcome, task_id))


def history_texts(text: str | None) -> list[str]:
    """Return the lines of a stored history, which ``redbeat.entries.runs.read_history`` reads.

    Lines that cannot be read are left out.
    """
    texts = []
    for line in _lines(text):
        with suppress(ValueError, RecursionError):
            texts.append(_text(json.loads(line)))
    return texts


# -- the rare parts of a state ---------------------------------------------------------------------


def _record_in(text: str) -> dict[str, Any]:
    """Return the JSON object in ``text``; raises ValueError."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"it is not an object: {text:.60}")
    return fields


def _hold_words(hold: Hold) -> list[Any]:
    return [word for word in hold if word is not None]


def _change_words(change: Change) -> list[Any]:
    words = [change.timezone, change.at.timestamp()]
    return words if change.start_time is None else [*words, change.start_time.timestamp()]


def _waiting_words(waiting: tuple[Waiting, ...]) -> list[Any]:
    return [
        one.token if isinstance(one, Backfill) else [one.id, one.at.timestamp()] for one in waiting
    ]


def _result_words(results: Results) -> dict[str, Any]:
    return dict(_result_parts(results))


def _result_parts(results: Results) -> Iterator[tuple[str, Any]]:
    if results.success is not None:
        yield "success", results.success
    if results.failures:
        yield "failures", results.failures
    if results.since is not None:
        yield "since", results.since
    if results.failed:
        yield "failed", list(results.failed)


def _end_words(end: Ended) -> list[Any]:
    """Return an end as JSON; a duration of -1 is unknown. The time is last: Redis adds it."""
    seconds = -1 if end.seconds is None else end.seconds
    return [end.id, end.state, seconds, end.retries, end.error[:LONGEST_ERROR], end.at]


def _decoded(fields: dict[str, Any]) -> State:
    state = State(Marks(*map(_mark, fields.get("m", ()))))
    state.meta, state.identity = _mark(fields.get("of", "")), _text(fields.get("id", ""))
    for name, read in _READ.items():
        if name in fields:
            setattr(state, name, read(fields[name]))
    return state


def _mark(value: Any) -> str:
    if _is_word(_text(value)) is None:
        raise ValueError(f"{value!r:.60} is not a mark")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is not a text")
    return value


def _id(value: Any) -> str:
    if not 0 < len(_text(value)) <= LONGEST_ID or not is_valid_text(value):
        raise ValueError(f"{value!r:.60} is not an id")
    return str(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_WHOLE:
        raise ValueError(f"{value!r:.60} is not a whole number")
    return value


def _seconds(value: Any) -> float:
    seconds = None if isinstance(value, str) else seconds_in(value)
    if seconds is None:
        raise ValueError(f"{value!r:.60} is not an instant")
    return seconds


def _instant(value: Any) -> datetime:
    return from_timestamp(_seconds(value))


def _hold(parts: list[Any]) -> Hold:
    kind, at, task_id, until, trigger, missed, *anchor = parts
    if kind not in (SCHEDULED, TRIGGERED, BACKFILLED):
        raise ValueError(f"{kind!r:.60} is no kind of run")
    words = (_text(task_id), _seconds(until), _text(trigger), _whole(missed))
    return Hold(kind, _seconds(at), *words, _seconds(anchor[0]) if anchor else None)


def _running(parts: list[Any]) -> Running:
    task_id, until = parts
    return Running(_text(task_id), _seconds(until))


def _failing(parts: list[Any]) -> Failing:
    since, attempts, reason, due, last, first = parts
    more = (_text(reason), _seconds(due), _seconds(last), _text(first))
    return Failing(_seconds(since), _whole(attempts), *more)


def _waiting(parts: list[Any]) -> tuple[Waiting, ...]:
    return tuple(
        Backfill.read(one) if isinstance(one, str) else Trigger(_id(one[0]), _instant(one[1]))
        for one in parts
    )


def _ids(parts: list[Any]) -> tuple[str, ...]:
    return tuple(map(_text, parts))


def _change(parts: list[Any]) -> Change:
    zone, at, *start = parts
    return Change(_text(zone), _instant(start[0]) if start else None, _instant(at))


def _pause(parts: list[Any]) -> Pause:
    since, note, by = parts
    return Pause(_seconds(since), _text(note), _text(by))


def _quarantine(parts: list[Any]) -> Quarantine:
    since, reason = parts
    return Quarantine(_seconds(since), _text(reason))


def _ended(task_id: Any, state: Any, seconds: Any, retries: Any, error: Any, at: Any) -> Ended:
    took = None if seconds == -1 else _seconds(seconds)
    if state not in ("", *get_args(RunState)):
        raise ValueError(f"{state!r:.60} is no state of a run")
    return Ended(_text(task_id), state, _seconds(at), took, _whole(retries), _text(error))


def _results(parts: dict[str, Any]) -> Results:
    success, since = parts.get("success"), parts.get("since")
    return Results(
        None if success is None else _seconds(success),
        _whole(parts.get("failures", 0)),
        None if since is None else _seconds(since),
        _ids(parts.get("failed", ())),
    )


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "at": _seconds,
    "due": _seconds,
    "hold": _hold,
    "running": _running,
    "failing": _failing,
    "waiting": _waiting,
    "ids": _ids,
    "change": _change,
    "pause": _pause,
    "quarantine": _quarantine,
    "results": _results,
}

_WRITERS: Final[dict[str, Callable[[Any], Any]]] = {
    "due": float,
    "hold": _hold_words,
    "failing": list,
    "waiting": _waiting_words,
    "ids": list,
    "change": _change_words,
    "pause": list,
    "quarantine": list,
    "results": _result_words,
}
