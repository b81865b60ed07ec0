"""Computes the state of an entry from its stored fields."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, get_args

from celery import Celery

from redbeat.codec.stored import instant_in, json_in, record_in, seconds_in, string_in, whole_in
from redbeat.errors import DecodeError
from redbeat.storage.quarantine import LONGEST_REASON
from redbeat.storage.wire import Counts, Row

from .overdue import Overdue, overdue_of
from .pauses import Pause
from .runs import Results

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry

    from .templates import Templates

#: The states of an entry; see :class:`EntryStatus`.
EntryState = Literal[
    "scheduled", "running", "failing", "paused", "finished", "quarantined", "not scheduled"
]

STATES: Final[tuple[EntryState, ...]] = get_args(EntryState)
SCHEDULED: Final = "scheduled"
RUNNING: Final = "running"
FAILING: Final = "failing"
PAUSED: Final = "paused"
FINISHED: Final = "finished"
QUARANTINED: Final = "quarantined"
NOT_SCHEDULED: Final = "not scheduled"


@dataclass(frozen=True, slots=True)
class Failing:
    """The failed attempts to send the due run of an entry. Times are in UTC.

    Attributes:
        attempts: the number of failed attempts.
        first_at: when the first attempt failed.
        first_error: why the first attempt failed.
        last_at: when the last attempt failed.
        last_error: why the last attempt failed.
        next_attempt_at: when a beat starts the next attempt; None during an attempt.
    """

    attempts: int
    first_at: datetime
    first_error: str
    last_at: datetime
    last_error: str
    next_attempt_at: datetime | None = None

    @classmethod
    def read(cls, text: str, score: float | None, claimed: bool) -> Failing | None:
        """Return the data about failed attempts in ``text``, None if ``text`` is empty or invalid.

        ``score`` is the score of the entry. ``claimed`` is true if a beat has claimed the entry.
        """
        try:
            head, first_error, last_error = json_in(text, "failing")
            attempts, *instants = head.split(" ")
            first_at, last_at = map(instant_in, instants)
        except (DecodeError, ValueError, TypeError, AttributeError):
            return None
        number = whole_in(attempts)
        if number is None or first_at is None or last_at is None:
            return None
        errors = (string_in(error, LONGEST_REASON) for error in (first_error, last_error))
        again = None if claimed else instant_in(score)
        first, last = errors
        return cls(number, first_at, first, last_at, last, again)

    @property
    def reason(self) -> str:
        """A text with the number of failed attempts and the last error."""
        attempts = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"{attempts} to send the run failed: {self.last_error}"


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """The state of an entry, and the reason for this state.

    Attributes:
        state: the current state of the entry.

            - ``scheduled``: the entry waits for its next run.
            - ``running``: a beat is sending a run, or a worker is executing a run that must not
              overlap other runs of the entry.
            - ``failing``: the due run could not be sent, and a beat will retry the run.
            - ``paused``: the entry is not enabled.
            - ``finished``: no run is left.
            - ``quarantined``: the entry is unreadable.
            - ``not scheduled``: the entry is stored, but a program took it out of the sorted set.

        reason: the reason for the state; None for a scheduled or running entry, or if the reason is
            unknown.
        due_at: the time of the next run in UTC; None if the entry is never due.
        note: the note of the operator who paused the entry.
        failing: the failed attempts to send the due run, None without failed attempts.
        last_success: when the last successful run ended (UTC), None if no success is known, for
            example because the workers do not call ``redbeat.worker.enable(app)``.
        consecutive_failures: the number of failed runs since the last success, or since the entry
            was resumed.
        overdue: the time without a success if this time exceeds ``expect_within``, otherwise None.
    """

    state: EntryState
    reason: str | None = None
    due_at: datetime | None = None
    note: str | None = None
    last_success: datetime | None = None
    consecutive_failures: int = 0
    failing: Failing | None = None
    overdue: Overdue | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A readable or unreadable entry in a list of entries.

    If the entry is unreadable, ``entry`` is None and ``problem`` is the reason. If the due run
    could not be sent, ``failing`` contains the failed attempts, and ``problem`` is the last error.
    ``due_at`` is in UTC, None if the entry is never due. :class:`EntryStatus` lists the values of
    ``state``. ``name`` is printable. ``key`` is the exact Redis key, in which surrogates represent
    bytes that are not UTF-8.
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

    @classmethod
    def read(
        cls,
        row: Row,
        name: str,
        now: float,
        app: Celery,
        entry_class: type[RedBeatSchedulerEntry],
        templates: Templates | None = None,
    ) -> Record:
        """Decode a row into a record; ``now`` is the time of Redis in UNIX seconds.

        If ``templates`` is given, entries with equal schedules share one schedule object.
        """
        entry, problem = None, row.problem or None
        if row.definition is not None and not problem:
            try:
                if templates is None:
                    texts = (row.definition, row.meta, row.policy, row.runtime, row.identity)
                    entry = entry_class.from_texts(app, *texts)
                else:
                    entry = templates.with_history(row)
                if entry.key != row.key:
                    problem = f"definition.name: {entry.name!r} does not match the key of the entry"
                    entry = None
            except DecodeError as error:
                problem = str(error)
        state, due_at = state_of(row, entry, now), due_at_of(row, now)
        failing = None
        if state == FAILING:
            failing = Failing.read(row.failing, row.score, claimed_until(row.claim) > now)
            problem = problem if failing is None else failing.reason
        overdue = overdue_of(row, name, now)
        return cls(name, entry, problem, due_at, state, row.static, failing, row.key, overdue)

    def status(self, row: Row) -> EntryStatus:
        """Return the status of the entry; ``row`` is the row that was passed to :meth:`read`."""
        results, pause = Results.read(row.results), Pause.of_entry(self.entry)
        due_at, overdue, note = self.due_at, self.overdue, None
        reason = None if self.failing is None else self.failing.reason
        if self.state == QUARANTINED:
            due_at, overdue = None, None
            reason = quarantine_note(row.note)[0] or self.problem
        elif self.state == PAUSED and pause is not None:
            reason = f"paused since {pause.since}" + (f" by {pause.by}" if pause.by else "")
            note = pause.note
        elif self.state == FINISHED and self.entry is not None:
            reason = why_finished(self.entry)
        elif self.state == NOT_SCHEDULED:
            reason = f"it is stored, but not in the schedule: {how_to_schedule(self.name)}"
        known = results.last_success, results.consecutive_failures
        return EntryStatus(self.state, reason, due_at, note, *known, self.failing, overdue)


def state_of(row: Row, entry: RedBeatSchedulerEntry | None, now: float) -> EntryState:
    """Return the state of the entry in ``row``; ``now`` is in UNIX seconds.

    ``entry`` is the decoded entry, None if the entry is unreadable.
    """
    parked = row.score is not None and row.score < 0
    if row.note and parked:
        return QUARANTINED
    if row.score is None and entry is not None:
        return NOT_SCHEDULED
    if row.failing and not parked and (entry is None or entry.enabled):
        return FAILING
    if entry is None:
        return QUARANTINED
    if claimed_until(row.claim) > now or ends_at(row.running) > now:
        return RUNNING
    if not entry.enabled:
        return PAUSED
    return FINISHED if parked else SCHEDULED


def how_to_schedule(name: str) -> str:
    """Return the command that puts an entry into the sorted set, as a sentence."""
    return f"celery redbeat resume {shlex.quote(name)} schedules it"


def why_finished(entry: RedBeatSchedulerEntry) -> str:
    """Return the reason why a finished entry has no run left."""
    most, end = entry.policy.max_runs, entry.policy.end_time
    if most is not None and entry.total_run_count >= most:
        return f"max_runs is reached ({most:,})"
    if end is not None:
        return f"no run is left before end_time, {end.isoformat()}"
    return "the schedule has no later run"


def due_at_of(row: Row, now: float) -> datetime | None:
    """Return when an entry is due (UTC), None if the entry is never due.

    An entry with the score 0 is due now.
    """
    seconds = row.score
    if seconds is not None and (row.failing or claimed_until(row.claim) > now):
        seconds = seconds_in(f"{row.claim} -".split(" ")[1])  # when the claimed run became due
    if seconds is None or seconds < 0:
        return None
    return instant_in(seconds or now)


def claimed_until(claim: str) -> float:
    """Return the time at which a claim ends, in UNIX seconds; 0 if there is no claim."""
    parts = claim.split(" ")
    return (seconds_in(parts[2]) or 0.0) if len(parts) > 2 else 0.0


def ends_at(running: str) -> float:
    """Return the time at which a run counts as ended, in UNIX seconds; 0 if no run is running."""
    return seconds_in(running.rpartition(" ")[2]) or 0.0


def quarantine_note(note: str) -> tuple[str, datetime | None]:
    """Return the reason and the start time of a quarantine; None means an unknown start time."""
    fields = record_in(note)
    reason = fields.get("reason", note)
    return string_in(reason, LONGEST_REASON), instant_in(fields.get("since"))


def entries_of(counts: Counts) -> dict[str, int]:
    """Return the number of entries in each state."""
    finished = counts.parked - counts.disabled - counts.quarantined
    return {
        SCHEDULED: max(counts.members - counts.parked - counts.failing, 0),
        FAILING: counts.failing,
        PAUSED: counts.disabled,
        FINISHED: max(finished, 0),
        QUARANTINED: counts.quarantined,
    }
