"""Saves entries in batches: prepares the writes, and processes the results of the writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from redbeat.calendar.times import plain_datetime
from redbeat.calendar.zones import EPOCH, UTC, from_timestamp
from redbeat.codec.stored import score_in
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.schedules.calendars import Calendar
from redbeat.storage.records import (
    CLOCK_AHEAD,
    CONFLICT,
    HISTORY_DIFFERS,
    SAME,
    SAVED,
    Saved,
    Writing,
)
from redbeat.storage.store import Store

from .calendars import prepare_calendars, readable_calendars
from .decide import PARKED, aware, is_own_time, same_instant
from .history import (
    History,
    SavedState,
    Texts,
    change_of_timing,
    history_after_save,
    new_identity,
)
from .pauses import Pause
from .policy import in_utc

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry

#: A write is retried up to this number of times if a beat records a run during the write.
#: The last retry of a write overwrites the stored history.
SAVE_ATTEMPTS: Final = 5

#: Two scores count as equal if they differ by less than this number of seconds.
#: RedBeat stores scores with six decimals, so stored scores may differ from computed scores.
SCORE_PRECISION: Final = 2e-6


def check_history(entry: RedBeatSchedulerEntry) -> None:
    """Raise :exc:`InvalidEntryError` if the last run or the run count cannot be stored."""
    last_run_at: Any = entry.last_run_at
    count: Any = entry.total_run_count
    if last_run_at is not None and not isinstance(last_run_at, datetime):
        problem = f"must be a datetime or None, not {last_run_at!r:.60}"
        raise InvalidEntryError("last_run_at", problem)
    if last_run_at is not None:
        in_utc("last_run_at", last_run_at)
        entry.last_run_at = plain_datetime(last_run_at)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        problem = f"must be a whole number, 0 or more, not {count!r:.60}"
        raise InvalidEntryError("total_run_count", problem)


def restart_if_finished(entry: RedBeatSchedulerEntry, new: Texts, now: datetime) -> bool:
    """Restart a finished entry if its changes allow more runs; return whether the entry restarted.

    ``new`` are the definition and policy to save, ``now`` is in UTC. An entry does not restart if
    the program changed its run count. No round trip.
    """
    state = entry.saved_state
    old, count = state.refused_texts or state.texts, state.total_run_count
    if not old[0] or not count or entry.total_run_count != count:
        return False
    history = History(entry.last_run_at, count, entry.scheduled_at)
    rewritten = not same_instant(entry.last_run_at, state.last_run_at)
    restarted = history_after_save(history, old, new, now, rewritten, entry.foreign_fields)
    if restarted is history:
        return False
    entry.saved_state = state._replace(before_restart=(entry.last_run_at, count))
    entry.last_run_at, entry.total_run_count, entry.scheduled_at = restarted
    return True


def default_last_run(entry: RedBeatSchedulerEntry) -> datetime | None:
    """Return the last run if it is only a default from the clock of this host, else None.

    ``save.lua`` compares a default last run with the clock of Redis, because the clock of the host
    may be ahead. A default from another clock is returned as :data:`EPOCH`, which is never ahead.
    """
    last, state = entry.last_run_at, entry.saved_state
    if last is None:
        return None
    if state.before_restart is not None:
        return None if same_instant(state.before_restart[0], last) else aware(last)
    if state.meta is not None or _history_changed(entry):
        return None
    return EPOCH if entry.has_own_clock and is_own_time(entry.default_now()) else aware(last)


def _history_changed(entry: RedBeatSchedulerEntry) -> bool:
    state = entry.saved_state
    return entry.total_run_count != state.total_run_count or not same_instant(
        entry.last_run_at, state.last_run_at
    )


# -- one entry ---------------------------------------------------------------------------------


def complete_writing(
    entry: RedBeatSchedulerEntry, writing: Writing, now: datetime, insist: bool
) -> Writing:
    """Return ``writing`` with the history of the entry, and with its score at ``now`` (UTC).

    If ``insist`` is true, the write overwrites any stored history.
    """
    state = entry.saved_state
    texts = (writing.definition, writing.policy)
    old = state.refused_texts or state.texts
    restart_if_finished(entry, texts if writing.definition else old, now)
    if writing.definition and not (entry.is_static or state.new_identity):
        entry.saved_state = entry.saved_state._replace(new_identity=new_identity())
    changed = state.meta is None or _history_changed(entry)
    meta, seen = entry.history_text() if changed else "", None if insist else state.meta or ""
    change = change_of_timing(old, texts, now, entry.foreign_fields)
    if change is not None:
        entry.timing_change = (entry.timing_change or change)._replace(at=now)
    noted = change or (entry.timing_change and not writing.definition)
    runtime = entry.runtime_text() if noted else writing.runtime
    score, made_up = entry.score_to_store(now), default_last_run(entry)
    identity = entry.saved_state.new_identity
    writing = writing._replace(meta=meta, runtime=runtime, seen=seen, score=score)
    return writing._replace(made_up=made_up, identity=identity)


def _accept(entry: RedBeatSchedulerEntry, writing: Writing, saved: Saved) -> bool:
    """Process the result of a write; return False if the write must be retried.

    Raises :exc:`ConflictError` if another program has changed the entry and ``save()`` was called
    with ``if_unchanged``.
    """
    code, state = saved.code, entry.saved_state
    if code == SAVED:
        _note_saved(entry, writing, saved.identity)
    elif code == HISTORY_DIFFERS:
        _merge(entry, saved, (saved.definition, saved.policy))
    elif code == SAME:
        _merge(entry, saved, (writing.definition, writing.policy))
        if not _history_changed(entry) and _score_is_current(entry, saved.score):
            as_stored = writing._replace(meta=saved.meta, score=score_in(saved.score))
            _note_saved(entry, as_stored, saved.identity)
            return True
    elif code == CLOCK_AHEAD:
        _count_from(entry, from_timestamp(score_in(saved.score)))
    elif code == CONFLICT:
        raise ConflictError(str(entry.name))
    elif writing.definition:  # the entry was deleted; the retry stores a new entry
        entry.saved_state = state._replace(meta=None)
    else:
        return True
    return code == SAVED


def _count_from(entry: RedBeatSchedulerEntry, now: datetime) -> None:
    entry.last_run_at, state = now, entry.saved_state
    if state.before_restart is None:
        history = (now, entry.total_run_count)
        entry.saved_state = state.with_history(state.meta, *history, state.identity)


def _score_is_current(entry: RedBeatSchedulerEntry, stored: str) -> bool:
    """Return whether ``stored`` is the correct score of the entry.

    If the entry must be due at once, any stored score in the past is correct.
    """
    if not stored:
        return False
    score, stored_score = entry.score_to_store(), score_in(stored)
    if score is None:
        parked = stored_score == PARKED and not entry.decision().due
        return parked or 0 <= stored_score <= time()
    return abs(stored_score - score) < SCORE_PRECISION


def _note_saved(entry: RedBeatSchedulerEntry, writing: Writing, identity: str | None) -> None:
    state = entry.saved_state
    if not same_instant(entry.last_run_at, state.last_run_at):
        entry.scheduled_at = None
    is_new = not (state.refused_texts or state.texts)[0]
    if writing.definition and not is_new and (writing.score is None or writing.score < 0):
        entry.warn_if_finished()
    history = (writing.meta or state.meta, entry.last_run_at, entry.total_run_count)
    if writing.definition:
        texts = (writing.definition, writing.policy)
        identity = writing.identity if identity is None else identity
        pause = Pause.of_entry(entry)
        entry.saved_state = SavedState(texts, *history, identity, state.has_lazy, pause)
    else:
        state = state._replace(refused_texts=None, before_restart=None)
        entry.saved_state = state.with_history(*history, state.identity)


def _merge(entry: RedBeatSchedulerEntry, saved: Saved, texts: Texts) -> None:
    """Load the stored history before a retry, but keep attributes that the program has changed.

    ``texts`` are the definition and policy that Redis returned when Redis refused the write.
    """
    state = entry.saved_state
    if state.before_restart is not None:
        entry.last_run_at, entry.total_run_count = state.before_restart
    last, count = entry.last_run_at, entry.total_run_count
    # The history of ``entry`` replaces a stored history that cannot be decoded.
    undecoded = state._replace(meta=saved.meta, last_run_at=last, total_run_count=-1)
    entry.saved_state = undecoded._replace(refused_texts=texts, before_restart=None)
    try:
        entry.recall(saved.meta, saved.runtime)
    except DecodeError:
        return
    if not same_instant(last, state.last_run_at):
        entry.last_run_at = last
    if count != state.total_run_count:
        entry.total_run_count = count


# -- batches -----------------------------------------------------------------------------------

#: A batch of at most 500 entries, each with the data to write.
Batch = Sequence[tuple["RedBeatSchedulerEntry", Writing]]


def save_batches(store: Store, batches: Sequence[Batch], attempts: int = SAVE_ATTEMPTS) -> None:
    """Write batches of entries; encode the next batch while Redis writes the previous batch.

    The history of each entry must be valid; see :func:`check_history`. Takes one round trip per
    batch, and three more for a batch whose entries use calendars. Redis refuses a write if the
    entry ran during the save, or if a new object replaces a stored entry. A refused write is
    retried up to ``attempts`` times, with one round trip per retry. If :exc:`InvalidEntryError` is
    raised, the batch of the invalid entry and all later batches are not written.
    """
    finish: Callable[[], None] | None = None
    for batch in batches:
        try:
            calendars = prepare_calendars(store, (entry for entry, _ in batch))
            # Get the time once per batch, because getting a time in the app's time zone is slow.
            now = datetime.now(UTC)
            writings = [complete_writing(*item, now, insist=not attempts) for item in batch]
        finally:
            if finish is not None:
                finish()
        read_results: Callable[[], list[Saved]] = partial(store.save_all, writings)
        if len(batches) > 1:
            read_results = store.begin_save_all(writings)
        finish = partial(finish_batch, store, batch, writings, read_results, attempts, calendars)
    if finish is not None:
        finish()


def finish_batch(
    store: Store,
    batch: Batch,
    writings: Sequence[Writing],
    read_results: Callable[[], list[Saved]],
    attempts: int,
    calendars: Mapping[str, Calendar],
) -> None:
    """Process the result of each write, and retry the writes that Redis refused.

    Redis refuses a write, for example, if a beat recorded a run of the entry during the save.
    """
    results = zip(batch, writings, read_results(), strict=True)
    left = [item for item, writing, saved in results if not _accept(item[0], writing, saved)]
    recheck_calendars(store, batch, calendars)
    if left and attempts:
        save_batches(store, [left], attempts - 1)


def recheck_calendars(store: Store, batch: Batch, calendars: Mapping[str, Calendar]) -> None:
    """Make the entries of ``batch`` due now if a calendar changed during the save.

    A beat corrects the score of each due entry. Takes one round trip, two if a calendar changed,
    and none without calendars.
    """
    if calendars and readable_calendars(store, calendars)[0] != calendars:
        make_due(store, [entry for entry, _ in batch if entry.policy_field("exclude")])


def make_due(store: Store, entries: Iterable[RedBeatSchedulerEntry]) -> None:
    """Make entries due at once, so that a beat computes their next runs. One round trip."""
    store.save_all([Writing(entry.key, seen=None, score=None) for entry in entries])


def rescore(store: Store, entries: Sequence[RedBeatSchedulerEntry]) -> None:
    """Compute and store the scores of entries; a quarantined entry leaves the quarantine.

    If the next run of an entry cannot be computed, for example because a calendar is missing, this
    function makes the entry due at once, and a beat quarantines the entry. Raises
    :exc:`ConflictError` if another program changed an entry. Takes as many round trips as
    :func:`save_batches`, and three more per entry if the next run of an entry cannot be computed.
    """
    try:
        scores = [Writing(entry.key, believed=entry.seen_texts) for entry in entries]
        save_batches(store, [list(zip(entries, scores, strict=True))])
    except (RedisError, OSError, ConflictError):
        raise
    except Exception:  # a schedule class of the user may raise any error
        if len(entries) > 1:
            for entry in entries:
                rescore(store, [entry])
        else:
            make_due(store, entries)
