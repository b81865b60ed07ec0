"""What programs ask of stored entries: pause, resume, release, delete, run, and backfill."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from celery import Celery

from redbeat.calendar.zones import EPOCH, from_timestamp
from redbeat.codec.stored import string_in, texts_in
from redbeat.entries import backfill, changes
from redbeat.entries.backfill import MIN_RATE, Backfill
from redbeat.entries.decide import DISABLED
from redbeat.entries.history import SENT_OUTCOMES, Texts, read_history
from redbeat.entries.policy import in_utc
from redbeat.entries.saving import entry_of, score_of
from redbeat.entries.state import LONGEST_NOTE, Pause, State, read_inbox, trigger_line
from redbeat.entries.status import how_to_schedule
from redbeat.errors import DecodeError, InvalidEntryError
from redbeat.storage import words
from redbeat.storage.reading import batches, not_an_entry
from redbeat.storage.rows import Change, Row, digest_of
from redbeat.storage.store import Store

#: Raised by a definition or policy that is not a JSON object.
UNREADABLE = (ValueError, TypeError)

# -- pause, resume and release ---------------------------------------------------------------------


def pause(store: Store, keys: Iterable[str], note: str | None, by: str | None) -> dict[str, Row]:
    """Pause entries, and return what is stored afterwards, by key.

    Missing and unreadable entries are skipped. An entry that is not in the schedule is put there,
    disabled. Raises :exc:`ConflictError` if others change an entry during each attempt. Two round
    trips per 500 keys, and one more for each further attempt.
    """
    text = "" if note is None else string_in(str(note), LONGEST_NOTE)

    def paused(row: Row, now: float) -> Change:
        definition, policy = changes.texts_in(row)
        state = State.of(row)
        changes.keep_due(row, state)
        state.pause = Pause(float(int(now)), text, by or "")  # as in files
        change = changes.editing(row, state, (changes.with_enabled(definition, False), policy))
        change.add = state.hold.until if state.hold else changes.NOW if state.triggers else DISABLED
        return change

    return changes.change_all(store, keys, paused, skip=UNREADABLE)


def resume(store: Store, keys: Iterable[str], app: Celery, entry_class: Any) -> dict[str, Row]:
    """Enable entries, and return what is stored afterwards, by key; see :func:`pause`."""

    def enabled(row: Row, now: float) -> Change | None:
        texts, state = _enabled(changes.texts_in(row)), State.of(row)
        had = (state.pause, state.results.failures, changes.texts_in(row))
        if row.score and had == (None, 0, texts):
            return None
        changes.end_pause(state, now)
        change = changes.editing(row, state, texts)
        change.index.append(["ZREM", words.FAILED, row.key])
        try:
            entry = entry_of(changes.after(row, change), app, entry_class)
            entry.warn_if_finished()
            change.add = score_of(entry, state, from_timestamp(now))
        except (DecodeError, InvalidEntryError):  # a beat reports the error of an invalid entry
            change.add = changes.NOW
        return change

    return changes.change_all(store, keys, enabled, skip=UNREADABLE)


def make_due(store: Store, keys: Iterable[str]) -> dict[str, Row]:
    """Release entries from the quarantine, and let a beat look at them now; see :func:`pause`.

    An entry that never ran keeps the time of its first run.
    """

    def due(row: Row, _now: float) -> Change:
        state = State.of(row)
        changes.keep_due(row, state)
        change = changes.editing(row, state)
        change.score = changes.NOW
        return change

    return changes.change_all(store, keys, due)


def pause_entry(store: Store, entry: Any, note: str | None = None, by: str | None = None) -> None:
    """Two round trips."""
    _take_over(entry, pause(store, [entry.writable_key()], note, by))


def resume_entry(store: Store, entry: Any) -> None:
    """Two round trips."""
    _take_over(entry, resume(store, [entry.writable_key()], entry.app, type(entry)))


def _take_over(entry: Any, changed: dict[str, Row]) -> None:
    """Let the entry object know what is stored.

    If another program had edited it before, a later ``save(if_unchanged=True)`` still conflicts.
    """
    row = changed.get(entry.key)
    if row is None:
        raise KeyError(entry.name)
    known, state, texts = entry.saved_state, State.of(row), changes.texts_in(row)
    if known.texts[0] and _enabled(known.texts) == _enabled(texts):
        known = known._replace(texts=texts)
    entry.saved_state = known._replace(pause=state.pause)
    entry.enabled = state.pause is None


def _enabled(texts: Texts) -> Texts:
    definition, policy = texts
    return changes.with_enabled(definition, True), policy


# -- delete ----------------------------------------------------------------------------------------


def delete(store: Store, keys: Iterable[str]) -> int:
    """Return how many entries existed. One round trip per 500 keys."""
    removed = 0
    for batch in batches(keys):
        answers = changes.apply(store, [deletion(key) for key in batch]).answers
        for answer in answers:
            if answer.word == words.REFUSED:
                raise InvalidEntryError("name", answer.why)
        removed += sum(answer.word == words.DONE for answer in answers)
    return removed


def deletion(key: str, row: Row | None = None) -> Change:
    """Delete an entry if it is still as in ``row``."""
    index = [
        *changes.out_of_trouble(key),
        ["ZREM", words.EXPECTED, key],
        ["ZREM", words.FAILED, key],
        ["SREM", words.CALENDAR_USERS, key],
    ]
    change = Change(key, delete=True, index=index)
    if row is not None:
        change.expect = digest_of(row)
        said = read_inbox(row.inbox)
        change.take = said[-1].line if said else ""
    return change


# -- runs and backfills on request -----------------------------------------------------------------


def request_run(store: Store, entry: Any) -> str:
    """One round trip."""
    key, run_id = entry.writable_key(), uuid.uuid4().hex[:12]
    word = store.say(key, trigger_line(run_id), kind=words.TRIGGER, age=0)
    if word == words.ABSENT:
        _row_of(store, entry)  # raises if the key is not an entry's
        raise KeyError(entry.name)
    if word != words.DONE:
        raise _refusal(word, entry)
    return str(entry.task_id_of(run_id))


def _row_of(store: Store, entry: Any) -> Row:
    """Raises KeyError if there is no such entry. One round trip."""
    key = entry.writable_key()
    row = changes.read(store, key)
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
    rate: float = backfill.BACKFILL_RATE,
    again: bool = False,
    dry_run: bool = False,
) -> backfill.Planned:
    """See :meth:`redbeat.RedBeatSchedulerEntry.backfill`.

    Three round trips, two with ``dry_run``, and two more each time the entry changes in between.
    """
    span, run_id = _span_of(since, until, rate), uuid.uuid4().hex[:12]
    plans: list[backfill.Planned] = []

    def added(row: Row, now: float) -> Change | None:
        stored, state = entry_of(row, entry.app, type(entry)), State.of(row)
        if any(one.id == run_id for one in state.backfills):
            return None  # an earlier attempt stored it, and its reply was lost
        # Read after the row: if a run is recorded in between, the change finds another row.
        (past,) = store.read([row.key], history=True).rows
        runs = read_history(texts_in(past.history))
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
            raise _refusal(words.UNSCHEDULED, stored)
        if state.quarantine is not None:
            raise _refusal(words.QUARANTINED, stored)
        backfills = backfill.with_backfill(state.backfills, plan.backfill, again)
        return _with_backfills(row, stored, backfills, now)

    _change(store, entry, added)
    return plans[-1]


def cancel_backfills(store: Store, entry: Any) -> list[Backfill]:
    """Return the backfills that had something left; raises KeyError.

    Two round trips, and one more each time the entry changes in between.
    """
    ended: list[Backfill] = []

    def without(row: Row, now: float) -> Change | None:
        stored, backfills = entry_of(row, entry.app, type(entry)), State.of(row).backfills
        ended[:] = [one for one in backfills if not one.finished]
        if not ended:
            return None
        return _with_backfills(row, stored, backfill.cancelled(backfills), now)

    _change(store, entry, without)
    return ended


def stored_backfills(store: Store, entry: Any) -> list[Backfill]:
    """Raises KeyError, and :exc:`DecodeError` if the entry cannot be read. One round trip."""
    row = _row_of(store, entry)
    entry_of(row, entry.app, type(entry))
    return list(State.of(row).backfills)


def _with_backfills(row: Row, stored: Any, backfills: Sequence[Backfill], now: float) -> Change:
    state = State.of(row)
    state.waiting = (*state.triggers, *backfills)
    changes.keep_due(row, state)
    return changes.change_of(row, state, score=score_of(stored, state, from_timestamp(now)))


def _change(store: Store, entry: Any, change: Callable[[Row, float], Change | None]) -> None:
    key = entry.writable_key()
    if key not in changes.change_all(store, [key], change):
        stored_backfills(store, entry)  # raises if it cannot be read
        raise KeyError(entry.name)


def _refusal(word: str, entry: Any) -> InvalidEntryError:
    name = str(entry.name)
    field, problem = {
        words.FULL: ("trigger", f"too many runs of {name!r} are waiting; check that a beat runs"),
        words.QUARANTINED: ("name", f"{name!r} is in quarantine; repair the entry first"),
        words.UNSCHEDULED: ("name", f"{name!r} is not scheduled: {how_to_schedule(name)}"),
    }[word]
    return InvalidEntryError(field, problem)


def _span_of(since: datetime, until: datetime, rate: float) -> tuple[datetime, datetime]:
    span = (in_utc("since", since), in_utc("until", until))
    if not span[0] < span[1]:
        raise InvalidEntryError("until", f"{until} must be later than {since}")
    if span[0] < EPOCH:
        raise InvalidEntryError("since", f"{since} must not be before 1970")
    if not MIN_RATE <= rate < math.inf:
        raise InvalidEntryError("rate", f"{rate!r} must be at least {MIN_RATE} runs a second")
    return span
