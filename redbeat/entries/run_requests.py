"""Requests of programs: one run, a backfill, and to cancel backfills."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

from redbeat.calendar.zones import EPOCH, from_timestamp
from redbeat.codec.stored import bytes_of, text_of, texts_in
from redbeat.entries import backfill
from redbeat.entries.backfill import BACKFILL_RATE, MAX_TRIGGERS, MIN_RATE, Backfill, Planned
from redbeat.entries.changes import ATTEMPTS, apply, change_of, keep_due, state_of
from redbeat.entries.policy import in_utc
from redbeat.entries.runs import SENT_OUTCOMES, read_history
from redbeat.entries.saving import entry_of, score_of
from redbeat.entries.state import TRIGGER, read_inbox, trigger_line
from redbeat.entries.status import how_to_schedule
from redbeat.errors import ConflictError, InvalidEntryError
from redbeat.storage.commands import not_an_entry
from redbeat.storage.reading import reading
from redbeat.storage.rows import Row
from redbeat.storage.store import Store
from redbeat.storage.words import ABSENT, DONE, FULL, HISTORY, LOOK, QUARANTINED, UNSCHEDULED

T = TypeVar("T")
Backfills = tuple[Backfill, ...]


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
        row, _ = _existing(store, entry)
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


def _existing(store: Store, entry: Any) -> tuple[Row, float]:
    """Return the row of an entry, and the time of Redis; raises KeyError. One round trip."""
    key = entry.writable_key()
    reply = apply(store, reading([key]))
    row = reply.answers[0].row
    if row is None:
        raise KeyError(entry.name)
    if row.problem:
        raise InvalidEntryError("name", not_an_entry(key))
    return row, reply.now


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

    def planned(row: Row, stored: Any, now: float) -> tuple[Planned, Backfills | None]:
        state = state_of(row)
        if any(one.id == run_id for one in state.backfills):
            return plans[-1], None  # an earlier attempt stored it, and its reply was lost
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
            return plan, None
        if not row.score:
            raise _unscheduled(stored)
        if state.quarantine is not None:
            raise InvalidEntryError("name", _QUARANTINED % repr(stored.name))
        return plan, backfill.with_backfill(state.backfills, plan.backfill, again)

    return _change_backfills(store, entry, planned)


def cancel_backfills(store: Store, entry: Any) -> list[Backfill]:
    """Cancel what backfills have not sent, and return the backfills that had something left.

    Raises KeyError if the entry does not exist. Takes two round trips, and one more for each
    change of the entry in between.
    """

    def without(row: Row, *_: Any) -> tuple[list[Backfill], Backfills | None]:
        backfills = state_of(row).backfills
        ended = [one for one in backfills if not one.finished]
        return ended, backfill.cancelled(backfills) if ended else None

    return _change_backfills(store, entry, without)


def stored_backfills(store: Store, entry: Any) -> list[Backfill]:
    """Return the backfills of an entry. One round trip.

    Raises KeyError if the entry does not exist, and :exc:`DecodeError` if it cannot be read.
    """
    row, _ = _existing(store, entry)
    entry_of(row, entry.app, type(entry))
    return list(state_of(row).backfills)


def _change_backfills(
    store: Store, entry: Any, decide: Callable[[Row, Any, float], tuple[T, Backfills | None]]
) -> T:
    """Store the backfills that ``decide`` returns with its result, None for no change."""
    row, now = _existing(store, entry)
    for _ in range(ATTEMPTS):
        stored = entry_of(row, entry.app, type(entry))
        result, backfills = decide(row, stored, now)
        if backfills is None:
            return result
        state = state_of(row)
        state.waiting = (*state.triggers, *backfills)
        keep_due(row, state)
        score = score_of(stored, state, from_timestamp(now))
        reply = apply(store, [change_of(row, state, score=score)])
        (answer,) = reply.answers
        if answer.word == DONE:
            return result
        if answer.row is None:
            raise KeyError(entry.name)
        row, now = answer.row, reply.now
    raise ConflictError(str(entry.name))


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
