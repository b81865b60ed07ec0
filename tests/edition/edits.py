"""Pause, resume, release, delete, pop, prune and forget entries, as changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery import Celery
from redis.exceptions import ResponseError

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import object_in, string_in
from redbeat.config import key_aside
from redbeat.entries.decide import DISABLED, Trigger
from redbeat.entries.history import Texts
from redbeat.entries.pauses import LONGEST, resumed
from redbeat.entries.save import SAVE_ATTEMPTS
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.storage.reading import batches, not_an_entry
from tests.edition.beat.load import keep_due, state_of
from tests.edition.saving import (
    NOW,
    apply,
    entry_of,
    out_of_trouble,
    pause_of,
    read,
    score_of,
)
from tests.edition.state import NO_RESULTS, Pause, State, read_inbox
from tests.edition.storage.portions import reading
from tests.edition.storage.rows import Change, Look, Reply, Row, digest_of, new_mark
from tests.edition.storage.store import Store
from tests.edition.words import (
    ABSENT,
    CALENDAR_USERS,
    DEFINITION,
    DIFFERS,
    DONE,
    EXPECTED,
    POLICY,
    REFUSED,
    STATE,
    STATICS,
)

#: The side key in which :func:`pop` notes for a minute what it deleted.
POPPED, REMEMBERED = "popped:", "60"

# -- pause, resume and release ---------------------------------------------------------------------


def pause(store: Store, keys: Iterable[str], note: str | None, by: str | None) -> dict[str, Row]:
    """Pause entries, and return what is stored then, by key.

    Missing and unreadable entries are skipped. An entry that is not in the schedule is put there,
    disabled. Raises :exc:`ConflictError` if an entry is changed
    during each attempt. Takes two round trips per 500 keys, and one more for each attempt.
    """
    text = "" if note is None else string_in(str(note), LONGEST)

    def paused(row: Row, now: float) -> Change:
        definition, policy = _texts_of(row, enabled=False)
        state = _out_of_quarantine(row)
        keep_due(row, state)
        state.pause = Pause(float(int(now)), text, by or "")  # as in files
        triggered = any(isinstance(one, Trigger) for one in state.waiting)
        score = state.hold.until if state.hold else NOW if triggered else DISABLED
        change = _edit(row, state, definition, policy)
        change.add = score
        return change

    return _change_all(store, keys, paused)


def resume(store: Store, keys: Iterable[str], app: Celery, entry_class: Any) -> dict[str, Row]:
    """Enable entries, and return what is stored then, by key; see :func:`pause`."""

    def enabled(row: Row, now: float) -> Change | None:
        definition, policy = _texts_of(row, enabled=True)
        state = _out_of_quarantine(row)
        had = (state.pause, state.results.failures, row.definition, row.policy or "")
        if row.score and had == (None, 0, definition, policy):
            return None
        state.pause = None
        results = state.results
        if results != NO_RESULTS:
            state.results = results._replace(failures=0, since=now)
        change = _edit(row, state, definition, policy)
        try:
            texts = row._replace(definition=definition, policy=policy or None)
            entry = entry_of(texts, app, entry_class)
            entry.warn_if_finished()
            change.add = score_of(entry, state, from_timestamp(now))
        except (DecodeError, InvalidEntryError):  # a beat reports the error of an invalid entry
            change.add = NOW
        return change

    return _change_all(store, keys, enabled)


def release(store: Store, keys: Iterable[str]) -> dict[str, Row]:
    """Take entries out of the quarantine and make them due now; see :func:`pause`."""

    def released(row: Row, _now: float) -> Change:
        change = _edit(row, _out_of_quarantine(row), row.definition or "", row.policy or "")
        change.score = NOW
        return change

    return _change_all(store, keys, released)


def make_due(store: Store, keys: Iterable[str]) -> dict[str, Row]:
    """Let a beat look at entries now, for example after an edit of their calendars.

    What has never run keeps the time of its first run; what is in quarantine leaves it. See
    :func:`pause`.
    """

    def due(row: Row, _now: float) -> Change:
        state = state_of(row)
        is_free = state.failing is None and state.quarantine is None
        if not keep_due(row, state) and is_free:
            return Change(row.key, score=NOW)
        state.failing, state.quarantine = None, None
        mark = new_mark()
        state.sign(mark)
        fields, index = {STATE: state.text()}, out_of_trouble(row.key)
        return Change(row.key, mark, digest_of(row), set=fields, score=NOW, index=index)

    return _change_all(store, keys, due)


def pause_entry(store: Store, entry: Any, note: str | None = None, by: str | None = None) -> None:
    """Pause an entry; see :meth:`redbeat.RedBeatSchedulerEntry.pause`. Two round trips."""
    _take_over(entry, pause(store, [entry.writable_key()], note, by))


def resume_entry(store: Store, entry: Any) -> None:
    """Enable an entry; see :meth:`redbeat.RedBeatSchedulerEntry.resume`. Two round trips."""
    _take_over(entry, resume(store, [entry.writable_key()], entry.app, type(entry)))


def _take_over(entry: Any, changed: dict[str, Row]) -> None:
    """Let the entry know what a pause has stored.

    If another program had edited the entry before, a later ``save(if_unchanged=True)`` conflicts.
    """
    row = changed.get(entry.key)
    if row is None:
        raise KeyError(entry.name)
    known, state = entry.saved_state, state_of(row)
    texts = (row.definition or "", row.policy or "")
    if known.texts[0] and resumed(*known.texts) == resumed(*texts):
        known = known._replace(texts=texts)
    entry.saved_state = known._replace(pause=pause_of(state))
    entry.enabled = state.pause is None


def _texts_of(row: Row, *, enabled: bool) -> Texts:
    """Return definition and policy with the entry enabled or not; raises ValueError, TypeError."""
    definition, policy = resumed(row.definition or "", row.policy or "")
    if not enabled:
        definition = json.dumps({**object_in(definition, DEFINITION), "enabled": False})
    return definition, policy


def _out_of_quarantine(row: Row) -> State:
    state = state_of(row)
    state.failing, state.quarantine = None, None
    return state


def _edit(row: Row, state: State, definition: str, policy: str) -> Change:
    """Return the change of an entry to a state, definition and policy, without its score."""
    mark = new_mark()
    state.sign(mark)
    fields = {DEFINITION: definition, STATE: state.text()}
    if policy:
        fields[POLICY] = policy
    unset = () if policy else (POLICY,)
    index = out_of_trouble(row.key)
    return Change(row.key, mark, digest_of(row), set=fields, unset=unset, index=index)


def _change_all(
    store: Store, keys: Iterable[str], change_of: Callable[[Row, float], Change | None]
) -> dict[str, Row]:
    """Change the readable entries, and return what is stored then, by key."""
    done: dict[str, Row] = {}
    for batch in batches(dict.fromkeys(keys)):
        reply = apply(store, reading(batch))
        rows, now = _rows_in(reply), reply.now
        for _ in range(SAVE_ATTEMPTS):
            rows, now = _change_once(store, rows, now, change_of, done)
            if not rows:
                break
        else:
            raise ConflictError(store.keys.name_of(rows[0].key))
    return done


def _change_once(
    store: Store,
    rows: Sequence[Row],
    now: float,
    change_of: Callable[[Row, float], Change | None],
    done: dict[str, Row],
) -> tuple[list[Row], float]:
    """Change entries, and return the rows of those that were changed in between."""
    changes: list[tuple[Row, Change]] = []
    for row in rows:
        try:
            change = change_of(row, now)
        except (ValueError, TypeError):  # the definition or the policy is not a JSON object
            continue
        if change is None:
            done[row.key] = row
        else:
            changes.append((row, change))
    if not changes:
        return [], now
    reply = apply(store, [change for _, change in changes])
    for (row, change), answer in zip(changes, reply.answers, strict=True):
        if answer.word == DONE:
            done[row.key] = _after(row, change)
    return _rows_in(reply), reply.now


def _after(row: Row, change: Change) -> Row:
    """Return a row after a change of its texts."""
    fields, gone = change.set, change.unset
    return row._replace(
        definition=fields.get(DEFINITION, row.definition),
        policy=None if POLICY in gone else fields.get(POLICY, row.policy),
        state=fields.get(STATE, row.state),
    )


def _rows_in(reply: Reply) -> list[Row]:
    """Return the rows of the readable entries that differ from what was expected."""
    rows = [answer.row for answer in reply.answers if answer.row is not None]
    return [row for row in rows if row.definition is not None]


# -- delete ----------------------------------------------------------------------------------------


def delete(store: Store, keys: Iterable[str]) -> int:
    """Delete entries and all that is stored with them; return how many existed.

    One round trip per 500 keys.
    """
    removed = 0
    for batch in batches(keys):
        answers = apply(store, [_deletion(key) for key in batch]).answers
        for answer in answers:
            if answer.word == REFUSED:
                raise InvalidEntryError("name", answer.why)
        removed += sum(answer.word == DONE for answer in answers)
    return removed


def delete_unchanged(store: Store, key: str, texts: Texts) -> bool:
    """Delete an entry if it says what ``texts`` do; return False, and do nothing, if it does not.

    An entry that does not exist is deleted. Takes two round trips, and one more for each run that
    a beat records during the call.
    """
    row = read(store, [key]).get(key)
    while row is not None:
        if (row.definition, row.policy or "") != texts:
            return False
        (answer,) = apply(store, [_deletion(key, row)]).answers
        row = answer.row
    return True


def pop(store: Store, key: str, check: Callable[[Row], object] = lambda row: row) -> Row | None:
    """Delete an entry, and return what was stored; None if another caller was faster, or none is.

    Raises what ``check`` raises for what is stored, and then deletes nothing. Takes two round
    trips, and two more for each change of the entry in between. A note stays for a minute: if the
    reply is lost, the repeated call is told by it that the entry was there.
    """
    row, note = next(iter(read(store, [key]).values()), None), POPPED + new_mark()
    while row is not None:
        if row.problem:
            raise DecodeError("definition", not_an_entry(key))
        check(row)
        change = _deletion(key, row)
        change.index.append(["SET", note, "1", "EX", REMEMBERED])
        (answer,) = apply(store, [change]).answers
        if answer.word == DONE or _is_noted(store.part_of(key), note):
            return row
        row = answer.row
    return None


def _is_noted(store: Store, note: str) -> bool:
    try:
        return bool(store.client.get(key_aside(store.keys.prefix, note)))
    except ResponseError:  # no right to a key aside of the prefix
        return False


def prune(store: Store, names: Iterable[str]) -> None:
    """Delete static entries, and forget that they were static. One round trip per 500 names."""
    for batch in batches(names):
        changes = [_deletion(store.keys.entry(name)) for name in batch]
        for name, change in zip(batch, changes, strict=True):
            change.index.append(["SREM", STATICS, name])
        apply(store, changes)


def forget(store: Store, members: Iterable[str]) -> list[str]:
    """Take members without an entry out of the schedule, and return them.

    One that is an entry by now, or another key, becomes due now, in one more round trip. One round
    trip per 500, and two more for each hash without a definition.
    """
    gone: list[str] = []
    for batch in batches(members):
        rows = [Row(key) for key in batch]
        answers = apply(store, [_removal(row) for row in rows]).answers
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            if answer.word == ABSENT:  # a deleted entry has left something
                (left,) = apply(store, (), Look(only=row.key)).rows
                (answers[number],) = apply(store, [_removal(left)]).answers
        words = [(row.key, answer.word) for row, answer in zip(rows, answers, strict=True)]
        gone += [key for key, word in words if word == DONE]
        there = [Change(key, score=NOW) for key, word in words if word == DIFFERS]
        if there:
            apply(store, there)
    return gone


def _removal(row: Row) -> Change:
    return Change(row.key, expect=digest_of(row), delete=True)


def _deletion(key: str, row: Row | None = None) -> Change:
    """Return the change that deletes an entry, if it is as in ``row``."""
    index = [*out_of_trouble(key), ["ZREM", EXPECTED, key], ["SREM", CALENDAR_USERS, key]]
    change = Change(key, delete=True, index=index)
    if row is not None:
        change.expect = digest_of(row)
        said = read_inbox(row.inbox)
        change.take = said[-1].line if said else ""
    return change
