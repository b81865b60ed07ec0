"""What an entry shows of itself: its state, its runs and its backfills, from what is stored."""

from __future__ import annotations

import json
import time
from typing import Any

from celery import Celery

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import instant_in, object_in
from redbeat.config import ensure_conf
from redbeat.entries.backfill import Backfill
from redbeat.entries.overdue import Overdue, _fields_of
from redbeat.entries.pauses import Pause
from redbeat.entries.policy import Policy
from redbeat.entries.runs import (
    Occurrence,
    RunResult,
    mark_lost,
    needs_lost,
    read_history,
)
from redbeat.entries.status import (
    FAILING,
    FINISHED,
    NOT_SCHEDULED,
    PAUSED,
    QUARANTINED,
    RUNNING,
    SCHEDULED,
    EntryState,
    EntryStatus,
    Failing,
    Record,
    how_to_schedule,
    quarantine_note,
    why_finished,
)
from redbeat.entries.templates import Templates
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.printing import encodable
from redbeat.storage.store import store_of
from tests.edition import plan
from tests.edition.beat.load import state_of
from tests.edition.saving import entry_of, pause_of, recall
from tests.edition.state import (
    Ended,
    State,
    read_inbox,
    read_results,
)
from tests.edition.storage.reading import Past, Shown
from tests.edition.storage.rows import Row
from tests.edition.words import POLICY


def shown_state(row: Row, now: float) -> State:
    """Return what beats keep about an entry, with what is pending in its inbox.

    ``now`` is in UNIX seconds.
    """
    return plan.with_inbox(state_of(row), read_inbox(row.inbox), now)


def record_of(
    row: Shown,
    name: str,
    now: float,
    app: Celery,
    entry_class: type[Any],
    templates: Templates | None = None,
) -> Record:
    """Decode a row into a record; ``now`` is the time of Redis in UNIX seconds.

    If ``templates`` is given, entries with equal schedules share one schedule object.
    """
    entry, problem = None, row.problem or None
    if row.definition is not None and not problem:
        try:
            if templates is None:
                entry = entry_of(row.stored, app, entry_class)
            else:
                entry = entry_with_history(templates, row)
            if entry.key != row.key:
                problem = f"definition.name: {entry.name!r} does not match the key of the entry"
                entry = None
        except DecodeError as error:
            problem = str(error)
    kept = shown_state(row.stored, now)
    state, due_at, failing = state_shown(row, kept, entry, now), due_at_of(row, kept, now), None
    if state == FAILING:
        failing = failing_of(row, kept, now)
        problem = problem if failing is None else failing.reason
    late = overdue_of(row, name, now)
    return Record(name, entry, problem, due_at, state, row.static, failing, row.key, late)


def entry_with_history(templates: Templates, row: Shown) -> Any:
    """Return the entry of a row, with its history; raises :exc:`DecodeError`."""
    entry = templates.loaded(row.definition or "", row.policy)
    recall(entry, row.stored)
    return entry


def status_of(record: Record, row: Shown) -> EntryStatus:
    """Return the status of an entry; ``row`` is the one of :func:`record_of`."""
    kept = shown_state(row.stored, time.time())
    due_at, late, note, pause = record.due_at, record.overdue, None, Pause.of_entry(record.entry)
    reason = None if record.failing is None else record.failing.reason
    if record.state == QUARANTINED:
        due_at, late = None, None
        reason = _why_quarantined(row, kept) or record.problem
    elif record.state == PAUSED and pause is not None:
        reason = f"paused since {pause.since}" + (f" by {pause.by}" if pause.by else "")
        note = pause.note
    elif record.state == FINISHED and record.entry is not None:
        reason = why_finished(record.entry)
    elif record.state == NOT_SCHEDULED:
        reason = f"it is stored, but not in the schedule: {how_to_schedule(record.name)}"
    success, failures = kept.results.success, kept.results.failures
    known = (None if success is None else from_timestamp(success), failures)
    return EntryStatus(record.state, reason, due_at, note, *known, record.failing, late)


def exported_policy(row: Shown) -> str:
    """Return the policy of an entry with its pause, as files have it; raises :exc:`DecodeError`."""
    return with_pause(row.policy, pause_of(state_of(row.stored)))


def with_pause(policy: str, pause: Pause | None) -> str:
    """Return a policy with a pause; raises :exc:`DecodeError`."""
    return json.dumps({**object_in(policy, POLICY), **pause.field()}) if pause else policy


def state_shown(row: Shown, kept: State, entry: Any, now: float) -> EntryState:
    """Return the state of an entry; ``entry`` is None if the entry is unreadable."""
    parked = row.score is not None and row.score < 0
    if parked and (row.note or kept.quarantine is not None):
        return QUARANTINED
    if row.score is None and entry is not None:
        return NOT_SCHEDULED
    if kept.failing is not None and not parked and (entry is None or entry.enabled):
        return FAILING
    if entry is None:
        return QUARANTINED
    if is_held(kept, now) or (kept.running is not None and kept.running.until > now):
        return RUNNING
    if not entry.enabled:
        return PAUSED
    return FINISHED if parked else SCHEDULED


def is_held(kept: State, now: float) -> bool:
    """Return whether a beat is publishing a run of the entry."""
    return kept.hold is not None and kept.hold.until > now


def _why_quarantined(row: Shown, kept: State) -> str:
    if row.note or kept.quarantine is None:
        return quarantine_note(row.note)[0]
    return kept.quarantine.reason


def due_at_of(row: Shown, kept: State, now: float) -> Any:
    """Return when an entry is due (UTC datetime), None if it is never due.

    A score of 0 means now. A run that is held or cannot be sent was due before its next try.
    """
    seconds = row.score
    if seconds is None or seconds < 0:
        return None
    if kept.failing is not None:
        seconds = kept.failing.due
    elif kept.hold is not None and kept.hold.until > now:
        seconds = kept.hold.at
    return instant_in(seconds or now)


def failing_of(row: Shown, kept: State, now: float) -> Failing | None:
    """Return the failed attempts to send the run that is due, None without any."""
    if kept.failing is None:
        return None
    since, attempts, reason, _, last, first = kept.failing
    again = None if row.score is None else instant_in(max(row.score, now))
    times = from_timestamp(since), from_timestamp(last)
    return Failing(attempts, times[0], first or reason, times[1], reason, again)


def overdue_of(row: Shown, name: str, now: float) -> Overdue | None:
    """Return how overdue an entry is, None if it is not.

    ``name`` is the exact name of the entry, ``now`` is in UNIX seconds. Paused, finished and
    unreadable entries are never overdue.
    """
    texts = f"{row.policy}{row.definition or ''}"
    if row.problem or row.score is None or row.score < 0 or '"expect_within"' not in texts:
        return None
    fields: dict[str, Any] = _fields_of(row)  # type: ignore[arg-type]
    try:
        policy = Policy.of({name: fields.get(name) for name in ("expect_within", "start_time")})
    except InvalidEntryError:  # a beat quarantines an entry with an invalid policy
        return None
    if policy.expect_within is None or not fields.get("enabled", True):
        return None
    results = shown_state(row.stored, now).results
    start = policy.start_time
    known = (results.success, results.since, None if start is None else start.timestamp())
    seconds = now - max((at for at in known if at is not None), default=0.0)
    if seconds <= policy.expect_within:
        return None
    success = None if results.success is None else from_timestamp(results.success)
    return Overdue(encodable(name), success, seconds, policy.expect_within)


# -- runs ------------------------------------------------------------------------------------------


def history_of(entry: Any) -> list[Occurrence]:
    """Return the last runs of an entry; see :attr:`redbeat.RedBeatSchedulerEntry.history`."""
    store: Any = store_of(entry.app)
    past: Past = store.past(entry.writable_key())
    identity = state_of(past.row).identity
    entry.saved_state = entry.saved_state._replace(identity=identity)
    runs = read_history(past.lines, entry.own_task_id)[: ensure_conf(entry.app).history_size]
    runs = _with_results(runs, past)
    if not getattr(entry.app, "redbeat_tracks_runs", False) or not needs_lost(runs):
        return runs
    since = store.reports_since()
    if since is None:
        return runs
    limit = entry.policy_field("overlap_timeout")
    return mark_lost(runs, from_timestamp(since), from_timestamp(store.time() - limit))


def _with_results(runs: list[Occurrence], past: Past) -> list[Occurrence]:
    """Return the runs, each with its result; of runs with one task id the latest has it."""
    ends = read_results(past.results)
    ends.update(
        (end.id, end) for end in plan.ends_in(read_inbox(past.row.inbox), time.time()) if end.state
    )
    return [
        run._replace(result=_result_of(end))
        if run.task_id is not None and (end := ends.pop(run.task_id, None)) is not None
        else run
        for run in runs
    ]


def _result_of(end: Ended) -> RunResult:
    times = (from_timestamp(end.at), end.seconds)
    return RunResult(end.state, *times, end.retries, end.error or None)  # type: ignore[arg-type]


def backfills_of(row: Shown, now: float) -> list[Backfill]:
    """Return the backfills of an entry, also those that no beat has taken in."""
    waiting = shown_state(row.stored, now).waiting
    return [one for one in waiting if isinstance(one, Backfill)]
