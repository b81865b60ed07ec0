"""What state an entry is in, as far as Redis tells."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

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

#: The state in which an entry is that nobody can read: that of one that a beat has looked at.
UNREADABLE: Final = QUARANTINED


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """What state an entry is in, and why.

    Attributes:
        state: ``scheduled``; ``running``, while a beat sends it, or while a run goes on with which
            others must not overlap; ``paused``, which is to say not enabled; ``finished``;
            ``quarantined``, which is to say unreadable.
        reason: why it is paused or quarantined, None where nobody said.
        due_at: when it is due next, UTC; None for never.
        note: what was said when it was paused.
    """

    state: str
    reason: str | None = None
    due_at: datetime | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An entry of a listing, or why it cannot be read: ``entry`` is None then.

    ``due_at`` is in UTC, None for never; ``state`` is one of an :class:`EntryStatus`.
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
        """Return the record in a row; ``now`` is the time of Redis, UNIX seconds."""
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
        """Return the status of the entry; ``row`` is what this was read from."""
        if self.state == QUARANTINED:
            return EntryStatus(self.state, quarantine_note(row.note)[0] or self.problem)
        pause = Pause.of_entry(self.entry)
        if self.state != PAUSED or pause is None:
            return EntryStatus(self.state, due_at=self.due_at)
        reason = f"paused since {pause.since}" + (f" by {pause.by}" if pause.by else "")
        return EntryStatus(self.state, reason, self.due_at, pause.note)


def state_of(row: Row, entry: RedBeatSchedulerEntry | None, now: float) -> str:
    """Return the state of an entry, None for one that cannot be read."""
    if entry is None or (row.note and row.score is not None and row.score < 0):
        return QUARANTINED
    if claimed_until(row.claim) > now or ends_at(row.running) > now:
        return RUNNING
    if not entry.enabled:
        return PAUSED
    return FINISHED if row.score is not None and row.score < 0 else SCHEDULED


def due_at_of(row: Row, now: float) -> datetime | None:
    """Return when an entry is due; a score of 0 says now."""
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
    """Return when a claim ends, UNIX seconds, 0 for none."""
    parts = claim.split(" ")
    return (_number(parts[2]) or 0.0) if len(parts) > 2 else 0.0


def ends_at(running: str) -> float:
    """Return when a run counts as ended, UNIX seconds, 0 for none."""
    return _number(running.rpartition(" ")[2]) or 0.0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def quarantine_note(note: str) -> tuple[str, datetime | None]:
    """Return why an entry was set aside, and since when."""
    try:
        found = json.loads(note)
        return str(found["reason"]), from_timestamp(float(found["since"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return note, None


def entries_of(counts: Counts) -> dict[str, int]:
    """Return how many entries there are, by state."""
    finished = counts.parked - counts.disabled - counts.quarantined
    return {
        SCHEDULED: counts.members - counts.parked,
        PAUSED: counts.disabled,
        FINISHED: max(finished, 0),
        QUARANTINED: counts.quarantined,
    }
