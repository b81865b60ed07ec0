"""Saves entries, as changes.

An entry remembers the row that it was loaded with or saved as. A save expects that row; if Redis
has another one, the answer brings it along, and the save begins again from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from celery import Celery

from redbeat.calendar.times import plain_datetime
from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.codec.stored import object_in
from redbeat.entries import history
from redbeat.entries.calendars import give_calendars
from redbeat.entries.changes import NOW, after, apply, editing, read, state_of, texts_in
from redbeat.entries.decide import aware, is_overdue, is_own_time, same_instant
from redbeat.entries.history import SavedState, Texts
from redbeat.entries.policy import in_utc
from redbeat.entries.state import NO_RESULTS, State
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.schedules.next_run import asks_itself
from redbeat.storage import words
from redbeat.storage.reading import NOTHING_HAS, batches, not_an_entry
from redbeat.storage.rows import Answer, Change, Look, Row, digest_of
from redbeat.storage.store import Store, store_of

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry

#: The accepted difference between the clocks of two hosts, in seconds.
TOLERANCE: Final = 0.5

#: How often a save is tried of an entry that others change at the same time.
MOST_TRIES: Final = 20


# -- reading ---------------------------------------------------------------------------------------


def load(store: Store, app: Celery, key: str, entry_class: type[Any]) -> Any:
    """Return a stored entry. One round trip.

    Raises KeyError if it does not exist, and :exc:`DecodeError` if it cannot be read.
    """
    row = next(iter(read(store, [key]).values()), None)
    if row is None or (row.problem and not key.startswith(store.keys.prefix)):
        raise KeyError(key)
    return entry_of(row, app, entry_class)


def read_texts(store: Store, key: str) -> Row:
    """Return the row of an entry, without texts if it does not exist. One round trip.

    Raises :exc:`DecodeError` if the key is not a hash.
    """
    row = next(iter(read(store, [key]).values()), Row(key))
    if row.problem:
        raise DecodeError("definition", not_an_entry(key))
    return row


def entry_of(row: Row, app: Celery, entry_class: type[Any]) -> Any:
    """Return the entry of a row that was read; raises :exc:`DecodeError`. No round trip."""
    if row.definition is None:
        raise DecodeError("definition", not_an_entry(row.key))
    entry = entry_class.from_definition(app, row.definition, row.policy or "")
    recall(entry, row)
    return entry


def recall(entry: Any, row: Row) -> None:
    """Load what is stored besides definition and policy; raises :exc:`DecodeError`."""
    state = state_of(row)
    entry.recall(row.meta or "", state.identity)
    if state.at is not None:
        entry.scheduled_at = from_timestamp(state.at)
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
    """Restart a finished entry if its changes allow more runs; return whether the entry restarted.

    ``new`` are the definition and policy to save, ``old`` the stored ones, by default those that
    the entry was loaded with. ``now`` is in UTC. An entry does not restart if the program changed
    its run count. No round trip.
    """
    state = entry.saved_state
    old, count = old or state.texts, state.total_run_count
    if not old[0] or not count or entry.total_run_count != count:
        return False
    known = history.History(entry.last_run_at, count, entry.scheduled_at)
    rewritten = not same_instant(entry.last_run_at, state.last_run_at)
    restarted = history.history_after_save(known, old, new, now, rewritten, entry.foreign_fields)
    if restarted is known:
        return False
    entry.saved_state = state._replace(before_restart=(entry.last_run_at, count))
    entry.last_run_at, entry.total_run_count, entry.scheduled_at = restarted
    return True


def default_last_run(entry: RedBeatSchedulerEntry) -> datetime | None:
    """Return the last run if it is only a default from the clock of this host, else None.

    It is compared with the clock of Redis, because the clock of the host may be ahead.
    """
    last, state = entry.last_run_at, entry.saved_state
    if last is None:
        return None
    if state.before_restart is not None:
        return None if same_instant(state.before_restart[0], last) else aware(last)
    if state.row.definition is not None or _is_moved(entry) or _is_counted(entry):
        return None
    return None if is_own_time(entry.default_now()) else aware(last)


def _is_moved(entry: RedBeatSchedulerEntry) -> bool:
    return not same_instant(entry.last_run_at, entry.saved_state.last_run_at)


def _is_counted(entry: RedBeatSchedulerEntry) -> bool:
    return entry.total_run_count != entry.saved_state.total_run_count


# -- saving ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Save:
    """One entry on its way into Redis.

    Attributes:
        entry: the entry, as users hold it.
        texts: the definition and policy to store, None to store the history alone.
        if_unchanged: whether Redis must have those that the entry was loaded with, or no entry if
            it was not loaded.
        row: what the save expects.
        wins: whether the history of the entry replaces a stored one that it does not know.
        meta: the text to store as ``meta``, None to keep the stored one.
    """

    entry: Any
    texts: Texts | None
    if_unchanged: bool
    row: Row
    wins: bool = False
    meta: str | None = None

    @property
    def old(self) -> Texts:
        """The definition and policy that the save replaces."""
        return self.entry.seen_texts if self.row.definition is None else texts_in(self.row)


def _begin(entry: Any, if_unchanged: bool) -> _Save:
    """Check an entry, and return its save; raises :exc:`InvalidEntryError`."""
    return _Save(entry, entry.checked_texts(), if_unchanged, _row_of(entry))


def _row_of(entry: Any) -> Row:
    """Return the row that an entry was loaded with or saved as; of another key, an absent one.

    Also if it says something else than the entry knows, so that a save with ``if_unchanged`` finds
    the difference.
    """
    row: Row = entry.saved_state.row
    is_same = row.key == entry.key and texts_in(row) == entry.seen_texts
    return row if is_same else Row(entry.key)


def save(store: Store, entries: Iterable[Any], *, if_unchanged: bool = False) -> None:
    """Store entries; see :meth:`redbeat.RedBeatSchedulerEntry.save`.

    One round trip per 500 entries. One more for each try of those of which another row is stored:
    after a run, an edit, or because a new object replaces a stored entry. Two more for a batch
    with calendars. Nothing is written if an entry is invalid. An entry whose key is not a hash is
    an error after the others of its batch were stored, and so is one that others change during
    each of 20 tries.
    """
    _write(store, [_begin(entry, if_unchanged) for entry in entries])


def save_all(store: Store, entries: Iterable[Any]) -> int:
    """Store entries as :func:`save` does, and return how many; of two with one name, the last.

    The message of an :exc:`InvalidEntryError` names the entry.
    """
    saves = dict[str, _Save]()
    for entry in entries:
        try:
            one = _begin(entry, if_unchanged=False)
        except InvalidEntryError as error:
            raise InvalidEntryError(f"{entry.name}: {error.field}", error.problem) from error
        saves[one.row.key] = one
    _write(store, list(saves.values()))
    return len(saves)


def _write(store: Store, saves: Sequence[_Save]) -> None:
    for batch in batches(saves):
        _write_batch(store, batch)


def _write_batch(store: Store, left: Sequence[_Save]) -> None:
    """Store entries; try again what differs from what was expected."""
    problems: list[Exception] = []
    for _ in range(MOST_TRIES):
        version, now = use_calendars(store, [one.entry for one in left]), datetime.now(UTC)
        changes = [_change(one, now, version) for one in left]
        reply = apply(store, changes)
        tried, left = zip(left, changes, reply.answers, strict=True), []
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


def use_calendars(store: Store, entries: Sequence[Any]) -> str | None:
    """Load the calendars of entries, and return their version. Two round trips with calendars."""
    user = next((entry for entry in entries if entry.policy_field("exclude")), None)
    if user is None:
        return None
    # An idle turn would not read the version; this one looks at something.
    version = apply(store, (), Look(only=user.key)).version
    give_calendars(store_of(user.app), entries)
    return version


def static_change(entry: Any, row: Row, texts: Texts, now: datetime, version: str | None) -> Change:
    """Return the change that stores an entry of ``beat_schedule`` over what was read.

    ``now`` is the time of Redis, ``version`` that of the calendars, None if the entry uses none.
    """
    save = _Save(entry.created_at(now), texts, False, row)
    if row.definition is not None:
        _merge(save, row)
    return _change(save, now, version)


def _change(save: _Save, now: datetime, version: str | None) -> Change:
    """Return the change that stores an entry over the row that is expected."""
    entry, row = save.entry, save.row
    if save.texts is None:
        return _history_change(save, now)
    state = _new_state(save, now)
    change = editing(row, state, save.texts, save.meta)
    if entry.policy_field("exclude"):
        change.covers = words.CALENDARS
        change.expect = digest_of(row, words.CALENDARS, version)
    if save.if_unchanged and row.definition is None and entry.seen_texts[0]:
        change.expect = NOTHING_HAS  # the program only knows its definition and policy
    change.add = score_of(entry, state, now)
    if change.add == NOW and save.meta is None and save.texts == texts_in(row):
        since = float(row.score or NOW)
        if 1 <= since <= now.timestamp():
            change.add = since  # an entry that is not edited is as late as it was
    return change


def _new_state(save: _Save, now: datetime) -> State:
    """Return the state to store with an entry; also decides about its history."""
    entry, row, texts = save.entry, save.row, save.texts or ("", "")
    restart_if_finished(entry, texts, now, save.old)
    state, moved = _kept(save), _is_moved(entry)
    is_first = row.definition is None or not (row.meta or entry.last_run_at is None)
    save.meta = entry.history_text() if is_first or moved or _is_counted(entry) else None
    if moved:
        # The owner of a held run still records it, by ``marks.hold``.
        state.at, state.hold = None, None
    elif _counts_anew(save, texts, now):
        state.at = now.timestamp()
        entry.scheduled_at = from_timestamp(state.at)
    if entry.enabled and state.results != NO_RESULTS and _is_disabled(row.definition):
        state.results = state.results._replace(failures=0, since=now.timestamp())
    if entry.policy_field("expect_within") and state.results.since is None:
        state.results = state.results._replace(since=now.timestamp())
    return state


def _counts_anew(save: _Save, texts: Texts, now: datetime) -> bool:
    """Return whether a save that moves the runs of an entry counts them from now on.

    An entry that just ran does not run again because its times are other ones. A run that is
    overdue by the old times is caught up by the new ones.
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


def _kept(save: _Save) -> State:
    """Return what is kept of the stored state."""
    entry, row = save.entry, save.row
    if row.definition is None:
        known = entry.saved_state
        if not (entry.is_static or known.new_identity):
            known = entry.saved_state = known._replace(new_identity=history.new_identity())
        return State(identity=known.new_identity)
    # A static entry has no identity, so that it is the same if Redis loses its data.
    state = State.read(row.state, row.meta) if entry.is_static else state_of(row)
    state.due = None
    if entry.enabled:
        state.pause = None
    return state


def _is_disabled(definition: str | None) -> bool:
    try:
        return object_in(definition or "", words.DEFINITION).get("enabled") is False
    except (ValueError, TypeError):
        return False


def score_of(entry: Any, state: State, now: datetime) -> float:
    """Return when a beat looks at the entry; :data:`NOW` for at once.

    Until a held run may be taken over, only its owner is concerned with the entry; nobody's clock
    is needed to say whether that time has passed.
    """
    score = entry.score_to_store(now)
    if entry.last_run_at is None and state.due is not None and entry.enabled:
        score = state.due
    if state.hold is not None:
        return state.hold.until
    if state.triggers:
        return NOW
    times = [NOW if score is None else float(score)]
    if entry.enabled:
        ready = [one.ready_at for one in state.backfills]
        times = [time for time in times if time >= 0 or not any(ready)]
        times += [time for time in ready if time is not None]
    return min(times)


def _accept(store: Store, save: _Save, change: Change, answer: Answer, now: float) -> bool:
    """Take in the answer to a save; return False if it must be tried again."""
    entry, row = save.entry, answer.row
    if answer.word == words.DONE:
        made_up = None if save.meta is None else default_last_run(entry)
        _note_saved(save, change)
        if made_up is None or made_up.timestamp() <= now + TOLERANCE:
            return True
        entry.last_run_at = from_timestamp(now)
        return False
    is_gone = row is None or row.definition is None
    if save.texts is None and is_gone and answer.word != words.REFUSED:
        return True
    if answer.word == words.REFUSED or (row is not None and row.problem):
        why = answer.why or (row.problem if row else "")
        raise InvalidEntryError("name", not_an_entry(entry.key) if "WRONGTYPE" in why else why)
    _take_in(store, save, row)
    return False


def _take_in(store: Store, save: _Save, row: Row | None) -> None:
    """Let the next try expect what is stored now; raises :exc:`ConflictError`."""
    entry = save.entry
    if save.if_unchanged and save.texts is not None and _is_anothers(save, row):
        raise ConflictError(str(entry.name))
    is_new = not (entry.seen_texts[0] or entry.saved_state.row.definition)
    if row is not None and (save.wins or (is_new and not row.meta)):
        save.row = row  # as for RedBeat 2, a new object's history counts where none is stored
    elif row is not None:
        _merge(save, row)
    elif save.row.definition is not None:  # it was deleted: the next try stores a new entry
        save.row = Row(entry.key)
        entry.saved_state = entry.saved_state._replace(row=save.row)
    else:  # a hash without a definition
        (save.row,) = apply(store, (), Look(only=entry.key)).rows


def _is_anothers(save: _Save, row: Row | None) -> bool:
    """Return whether another program stored what is there, or deleted what the entry knows.

    What a call stored whose reply was lost, and a beat has recorded a run of since, is no other's.
    """
    believed = save.entry.seen_texts
    if row is None:
        return bool(believed[0])
    stored = texts_in(row)
    if stored == believed:
        return False
    own = save.entry.saved_state.new_identity
    return stored != save.texts or not (believed[0] or state_of(row).identity == own)


def _merge(save: _Save, row: Row) -> None:
    """Take over the stored history before the next try, but keep what the program has changed."""
    entry, known = save.entry, save.entry.saved_state
    if known.before_restart is not None:
        entry.last_run_at, entry.total_run_count = known.before_restart
    last, count = entry.last_run_at, entry.total_run_count
    # The history of the entry replaces a stored one that cannot be decoded.
    undecoded = {"last_run_at": last, "total_run_count": -1}
    entry.saved_state = known._replace(before_restart=None, **undecoded)
    save.row = row
    try:
        recall(entry, row)
    except DecodeError:
        return
    if not same_instant(last, known.last_run_at):
        entry.last_run_at = last
    if count != known.total_run_count:
        entry.total_run_count = count


def _note_saved(save: _Save, change: Change) -> None:
    """Let the entry remember what is stored now."""
    entry, known, is_new = save.entry, save.entry.saved_state, not save.old[0]
    if _is_moved(entry):
        entry.scheduled_at = None
    if save.texts is not None and not is_new and (change.add or NOW) < 1:
        entry.warn_if_finished()
    save.row = row = after(save.row, change)
    state = state_of(row)
    past = (entry.last_run_at, entry.total_run_count, state.identity)
    texts = save.texts or known.texts
    entry.saved_state = SavedState(texts, *past, state.pause, row=row)


# -- the history alone -----------------------------------------------------------------------------


def reschedule(store: Store, entry: Any, *, wins: bool = False) -> None:
    """Store the last run and run count that a program has set, and when the entry is due then.

    With ``wins``, they replace a stored history that the entry does not know: that of a run which
    no beat records. Nothing else is stored, and nothing if the entry was deleted. Takes a round
    trip, two if the entry was not loaded, and one more for each change in between.
    """
    entry.writable_key()
    _write(store, [_Save(entry, None, False, _row_of(entry), wins)])


def _history_change(save: _Save, now: datetime) -> Change:
    """Return the change that stores what an entry knows of its last run."""
    entry = save.entry
    restart_if_finished(entry, save.old, now, save.old)
    state, anchor = state_of(save.row), entry.anchor
    state.due, state.hold = None, None
    state.at = anchor.timestamp() if anchor and anchor is entry.scheduled_at else None
    change = editing(save.row, state, meta=entry.history_text())
    if save.row.definition is None:
        change.expect = NOTHING_HAS  # only a stored entry has a history
    change.add = score_of(entry, state, now)
    return change
