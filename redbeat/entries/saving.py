"""Saves entries.

An entry remembers the row that it was loaded with or saved as, and a save expects that row. If
Redis has another one, the answer brings it along, and the save starts over from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from celery import Celery

from redbeat.calendar.zones import UTC, from_timestamp, plain_datetime
from redbeat.entries import changes, history
from redbeat.entries.calendars import give_calendars
from redbeat.entries.decide import aware, is_overdue, is_own_time, same_instant
from redbeat.entries.history import SavedState, Texts
from redbeat.entries.policy import in_utc
from redbeat.entries.state import State
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.schedules.next_run import asks_itself
from redbeat.storage import words
from redbeat.storage.reading import NOTHING_HAS, batches, not_an_entry
from redbeat.storage.rows import Answer, Change, Look, Row
from redbeat.storage.store import Store

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry

#: How much the clocks of two hosts may differ, in seconds.
TOLERANCE: Final = 0.5


# -- reading ---------------------------------------------------------------------------------------


def load(store: Store, app: Celery, key: str, entry_class: type[Any]) -> Any:
    """Raises KeyError, and :exc:`DecodeError` if the entry cannot be read. One round trip."""
    row = read_row(store, key)
    if row.definition is None:
        raise KeyError(key)
    return entry_of(row, app, entry_class)


def read_row(store: Store, key: str) -> Row:
    """Raises :exc:`DecodeError` if the key is not a hash. One round trip."""
    row = changes.read(store, key) or Row(key)
    if row.problem and key.startswith(store.keys.prefix):
        raise DecodeError("definition", not_an_entry(key))
    return row


def entry_of(row: Row, app: Celery, entry_class: type[Any]) -> Any:
    """Raises :exc:`DecodeError`. No round trip."""
    if row.definition is None:
        raise DecodeError("definition", not_an_entry(row.key))
    entry = entry_class.from_definition(app, row.definition, row.policy or "")
    recall(entry, row)
    return entry


def recall(entry: Any, row: Row) -> None:
    """What is stored besides definition and policy; raises :exc:`DecodeError`."""
    state = State.of(row)
    entry.recall(row.meta or "", state.identity)
    if state.at is not None:
        entry.nominal_at = from_timestamp(state.at)
    entry.saved_state = entry.saved_state._replace(pause=state.pause, row=row)


# -- the last run ----------------------------------------------------------------------------------


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


def restart_if_finished(
    entry: RedBeatSchedulerEntry, new: Texts, now: datetime, old: Texts | None = None
) -> bool:
    """Restart a finished entry if its changes allow more runs; return whether they do.

    ``new`` are the definition and policy to save. ``old`` are the stored ones, by default those
    that the entry was loaded with. ``now`` is in UTC. An entry doesn't restart if the program
    changed its run count.
    """
    state = entry.saved_state
    old, count = old or state.texts, state.total_run_count
    if not old[0] or not count or entry.total_run_count != count:
        return False
    known = history.History(entry.last_run_at, count, entry.nominal_at)
    rewritten = not same_instant(entry.last_run_at, state.last_run_at)
    restarted = history.history_after_save(known, old, new, now, rewritten, entry.foreign_fields)
    if restarted is known:
        return False
    entry.last_run_at, entry.total_run_count, entry.nominal_at = restarted
    return True


def is_ahead(entry: RedBeatSchedulerEntry, now: float) -> bool:
    last = entry.last_run_at
    if last is None or aware(last).timestamp() <= now + TOLERANCE:
        return False
    return not is_own_time(entry.default_now())


# -- saving ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Save:
    """One entry on its way into Redis.

    Attributes:
        texts: the definition and policy to store.
        if_unchanged: whether Redis must still have those that the entry was loaded with, or no
            entry if it was not loaded.
        row: what the save expects.
        given: the last run and the run count, if the program has set them.
        meta: the ``meta`` to store, None to keep the stored one.
        state: the state to store, as of the last try.
    """

    entry: Any
    texts: Texts
    if_unchanged: bool
    row: Row
    given: dict[str, Any]
    meta: str | None = None
    state: State = field(default_factory=State)

    @property
    def old(self) -> Texts:
        return self.entry.seen_texts if self.row.definition is None else changes.texts_in(self.row)


def _begin(entry: Any, if_unchanged: bool) -> _Save:
    """Check an entry; raises :exc:`InvalidEntryError`.

    The save expects the row that the entry was loaded with or saved as. If that row has another
    key, or says something else than the entry knows, the save expects an absent one, so that
    ``if_unchanged`` finds the difference.
    """
    texts, row = entry.checked_texts(), entry.saved_state.row
    if row.key != entry.key or changes.texts_in(row) != entry.seen_texts:
        row = Row(entry.key)
    return _Save(entry, texts, if_unchanged, row, _given(entry))


def _given(entry: Any) -> dict[str, Any]:
    given, known = dict[str, Any](), entry.saved_state
    if not same_instant(entry.last_run_at, known.last_run_at):
        given["last_run_at"] = entry.last_run_at
    if entry.total_run_count != known.total_run_count:
        given["total_run_count"] = entry.total_run_count
    return given


def save(store: Store, entries: Iterable[Any], *, if_unchanged: bool = False) -> None:
    """Store entries; see :meth:`redbeat.RedBeatSchedulerEntry.save`.

    One round trip per 500 entries, two if some use calendars; and as many again for each further
    try of those whose stored row was not the expected one: after a run or an edit, or because a new
    object replaces a stored entry.

    Nothing is written if an entry is invalid. An entry whose key is not a hash, or that others
    change during each of 20 tries, raises an error only after the rest of its batch is stored.
    """
    _write(store, [_begin(entry, if_unchanged) for entry in entries])


def save_all(store: Store, entries: Iterable[Any]) -> int:
    """Like :func:`save`, but errors name the entry; of two with one name, the last wins."""
    saves = dict[str, _Save]()
    for entry in entries:
        with naming(entry.name):
            one = _begin(entry, if_unchanged=False)
        saves[one.row.key] = one
    _write(store, list(saves.values()))
    return len(saves)


@contextmanager
def naming(name: Any) -> Iterator[None]:
    try:
        yield
    except InvalidEntryError as error:
        raise InvalidEntryError(f"{name}: {error.field}", error.problem) from error


def _write(store: Store, saves: Sequence[_Save]) -> None:
    for batch in batches(saves, length_of=lambda one: len(one.texts[0])):
        _write_batch(store, batch)


def _write_batch(store: Store, left: Sequence[_Save]) -> None:
    problems: list[Exception] = []
    for _ in range(changes.ATTEMPTS):
        give_calendars(store, [one.entry for one in left])
        now = datetime.now(UTC)
        made = [_change(one, now) for one in left]
        reply = changes.apply(store, made)
        tried, left = zip(left, made, reply.answers, strict=True), []
        for one, change, answer in tried:
            try:
                if not _accept(store, one, change, answer, reply.now):
                    left.append(one)
            except (ConflictError, InvalidEntryError) as problem:
                problems.append(problem)
        if not left:
            break
    problems += [ConflictError(str(one.entry.name)) for one in left]
    if problems:
        raise problems[0]


def static_change(entry: Any, row: Row, texts: Texts, now: datetime) -> Change:
    """Store an entry of ``beat_schedule`` over the row that was read at ``now``, Redis's time."""
    save = _Save(entry.created_at(now), texts, False, row, {})
    if row.definition is not None:
        _merge(save, row)
    return _change(save, now)


def _change(save: _Save, now: datetime) -> Change:
    entry, row = save.entry, save.row
    save.state = state = _new_state(save, now)
    change = changes.editing(row, state, save.texts, save.meta)
    if save.if_unchanged and row.definition is None and entry.seen_texts[0]:
        change.expect = NOTHING_HAS  # the program knows only its definition and policy
    change.add = score_of(entry, state, now)
    if change.add == changes.NOW and save.meta is None and save.texts == changes.texts_in(row):
        since = float(row.score or changes.NOW)
        if 1 <= since <= now.timestamp():
            change.add = since  # an entry that isn't edited stays as late as it was
    return change


def _new_state(save: _Save, now: datetime) -> State:
    """Also decides about the entry's history."""
    entry, row, texts = save.entry, save.row, save.texts
    restart_if_finished(entry, texts, now, save.old)
    state, given = _kept(save, now), _given(entry)
    is_first = row.definition is None or not (row.meta or entry.last_run_at is None)
    save.meta = entry.history_text() if is_first or given else None
    if "last_run_at" in given:
        # The owner of a held run still records it, by ``marks.hold``.
        state.at, state.hold = None, None
    elif _counts_anew(save, texts, now):
        state.at = now.timestamp()
        entry.nominal_at = from_timestamp(state.at)
    if entry.policy_field("expect_within") and state.results.since is None:
        state.results = state.results._replace(since=now.timestamp())
    return state


def _counts_anew(save: _Save, texts: Texts, now: datetime) -> bool:
    """Whether a save that moves the entry's runs counts them from now on.

    An entry that just ran must not run again only because its times have changed. But a run that
    was overdue by the old times is caught up by the new ones.
    """
    entry, anchor = save.entry, save.entry.anchor
    times = history.times_before(save.old, texts, entry.foreign_fields)
    if times is None or anchor is None or asks_itself(entry.schedule):
        return False
    if (entry.occurrence_plan().after(anchor) or now) >= now:
        return False
    before = copy(entry)
    before.timezone, before.start_time = times
    return not is_overdue(before.plan_without_calendars(), anchor, now, entry.total_run_count)


def _kept(save: _Save, now: datetime) -> State:
    entry, row = save.entry, save.row
    if row.definition is None:
        known = entry.saved_state
        if not (entry.is_static or known.new_identity):
            known = entry.saved_state = known._replace(new_identity=history.new_identity())
        return State(identity=known.new_identity)
    # A static entry has no identity, so that it stays the same if Redis loses its data.
    state = State.read(row.state, row.meta) if entry.is_static else State.of(row)
    state.due = None
    if entry.enabled and state.pause is not None:
        changes.end_pause(state, now.timestamp())
    return state


def score_of(entry: Any, state: State, now: datetime) -> float:
    """When a beat looks at the entry next; :data:`NOW` for at once.

    Until a held run may be taken over, only its owner deals with the entry, whatever ``now`` is.
    """
    score = entry.score_to_store(now)
    if entry.last_run_at is None and state.due is not None and entry.enabled:
        score = state.due
    if state.hold is not None:
        return state.hold.until
    if state.triggers:
        return changes.NOW
    times = [changes.NOW if score is None else float(score)]
    if entry.enabled:
        ready = [one.ready_at for one in state.backfills]
        times = [time for time in times if time >= 0 or not any(ready)]
        times += [time for time in ready if time is not None]
    return min(times)


def _accept(store: Store, save: _Save, change: Change, answer: Answer, now: float) -> bool:
    """Take in the answer to a save; return False to try again."""
    entry, row = save.entry, answer.row
    if answer.word == words.DONE:
        _note_saved(save, change)
        if save.meta is None or "last_run_at" in save.given or not is_ahead(entry, now):
            return True
        entry.last_run_at = save.given["last_run_at"] = from_timestamp(now)
        return False
    if answer.word == words.REFUSED or (row is not None and row.problem):
        why = answer.why or (row.problem if row else "")
        raise InvalidEntryError("name", not_an_entry(entry.key) if "WRONGTYPE" in why else why)
    _take_in(store, save, row)
    return False


def _take_in(store: Store, save: _Save, row: Row | None) -> None:
    """Expect what is stored now in the next try; raises :exc:`ConflictError`."""
    entry = save.entry
    if save.if_unchanged and _is_anothers(save, row):
        raise ConflictError(str(entry.name))
    is_new = not (entry.seen_texts[0] or entry.saved_state.row.definition)
    if row is not None and is_new and not row.meta:
        save.row = row  # as for RedBeat 2, a new object's history counts where none is stored
    elif row is not None:
        _merge(save, row)
    elif save.row.definition is not None:  # it was deleted: the next try stores a new entry
        save.row = Row(entry.key)
        entry.saved_state = entry.saved_state._replace(row=save.row)
    else:  # a hash without a definition
        (save.row,) = changes.apply(store, (), Look(only=entry.key)).rows


def _is_anothers(save: _Save, row: Row | None) -> bool:
    """Whether another program stored what is there, or deleted what the entry knows.

    Not if an earlier attempt of this call stored it and its reply was lost, even if a beat has
    recorded a run since.
    """
    believed = save.entry.seen_texts
    if row is None:
        return bool(believed[0])
    stored = changes.texts_in(row)
    if stored == believed:
        return False
    own = save.entry.saved_state.new_identity
    return stored != save.texts or not (believed[0] or State.of(row).identity == own)


def _merge(save: _Save, row: Row) -> None:
    save.row = row
    _take_over(save.entry, row, save.given)


def _take_over(entry: Any, row: Row, given: Mapping[str, Any]) -> None:
    """Take over the stored history, but keep what the program has ``given``."""
    # The entry's history replaces a stored one that cannot be decoded.
    undecoded = {"last_run_at": entry.last_run_at, "total_run_count": -1}
    entry.saved_state = entry.saved_state._replace(**undecoded)
    try:
        recall(entry, row)
    except DecodeError:
        return
    for name, value in given.items():
        setattr(entry, name, value)


def _note_saved(save: _Save, change: Change) -> None:
    entry, is_new = save.entry, not save.old[0]
    if "last_run_at" in _given(entry):
        entry.nominal_at = None
    if not is_new and (change.add or changes.NOW) < 1:
        entry.warn_if_finished()
    save.row = changes.after(save.row, change)
    _remember(entry, save.row, save.state, save.texts)


def _remember(entry: Any, row: Row, state: State, texts: Texts) -> None:
    past = (entry.last_run_at, entry.total_run_count)
    entry.saved_state = SavedState(texts, *past, state.identity, state.pause, row=row)


# -- the history alone -----------------------------------------------------------------------------


def reschedule(store: Store, entry: Any, *, wins: bool = False) -> None:
    """Store the last run and run count that a program has set, and when the entry is due then.

    ``wins`` lets them replace a stored history that the entry doesn't know, for a run that no beat
    records. Nothing else is stored, and nothing at all if the entry was deleted. Two round trips,
    and one more each time the entry changes in between.
    """
    key, given = entry.writable_key(), _given(entry)

    def moved(row: Row, now: float) -> Change | None:
        if row.problem:
            raise InvalidEntryError("name", not_an_entry(key))
        if row.definition is None:
            return None
        at, texts = from_timestamp(now), changes.texts_in(row)
        if not wins:
            _take_over(entry, row, given)
            entry.nominal_at = None
        restart_if_finished(entry, texts, at, texts)
        state, anchor = State.of(row), entry.anchor
        state.due, state.hold = None, None
        state.at = anchor.timestamp() if anchor and anchor is entry.nominal_at else None
        change = changes.editing(row, state, meta=entry.history_text())
        change.add = score_of(entry, state, at)
        return change

    row = changes.change_all(store, [key], moved, new=True).get(key)
    if row is not None and row.definition is not None:
        _remember(entry, row, State.of(row), entry.seen_texts)
