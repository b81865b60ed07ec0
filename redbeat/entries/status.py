"""What an entry shows of itself: its state, its runs and its backfills, from what is stored.

An entry is overdue without a successful run within its ``expect_within`` seconds, even if no run
was ever sent. The sorted set ``expected`` holds the entries that may become overdue. Their score
is a time before which they cannot be.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import instant_in, record_in, string_in, texts_in
from redbeat.config import ensure_conf
from redbeat.entries import verdicts
from redbeat.entries.definition import decode_policy
from redbeat.entries.history import LOST, Occurrence, RunResult, read_history
from redbeat.entries.policy import Policy
from redbeat.entries.state import Pause, Running, State, read_inbox, read_results
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.printing import encodable, plural
from redbeat.storage.rows import Row
from redbeat.storage.store import store_of
from redbeat.storage.words import SILENCE

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry


#: Characters of a shown reason of a quarantine.
LONGEST_REASON: Final = 500

EntryState = Literal[
    "scheduled", "running", "failing", "paused", "finished", "quarantined", "not scheduled"
]

STATES: Final[tuple[EntryState, ...]] = get_args(EntryState)
SCHEDULED, RUNNING, FAILING, PAUSED, FINISHED, QUARANTINED, NOT_SCHEDULED = STATES


LastResult = Literal["succeeded", "failed", "revoked", "ignored", "running"]

LAST_RESULTS: Final[tuple[LastResult, ...]] = get_args(LastResult)


class Overdue(NamedTuple):
    """An entry without a successful run within its ``expect_within`` seconds.

    Attributes:
        name: the name of the entry.
        last_success: when the last successful run ended (UTC), None if no success is known.
        seconds: the time since the latest of these: the last success, the first save of
            ``expect_within``, the last resume, and ``start_time``.
        expect_within: the entry's policy field, in seconds.
    """

    name: str
    last_success: datetime | None
    seconds: float
    expect_within: float


@dataclass(frozen=True, slots=True)
class Failing:
    """The failed attempts to send the due run of an entry. Times are in UTC.

    Attributes:
        attempts: how many attempts failed.
        first_at: when the first one failed.
        first_error: why the first one failed.
        last_at: when the last one failed.
        last_error: why the last one failed.
        next_attempt_at: when a beat tries again; None during an attempt.
    """

    attempts: int
    first_at: datetime
    first_error: str
    last_at: datetime
    last_error: str
    next_attempt_at: datetime | None = None

    @property
    def reason(self) -> str:
        """The number of failed attempts and the last error, as text.

        Not all were attempts to send: a schedule may raise an error, or an entry end a beat.
        """
        return f"{plural(self.attempts, 'attempt')} failed: {self.last_error}"


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """The state of an entry, and the reason for it.

    Attributes:
        state: what the entry is doing.

            - ``scheduled``: the entry waits for its next run, or is due and waits for a beat.
            - ``running``: a beat is sending a run, or a worker is executing a run that must not
              overlap other runs of the entry.
            - ``failing``: the due run could not be sent, and a beat will try again.
            - ``paused``: the entry is not enabled.
            - ``finished``: no run is left.
            - ``quarantined``: the entry is unreadable.
            - ``not scheduled``: the entry is stored, but a program took it out of the sorted set.

        reason: why the entry is in this state; while it is running, the task and when it was sent.
            None for a scheduled entry that is not late, or if the reason is unknown.
        due_at: the time of the next run in UTC; None if the entry is never due.
        note: the note of the operator who paused the entry.
        failing: the failed attempts to send the due run, None without any.
        last_success: when the last successful run ended (UTC), None if no success is known, for
            example because the workers do not call ``redbeat.worker.enable(app)``.
        consecutive_failures: how many runs have failed since the last success, or since the entry
            was resumed.
        overdue: how long the entry has been without a success, if longer than ``expect_within``.
        last_result: how the run ended whose end a worker reported last: a ``state`` of
            :class:`RunResult`, but neither ``retried`` nor ``lost``. Without a report it is
            ``running`` while a run goes on that others must not overlap, otherwise None.
        quarantined_since: since when a beat cannot read the entry (UTC), None if it can or if no
            beat has tried.
    """

    state: EntryState
    reason: str | None = None
    due_at: datetime | None = None
    note: str | None = None
    last_success: datetime | None = None
    consecutive_failures: int = 0
    failing: Failing | None = None
    overdue: Overdue | None = None
    last_result: LastResult | None = None
    quarantined_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A readable or unreadable entry in a list of entries.

    If the entry is unreadable, ``entry`` is None and ``problem`` says why. If its due run could not
    be sent, ``failing`` has the failed attempts, and ``problem`` is the last error. ``due_at`` is
    in UTC, None if the entry is never due. :class:`EntryStatus` explains ``state``, ``last_result``
    and ``quarantined_since``. ``name`` is printable; ``key`` is the exact Redis key, in which
    surrogates stand for bytes that are not UTF-8.
    """

    name: str
    entry: RedBeatSchedulerEntry | None
    problem: str | None
    due_at: datetime | None
    state: EntryState
    static: bool
    failing: Failing | None = None
    key: str = ""
    overdue: Overdue | None = None
    last_result: LastResult | None = None
    quarantined_since: datetime | None = None


def how_to_schedule(name: str) -> str:
    return f"celery redbeat resume {shlex.quote(name)} schedules it"


def why_finished(entry: RedBeatSchedulerEntry) -> str:
    policy = entry.effective_policy
    most, end = policy.max_runs, policy.end_time
    if most is not None and entry.total_run_count >= most:
        return f"max_runs is reached ({most:,})"
    if end is not None:
        return f"no run is left before end_time, {end.isoformat()}"
    return "the schedule has no later run"


def why_running(running: Running, due: float | None) -> str:
    if running.skipped:
        runs = plural(running.skipped, "run is", "runs are")
        return f"{runs} skipped, because an earlier run is still running: {running.task}"
    if due is not None and abs(due - running.until) < 0.001:  # the score of an entry that waits
        return f"a run waits until an earlier one has ended: {running.task}"
    return f"{running.task}, has not ended"


def quarantine_note(note: str) -> tuple[str, datetime | None]:
    fields = record_in(note)
    reason = fields.get("reason", note)
    return string_in(reason, LONGEST_REASON), instant_in(fields.get("since"))


def quarantine_of(row: Row, kept: State, state: EntryState) -> tuple[str, datetime | None]:
    if state != QUARANTINED:
        return "", None
    if row.note or kept.quarantine is None:
        return quarantine_note(row.note)
    return kept.quarantine.reason, from_timestamp(kept.quarantine.since)


def shown_state(row: Row, now: float) -> State:
    """Return the state with what is pending in the inbox, and without what is over.

    ``now`` is in UNIX seconds.
    """
    kept = verdicts.with_inbox(State.of(row), read_inbox(row.inbox), now)
    if kept.hold is not None and kept.hold.until <= now:
        kept.hold = None
    if kept.running is not None and kept.running.until <= now:
        kept.running = None
    return kept


def record_of(row: Row, name: str, now: float, load: Callable[[Row], Any]) -> Record:
    """``now`` is Redis's time in UNIX seconds; ``load`` may raise :exc:`DecodeError`."""
    entry, problem = None, row.unreadable or None
    if row.definition is not None and not problem:
        try:
            entry = load(row)
            if entry.key != row.key:
                problem = f"definition.name: {entry.name!r} does not match the key of the entry"
                entry = None
        except DecodeError as error:
            problem = str(error)
    kept = shown_state(row, now)
    state = state_shown(row, kept, entry)
    # RedBeat 2 and other programs leave the score of what they disable.
    never = state == PAUSED and not (kept.waiting or row.inbox)
    due_at = None if never else due_at_of(row, kept, now)
    failing = failing_of(row, kept, now) if state == FAILING else None
    if failing is not None:
        problem = failing.reason
    shown = (overdue_of(row, name, now), last_result_of(kept), quarantine_of(row, kept, state)[1])
    return Record(name, entry, problem, due_at, state, row.static, failing, row.key, *shown)


def status_of(record: Record, row: Row) -> EntryStatus:
    """``row`` must be that of :func:`record_of`."""
    kept = shown_state(row, time.time())
    due_at, late, note, pause = record.due_at, record.overdue, None, Pause.of_entry(record.entry)
    reason = None if record.failing is None else record.failing.reason
    if record.state == QUARANTINED:
        due_at, late = None, None
        reason = quarantine_of(row, kept, QUARANTINED)[0] or record.problem
    elif record.state == RUNNING and kept.running is not None:
        reason = why_running(kept.running, row.due)
    elif record.state == PAUSED and pause is not None:
        reason = f"paused since {pause.begin}" + (f" by {pause.by}" if pause.by else "")
        note = pause.note or None
    elif record.state == FINISHED and record.entry is not None:
        reason = why_finished(record.entry)
    elif record.state == NOT_SCHEDULED:
        reason = f"it is stored, but not in the schedule: {how_to_schedule(record.name)}"
    elif record.state == SCHEDULED and due_at is not None and is_late(due_at):
        reason = f"due since {due_at.isoformat(timespec='seconds')}, but no beat has sent it"
    success, failures = kept.results.success, kept.results.failures
    return EntryStatus(
        *(record.state, reason, due_at, note),
        *(None if success is None else from_timestamp(success), failures, record.failing, late),
        *(record.last_result, record.quarantined_since),
    )


def is_late(due_at: datetime) -> bool:
    """Whether a working beat would have sent a run that was due at ``due_at``."""
    return time.time() - due_at.timestamp() > SILENCE


def last_result_of(kept: State) -> LastResult | None:
    last: LastResult | None = kept.results.last or None
    return "running" if last is None and kept.running is not None else last


def state_shown(row: Row, kept: State, entry: Any) -> EntryState:
    """``entry`` is None if it is unreadable."""
    parked = row.due is not None and row.due < 0
    if parked and (row.note or kept.quarantine is not None):
        return QUARANTINED
    if entry is None:
        return QUARANTINED
    if not row.score:
        return NOT_SCHEDULED
    if kept.failing is not None and not parked and entry.enabled:
        return FAILING
    if kept.hold is not None or kept.running is not None:
        return RUNNING
    if not entry.enabled:
        return PAUSED
    return FINISHED if parked else SCHEDULED


def due_at_of(row: Row, kept: State, now: float) -> Any:
    """When an entry is due (UTC datetime). A score of 0 means now.

    A run that is held or cannot be sent was due before its next try.
    """
    seconds = row.due
    if seconds is None or seconds < 0:
        return None
    if kept.failing is not None:
        seconds = kept.failing.due
    elif kept.hold is not None:
        seconds = kept.hold.at
    return instant_in(seconds or now)


def failing_of(row: Row, kept: State, now: float) -> Failing | None:
    if kept.failing is None:
        return None
    since, attempts, reason, _, last, first = kept.failing
    again = None if row.due is None else instant_in(max(row.due, now))
    times = from_timestamp(since), from_timestamp(last)
    return Failing(attempts, times[0], first or reason, times[1], reason, again)


def overdue_of(row: Row, name: str, now: float) -> Overdue | None:
    """None for entries that are not overdue; paused, finished and unreadable ones never are.

    ``name`` is the exact name, ``now`` is in UNIX seconds.
    """
    texts = f"{row.policy}{row.definition or ''}"
    if row.unreadable or row.due is None or row.due < 0 or '"expect_within"' not in texts:
        return None
    try:
        fields = decode_policy(row.policy or "", record_in(row.definition or ""))
        policy = Policy.of({name: fields.get(name) for name in ("expect_within", "start_time")})
    except (DecodeError, InvalidEntryError):  # a beat quarantines an entry with an invalid policy
        return None
    if policy.expect_within is None or not fields.get("enabled", True):
        return None
    results = shown_state(row, now).results
    start = policy.start_time
    known = (results.success, results.since, None if start is None else start.timestamp())
    seconds = now - max((at for at in known if at is not None), default=0.0)
    if seconds <= policy.expect_within:
        return None
    success = None if results.success is None else from_timestamp(results.success)
    return Overdue(encodable(name), success, seconds, policy.expect_within)


# -- runs ------------------------------------------------------------------------------------------


def history_of(entry: Any) -> list[Occurrence]:
    store: Any = store_of(entry.app)
    (row,) = store.read([entry.writable_key()], history=True).rows
    found = runs_in(row, entry)
    unreported = {run for run in found if run.was_sent and run.result is None}
    tracks_runs = getattr(entry.app, "redbeat_tracks_runs", False)
    since = store.reports_since() if unreported and tracks_runs else None
    if since is None:
        return found
    until = store.time() - entry.policy_field("overlap_timeout")
    lost = {run for run in unreported if since <= run.dispatched_at.timestamp() <= until}
    return [run._replace(result=LOST) if run in lost else run for run in found]


def runs_in(row: Row, entry: Any) -> list[Occurrence]:
    """If runs share a task id, the latest has the result."""
    entry.saved_state = entry.saved_state._replace(identity=State.of(row).identity)
    size, ends = ensure_conf(entry.app).history_size, read_results(row.results)
    found = read_history(texts_in(row.history), entry.own_task_id)[:size]
    for end in verdicts.ends_in(read_inbox(row.inbox), time.time()):
        if end.state:
            ends[end.id] = end
    for number, run in enumerate(found):
        ended = ends.pop(run.task_id or "", None)
        if ended is not None:
            times = (from_timestamp(ended.at), ended.seconds)
            result = RunResult(ended.state, *times, ended.retries, ended.error or None)
            found[number] = run._replace(result=result)
    return found
