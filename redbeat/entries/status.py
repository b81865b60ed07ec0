"""Computes the state of an entry from its stored fields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redbeat.calendar.zones import from_timestamp
from redbeat.errors import DecodeError
from redbeat.storage.wire import Counts, Row

from .pauses import Pause

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry

__all__ = (
    "STATES",
    "EntryStatus",
    "Record",
    "entries_of",
    "quarantine_note",
)

SCHEDULED, RUNNING, PAUSED, FINISHED, QUARANTINED = STATES = (
    "scheduled",
    "running",
    "paused",
    "finished",
    "quarantined",
)


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """The state of an entry, with the reason.

    Attributes:
        state: one of the following.

            - ``scheduled``: the entry waits for its next run.
            - ``running``: a beat is sending a run, or a worker is executing a run that must not
              overlap other runs of the entry.
            - ``paused``: the entry is not enabled.
            - ``finished``: no run is left.
            - ``quarantined``: the entry is unreadable.
        reason: why the entry is paused or quarantined, None if unknown.
        due_at: the time of the next run in UTC; None for never.
        note: the note of the operator who paused the entry.
    """

    state: str
    reason: str | None = None
    due_at: datetime | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An entry in a list of entries; the entry may be unreadable.

    If the entry is unreadable, ``entry`` is None and ``problem`` is the reason. ``due_at`` is in
    UTC, None for never. :class:`EntryStatus` lists the values of ``state``.
    """

    name: str
    entry: RedBeatSchedulerEntry | None
    problem: str | None
    due_at: datetime | None
    state: str
    static: bool

    @classmethod
    def read(
        cls, row: Row, name: str, now: float, app: Any, entry_class: type[RedBeatSchedulerEntry]
    ) -> Record:
        """Decode a row into a record; ``now`` is the time of Redis in UNIX seconds."""
        entry, problem = None, row.problem or None
        if row.definition is not None and not problem:
            try:
                texts = (row.definition, row.meta, row.policy, row.runtime, row.identity)
                entry = entry_class.from_texts(app, *texts)
                if entry.key != row.key:
                    problem = f"definition.name: {entry.name!r} does not belong to this key"
                    entry = None
            except DecodeError as error:
                problem = str(error)
        state, due_at = state_of(row, entry, now), due_at_of(row, now)
        return cls(name, entry, problem, due_at, state, row.static)

    def status(self, row: Row) -> EntryStatus:
        """Return the status of the entry; ``row`` is the row that was passed to :meth:`read`."""
        if self.state == QUARANTINED:
            return EntryStatus(self.state, quarantine_note(row.note)[0] or self.problem)
        pause = Pause.of_entry(self.entry)
        if self.state != PAUSED or pause is None:
            return EntryStatus(self.state, due_at=self.due_at)
        reason = f"paused since {pause.since}" + (f" by {pause.by}" if pause.by else "")
        return EntryStatus(self.state, reason, self.due_at, pause.note)


def state_of(row: Row, entry: RedBeatSchedulerEntry | None, now: float) -> str:
    """Return the state of an entry; ``entry`` is None if unreadable, ``now`` in UNIX seconds."""
    if entry is None or (row.note and row.score is not None and row.score < 0):
        return QUARANTINED
    if claimed_until(row.claim) > now or ends_at(row.running) > now:
        return RUNNING
    if not entry.enabled:
        return PAUSED
    return FINISHED if row.score is not None and row.score < 0 else SCHEDULED


def due_at_of(row: Row, now: float) -> datetime | None:
    """Return when an entry is due (UTC), None for never; a score of 0 means now."""
    seconds = row.score
    if claimed_until(row.claim) > now:
        seconds = _number(row.claim.split(" ")[1])
    if seconds is None or seconds < 0:
        return None
    try:
        return from_timestamp(seconds or now)
    except (OverflowError, ValueError, OSError):
        return None


def claimed_until(claim: str) -> float:
    """Return when a claim ends in UNIX seconds, 0 if there is no claim."""
    parts = claim.split(" ")
    return (_number(parts[2]) or 0.0) if len(parts) > 2 else 0.0


def ends_at(running: str) -> float:
    """Return when a run counts as ended in UNIX seconds, 0 if no run is running."""
    return _number(running.rpartition(" ")[2]) or 0.0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def quarantine_note(note: str) -> tuple[str, datetime | None]:
    """Return why an entry was quarantined, and when (None if unknown)."""
    try:
        fields = json.loads(note)
        return str(fields["reason"]), from_timestamp(float(fields["since"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return note, None


def entries_of(counts: Counts) -> dict[str, int]:
    """Return the number of entries by state."""
    finished = counts.parked - counts.disabled - counts.quarantined
    return {
        SCHEDULED: counts.members - counts.parked,
        PAUSED: counts.disabled,
        FINISHED: max(finished, 0),
        QUARANTINED: counts.quarantined,
    }
