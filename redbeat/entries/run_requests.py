"""Requests of programs: one run, a backfill, and to cancel backfills."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from redbeat.calendar.zones import EPOCH, from_timestamp
from redbeat.codec.stored import bytes_of, text_of, texts_in
from redbeat.entries import backfill
from redbeat.entries.backfill import BACKFILL_RATE, MAX_TRIGGERS, MIN_RATE, Backfill, Planned
from redbeat.entries.changes import change_of, keep_due, read, state_of
from redbeat.entries.edits import change_all
from redbeat.entries.policy import in_utc
from redbeat.entries.runs import SENT_OUTCOMES, read_history
from redbeat.entries.saving import entry_of, score_of
from redbeat.entries.state import TRIGGER, read_inbox, trigger_line
from redbeat.entries.status import how_to_schedule
from redbeat.errors import InvalidEntryError
from redbeat.storage.commands import not_an_entry
from redbeat.storage.rows import Change, Row
from redbeat.storage.store import Store
from redbeat.storage.words import ABSENT, FULL, HISTORY, LOOK, QUARANTINED, UNSCHEDULED

#: A state with waiting runs has this text.
WAITING: Final = '"waiting"'


def request_run(store: Store, entry: Any) -> str:
    """Request one run; see :meth:`redbeat.RedBeatSchedulerEntry.trigger`.

    One round trip, and two more if beats know of runs of the entry that wait.
    """
    key, run_id = entry.writable_key(), uuid.uuid4().hex[:12]
    line = trigger_line(run_id)
    word = store.say(key, line, kind=TRIGGER, age=0, doubt=WAITING)
    if word == LOOK:
        row = _existing(store, entry)
        waiting = len(state_of(row).triggers)
        waiting += sum(said.kind == TRIGGER for said in read_inbox(row.inbox))
        is_full = waiting >= MAX_TRIGGERS
        word = FULL if is_full else store.say(key, line, kind=TRIGGER, age=0)
    if word == ABSENT:
        _existing(store, entry)  # says if the key is not an entry's
        raise KeyError(entry.name)
    if word == FULL:
        problem = f"{MAX_TRIGGERS} runs of {entry.name!r} are waiting; check that a beat runs"
        raise InvalidEntryError("trigger", problem)
    if word == QUARANTINED:
        raise InvalidEntryError("name", _QUARANTINED % repr(entry.name))
    if word == UNSCHEDULED:
        raise _unscheduled(entry)
    return str(entry.task_id_of(run_id))


_QUARANTINED: Final = "%s is in quarantine; repair the entry first"


def _existing(store: Store, entry: Any) -> Row:
    """Return the row of an entry; raises KeyError. One round trip."""
    key = entry.writable_key()
    row = read(store, [key]).get(key)
    if row is None:
        raise KeyError(entry.name)
    if row.problem:
        raise InvalidEntryError("name", not_an_entry(key))
    return row


def request_backfill(
    store: Store,
    entry: Any,
    since: datetime,
    until: datetime,
    *,
    rate: float = BACKFILL_RATE,
    again: bool = False,
    dry_run: bool = False,
) -> Planned:
    """Request a backfill; see :meth:`redbeat.RedBeatSchedulerEntry.backfill`.

    Takes three round trips, two with ``dry_run``, and two more for each change of the entry
    in between.
    """
    span, run_id = _span_of(since, until, rate), uuid.uuid4().hex[:12]
    plans: list[Planned] = []

    def added(row: Row, now: float) -> Change | None:
        stored, state = entry_of(row, entry.app, type(entry)), state_of(row)
        if any(one.id == run_id for one in state.backfills):
            return None  # an earlier attempt stored it, and its reply was lost
        # Read after the row: if a run is recorded in between, the change differs.
        text = store.client.hget(bytes_of(row.key), HISTORY)
        runs = read_history("\n".join(texts_in(text_of(text) if text else None)))
        sent = {run.scheduled_at for run in runs if run.outcome in SENT_OUTCOMES}
        earlier = [one for one in state.backfills if not (again and one.finished)]
        ends = max(min(span[1], backfill.first_to_send(stored, now)), span[0])
        occurrences = stored.occurrences_from
        request = Backfill(run_id, span[0], ends, rate, 0, 0, ((span[0], ends),), now)
        plan = backfill.planned(request, occurrences, sent, earlier)
        plans.append(plan)
        if dry_run or plan.backfill is None:
            return None
        if not row.score:
            raise _unscheduled(stored)
        if state.quarantine is not None:
            raise InvalidEntryError("name", _QUARANTINED % repr(stored.name))
        backfills = backfill.with_backfill(state.backfills, plan.backfill, again)
        return _with_backfills(row, stored, backfills, now)

    _change(store, entry, added)
    return plans[-1]


def cancel_backfills(store: Store, entry: Any) -> list[Backfill]:
    """Cancel what backfills have not sent, and return the backfills that had something left.

    Raises KeyError if the entry does not exist. Takes two round trips, and one more for each
    change of the entry in between.
    """

    ended: list[Backfill] = []

    def without(row: Row, now: float) -> Change | None:
        stored, backfills = entry_of(row, entry.app, type(entry)), state_of(row).backfills
        ended[:] = [one for one in backfills if not one.finished]
        if not ended:
            return None
        return _with_backfills(row, stored, backfill.cancelled(backfills), now)

    _change(store, entry, without)
    return ended


def stored_backfills(store: Store, entry: Any) -> list[Backfill]:
    """Return the backfills of an entry. One round trip.

    Raises KeyError if the entry does not exist, and :exc:`DecodeError` if it cannot be read.
    """
    row = _existing(store, entry)
    entry_of(row, entry.app, type(entry))
    return list(state_of(row).backfills)


def _with_backfills(row: Row, stored: Any, backfills: Sequence[Backfill], now: float) -> Change:
    """Return the change that stores the backfills of an entry."""
    state = state_of(row)
    state.waiting = (*state.triggers, *backfills)
    keep_due(row, state)
    return change_of(row, state, score=score_of(stored, state, from_timestamp(now)))


def _change(store: Store, entry: Any, change: Callable[[Row, float], Change | None]) -> None:
    key = entry.writable_key()
    if key not in change_all(store, [key], change):
        stored_backfills(store, entry)  # says what is wrong with it
        raise KeyError(entry.name)


def _unscheduled(entry: Any) -> InvalidEntryError:
    problem = f"{entry.name!r} is not scheduled: {how_to_schedule(str(entry.name))}"
    return InvalidEntryError("name", problem)


def _span_of(since: datetime, until: datetime, rate: float) -> tuple[datetime, datetime]:
    """Return a span in UTC; raises :exc:`InvalidEntryError` for an invalid span or rate."""
    span = (in_utc("since", since), in_utc("until", until))
    if not span[0] < span[1]:
        raise InvalidEntryError("until", f"{until} must be later than {since}")
    if span[0] < EPOCH:
        raise InvalidEntryError("since", f"{since} must not be before 1970")
    if not MIN_RATE <= rate < math.inf:
        raise InvalidEntryError("rate", f"{rate!r} must be at least {MIN_RATE} runs a second")
    return span
