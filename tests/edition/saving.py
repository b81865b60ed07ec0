"""Saves entries, as changes.

An entry remembers the row that it was loaded with or saved as. A save expects that row; if Redis
has another one, the answer brings it along, and the save begins again from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from celery import Celery

from redbeat.calendar.zones import UTC, from_timestamp
from redbeat.codec.stored import object_in
from redbeat.config import ensure_conf
from redbeat.entries.backfill import Backfill
from redbeat.entries.calendars import readable_calendars
from redbeat.entries.decide import Trigger, same_instant
from redbeat.entries.history import SavedState, Texts, change_of_timing, new_identity
from redbeat.entries.pauses import Pause as EntryPause
from redbeat.entries.save import SAVE_ATTEMPTS, default_last_run, restart_if_finished
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.storage.client import client_of
from redbeat.storage.reading import batches, not_an_entry
from redbeat.storage.shards import ShardedKeys
from redbeat.storage.store import store_of as second_store_of
from redbeat.storage.store import store_of_shard
from tests.edition.beat.checks import naming_wrong_types
from tests.edition.beat.load import state_of
from tests.edition.state import NO_RESULTS, State, digest_of_meta
from tests.edition.storage.parts import Parts
from tests.edition.storage.portions import NOTHING_HAS, reading
from tests.edition.storage.rows import (
    Answer,
    Change,
    Look,
    Reply,
    Request,
    Row,
    digest_of,
    new_mark,
)
from tests.edition.storage.store import Store
from tests.edition.words import (
    CALENDAR_USERS,
    CALENDARS,
    DEFINITION,
    DONE,
    EXPECTED,
    FAILING,
    HISTORY,
    INBOX,
    META,
    POLICY,
    QUARANTINE,
    REFUSED,
    RESULTS,
    STATE,
    WAITS,
)

#: A score that stands for the time of Redis at the change.
NOW: Final = 0.0

#: The accepted difference between the clocks of two hosts, in seconds.
TOLERANCE: Final = 0.5

#: Where an entry keeps its row, until it has a field for it.
_ROW: Final = "_row"


def store_of(app: Any, client: Any = None) -> Store:
    """Return the store of an app's schedule for programs: it repeats requests like its client.

    ``client`` is that of the app by default.
    """
    client, keys = client or client_of(app), second_store_of(app).keys
    if not isinstance(keys, ShardedKeys):
        return Store(client, keys, repeats=True)
    conf = ensure_conf(app)

    def part(number: int) -> Store:
        return Store(client, store_of_shard(conf, client, number).keys, repeats=True)

    return cast("Store", Parts(client, keys, part))


# -- reading ---------------------------------------------------------------------------------------


def read(store: Store, keys: Sequence[str]) -> dict[str, Row]:
    """Return the rows of the entries that exist. One round trip; pass at most 500 keys."""
    answers = apply(store, reading(keys)).answers
    return {answer.row.key: answer.row for answer in answers if answer.row is not None}


def load(store: Store, app: Celery, key: str, entry_class: type[Any]) -> Any:
    """Return a stored entry. One round trip.

    Raises KeyError if it does not exist, and :exc:`DecodeError` if it cannot be read.
    """
    row = next(iter(read(store, [key]).values()), None)
    if row is None or (row.problem and not row.key.startswith(store.keys.prefix)):
        raise KeyError(key)
    return entry_of(row, app, entry_class)


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
    entry.recall(row.meta or "", "", state.identity)
    if state.at is not None:
        entry.scheduled_at = from_timestamp(state.at)
    entry.timing_change = state.change
    entry.saved_state = entry.saved_state._replace(pause=pause_of(state))
    vars(entry)[_ROW] = row


def pause_of(state: State) -> EntryPause | None:
    """Return the pause as entries have it, None without a pause."""
    if state.pause is None:
        return None
    since, note, by = state.pause
    at = from_timestamp(since).isoformat(timespec="seconds")
    return EntryPause(note or None, at, "", by or None)


def _row_of(entry: Any) -> Row:
    """Return the row that an entry was loaded with or saved as; of another key, an absent one."""
    row: Row | None = vars(entry).get(_ROW)
    return row if row is not None and row.key == entry.key else Row(entry.key)


def apply(store: Store, changes: Sequence[Change], look: Look | None = None) -> Reply:
    """Apply changes, without being a beat. One round trip."""
    with naming_wrong_types(store.client, store.keys):
        return store.turn(Request("program", None, changes, look))


# -- saving ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Save:
    """One entry on its way into Redis.

    Attributes:
        entry: the entry, as users hold it.
        texts: the definition and policy to store.
        believed: those that the entry was loaded with.
        if_unchanged: whether Redis must have these, or no entry if it was not loaded.
        row: what the save expects.
        meta: the text to store as ``meta``, None to keep the stored one.
        made_up: the last run, if it only is a default from the clock of this host.
    """

    entry: Any
    texts: Texts
    believed: Texts
    if_unchanged: bool
    row: Row
    meta: str | None = None
    made_up: datetime | None = None


def save(store: Store, entries: Iterable[Any], *, if_unchanged: bool = False) -> None:
    """Store entries; see :meth:`redbeat.RedBeatSchedulerEntry.save`.

    One round trip per 500 entries. One more for each try of those of which another row is stored:
    after a run, an edit, or because a new object replaces a stored entry. Two more for a batch
    with calendars. Nothing is written if an entry is invalid. An entry whose key is not a hash is
    an error after the others of its batch were stored.
    """
    _write(store, [_begin(entry, if_unchanged) for entry in entries], if_unchanged)


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
    _write(store, list(saves.values()), False)
    return len(saves)


def _write(store: Store, saves: Sequence[_Save], if_unchanged: bool) -> None:
    """Store entries; make the changes of a batch while Redis writes the batch before."""
    finish: Callable[[], None] | None = None
    for batch in batches(saves):
        try:
            changes = _changes(store, batch, insist=False)
        finally:
            if finish is not None:
                finish()
        ahead = len(batch) < len(saves)
        read = store.begin_turn(Request("program", None, changes, ahead=ahead))
        finish = partial(_finish, store, batch, changes, read, if_unchanged)
    if finish is not None:
        finish()


def _finish(
    store: Store,
    batch: Sequence[_Save],
    changes: Sequence[Change],
    read: Callable[[], Reply],
    if_unchanged: bool,
) -> None:
    """Take in what became of a batch; try again what differed."""
    problems: list[Exception] = []
    with naming_wrong_types(store.client, store.keys):
        reply = read()
    left = _accepted(store, batch, changes, reply, problems)
    for attempt in range(SAVE_ATTEMPTS):
        if not left:
            break
        changes = _changes(store, left, insist=attempt == SAVE_ATTEMPTS - 1)
        left = _accepted(store, left, changes, apply(store, changes), problems)
    problems += [ConflictError(str(one.entry.name)) for one in left if if_unchanged]
    if problems:
        raise problems[0]


def reschedule(store: Store, entry: Any) -> None:
    """Store the last run and run count that a program has set, and when the entry is due then.

    Nothing else is stored, and nothing if the entry was deleted. Takes a round trip, two if the
    entry was not loaded, and one more for each change in between.
    """
    _save_history(store, entry, _merge)


def record_run(store: Store, entry: Any) -> None:
    """Store the history of an entry after a run that no beat records; see :func:`reschedule`.

    The history of the entry wins.
    """
    _save_history(store, entry, _expect)


def _save_history(store: Store, entry: Any, take: Callable[[_Save, Row], None]) -> None:
    save = _Save(entry, ("", ""), entry.seen_texts, False, _row_of(entry))
    row = save.row
    if row.definition is None:
        row = read(store, [entry.writable_key()]).get(entry.key, row)
        take(save, row)
    for _ in range(SAVE_ATTEMPTS + 1):
        if row.definition is None:
            return
        change = _history_change(save, datetime.now(UTC))
        (answer,) = apply(store, [change]).answers
        if answer.word == DONE:
            _note_saved(save, change)
            return
        row = answer.row or Row(entry.key)
        take(save, row)
    raise ConflictError(str(entry.name))


def _expect(save: _Save, row: Row) -> None:
    save.row = row


def _history_change(save: _Save, now: datetime) -> Change:
    """Return the change that stores what an entry knows of its last run."""
    entry, row = save.entry, save.row
    restart_if_finished(entry, entry.saved_state.refused_texts or entry.seen_texts, now)
    state, mark, anchor = state_of(row), new_mark(), entry.anchor
    state.due, state.failing, state.quarantine, state.hold = None, None, None, None
    state.at = None
    if anchor is not None and anchor is entry.scheduled_at:
        state.at = anchor.timestamp()
    save.meta, state.change = entry.history_text(), entry.timing_change
    state.meta = digest_of_meta(save.meta)
    state.sign(mark)
    fields = {META: save.meta, STATE: state.text()}
    score, index = score_of(entry, state, now), out_of_trouble(row.key)
    return Change(row.key, mark, digest_of(row), set=fields, add=score, index=index)


def _begin(entry: Any, if_unchanged: bool) -> _Save:
    """Check an entry, and return its save; raises :exc:`InvalidEntryError`."""
    known = entry.saved_state
    entry.saved_state = known._replace(pause=None)  # the pause is in the state, not in the policy
    try:
        writing = entry.writing()
    finally:
        entry.saved_state = known
    texts = (writing.definition, writing.policy)
    return _Save(entry, texts, entry.seen_texts, if_unchanged, _row_of(entry))


def _changes(store: Store, saves: Sequence[_Save], insist: bool) -> list[Change]:
    """Return the changes that store entries; with ``insist``, whatever there is."""
    version, now = _use_calendars(store, [one.entry for one in saves]), datetime.now(UTC)
    return [
        _raw_change(one, now) if insist and not one.if_unchanged else _change(one, now, version)
        for one in saves
    ]


def _accepted(
    store: Store,
    saves: Sequence[_Save],
    changes: Sequence[Change],
    reply: Reply,
    problems: list[Exception],
) -> list[_Save]:
    """Return the saves that must be tried again; add what cannot be stored to ``problems``."""
    left = []
    for one, change, answer in zip(saves, changes, reply.answers, strict=True):
        try:
            if not _accept(store, one, change, answer, reply.now):
                left.append(one)
        except (ConflictError, InvalidEntryError) as problem:
            problems.append(problem)
    return left


def _use_calendars(store: Store, entries: Sequence[Any]) -> str | None:
    """Load the calendars of entries, and return their version. Two round trips with calendars."""
    users = [entry for entry in entries if entry.policy_field("exclude")]
    if not users:
        return None
    # An idle turn would not read the version; this one looks at something.
    version = apply(store, (), Look(only=users[0].key)).version
    names = {name for entry in users for name in entry.policy.exclude}
    calendars, unreadable = readable_calendars(second_store_of(users[0].app), names)
    for entry in users:
        entry.use_calendars(None if unreadable & set(entry.policy.exclude) else calendars)
    return version


def _change(save: _Save, now: datetime, version: str | None) -> Change:
    """Return the change that stores an entry over the row that is expected."""
    entry, row = save.entry, save.row
    state = _new_state(save, now)
    mark, users = new_mark(), bool(entry.policy_field("exclude"))
    state.sign(mark)
    covers = CALENDARS if users else ""
    change = _texts_change(save)
    change.mark, change.covers = mark, covers
    change.expect = digest_of(row, covers, version)
    if save.if_unchanged and save.believed[0] and row.definition is None:
        change.expect = NOTHING_HAS  # the program only knows its definition and policy
    change.set[STATE] = state.text()
    if row.definition is None:  # what an entry of this name has left
        change.unset += (INBOX, HISTORY, RESULTS, WAITS)
    change.add = score_of(entry, state, now)
    if change.add == NOW and save.meta is None and save.texts == _texts_in(row):
        change.add = _still_due(row, now)
    return change


def _still_due(row: Row, now: datetime) -> float:
    """Return since when an entry is due that is not edited, :data:`NOW` if it was not due."""
    score = float(row.score or NOW)
    return score if 1 <= score <= now.timestamp() else NOW


def _texts_in(row: Row) -> Texts:
    return row.definition or "", row.policy or ""


def _raw_change(save: _Save, now: datetime) -> Change:
    """Return the change that stores an entry whatever there is, as RedBeat 2 would.

    Beats keep their state; it tells them that definition and history are no longer those it belongs
    to. So a run that is being published or recorded is neither lost nor doubled. A beat looks at
    the entry at once, and decides when it is due.
    """
    _new_state(save, now)
    change = _texts_change(save)
    change.add = NOW
    return change


def _texts_change(save: _Save) -> Change:
    """Return the change that stores what an entry says, without ``state`` and score."""
    definition, policy = save.texts
    fields = {DEFINITION: definition}
    if policy:
        fields[POLICY] = policy
    if save.meta is not None:
        fields[META] = save.meta
    change = Change(save.row.key, set=fields, unset=() if policy else (POLICY,))
    change.index = out_of_trouble(save.row.key)
    if save.entry.policy_field("exclude"):
        change.index.append(["SADD", CALENDAR_USERS, save.row.key])
    if save.entry.policy_field("expect_within"):
        change.index.append(["ZADD", EXPECTED, "0", save.row.key])
    elif '"expect_within"' in (save.row.policy or ""):
        change.index.append(["ZREM", EXPECTED, save.row.key])
    return change


def out_of_trouble(key: str) -> list[list[str]]:
    """Return the writes that take an entry out of the quarantine and off the failing ones."""
    return [["HDEL", QUARANTINE, key], ["ZREM", FAILING, key]]


def _new_state(save: _Save, now: datetime) -> State:
    """Return the state to store with an entry; also decides about its history."""
    entry, row = save.entry, save.row
    restart_if_finished(entry, save.texts, now)
    known, state = entry.saved_state, _kept(save)
    moved = not same_instant(entry.last_run_at, known.last_run_at)
    counted = entry.total_run_count != known.total_run_count
    if row.definition is None or moved or counted:
        save.meta = entry.history_text()
        state.meta = digest_of_meta(save.meta)
    else:
        save.meta = None
    save.made_up = default_last_run(entry)
    if moved:
        # The owner of a held run still records it, by ``marks.hold``.
        state.at, state.hold = None, None
    old = known.refused_texts or known.texts
    change = change_of_timing(old, save.texts, now, entry.foreign_fields)
    if change is not None:
        entry.timing_change = (entry.timing_change or change)._replace(at=now)
    state.change = entry.timing_change
    _watch(state, entry, row, now.timestamp())
    return state


def _kept(save: _Save) -> State:
    """Return what is kept of the stored state."""
    entry, row = save.entry, save.row
    if row.definition is None:
        known = entry.saved_state
        if not (entry.is_static or known.new_identity):
            known = entry.saved_state = known._replace(new_identity=new_identity())
        return State(identity=known.new_identity)
    state = state_of(row)
    state.due, state.failing, state.quarantine = None, None, None
    if entry.enabled:
        state.pause = None
    return state


def _watch(state: State, entry: Any, row: Row, now: float) -> None:
    """Forget the failures of an entry enabled again; note since when to expect a success."""
    if entry.enabled and state.results != NO_RESULTS and _is_disabled(row.definition):
        state.results = state.results._replace(failures=0, since=now)
    if entry.policy_field("expect_within") and state.results.since is None:
        state.results = state.results._replace(since=now)


def _is_disabled(definition: str | None) -> bool:
    try:
        return object_in(definition or "", DEFINITION).get("enabled") is False
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
    if any(isinstance(one, Trigger) for one in state.waiting):
        return NOW
    times = [NOW if score is None else float(score)]
    if entry.enabled:
        ready = [one.ready_at for one in state.waiting if isinstance(one, Backfill)]
        times = [time for time in times if time >= 0 or not any(ready)]
        times += [time for time in ready if time is not None]
    return min(times)


def _accept(store: Store, save: _Save, change: Change, answer: Answer, now: float) -> bool:
    """Take in the answer to a save; return False if it must be tried again."""
    entry = save.entry
    if answer.word == DONE:
        _note_saved(save, change)
        return not _clock_was_ahead(save, now)
    if answer.word == REFUSED or (answer.row is not None and answer.row.problem):
        why = answer.why or (answer.row.problem if answer.row else "")
        raise InvalidEntryError("name", not_an_entry(entry.key) if "WRONGTYPE" in why else why)
    if answer.row is not None:
        if save.if_unchanged and _is_anothers(save, answer.row):
            raise ConflictError(str(entry.name))
        _merge(save, answer.row)
    elif save.if_unchanged and save.believed[0]:
        raise ConflictError(str(entry.name))
    elif save.row.definition is not None:  # it was deleted: the next try stores a new entry
        entry.saved_state = entry.saved_state._replace(meta=None)
        save.row = Row(entry.key)
    else:  # a hash without a definition
        (save.row,) = apply(store, (), Look(only=entry.key)).rows
    return False


def _is_anothers(save: _Save, row: Row) -> bool:
    """Return whether another program stored what is there.

    What a call stored whose reply was lost, and a beat has recorded a run of since, is no other's.
    """
    stored = _texts_in(row)
    if stored == save.believed:
        return False
    own = save.entry.saved_state.new_identity
    return stored != save.texts or not (save.believed[0] or state_of(row).identity == own)


def _merge(save: _Save, row: Row) -> None:
    """Take over the stored history before the next try, but keep what the program has changed."""
    entry, known = save.entry, save.entry.saved_state
    if known.before_restart is not None:
        entry.last_run_at, entry.total_run_count = known.before_restart
    last, count = entry.last_run_at, entry.total_run_count
    # The history of the entry replaces a stored one that cannot be decoded.
    undecoded = known._replace(meta=row.meta or "", last_run_at=last, total_run_count=-1)
    entry.saved_state = undecoded._replace(refused_texts=_texts_in(row), before_restart=None)
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
    entry, known = save.entry, save.entry.saved_state
    if not same_instant(entry.last_run_at, known.last_run_at):
        entry.scheduled_at = None
    definition, policy = save.texts
    is_new = not (known.refused_texts or known.texts)[0]
    if definition and not is_new and change.add is not None and change.add < 1:
        entry.warn_if_finished()
    meta = save.row.meta if save.meta is None else save.meta
    text = change.set.get(STATE)
    state = State.read(text, meta) if text else state_of(save.row)
    history = (meta or "", entry.last_run_at, entry.total_run_count, state.identity)
    texts = save.texts if definition else known.texts
    entry.saved_state = SavedState(texts, *history, known.has_lazy, pause_of(state))
    save.row = save.row._replace(score="", meta=meta, state=text, inbox=None)
    if definition:
        save.row = save.row._replace(definition=definition, policy=policy or None)
    vars(entry)[_ROW] = save.row


def _clock_was_ahead(save: _Save, now: float) -> bool:
    """Correct a default last run of a clock that is ahead of Redis; return whether it was."""
    made_up, entry = save.made_up, save.entry
    if save.meta is None or made_up is None or made_up.timestamp() <= now + TOLERANCE:
        return False
    entry.last_run_at = from_timestamp(now)
    return True
